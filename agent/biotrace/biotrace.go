// SPDX-License-Identifier: Apache-2.0

// Package biotrace follows every bio of a block device with eBPF: who submitted it, how
// long it waited, how long it took.
package biotrace

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

//go:generate go tool bpf2go -go-package biotrace -tags linux -target bpfel -type event bio bio.bpf.c -- -O2 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu

// Bio is a bio that has ended.
type Bio struct {
	Time   time.Time     `json:"time"` // of the submit
	PID    uint32        `json:"pid"`
	TID    uint32        `json:"tid"`
	Comm   string        `json:"comm"`
	Device string        `json:"device"`
	Op     string        `json:"op"`
	Flags  string        `json:"flags,omitempty"`
	Sector uint64        `json:"sector"`
	Bytes  uint32        `json:"bytes"`
	Queue  time.Duration `json:"queue_ns"` // from the submit to the issue of its request; 0 if it had none
	Total  time.Duration `json:"total_ns"` // from the submit to the end
	Status uint32        `json:"status"`   // blk_status_t: 0 is success
}

// Lost counts what a trace has not seen.
type Lost struct {
	Events uint64 `json:"events"` // the ring buffer was full
	Bios   uint64 `json:"bios"`   // too many were in flight
}

// Tracer is a running trace.
type Tracer struct {
	objects bioObjects
	links   []link.Link
	reader  *ringbuf.Reader
	boot    time.Time // when CLOCK_MONOTONIC was 0
	names   deviceNames
}

// Device returns the kernel's number of a block device, for New.
func Device(path string) (uint32, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, fmt.Errorf("device %s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, fmt.Errorf("device %s: not a block device", path)
	}
	return unix.Major(stat.Rdev)<<20 | unix.Minor(stat.Rdev), nil
}

// New attaches to the kernel's block tracepoints; dev 0 is every device.
func New(dev uint32) (*Tracer, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift the memory lock limit: %w", err)
	}
	spec, err := loadBio()
	if err != nil {
		return nil, fmt.Errorf("read the trace program: %w", err)
	}
	if err := spec.Variables["only_dev"].Set(dev); err != nil {
		return nil, fmt.Errorf("set the device filter: %w", err)
	}
	t := &Tracer{boot: monotonicZero(), names: deviceNames{}}
	if err := spec.LoadAndAssign(&t.objects, nil); err != nil {
		return nil, explain(err)
	}
	if err := t.attach(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func explain(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("load the trace program: tracing needs root (CAP_BPF and CAP_PERFMON): %w", err)
	}
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		return fmt.Errorf("load the trace program: %+v", verifier)
	}
	return fmt.Errorf("load the trace program (the kernel needs BTF, CONFIG_DEBUG_INFO_BTF): %w", err)
}

func (t *Tracer) attach() error {
	for _, program := range []*ebpf.Program{t.objects.BioQueue, t.objects.RqIssue, t.objects.RqComplete, t.objects.BioComplete} {
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return fmt.Errorf("attach %s: %w", program, err)
		}
		t.links = append(t.links, l)
	}
	var err error
	if t.reader, err = ringbuf.NewReader(t.objects.Events); err != nil {
		return fmt.Errorf("read the events: %w", err)
	}
	return nil
}

// Close detaches.
func (t *Tracer) Close() error {
	var errs []error
	for _, l := range t.links {
		errs = append(errs, l.Close())
	}
	if t.reader != nil {
		errs = append(errs, t.reader.Close())
	}
	return errors.Join(append(errs, t.objects.Close())...)
}

// Run calls f for each bio that ends, until ctx does; what ended before is still seen.
func (t *Tracer) Run(ctx context.Context, f func(Bio) error) error {
	stop := context.AfterFunc(ctx, func() { _ = t.reader.Flush() }) // fails only if it is closed
	defer stop()
	for {
		record, err := t.reader.Read()
		if errors.Is(err, ringbuf.ErrFlushed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		bio, err := t.decode(record.RawSample)
		if err != nil {
			return err
		}
		if err := f(bio); err != nil {
			return err
		}
	}
}

// Lost returns what was not seen so far.
func (t *Tracer) Lost() (Lost, error) {
	var counts [2]uint64
	for i := range counts {
		var perCPU []uint64
		if err := t.objects.Lost.Lookup(uint32(i), &perCPU); err != nil {
			return Lost{}, fmt.Errorf("read the count of lost events: %w", err)
		}
		for _, n := range perCPU {
			counts[i] += n
		}
	}
	return Lost{Events: counts[0], Bios: counts[1]}, nil
}

func (t *Tracer) decode(sample []byte) (Bio, error) {
	var e bioEvent
	if err := binary.Read(bytes.NewReader(sample), binary.NativeEndian, &e); err != nil {
		return Bio{}, fmt.Errorf("event of %d bytes: %w", len(sample), err)
	}
	b := Bio{
		Time: t.boot.Add(time.Duration(e.QueuedNs)),
		PID:  e.Pid, TID: e.Tid, Comm: comm(e.Comm[:]),
		Device: t.names.name(e.Dev), Op: opName(e.Opf), Flags: flagNames(e.Opf),
		Sector: e.Sector, Bytes: e.Bytes,
		Total: time.Duration(e.DoneNs - e.QueuedNs), Status: e.Status,
	}
	if e.IssuedNs != 0 {
		b.Queue = time.Duration(e.IssuedNs - e.QueuedNs)
	}
	return b, nil
}

func comm(c []int8) string {
	b := make([]byte, 0, len(c))
	for _, ch := range c {
		if ch == 0 {
			break
		}
		b = append(b, byte(ch))
	}
	return string(b)
}

func monotonicZero() time.Time {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(now.Nano()))
}

// deviceNames maps numbers to names of /sys/dev/block, which it reads once for each.
type deviceNames map[uint32]string

func (d deviceNames) name(dev uint32) string {
	if name, ok := d[dev]; ok {
		return name
	}
	name := fmt.Sprintf("%d:%d", dev>>20, dev&0xfffff)
	if target, err := os.Readlink("/sys/dev/block/" + name); err == nil {
		name = target[strings.LastIndexByte(target, '/')+1:]
	}
	d[dev] = name
	return name
}
