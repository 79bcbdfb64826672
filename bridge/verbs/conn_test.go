// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// What has arrived before the end of a connection is received, and then why it ended.
func TestReceiveBeforeTheEnd(t *testing.T) {
	c := &Conn{
		config: Config{Receives: 2, MaxMessage: 4}, recv: &memory{data: []byte("abcdefgh")}, lengths: []int{4, 3},
		received: make(chan int, 2), closed: make(chan struct{}), drained: make(chan struct{}), reason: ErrClosed,
	}
	close(c.closed)
	go func() { // as completions does
		c.received <- 1
		c.received <- 0
		close(c.drained)
	}()
	for _, want := range []string{"efg", "abcd", ""} {
		m, err := c.Recv()
		if string(m.Data) != want || (err == nil) != (want != "") {
			t.Errorf("%q, %v, want %q", m.Data, err, want)
		}
	}
}

// A completion is also that of the quiet SENDs before it. One of a quiet SEND that failed is no other's.
func TestCompletionsOfQuietSends(t *testing.T) {
	c := &Conn{freeSends: make(chan int, sendBuffers)}
	c.sendQ = append(c.sendQ, wrID(kindQuiet, 5), wrID(kindQuiet, 6), wrID(kindSend, 7), wrID(kindQuiet, 8), wrID(kindQuiet, 9))
	c.posted = 3 // with two receives
	c.sends.posted(1, time.Now())

	want := func(posted, pending, left int, free ...int) {
		t.Helper()
		if c.posted != posted || c.sends.pending != pending || len(c.sendQ) != left {
			t.Errorf("posted %d, pending %d, left %d; want %d, %d, %d", c.posted, c.sends.pending, len(c.sendQ), posted, pending, left)
		}
		for _, slot := range free {
			if got := <-c.freeSends; got != slot {
				t.Errorf("slot %d is free, want %d", got, slot)
			}
		}
		if len(c.freeSends) > 0 {
			t.Errorf("%d more slots are free", len(c.freeSends))
		}
	}
	c.sent(wrID(kindSend, 7), true)
	want(2, 0, 2, 5, 6, 7)
	c.sent(wrID(kindQuiet, 8), false)
	want(2, 0, 1, 8)
}

// A completion is not that of an RDMA READ before it, which will have its own: siw completes a SEND first.
func TestReadsCompleteAlone(t *testing.T) {
	read := &buffer{slot: 1, done: make(chan bool, 1)}
	c := &Conn{freeSends: make(chan int, sendBuffers), data: bufferPool{bySlot: []*buffer{nil, read}}}
	c.sendQ = append(c.sendQ, wrID(kindQuiet, 5), wrID(kindData, 1), wrID(kindQuiet, 6), wrID(kindSend, 7))
	c.posted = 2
	c.sends.posted(2, time.Now())
	c.sent(wrID(kindSend, 7), true)
	if len(read.done) != 0 || len(c.freeSends) != 3 || c.posted != 1 || c.sends.pending != 1 || len(c.sendQ) != 1 {
		t.Errorf("after the SEND: the READ completed %d times, %d slots are free, %d posted, %d pending, %v left",
			len(read.done), len(c.freeSends), c.posted, c.sends.pending, c.sendQ)
	}
	c.sent(wrID(kindData, 1), true)
	if len(read.done) != 1 || c.posted != 0 || c.sends.pending != 0 || len(c.sendQ) != 0 {
		t.Errorf("after the READ: it completed %d times, %d posted, %d pending, %v left", len(read.done), c.posted, c.sends.pending, c.sendQ)
	}
}

// Over iWARP an RDMA WRITE has a completion of its own, which frees its buffer.
func TestOwnCompletionsOfWrites(t *testing.T) {
	written := &buffer{slot: 1}
	c := &Conn{freeSends: make(chan int, sendBuffers), data: bufferPool{bySlot: []*buffer{nil, written}, idle: make(chan *buffer, 2)}}
	c.sendQ = append(c.sendQ, wrID(kindOwn, 1), wrID(kindSend, 7))
	c.posted = 2
	c.sends.posted(2, time.Now())
	c.sent(wrID(kindOwn, 1), true)
	if len(c.data.idle) != 1 || len(c.freeSends) != 0 || c.posted != 1 || c.sends.pending != 1 {
		t.Errorf("after the WRITE: %d buffers and %d slots are free, %d posted, %d pending", len(c.data.idle), len(c.freeSends), c.posted, c.sends.pending)
	}
	c.sent(wrID(kindSend, 7), true)
	if len(c.data.idle) != 1 || len(c.freeSends) != 1 || c.posted != 0 || len(c.sendQ) != 0 {
		t.Errorf("after the SEND: %d buffers and %d slots are free, %d posted, %v left", len(c.data.idle), len(c.freeSends), c.posted, c.sendQ)
	}
}

// The memory of a connection's messages counts in the budget, beside that of a data buffer. A connection that does not
// fit takes none of it. (One that fitted would need a device.)
func TestMemoryOfMessagesCounts(t *testing.T) {
	const messages, data = 4064 + 4*4096 + sendBuffers*100, 1000
	for limit, want := range map[int64]int64{messages - 1: 0, messages + data - 1: messages} {
		budget := NewBudget(limit)
		c := &Conn{config: Config{Receives: 4, MaxMessage: 100, Head: 32, Buffers: 2, MaxData: data, Budget: budget}}
		if err := c.alloc(); !errors.Is(err, ErrNoMemory) || budget.Used() != want {
			t.Errorf("%d bytes: %v, %d are reserved, want %v, %d", limit, err, budget.Used(), ErrNoMemory, want)
		}
		c.freeMemory()
		if used := budget.Used(); used != 0 {
			t.Errorf("%d bytes: %d are reserved at the end", limit, used)
		}
	}
}

// Messages begin so that what is behind their heads is at the start of a page. They do not overlap.
func TestPlacesOfReceives(t *testing.T) {
	for c, want := range map[Config][]int{
		{MaxMessage: 100}:              {0, 100, 200},
		{MaxMessage: 4096, Head: 32}:   {4064, 8160, 12256},
		{MaxMessage: 4097, Head: 32}:   {4064, 12256, 20448},
		{MaxMessage: 28896, Head: 32}:  {4064, 36832, 69600},
		{MaxMessage: 32768, Head: 100}: {3996, 36764, 69532},
	} {
		for slot, at := range want {
			if got := c.receive(slot); got != at {
				t.Errorf("%+v: receive %d is at %d, want %d", c, slot, got, at)
			}
		}
	}
}

// newLike returns a new value of the type of a pointer, which may be one of C.
func newLike[T any](*T) *T { return new(T) }

// At the end of a connection nobody waits for receives that the executor has kept: they are not posted.
func TestKeptReceivesAreNotAwaited(t *testing.T) {
	e := &executor{}
	e.c = newLike(e.c)
	e.c.posted, e.c.nr_kept = 1, 2
	c := &Conn{closed: make(chan struct{}), posted: 1 + 2}
	c.executor.Store(e)
	close(c.closed)
	if c.idle() {
		t.Error("a SEND of the executor and a receive are not awaited")
	}
	e.c.posted, c.posted = 0, 2
	if !c.idle() {
		t.Error("receives that are kept are awaited")
	}
}

// brokenQueue is a completion queue that cannot be read.
type brokenQueue struct{ syscall.RawConn }

func (brokenQueue) Read(func(uintptr) bool) error { return unix.EIO }

// A connection whose completions cannot be read is closed, and all calls return why.
func TestBrokenCompletionQueue(t *testing.T) {
	for _, polls := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			disconnected := 0
			c := &Conn{
				config: Config{Polls: polls}, disconnect: func() { disconnected++ },
				received: make(chan int), closed: make(chan struct{}), drained: make(chan struct{}),
			}
			c.poller.Store(&poller{raw: brokenQueue{}})
			if !polls {
				go c.completions()
				<-c.drained
				if err := c.err(); !errors.Is(err, unix.EIO) {
					t.Errorf("the reason when no completion will follow: %v", err)
				}
			}
			if _, err := c.Recv(); !errors.Is(err, unix.EIO) {
				t.Errorf("polls %v: Recv: %v", polls, err)
			}
			<-c.drained
			<-c.Done()
			if disconnected != 1 || !c.Ended() {
				t.Errorf("polls %v: disconnected %d times, ended: %v", polls, disconnected, c.Ended())
			}
		})
	}
}
