// SPDX-License-Identifier: Apache-2.0

package acklog

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"krping/agent/disk/rawio"
)

// Load describes workers that write to disjoint parts of a device or file with direct I/O, each one operation
// at a time.
type Load struct {
	Path      string
	Workers   int
	MaxLength int64         // of a write, in bytes; 0 for 256 KiB
	Align     int64         // of offsets and lengths, in bytes; 0 for the device's block size
	FsyncOne  int           // one in FsyncOne operations is an fsync; 0 for none
	ReadOne   int           // one in ReadOne operations reads back; 0 for none
	Limit     time.Duration // an operation that takes longer counts as hung
}

// Stats of a load.
type Stats struct {
	Writes, Reads, Fsyncs int64
	Bytes                 int64         // written
	Slowest               time.Duration // of the operations that ended
}

func (s Stats) String() string {
	return fmt.Sprintf("%d writes (%.1f MiB), %d reads, %d fsyncs, the slowest took %v",
		s.Writes, float64(s.Bytes)/(1<<20), s.Reads, s.Fsyncs, s.Slowest.Round(time.Millisecond))
}

// HungError is an operation that did not end within the limit.
type HungError struct {
	What string
	For  time.Duration
}

func (e *HungError) Error() string {
	return fmt.Sprintf("hung: %s for %v", e.What, e.For.Round(time.Second))
}

// Run is a running load.
type Run struct {
	load    Load
	log     *Log
	device  *rawio.Device
	workers []*worker
	stop    chan struct{}
	stopped sync.Once
	done    chan struct{}
	err     error // when done
}

type worker struct {
	run          *Run
	rnd          *rand.Rand
	offset, size int64
	buf          []byte
	known        []uint64 // number of the last write of this run to each block
	mu           sync.Mutex
	doing        string
	since        time.Time
	stats        Stats
}

// Start starts the workers. They write until Stop or the first error.
func (o Load) Start(log *Log) (*Run, error) {
	device, err := rawio.Open(o.Path, os.O_RDWR, true)
	if err != nil {
		return nil, err
	}
	if o.MaxLength == 0 {
		o.MaxLength = 256 << 10
	}
	if o.Align == 0 {
		o.Align = device.Block
	}
	r := &Run{load: o, log: log, device: device, stop: make(chan struct{}), done: make(chan struct{})}
	size := device.Size / int64(o.Workers) / o.MaxLength * o.MaxLength
	if size == 0 {
		_ = device.Close()
		return nil, fmt.Errorf("%s: %d bytes are too few for %d workers", o.Path, device.Size, o.Workers)
	}
	for i := range o.Workers {
		buf, err := rawio.Buffer(int(o.MaxLength))
		if err != nil {
			_ = device.Close()
			return nil, err
		}
		r.workers = append(r.workers, &worker{
			run: r, offset: int64(i) * size, size: size, buf: buf, known: make([]uint64, size/Block),
			rnd: rand.New(rand.NewPCG(log.seed, uint64(len(log.Writes())+i))), since: time.Now(),
		})
	}
	go r.supervise()
	return r, nil
}

// supervise returns when all workers have ended or one hangs.
func (r *Run) supervise() {
	defer close(r.done)
	ended := make(chan error, len(r.workers))
	for _, w := range r.workers {
		go func() { ended <- w.work() }()
	}
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for left := len(r.workers); left > 0; {
		select {
		case err := <-ended:
			left--
			if err != nil {
				r.err = errors.Join(r.err, err)
				r.halt()
			}
		case <-look.C:
			for _, w := range r.workers {
				if err := w.hung(r.load.Limit); err != nil {
					r.err = errors.Join(r.err, err)
					r.halt()
					return // the worker may still use its buffer and the device
				}
			}
		}
	}
	for _, w := range r.workers {
		rawio.Free(w.buf)
	}
	if err := r.device.Close(); err != nil {
		r.err = errors.Join(r.err, err)
	}
}

func (r *Run) halt() { r.stopped.Do(func() { close(r.stop) }) }

// Done is closed when the load has ended, by Stop or by an error.
func (r *Run) Done() <-chan struct{} { return r.done }

// Ended reports whether the load has ended.
func (r *Run) Ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// Stop waits until each worker has finished its operation and returns the errors since Start. The error is a
// *HungError if an operation does not end.
func (r *Run) Stop() (Stats, error) {
	r.halt()
	<-r.done
	return r.Stats(), r.err
}

// Stats returns what the workers have done so far.
func (r *Run) Stats() Stats {
	var sum Stats
	for _, w := range r.workers {
		w.mu.Lock()
		sum.Writes += w.stats.Writes
		sum.Reads += w.stats.Reads
		sum.Fsyncs += w.stats.Fsyncs
		sum.Bytes += w.stats.Bytes
		sum.Slowest = max(sum.Slowest, w.stats.Slowest)
		w.mu.Unlock()
	}
	return sum
}

func (w *worker) work() error {
	defer w.begin("") // nothing can hang from here on
	for {
		select {
		case <-w.run.stop:
			return nil
		default:
		}
		if err := w.step(); err != nil {
			return err
		}
	}
}

func oneIn(rnd *rand.Rand, n int) bool { return n > 0 && rnd.IntN(n) == 0 }

func (w *worker) step() error {
	switch o := w.run.load; {
	case oneIn(w.rnd, o.FsyncOne):
		return w.fsync()
	case oneIn(w.rnd, o.ReadOne):
		return w.readBack()
	default:
		return w.write()
	}
}

// place chooses a range: small and large ones are about as likely.
func (w *worker) place() (offset, length int64) {
	o := w.run.load
	length = o.MaxLength
	for length > o.Align && w.rnd.IntN(3) > 0 {
		length /= 2
	}
	length = max(o.Align, (1+w.rnd.Int64N(length))/o.Align*o.Align)
	return w.offset + w.rnd.Int64N((w.size-length)/o.Align+1)*o.Align, length
}

func (w *worker) begin(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doing, w.since = fmt.Sprintf(format, args...), time.Now()
}

func (w *worker) end(count func(s *Stats)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Slowest = max(w.stats.Slowest, time.Since(w.since))
	w.doing = ""
	count(&w.stats)
}

func (w *worker) hung(limit time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if took := time.Since(w.since); w.doing != "" && limit > 0 && took > limit {
		return &HungError{What: w.doing, For: took}
	}
	return nil
}

func (w *worker) write() error {
	offset, length := w.place()
	data := w.buf[:length]
	seq, err := w.run.log.begin(offset, length)
	if err != nil {
		return err
	}
	fill(data, w.run.log.seed, seq, offset)
	w.begin("write %d of %d bytes at %d", seq, length, offset)
	if _, err := w.run.device.WriteAt(data, offset); err != nil {
		return fmt.Errorf("write %d of %d bytes at %d: %w", seq, length, offset, err)
	}
	if err := w.run.log.ack(seq); err != nil {
		return err
	}
	for at := offset; at < offset+length; at += Block {
		w.known[(at-w.offset)/Block] = seq
	}
	w.end(func(s *Stats) { s.Writes++; s.Bytes += length })
	return nil
}

func (w *worker) fsync() error {
	flush, err := w.run.log.beginFlush()
	if err != nil {
		return err
	}
	w.begin("fsync")
	if err := w.run.device.Sync(); err != nil {
		return err
	}
	if err := w.run.log.flushed(flush); err != nil {
		return err
	}
	w.end(func(s *Stats) { s.Fsyncs++ })
	return nil
}

// readBack reads and compares what this run has written. No other worker writes there.
func (w *worker) readBack() error {
	offset, length := w.place()
	data := w.buf[:length]
	w.begin("read of %d bytes at %d", length, offset)
	if _, err := w.run.device.ReadAt(data, offset); err != nil {
		return fmt.Errorf("read %d bytes at %d: %w", length, offset, err)
	}
	w.end(func(s *Stats) { s.Reads++ })
	writes := w.known[(offset-w.offset)/Block:]
	for i := int64(0); i < length; i += Block {
		want := writes[i/Block]
		if c := inspect(data[i : i+Block]); want > 0 && !(c.whole && !c.blank && c.seed == w.run.log.seed && c.seq == want && c.offset == offset+i) {
			return fmt.Errorf("the device reads at %d, in %d bytes at %d, not write %d but %+v", offset+i, length, offset, want, c)
		}
	}
	return nil
}
