// SPDX-License-Identifier: Apache-2.0

// Package biotrace follows bios of block devices with eBPF from submission to completion, and measures
// the time of each stage. A Tracer returns each bio, a Meter has histograms that the kernel fills.
package biotrace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"

	"krping/bridge/display"
)

//go:generate go tool bpf2go -go-package biotrace -tags linux -target bpfel -type event -type slot_set -type krping_cmd -type measured -type series_key bio bio.bpf.c -- -O2 -mcpu=v3 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu

// Filter selects the bios to trace; the kernel applies it. The zero value selects all.
type Filter struct {
	Device     *BlockDevice // with its partitions and, if it is a krping disk with a backing, its target
	PID        uint32       // of the submitting process
	Comm       string       // of the submitting thread, as ps and top show it
	Ops        []string     // names that OpNames returns, in any case
	MinBytes   uint32
	MinLatency time.Duration // from submission to completion
}

// Check returns an error if the filter is not valid.
func (f Filter) Check() error {
	for _, op := range f.Ops {
		if _, ok := opNumber(op); !ok {
			return fmt.Errorf("operation %q: must be one of %s", op, strings.Join(OpNames(), ", "))
		}
	}
	return nil
}

const maxComm = 15 // TASK_COMM_LEN - 1

// commOf returns the kernel's name of a thread that tools show by that name: a longer one is cut, and
// what a worker does, which they show after its name, is not part of it.
func commOf(name string) string {
	if strings.HasPrefix(name, "kworker/") && !strings.HasPrefix(name, "kworker/R-") {
		if i := strings.IndexAny(name, "-+"); i > 0 {
			name = name[:i]
		}
	}
	return name[:min(len(name), maxComm)]
}

func (f Filter) variables() map[string]any {
	v := map[string]any{"only_pid": f.PID, "min_bytes": f.MinBytes, "min_ns": uint64(f.MinLatency)}
	var comm [16]int8
	for i, c := range []byte(commOf(f.Comm)) {
		comm[i] = int8(c)
	}
	v["only_comm"] = comm
	var ops uint64
	for _, op := range f.Ops {
		n, _ := opNumber(op)
		ops |= 1 << n
	}
	v["only_ops"] = ops
	if d := f.Device; d != nil {
		v["only_dev"], v["only_disk"] = d.number, d.disk
		var name [32]int8
		for i, c := range []byte(d.hidden) {
			name[i] = int8(c)
		}
		v["only_hidden"] = name
	}
	return v
}

// Lost counts what the trace has missed, by CPU.
type Lost struct {
	Events []uint64 `json:"events"` // bios that ended while the ring buffer was full
	Bios   []uint64 `json:"bios"`   // bios that were not followed, as too many were in flight
	Stages []uint64 `json:"stages"` // bios with only the total known
	Missed uint64   `json:"missed"` // events that came while the CPU ran the trace program for another one
	Unread uint64   `json:"unread"` // bios that were in the ring buffer when the trace ended, and took too long to deliver
}

// Any reports whether anything was lost.
func (l Lost) Any() bool { return l.Total() > 0 }

// Total returns the sum over all causes and CPUs.
func (l Lost) Total() uint64 {
	return sum(l.Events) + sum(l.Bios) + sum(l.Stages) + l.Missed + l.Unread
}

// String lists what was lost, with the CPUs.
func (l Lost) String() string {
	var parts []string
	for _, cause := range []struct {
		name   string
		perCPU []uint64
	}{{"dropped because the ring buffer was full", l.Events}, {"not followed because too many were in flight", l.Bios}, {"of unknown stages", l.Stages}} {
		for cpu, n := range cause.perCPU {
			if n > 0 {
				parts = append(parts, fmt.Sprintf("%s %s on CPU %d", display.Count(n, "bio"), cause.name, cpu))
			}
		}
	}
	if l.Missed > 0 {
		parts = append(parts, fmt.Sprintf("%s missed because the CPU was tracing another one", display.Count(l.Missed, "event")))
	}
	if l.Unread > 0 {
		parts = append(parts, fmt.Sprintf("%s not shown because that took too long at the end", display.Count(l.Unread, "bio")))
	}
	return strings.Join(parts, ", ")
}

func sum(perCPU []uint64) (n uint64) {
	for _, count := range perCPU {
		n += count
	}
	return n
}

// probe is the loaded program.
type probe struct {
	objects bioObjects
	links   []link.Link
	module  []link.Link // to the module's events
}

// load loads the program with the given values of its variables and sizes of its maps.
func load(variables map[string]any, sizes map[string]uint32) (*probe, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raise the limit of locked memory: %w", err)
	}
	spec, err := loadBio()
	if err != nil {
		return nil, fmt.Errorf("read the trace program: %w", err)
	}
	for name, value := range variables {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s of the trace program: %w", name, err)
		}
	}
	for name, size := range sizes {
		spec.Maps[name].MaxEntries = size
	}
	p := &probe{}
	if err := spec.LoadAndAssign(&p.objects, nil); err != nil {
		return nil, explain(err)
	}
	return p, nil
}

// explain adds the likely cause to an error of loading the program. The verifier also rejects with
// EACCES; its error, which has a log, is not wrapped, so that callers do not take it for a lack of
// privileges.
func explain(err error) error {
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) && len(verifier.Log) > 0 {
		return fmt.Errorf("load the trace program: this kernel's verifier rejects it: %v", verifier) // prints the log's last lines
	}
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("load the trace program: tracing needs root (CAP_BPF and CAP_PERFMON): %w", err)
	}
	return fmt.Errorf("load the trace program: the kernel must have BTF (CONFIG_DEBUG_INFO_BTF): %w", err)
}

// attach starts tracing the bios that are submitted from now on, unless it has already. It attaches to
// completions before submissions, so that no bio stays in the map because its end was missed.
func (p *probe) attach() error {
	if len(p.links) > 0 {
		return nil
	}
	if err := p.attachAll(); err != nil {
		return errors.Join(err, p.detach())
	}
	return nil
}

func (p *probe) attachAll() error {
	o := &p.objects
	for _, program := range []*ebpf.Program{o.BioComplete, o.RqComplete, o.RqRequeue, o.RqIssue, o.BioRemap} {
		if err := p.trace(program); err != nil {
			return err
		}
	}
	if err := p.attachModule(); err != nil {
		return err
	}
	return p.trace(o.BioQueue)
}

func (p *probe) trace(program *ebpf.Program) error {
	l, err := link.AttachTracing(link.TracingOptions{Program: program})
	if err != nil {
		return fmt.Errorf("attach %s: %w", program, err)
	}
	p.links = append(p.links, l)
	return nil
}

// detach stops tracing, and forgets the bios in flight, whose ends it misses.
func (p *probe) detach() error {
	var errs []error
	for _, l := range p.links {
		errs = append(errs, l.Close())
	}
	p.links = nil
	return errors.Join(append(errs, p.detachModule(), p.forgetBios())...)
}

// sets calls a function for each set of slots. Some system calls read all: one for each would take thousands.
func (p *probe) sets(do func(index uint32, set *bioSlotSet)) error {
	var (
		cursor  ebpf.MapBatchCursor
		indexes = make([]uint32, 512)
		sets    = make([]bioSlotSet, len(indexes))
	)
	for {
		n, err := p.objects.Bios.BatchLookup(&cursor, indexes, sets, nil)
		for i := range n {
			do(indexes[i], &sets[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) { // that was the last one
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *probe) forgetBios() error {
	var used []uint32
	err := p.sets(func(index uint32, set *bioSlotSet) {
		for _, slot := range set.Slots {
			if slot.Bio != 0 {
				used = append(used, index)
				break
			}
		}
	})
	for _, key := range used {
		err = errors.Join(err, p.objects.Bios.Put(key, bioSlotSet{}))
	}
	if err != nil {
		return fmt.Errorf("forget the bios in flight: %w", err)
	}
	return nil
}

func (p *probe) close() error {
	var errs []error
	for _, l := range slices.Concat(p.links, p.module) {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, p.objects.Close())...)
}

// Indexes of the counts: enum count of bio.bpf.c.
const (
	lostEvents = iota
	lostBios
	lostStages
	ended
)

func (p *probe) count(what uint32) ([]uint64, error) {
	var perCPU []uint64
	if err := p.objects.Counts.Lookup(what, &perCPU); err != nil {
		return nil, fmt.Errorf("read the counts of the trace program: %w", err)
	}
	return perCPU, nil
}

func (p *probe) lost() (l Lost, err error) {
	for what, counts := range map[uint32]*[]uint64{lostEvents: &l.Events, lostBios: &l.Bios, lostStages: &l.Stages} {
		if *counts, err = p.count(what); err != nil {
			return Lost{}, err
		}
	}
	o := &p.objects
	for _, program := range []*ebpf.Program{o.BioQueue, o.BioRemap, o.BioComplete, o.RqIssue, o.RqRequeue, o.RqComplete, o.CmdPost, o.CmdDone} {
		stats, err := program.Stats()
		if err != nil {
			return Lost{}, fmt.Errorf("read what the trace program has missed: %w", err)
		}
		l.Missed += stats.RecursionMisses
	}
	return l, nil
}

// Tracer is a running trace.
type Tracer struct {
	probe  *probe
	counts func() (Lost, uint64, error) // what was lost, and how many bios have ended
	reader reader
	unread uint64
	lost   Lost   // when Run was told to end
	ended  uint64 // when Run was told to end
	decoder
}

// reader is a ringbuf.Reader. ReadInto returns os.ErrDeadlineExceeded only when the ring is empty.
type reader interface {
	SetDeadline(time.Time)
	ReadInto(*ringbuf.Record) error
	AvailableBytes() int
	Close() error
}

// New attaches to the tracepoints of the kernel's block layer and, if it is loaded, of the
// module. The module cannot be unloaded until Close.
func New(f Filter) (*Tracer, error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	p, err := load(f.variables(), nil)
	if err != nil {
		return nil, err
	}
	t := &Tracer{probe: p, decoder: newDecoder(p.objects.Hidden)}
	t.counts = func() (Lost, uint64, error) {
		lost, err := p.lost()
		perCPU, err2 := p.count(ended)
		return lost, sum(perCPU), errors.Join(err, err2)
	}
	if t.reader, err = ringbuf.NewReader(p.objects.Events); err != nil {
		return nil, errors.Join(fmt.Errorf("read the events: %w", err), p.close())
	}
	if err := p.attach(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Close detaches from the tracepoints.
func (t *Tracer) Close() error { return errors.Join(t.reader.Close(), t.probe.close()) }

// The program wakes the reader only if many events are waiting, so the reader polls: often if there
// are so few bios that a person may be reading along, else rarely, as each poll costs CPU time.
const (
	pollOften  = 100 * time.Millisecond
	pollRarely = 500 * time.Millisecond
	fewBios    = 50 // between two polls
)

// A bio in the ring buffer is a record with this header, 8 bytes of it, rounded up to 8 bytes.
const (
	recordHeader = 8
	recordAlign  = 8
)

// drainTime is how long Run still delivers bios after its context has ended.
const drainTime = 2 * time.Second

// lookEvery is the number of bios after which Run looks whether ctx has ended. The kernel may add bios
// faster than each takes them, so that the ring buffer is never empty.
const lookEvery = 256

// Run calls each for every bio that ends, and caughtUp several times a second, when all available bios
// have been delivered, or after some of them. It returns the first error of either, or nil after ctx
// ends; bios that ended before ctx are still delivered, unless that takes longer than drainTime: then
// the others count as lost. The bio is valid until each returns.
func (t *Tracer) Run(ctx context.Context, each func(*Bio) error, caughtUp func() error) error {
	defer context.AfterFunc(ctx, func() { t.reader.SetDeadline(time.Now()) })()
	wait := pollOften
	for ctx.Err() == nil {
		t.reader.SetDeadline(time.Now().Add(wait))
		n, err := t.read(lookEvery, math.MaxInt, each)
		if err == nil {
			err = caughtUp()
		}
		if err != nil {
			return err
		}
		wait = pollRarely
		if 0 < n && n <= fewBios {
			wait = pollOften
		}
	}
	t.reader.SetDeadline(time.Now())
	var err error
	if t.lost, t.ended, err = t.counts(); err != nil { // what comes from now on is not looked at
		return err
	}
	ends := time.Now().Add(drainTime)
	drain := func(b *Bio) error {
		if time.Now().After(ends) {
			t.unread++
			return nil
		}
		return each(b)
	}
	if _, err := t.read(math.MaxInt, t.reader.AvailableBytes(), drain); err != nil {
		return err
	}
	return caughtUp()
}

// read delivers bios until there are none before the deadline, or most, or until they took so many bytes
// of the ring buffer. It returns how many.
func (t *Tracer) read(most, bytes int, each func(*Bio) error) (n int, err error) {
	var record ringbuf.Record
	for n < most && bytes > 0 {
		err := t.reader.ReadInto(&record)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return n, fmt.Errorf("read an event: %w", err)
		}
		e, err := toEvent(record.RawSample)
		if err != nil {
			return n, err
		}
		if err := each(t.bio(e)); err != nil {
			return n, err
		}
		n++
		bytes -= recordHeader + (len(record.RawSample)+recordAlign-1)/recordAlign*recordAlign
	}
	return n, nil
}

// Lost returns what has been missed until Run was told to end.
func (t *Tracer) Lost() Lost {
	l := t.lost
	l.Unread = t.unread
	return l
}

// Ended returns the number of bios that had ended when Run was told to end, including those below
// MinLatency.
func (t *Tracer) Ended() uint64 { return t.ended }

// InFlight returns the bios that have not ended, the oldest first. Their Total is the time since
// submission; their stages are not known.
func (t *Tracer) InFlight() ([]Bio, error) {
	var bios []Bio
	now := monotonic()
	err := t.probe.sets(func(_ uint32, set *bioSlotSet) {
		for _, slot := range set.Slots {
			e := slot.Tracked.Event
			if slot.Bio != 0 && e.QueuedNs < now {
				e.DoneNs = now
				bios = append(bios, *t.bio(&e))
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read the bios in flight: %w", err)
	}
	slices.SortFunc(bios, func(a, b Bio) int { return a.Time.Compare(b.Time) })
	return bios, nil
}
