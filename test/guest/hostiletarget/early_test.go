// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostiletarget

import (
	"fmt"
	"os"
	"testing"

	"krping/bridge/wire"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// early is a target that has no receives left and answers two writes whose messages are posted but cannot be sent. It
// knows their tags and keys from the writes before them.
type early struct {
	t           *testing.T
	g           *faketarget.Target
	dev         *os.File
	reads       int // whose messages the target takes, so that no receive is left
	ended       chan error
	outstanding int
}

const unsentWrites = 2

func (e *early) depth() int { return e.reads + unsentWrites }

func (e *early) begin(t *testing.T, io func([]byte, int64) (int, error), size, at int) {
	buf := random(t, size)
	e.outstanding++
	go func() {
		_, err := io(buf, int64(at))
		e.ended <- err
	}()
}

func (e *early) end(t *testing.T) {
	t.Helper()
	for ; e.outstanding > 0; e.outstanding-- {
		if err := guest.Within(t, 2*ioTime, "I/O ends", e.ended); err != nil {
			t.Error(err)
		}
	}
}

func (e *early) waitForInflight(t *testing.T, n int) {
	t.Helper()
	guest.Eventually(t, ioTime, fmt.Sprintf("%d commands are in flight", n), func() bool { return counter(t, "inflight") == n })
}

const generation = 1 << 12 // of a tag; below it is the slot

// learn returns the last write of each slot.
func (e *early) learn(t *testing.T) map[uint16]wire.Request {
	t.Helper()
	last := map[uint16]wire.Request{}
	done := e.g.Misbehave(faketarget.Misbehaviour{Op: wire.OpWrite, N: large, Do: func(c *faketarget.Conn, r wire.Request) bool {
		last[r.Tag%generation] = r
		if len(last) < e.depth() {
			return false
		}
		for _, r := range last {
			c.Answer(r)
		}
		return true
	}})
	for i := range e.depth() {
		e.begin(t, e.dev.WriteAt, large, i*large)
	}
	guest.Within(t, ioTime, "every slot has been used", done)
	e.end(t)
	return last
}

func rxeCounter(t *testing.T, name string) int {
	return guest.Number(t, "/sys/class/infiniband/rxe0/ports/1/hw_counters/"+name)
}

// answer takes the reads, so that no receive is left, waits until the messages of both writes are posted, and answers
// these. It returns the reads, and how to post the receives of all but the last again. False: the connection has ended.
func (e *early) answer(c *faketarget.Conn, first wire.Request, last map[uint16]wire.Request, starved chan<- bool) (taken []wire.Request, releases []func() error, ok bool) {
	taken = []wire.Request{first}
	for len(taken) < e.reads {
		commands, release, err := c.Hold()
		if err != nil {
			e.g.Errorf("the connection ended: %v", err)
			return nil, nil, false
		}
		taken, releases = append(taken, commands...), append(releases, release)
	}
	for _, r := range taken {
		delete(last, r.Tag%generation)
	}
	before := rxeCounter(e.t, "out_of_seq_request")
	starved <- true
	for rxeCounter(e.t, "out_of_seq_request") == before && !c.Ended() { // the second one's message is behind the refused first
	}
	for _, r := range last {
		answer := wire.Response{Tag: r.Tag + generation, Length: r.Length}
		_ = c.Send(answer.Append(nil, nil), r.Rkey&^0xff|(r.Rkey+1)&0xff)
	}
	return taken, releases, true
}

// starve begins the reads, and when they have taken all receives the writes.
func (e *early) starve(t *testing.T, starved <-chan bool) {
	t.Helper()
	for i := range e.reads {
		e.begin(t, e.dev.ReadAt, small, 0)
		e.waitForInflight(t, i+1)
	}
	guest.Within(t, ioTime, "the target has no receives left", starved)
	for i := range unsentWrites {
		e.begin(t, e.dev.WriteAt, large, i*large)
	}
}

// try says whether the two writes were answered in time: before Soft-RoCE repeated their messages. A Soft-RoCE of 6.1
// does not get further if it repeats the registration of memory that is registered.
func (e *early) try(t *testing.T) (inTime bool) {
	last := e.learn(t)
	starved, returned := make(chan bool, 1), make(chan bool, 1)
	defer close(returned)
	done := e.g.Misbehave(faketarget.Misbehaviour{Op: wire.OpRead, N: small, Do: func(c *faketarget.Conn, first wire.Request) bool {
		refused := rxeCounter(t, "send_rnr_err")
		taken, releases, ok := e.answer(c, first, last, starved)
		if !ok {
			return true
		}
		for i, release := range releases {
			_ = release()
			c.Answer(taken[i])
		}
		c.Answer(taken[len(releases)])
		if rxeCounter(t, "send_rnr_err") > refused+1 {
			c.Close()
			return true
		}
		var unsent []wire.Request
		for len(unsent) < unsentWrites {
			commands, release, err := c.Hold()
			if err != nil {
				return true
			}
			_ = release()
			unsent = append(unsent, commands...)
		}
		inTime = true
		if <-returned {
			if _, err := c.Get(faketarget.Remote(unsent[unsentWrites-1]), large); err == nil {
				e.g.Errorf("the target could read the memory of a write that had returned")
			}
		}
		return true
	}})
	e.starve(t, starved)
	e.end(t)
	returned <- true
	guest.Within(t, ioTime, "the target is done", done)
	return inTime
}

// lose says whether the writes were not sent again, after they were answered and the connection lost.
func (e *early) lose(t *testing.T) bool {
	last := e.learn(t)
	starved, retries := make(chan bool, 1), counter(t, "retries")
	done := e.g.Misbehave(faketarget.Misbehaviour{Op: wire.OpRead, N: small, Do: func(c *faketarget.Conn, first wire.Request) bool {
		if _, _, ok := e.answer(c, first, last, starved); ok {
			c.Close()
		}
		return true
	}})
	e.starve(t, starved)
	guest.Within(t, ioTime, "the target is done", done)
	e.end(t)
	retries = counter(t, "retries") - retries
	t.Logf("%d commands were sent again, %d of them reads that were not answered", retries, e.reads)
	return retries == e.reads
}

// startEarly starts the target and attaches to it.
func startEarly(t *testing.T) *early {
	t.Helper()
	guest.CheckResources(t)
	e := &early{t: t, g: faketarget.Start(t, ""), reads: 1 + faketarget.Receives(faketarget.Welcome)}
	e.ended = make(chan error, e.depth())
	e.g.Grant(granting(func(w *wire.Welcome) { w.Depth = uint16(e.depth()) }))
	e.dev = guest.OpenDirect(t, guest.Attach(t, e.g.Port, fmt.Sprintf(",queues=1,depth=%d,heartbeat=20", e.depth())))
	t.Cleanup(func() {
		_ = e.dev.Close()
		stopInTime(t, "")
		isGone(t)
	})
	return e
}

// Soft-RoCE registers the memory of the second write again when it repeats the first one's message. The writes end only
// when their messages have been sent, and then the target cannot read their memory.
func TestAnswersBeforeTheSendCompletes(t *testing.T) {
	needs.Test(t, needs.RoCE) // iWARP completes a SEND that found no receive
	e := startEarly(t)
	tries := 1
	for !e.try(t) {
		if tries++; tries > 10 {
			t.Fatal("the writes were never answered in time")
		}
	}
	t.Logf("%d tries", tries)
	if n := counter(t, "errors"); n != 0 {
		t.Errorf("%d errors, want 0", n)
	}
}

// Such writes are complete, too, if their messages are never sent: the queue pair that could register their memory is
// gone. Before, they were sent again.
func TestAnswersBeforeALoss(t *testing.T) {
	needs.Test(t, needs.RoCE) // iWARP completes a SEND that found no receive
	e := startEarly(t)
	for tries := 1; !e.lose(t); tries++ {
		if tries == 5 { // the answers may come after Soft-RoCE has given up
			t.Fatal("the writes were sent again each time")
		}
	}
	if n := counter(t, "errors"); n != 0 {
		t.Errorf("%d errors, want 0", n)
	}
}
