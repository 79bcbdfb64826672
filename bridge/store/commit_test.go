// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A signal of the Go runtime that interrupts a call is no failure of the store.
func TestInterruptedCallIsRepeated(t *testing.T) {
	s, calls := open(t, newFile(t, 1<<20), Options{}), 0
	interrupted := func() error {
		if calls++; calls < 3 {
			return unix.EINTR
		}
		return unix.EIO
	}
	fdatasync, fallocate := sysFdatasync, sysFallocate
	defer func() { sysFdatasync, sysFallocate = fdatasync, fallocate }()
	want := func(what string, err error) {
		t.Helper()
		if err != unix.EIO || calls != 3 {
			t.Errorf("%s: %v after %d calls, want the error of the third", what, err, calls)
		}
		calls = 0
	}
	sysFdatasync = func(int) error { return interrupted() }
	want("fdatasync", s.Flush())
	sysFdatasync, sysFallocate = fdatasync, func(int, uint32, int64, int64) error { return interrupted() }
	want("fallocate", s.Discard(0, 4096))
}

// slowDisk is a disk whose syncs take a second of a test's own time, one at a time.
type slowDisk struct {
	t       *testing.T
	commits *commits
	syncs   int
	full    bool // the last sync was a full one
	fails   int  // which sync fails, 0 for none
	running bool
}

func newSlowDisk(t *testing.T, fails int) *slowDisk {
	d := &slowDisk{t: t, fails: fails}
	d.commits = &commits{sync: func(full bool) error {
		if d.running {
			t.Error("two syncs at a time")
		}
		d.running = true
		d.syncs++
		d.full = full
		time.Sleep(time.Second)
		d.running = false
		if d.syncs == d.fails {
			return unix.EIO
		}
		return nil
	}}
	return d
}

// after starts a change at a time after now that takes as long as given and then ends with an error.
func (d *slowDisk) after(begin, takes time.Duration, err error) *pending {
	p := &pending{t: d.t, ended: make(chan struct{})}
	go func() {
		time.Sleep(begin)
		p.err = d.commits.change(false, func() error {
			time.Sleep(takes)
			return err
		})
		close(p.ended)
	}()
	return p
}

// pending is a change that has been started.
type pending struct {
	t     *testing.T
	ended chan struct{}
	err   error
}

func (p *pending) wants(what string, want error) {
	p.t.Helper()
	<-p.ended
	if !errors.Is(p.err, want) {
		p.t.Errorf("%s: %v, want %v", what, p.err, want)
	}
}

// wantsAt also checks when, in the time since start, it has ended.
func (p *pending) wantsAt(start time.Time, at time.Duration, what string, want error) {
	p.t.Helper()
	p.wants(what, want)
	if took := time.Since(start); took != at {
		p.t.Errorf("%s: answered after %v, want %v", what, took, at)
	}
}

// A change that is alone has one sync, at once.
func TestLoneChangeHasOneSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSlowDisk(t, 0)
		for i := range 3 {
			start := time.Now()
			d.after(0, 0, nil).wantsAt(start, time.Second, "a change alone", nil)
			if d.syncs != i+1 || d.full {
				t.Errorf("%d syncs, full %v, want %d", d.syncs, d.full, i+1)
			}
		}
	})
}

// What ends while a sync runs shares the next one.
func TestChangesShareASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSlowDisk(t, 0)
		var changes sync.WaitGroup
		for i := range 100 {
			changes.Go(func() {
				for range 10 {
					if err := d.commits.change(i == 0, func() error { return nil }); err != nil {
						t.Error(err)
					}
				}
			})
		}
		start := time.Now()
		changes.Wait()
		// The first change has a sync of its own, so two groups take turns.
		if took := time.Since(start); d.syncs > 20 || took > 20*time.Second {
			t.Errorf("1000 changes of 100 at a time: %d syncs, want at most 20, in %v", d.syncs, took)
		}
	})
}

// A change waits for a sync that begins after it: one that runs already may have passed its pages.
func TestChangeWaitsForALaterSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSlowDisk(t, 0)
		start := time.Now()
		first := d.after(0, 0, nil)
		second := d.after(500*time.Millisecond, 0, nil)
		first.wantsAt(start, time.Second, "the first change", nil)
		second.wantsAt(start, 2*time.Second, "a change while a sync ran", nil)
	})
}

// A failed sync fails all changes that began before it ended, and whose pages it may have met, and no other.
func TestFailedSyncFailsAllThatItMet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		d := newSlowDisk(t, 2)
		before := d.after(0, 0, nil)
		before.wants("a change before", nil)

		start := time.Now()
		own := d.after(0, 0, nil)                  // waits for the sync that fails, from 0 to 1 s
		ended := d.after(100*ms, 0, nil)           // ends while it runs
		runs := d.after(200*ms, 1500*ms, nil)      // ends after it, while the next one runs
		refused := d.after(300*ms, 0, unix.ENOSPC) // keeps its own error
		later := d.after(1100*ms, 0, nil)          // begins after the failure
		latest := d.after(2100*ms, 1000*ms, nil)   // the same, when all that failed have been answered but one
		own.wantsAt(start, 1000*ms, "a change that waits for the sync", unix.EIO)
		ended.wantsAt(start, 2000*ms, "a change that ended during the sync", unix.EIO)
		refused.wantsAt(start, 2000*ms, "a change that failed itself", unix.ENOSPC)
		runs.wantsAt(start, 3000*ms, "a change that ended after the sync", unix.EIO)
		later.wantsAt(start, 3000*ms, "a change after the sync", nil)
		latest.wants("a change later", nil)
	})
}

// A change is not failed by a sync that begins after the one it waits for.
func TestChangeIsStableAfterItsSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSlowDisk(t, 2)
		first := d.after(0, 0, nil)
		second := d.after(500*time.Millisecond, 0, nil)
		second.wants("a change whose sync fails", unix.EIO)
		first.wants("a change whose sync was the one before", nil)
	})
}

// A change that failed may have left pages that cannot be written. They must not fail a later change.
func TestFailedChangeIsAnsweredAfterASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSlowDisk(t, 1)
		start := time.Now()
		d.after(0, 0, unix.ENOSPC).wantsAt(start, time.Second, "a change that fails", unix.ENOSPC)
		d.after(0, 0, nil).wants("a later change", nil)
	})
}

// A sync is full if one of those who wait for it needs that.
func TestFullSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSlowDisk(t, 0)
		var changes sync.WaitGroup
		for i, full := range []bool{false, false, true, false} {
			changes.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond) // the first has a sync of its own
				if err := d.commits.change(full, func() error { return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		changes.Wait()
		if !d.full || d.syncs != 2 {
			t.Errorf("%d syncs, the last was full: %v", d.syncs, d.full)
		}
	})
}

// pageCache does what the kernel's does with a file whose blocks fail at times: it writes back on its own,
// reports the error of a page to one sync only, and takes the page for clean.
type pageCache struct {
	mu     sync.Mutex
	dirty  map[int]int // page: value
	stored map[int]int
	bad    func(page int) bool
	failed bool // what the next sync reports
}

func (p *pageCache) write(page, value int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dirty[page] = value
}

func (p *pageCache) writeBack(page int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	value, found := p.dirty[page]
	if !found {
		return
	}
	delete(p.dirty, page)
	if p.bad(page) {
		p.failed = true
		return
	}
	p.stored[page] = value
}

func (p *pageCache) sync(bool) error {
	p.mu.Lock()
	var pages []int
	for page := range p.dirty {
		pages = append(pages, page)
	}
	p.mu.Unlock()
	for _, page := range pages {
		pause()
		p.writeBack(page)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed {
		p.failed = false
		return unix.EIO
	}
	return nil
}

func (p *pageCache) has(page int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stored[page]
}

func pause() { time.Sleep(time.Duration(rand.IntN(100)) * time.Microsecond) }

// Whatever happens in which order: what was answered OK is stored, and when nobody writes to bad pages any
// more, no write fails.
func TestNoWriteIsLostBesideFailingOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const writers, pages, rounds = 16, 4, 300
		p := &pageCache{dirty: map[int]int{}, stored: map[int]int{}}
		p.bad = func(page int) bool { return page/pages%8 == 0 && rand.IntN(4) == 0 } // of writers 0 and 8
		c := &commits{sync: p.sync}
		var done atomic.Bool
		var kernel sync.WaitGroup
		kernel.Go(func() { // writes back on its own
			for !done.Load() {
				pause()
				p.writeBack(rand.IntN(writers * pages))
			}
		})
		var failed, stored atomic.Int64
		write := func(writer, value int) error {
			first := writer * pages
			err := c.change(false, func() error {
				for page := range pages {
					p.write(first+page, value)
					pause()
				}
				return nil
			})
			if err != nil {
				failed.Add(1)
				return err
			}
			for page := range pages {
				if got := p.has(first + page); got != value {
					t.Errorf("writer %d: page %d has %d, but %d was answered OK", writer, page, got, value)
				}
			}
			stored.Add(1)
			return nil
		}
		var all sync.WaitGroup
		for writer := range writers {
			all.Go(func() {
				for i := range rounds {
					_ = write(writer, i+1)
					time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
				}
			})
		}
		all.Wait()
		for writer := range writers {
			if writer%8 == 0 {
				continue
			}
			if err := write(writer, rounds+1); err != nil {
				t.Errorf("writer %d, when no other one writes: %v", writer, err)
			}
		}
		done.Store(true)
		kernel.Wait()
		if failed.Load() < rounds/2 || stored.Load() < rounds/2 {
			t.Errorf("%d writes failed, %d were stored: too few of one", failed.Load(), stored.Load())
		}
	})
}

// countingStore opens a store whose syncs are counted, and fail with an error if there is one.
func countingStore(t *testing.T, o Options) (s *file, syncs *int, fail *error) {
	t.Helper()
	opened, err := Open("file:"+newFile(t, 1<<20), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	s, syncs, fail = opened.(*file), new(int), new(error)
	s.commits.sync = func(full bool) error {
		*syncs++
		return *fail
	}
	return s, syncs, fail
}

// Which calls of a store return when all is stable, and how often they fail after a sync has failed.
func TestCallsThatSync(t *testing.T) {
	for _, tc := range []struct {
		name   string
		do     func(s Store) error
		atOnce bool // also with writeback
	}{
		{name: "write", do: func(s Store) error { _, err := s.WriteAt(make([]byte, 4096), 0); return err }},
		{name: "discard", do: func(s Store) error { return s.Discard(0, 4096) }},
		{name: "zero", do: func(s Store) error { return s.Zero(0, 4096, false) }},
		{name: "zero and keep", do: func(s Store) error { return s.Zero(100, 65536, true) }},
		{name: "flush", do: Store.Flush, atOnce: true},
		{name: "identity", do: Store.SaveIdentity, atOnce: true},
		{name: "writer", do: func(s Store) error { return s.SaveWriter([16]byte{1}) }, atOnce: true},
	} {
		for _, writeback := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, writeback %v", tc.name, writeback), func(t *testing.T) {
				s, syncs, fail := countingStore(t, Options{Writeback: writeback})
				want := 0
				if tc.atOnce || !writeback {
					want = 1
				}
				*fail = unix.EIO
				if err := tc.do(s); errors.Is(err, unix.EIO) != (want == 1) || *syncs != want {
					t.Errorf("%v after %d syncs, want %d, and the error of one", err, *syncs, want)
				}
				*fail = nil
				// With writeback, what was lost had been answered.
				if err := tc.do(s); (err != nil) != (writeback && want == 1) {
					t.Errorf("after a sync that failed: %v", err)
				}
			})
		}
	}
}

// Writes of a store at a time share syncs, also while others do something else.
func TestWritesShareSyncs(t *testing.T) {
	s, syncs, _ := countingStore(t, Options{})
	real, begun := syncOf(s.File), make(chan struct{})
	const writers = 64
	var waiting atomic.Int64
	s.commits.sync = func(full bool) error {
		if *syncs++; *syncs == 1 {
			close(begun)
			for waiting.Load() < writers { // the first sync ends when all have written
				time.Sleep(time.Millisecond)
			}
			time.Sleep(10 * time.Millisecond)
		}
		return real(full)
	}
	var all sync.WaitGroup
	all.Go(func() {
		if err := s.Flush(); err != nil {
			t.Error(err)
		}
	})
	<-begun
	for i := range writers {
		all.Go(func() {
			waiting.Add(1)
			if _, err := s.WriteAt(bytes.Repeat([]byte{byte(i)}, 4096), int64(i)*4096); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if *syncs > 5 { // 2, unless a writer is late
		t.Errorf("%d syncs for %d writes", *syncs, writers)
	}
	got := make([]byte, 4096*writers)
	if _, err := s.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	for i := range writers {
		if !bytes.Equal(got[i*4096:][:4096], bytes.Repeat([]byte{byte(i)}, 4096)) {
			t.Errorf("block %d is not what was written", i)
		}
	}
}

// BenchmarkWrite writes 4 KiB to random blocks of a file, as many writes at a time as the name says, each of
// which returns when it is stable. TMPDIR says on which file system.
func BenchmarkWrite(b *testing.B) {
	const blocks = 4096
	for _, depth := range []int{1, 32} {
		b.Run(fmt.Sprintf("depth=%d", depth), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "a.img")
			if _, err := Create(b.Context(), New{Path: path, Size: blocks * 4096, Preallocate: true}); err != nil {
				b.Fatal(err)
			}
			s, err := Open("file:"+path, Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			var syncs atomic.Int64
			f := s.(*file)
			real := f.commits.sync
			f.commits.sync = func(full bool) error { syncs.Add(1); return real(full) }
			if _, err := s.WriteAt(make([]byte, blocks*4096), 0); err != nil {
				b.Fatal(err)
			}
			syncs.Store(0)
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			var all sync.WaitGroup
			for range depth {
				all.Go(func() {
					data := make([]byte, 4096)
					for left.Add(-1) >= 0 {
						if _, err := s.WriteAt(data, rand.Int64N(blocks)*4096); err != nil {
							b.Error(err)
						}
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(syncs.Load())/float64(b.N), "syncs/op")
		})
	}
}
