// SPDX-License-Identifier: Apache-2.0

package store

import "sync"

// commits makes changes of a file stable. All changes that wait share one sync, and one sync runs at a
// time: a change waits for the first one that begins after the change has ended, and what ends while it
// runs waits for the next one. A change that is alone calls sync itself.
//
// A sync reports that a page could not be written back, but not which. The kernel tells each open file
// description once, by the next sync of it (errseq_t, the kernel's Documentation/core-api/errseq.rst),
// and takes the page for clean. So a change fails if a sync has failed that ended after the change began,
// up to and including the sync that the change waits for. For that, all changes and syncs use one
// description.
//
// A change that is lost does not succeed. Its pages are written back after it began, by the sync that it waits
// for, by an earlier one, or by the kernel on its own, and that sync waits for the write-back to end.
// The kernel notes an error before that end, so one of the syncs until then reports it: the first that
// looks after the error was noted, thus one that ends after the change began. The same is true of an
// error that only a sync has, such as that of the flush of a disk's cache.
//
// No change fails for one that was answered before it began. A change is answered, even if it failed
// itself and left half of its pages dirty, or an earlier sync failed, when a sync that began after it has
// ended. Then its pages are clean, and all their errors have been reported. (A sync that gives up before
// it has written all pages leaves errors to the next one. File systems give up for an error of their
// metadata, not of data.)
type commits struct {
	sync func(full bool) error // full: including all attributes of the file

	mu       sync.Mutex // protects all below
	last     *commit    // began last
	next     *commit    // has not begun; changes that have ended join it
	failures int        // of all syncs that have ended
	err      error      // of the last one that failed
}

// commit is one sync.
type commit struct {
	full     bool          // protected by mu, not changed once it has begun
	ended    chan struct{} // closed when both below are set
	failures int           // of all syncs when this one had ended
	err      error         // of the last of those
}

// change carries out a change of the file, and returns when that is stable.
func (c *commits) change(full bool, do func() error) error {
	c.mu.Lock()
	before := c.failures
	c.mu.Unlock()
	err := do()
	if lost := c.wait(full, before); err == nil {
		err = lost
	}
	return err
}

// wait waits for a sync that begins now or later. It returns an error if by then a sync has failed after
// the first failures.
func (c *commits) wait(full bool, failures int) error {
	c.mu.Lock()
	s, previous := c.next, c.last
	first := s == nil
	if first {
		s = &commit{ended: make(chan struct{})}
		c.next = s
	}
	s.full = s.full || full
	c.mu.Unlock()

	if !first {
		<-s.ended
	} else {
		if previous != nil {
			<-previous.ended
		}
		c.run(s)
	}
	if s.failures > failures {
		return s.err
	}
	return nil
}

// run carries out the next sync. No other one runs.
func (c *commits) run(s *commit) {
	c.mu.Lock()
	c.last, c.next = s, nil
	c.mu.Unlock()
	err := c.sync(s.full)
	c.mu.Lock()
	if err != nil {
		c.failures++
		c.err = err
	}
	s.failures, s.err = c.failures, c.err
	c.mu.Unlock()
	close(s.ended)
}
