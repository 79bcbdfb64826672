// SPDX-License-Identifier: Apache-2.0

package biotrace

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

func sampleEvent() bioEvent {
	e := bioEvent{
		QueuedNs: 1000, IssuedNs: 3000, PostedNs: 3500, AnsweredNs: 10000, DoneNs: 11000, Sector: 2048, Bytes: 4096, Dev: 259 << 20, Cgroup: 7,
		Opf: 1 | 1<<11 | 1<<17, Pid: 10, Tid: 11, Status: 10, Session: 1, Crc: 0xabcd, Queue: 2, Tag: 0x1003, Requeues: 1, Parts: 2, Merged: 1,
	}
	for i, c := range "write_data" {
		e.Comm[i] = int8(c)
	}
	return e
}

func decode(t *testing.T, e bioEvent) Bio {
	t.Helper()
	var sample bytes.Buffer
	if err := binary.Write(&sample, binary.NativeEndian, e); err != nil {
		t.Fatal(err)
	}
	if _, err := toEvent(sample.Bytes()[:20]); err == nil {
		t.Error("a truncated event was accepted")
	}
	event, err := toEvent(sample.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	d := newTestDecoder()
	return *d.bio(event)
}

func newTestDecoder() decoder {
	return decoder{
		zero: time.Unix(100, 0), devices: &deviceNames{known: map[uint32]string{259 << 20: "krping0"}},
		cgroups: &cgroupNames{known: map[uint64]string{7: "/a"}},
		comms:   map[[16]int8]string{}, ops: map[uint32]opNames{},
	}
}

func TestDecode(t *testing.T) {
	want := Bio{
		Time: time.Unix(100, 1000), PID: 10, TID: 11, Comm: "write_data", CGroup: "/a", Device: "krping0", Op: "WRITE", Flags: "SYNC|FUA",
		Sector: 2048, Bytes: 4096, Queue: 2000, Send: 500, Peer: 6500, Finish: 1000, Total: 10000, Status: 10,
		HWQueue: 2, Tag: 0x1003, Session: 1, CRC: 0xabcd, Requeues: 1, Parts: 2, Merged: true,
	}
	if got := decode(t, sampleEvent()); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestStages(t *testing.T) {
	krping := decode(t, sampleEvent())
	e := sampleEvent()
	e.PostedNs, e.AnsweredNs = 0, 0
	disk := decode(t, e)
	e.IssuedNs = 0
	stacked := decode(t, e)
	for _, c := range []struct {
		name    string
		bio     Bio
		want    []time.Duration // queue, send, peer, finish, device, total
		slowest Stage
	}{
		{"krping", krping, []time.Duration{2000, 500, 6500, 1000, 8000, 10000}, StagePeer},
		{"another disk", disk, []time.Duration{2000, 0, 0, 0, 8000, 10000}, StageDevice},
		{"without requests", stacked, []time.Duration{0, 0, 0, 0, 0, 10000}, StageTotal},
	} {
		for _, s := range Stages() {
			if got := c.bio.Stage(s); got != c.want[s] {
				t.Errorf("%s: %v is %v, want %v", c.name, s, got, c.want[s])
			}
		}
		if got := c.bio.Slowest(); got != c.slowest {
			t.Errorf("%s: slowest is %v, want %v", c.name, got, c.slowest)
		}
	}
}

func TestOpNames(t *testing.T) {
	for _, c := range []struct {
		opf, bytes uint32
		want       string
	}{
		{0, 512, "READ"}, {1, 512, "WRITE"}, {2, 0, "FLUSH"}, {3, 512, "DISCARD"}, {9, 512, "WRITE_ZEROES"}, {77, 0, "OP77"},
		{1 | 1<<18, 512, "WRITE"}, {1 | 1<<18, 0, "FLUSH"},
	} {
		if got := opName(c.opf, c.bytes); got != c.want {
			t.Errorf("%#x of %d bytes: %s, want %s", c.opf, c.bytes, got, c.want)
		}
	}
}

func TestFilter(t *testing.T) {
	for _, f := range []Filter{{Ops: []string{"READ", "ERASE"}}} {
		if f.Check() == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
	v := Filter{Ops: []string{"read", "WRITE_ZEROES"}, MinLatency: time.Millisecond}.variables()
	if v["only_ops"] != uint64(1|1<<9) || v["min_ns"] != uint64(1e6) {
		t.Errorf("variables: %v", v)
	}
	spec, err := loadBio()
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range (Filter{Device: &BlockDevice{hidden: "krping0target"}}).variables() {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Names are those that ps and top show: longer than the kernel's, with spaces and slashes, with what a worker
// does.
func TestComm(t *testing.T) {
	for name, want := range map[string]string{
		"fio": "fio", "tmux: server": "tmux: server", "systemd-journald": "systemd-journal", "kworker/u8:3-events_unbound": "kworker/u8:3",
		"kworker/0:1H+kblockd": "kworker/0:1H", "kworker/R-mlx5_": "kworker/R-mlx5_", "jbd2/sda1-8": "jbd2/sda1-8", "": "",
	} {
		got := Filter{Comm: name}.variables()["only_comm"].([16]int8)
		if text(got[:]) != want {
			t.Errorf("%q: the filter is %q, want %q", name, text(got[:]), want)
		}
	}
}

// The stages that a disk's bios have.
func TestStagesOfDisks(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string][]Stage{
		"krping0": commandStages, "vda/mq": requestStages, "nvme0n1": requestStages, "dm-0": {StageTotal}, "md127": {StageTotal}, "dm-1/mq": requestStages,
	} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		disk, _, _ := strings.Cut(name, "/")
		if got := stagesOf(filepath.Join(dir, disk)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestLost(t *testing.T) {
	if l := (Lost{Events: []uint64{0, 0}}); l.Any() || l.String() != "" {
		t.Errorf("nothing was lost, but String is %q", l)
	}
	l := Lost{Events: []uint64{0, 3}, Bios: []uint64{1, 0}, Missed: 2}
	if want := "3 bios dropped because the ring buffer was full on CPU 1, 1 bio not followed because too many were in flight on CPU 0, 2 events missed because the CPU was tracing another one"; l.String() != want || l.Total() != 6 {
		t.Errorf("%q, total %d", l, l.Total())
	}
}

const format = `name: krping_cmd_post
ID: 1500
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;
	field:int common_pid;	offset:4;	size:4;	signed:1;

	field:u64 sector;	offset:8;	size:8;	signed:0;
	field:u32 session;	offset:16;	size:4;	signed:0;
	field:u32 dev;	offset:20;	size:4;	signed:0;
	field:u32 bytes;	offset:24;	size:4;	signed:0;
	field:u32 crc;	offset:28;	size:4;	signed:0;
	field:int status;	offset:32;	size:4;	signed:1;
	field:u16 queue;	offset:36;	size:2;	signed:0;
	field:u16 tag;	offset:38;	size:2;	signed:0;
	field:u8 op;	offset:40;	size:1;	signed:0;
	field:u8 flags;	offset:41;	size:1;	signed:0;

print fmt: "session=%u dev=%u:%u", REC->session
`

func TestFormat(t *testing.T) {
	if err := checkFormat(format); err != nil {
		t.Error(err)
	}
	// PREEMPT_RT of 6.1 has one more common field, and padding.
	rt := regexp.MustCompile(`(\tfield:u.*|\tfield:int s.*)offset:(\d+)`).ReplaceAllStringFunc(format, func(line string) string {
		text, offset, _ := strings.Cut(line, "offset:")
		n, err := strconv.Atoi(offset)
		if err != nil || strings.Contains(text, "common") {
			return line
		}
		return fmt.Sprintf("%soffset:%d", text, n+8)
	})
	if !strings.Contains(rt, "sector;\toffset:16") {
		t.Fatal(rt)
	}
	if err := checkFormat(rt); err != nil {
		t.Error(err)
	}
	for _, change := range [][2]string{{"offset:38", "offset:40"}, {"field:u16 tag", "field:u16 wire_tag"}, {"offset:20;	size:4", "offset:20;	size:8"}} {
		if checkFormat(string(bytes.Replace([]byte(format), []byte(change[0]), []byte(change[1]), 1))) == nil {
			t.Errorf("a format with %s was accepted", change[1])
		}
	}
}

func TestHistogram(t *testing.T) {
	// Bucket 0 ends at 1 s, 8 at 2 s, -8 at 500 ms.
	h := Histogram{Count: 100, Buckets: map[int]uint64{-8: 50, 0: 49, 8: 1}}
	for q, want := range map[float64]time.Duration{0: time.Second / 2, 0.5: time.Second / 2, 0.51: time.Second, 0.99: time.Second, 1: 2 * time.Second} {
		if got := h.Quantile(q); math.Abs(float64(got-want)) > 1e3 {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	d := h.Sub(Histogram{Count: 60, Buckets: map[int]uint64{-8: 50, 0: 10}})
	if d.Count != 40 || len(d.Buckets) != 2 || d.Buckets[0] != 39 {
		t.Errorf("difference: %+v", d)
	}
	if (Histogram{}).Quantile(0.5) != 0 {
		t.Error("an empty histogram has a median")
	}
}

func TestCGroupName(t *testing.T) {
	mount := t.TempDir()
	dir := filepath.Join(mount, "system.slice", "a.service")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	inode := func(path string) uint64 {
		var stat unix.Stat_t
		if err := unix.Stat(path, &stat); err != nil {
			t.Fatal(err)
		}
		return stat.Ino
	}
	names := newCGroupNames(mount)
	for id, want := range map[uint64]string{inode(dir): "/system.slice/a.service", inode(mount): "/", 1 << 60: "1152921504606846976"} {
		if got := names.name(id); got != want {
			t.Errorf("cgroup %d is %q, want %q", id, got, want)
		}
	}
}

// The verifier rejects with EACCES, which is not a lack of privileges.
func TestExplainLoadError(t *testing.T) {
	verifier := &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"R1 invalid mem access"}}
	for _, tc := range []struct {
		err    error
		denied bool
		want   string
	}{
		{fmt.Errorf("program bio_queue: %w", verifier), false, "verifier"},
		{fmt.Errorf("program bio_queue: %w", unix.EPERM), true, "root"},
		{unix.EOPNOTSUPP, false, "BTF"},
	} {
		got := explain(tc.err)
		if errors.Is(got, os.ErrPermission) != tc.denied || !strings.Contains(got.Error(), tc.want) {
			t.Errorf("%v: %v, want %q, denied %t", tc.err, got, tc.want, tc.denied)
		}
	}
}

// endless is a ring buffer that the kernel fills faster than it is read.
type endless struct {
	record    []byte
	read      int
	available int
}

func (*endless) SetDeadline(time.Time) {}
func (*endless) Close() error          { return nil }
func (e *endless) AvailableBytes() int { return e.available }

func (e *endless) ReadInto(r *ringbuf.Record) error {
	e.read++
	r.RawSample = e.record
	return nil
}

// A trace whose reader is slower than the kernel ends, too: after what was there when it was to end, and
// not much later.
func TestSlowReaderEnds(t *testing.T) {
	e := sampleEvent()
	record := unsafe.Slice((*byte)(unsafe.Pointer(&e)), unsafe.Sizeof(e))
	size := recordHeader + (len(record)+7)/8*8
	for _, tc := range []struct {
		inRing, delivered, unread int
		perBio                    time.Duration
	}{
		{1000, 1000, 0, time.Millisecond},
		{5000, 2001, 2999, time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			ring := &endless{record: record, available: tc.inRing * size}
			tracer := &Tracer{reader: ring, decoder: newTestDecoder()}
			tracer.counts = func() (Lost, uint64, error) {
				// What is lost after the end does not make the trace incomplete.
				return Lost{Events: []uint64{uint64(time.Since(start) / (4 * time.Second))}}, uint64(time.Since(start)), nil
			}
			late, flushed := 0, 0
			err := tracer.Run(ctx, func(*Bio) error {
				if time.Since(start) > 3*time.Second+lookEvery*tc.perBio {
					late++
				}
				time.Sleep(tc.perBio)
				return nil
			}, func() error { flushed++; return nil })
			if took := time.Since(start); err != nil || took > 6*time.Second {
				t.Errorf("ended after %v: %v", took, err)
			}
			if lost := tracer.Lost(); sum(lost.Events) != 0 || tracer.Ended() > uint64(3300*time.Millisecond) {
				t.Errorf("%v, %v: counted after the end", lost, time.Duration(tracer.Ended()))
			}
			if tracer.unread != uint64(tc.unread) || late > tc.delivered {
				t.Errorf("%d bios were not read, want %d; %d were delivered late", tc.unread, tracer.unread, late)
			}
			if flushed < 10 {
				t.Errorf("flushed %d times in 3 s", flushed)
			}
		})
	}
}
