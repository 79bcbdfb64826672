// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostiletarget

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/wire"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
)

// A target takes messages, and answers none. The client sends one fewer than it has promised. The other commands gather in
// the last one, which it sends when another is answered. At first it had receives for fewer answers. The message has no
// room for the data of more than three WRITEs.
func TestFewMessages(t *testing.T) {
	for _, op := range []wire.Op{wire.OpRead, wire.OpWrite} {
		t.Run(op.String(), func(t *testing.T) { fewMessages(t, op) })
	}
}

const manyCommands = 128 // the depth of the queues here

// message is one that a silent target has received.
type message struct {
	c        *faketarget.Conn
	commands []wire.Request
}

// startSilent starts a target that, once hold is set, answers no command from the first one of op on, until it hangs up.
func startSilent(t *testing.T, op wire.Op, hold *atomic.Bool) (*faketarget.Target, <-chan message) {
	arrived := make(chan message, manyCommands)
	g := faketarget.Start(t, "")
	g.Grant(granting(func(w *wire.Welcome) { w.Depth = manyCommands }))
	g.Misbehave(faketarget.Misbehaviour{Op: op, AnySize: true, Do: func(c *faketarget.Conn, r wire.Request) bool {
		if !hold.Load() {
			c.Answer(r)
			return false
		}
		arrived <- message{c, []wire.Request{r}}
		for {
			commands, release, err := c.Hold()
			if err != nil || release() != nil {
				return true
			}
			arrived <- message{c, commands}
		}
	}})
	return g, arrived
}

func fewMessages(t *testing.T, op wire.Op) {
	guest.CheckResources(t)
	const depth, waiting = manyCommands, 24
	var hold atomic.Bool
	g, arrived := startSilent(t, op, &hold)
	dev := guest.OpenDirect(t, guest.Attach(t, g.Port, fmt.Sprintf(",queues=1,depth=%d,heartbeat=0", depth)))
	t.Cleanup(func() {
		_ = dev.Close()
		stopInTime(t, "")
		isGone(t)
	})
	hold.Store(true)
	ended := make(chan error, depth)
	begin := func() {
		buf := guest.Aligned(t, small)
		go func() {
			var err error
			if op == wire.OpRead {
				_, err = dev.ReadAt(buf, 0)
			} else {
				_, err = dev.WriteAt(buf, 0)
			}
			ended <- err
		}()
	}
	take := func() message {
		t.Helper()
		return guest.Within(t, ioTime, "a message arrives", arrived)
	}
	answer := func(m message) {
		for _, r := range m.commands {
			m.c.Answer(r)
		}
	}
	var unanswered []message
	for range wire.FewMessages - 1 {
		begin()
		unanswered = append(unanswered, take())
	}
	const all = wire.FewMessages - 1 + waiting
	for range waiting {
		begin()
	}
	guest.Eventually(t, ioTime, "all commands are in flight", func() bool { return counter(t, "inflight") == all })
	time.Sleep(100 * time.Millisecond)
	if len(arrived) != 0 {
		t.Errorf("%d messages more have arrived, want none", len(arrived))
	}
	answer(unanswered[0])
	last := take()
	if len(last.commands) != waiting {
		t.Errorf("a message of %d commands, want %d", len(last.commands), waiting)
	}
	for _, m := range append(unanswered[1:], last) {
		answer(m)
	}
	for range all {
		if err := guest.Within(t, ioTime, "a command ends", ended); err != nil {
			t.Error(err)
		}
	}
	if n := counter(t, "errors"); n != 0 {
		t.Errorf("%d errors, want 0", n)
	}
}

// The time that a command has begins when it is posted. One that waited in the last message for longer than timeout= is
// sent on the next connection; those that were posted fail.
func TestTimeBeginsWithThePost(t *testing.T) {
	guest.CheckResources(t)
	const timeout = 3
	var hold atomic.Bool
	g, arrived := startSilent(t, wire.OpWrite, &hold)
	dev := guest.OpenDirect(t, guest.Attach(t, g.Port,
		fmt.Sprintf(",queues=1,depth=%d,heartbeat=0,timeout=%d", manyCommands, timeout)))
	t.Cleanup(func() {
		_ = dev.Close()
		stopInTime(t, "")
		isGone(t)
	})
	hold.Store(true)
	begin := func(ended chan<- error) {
		buf := guest.Aligned(t, small)
		go func() {
			_, err := dev.WriteAt(buf, 0)
			ended <- err
		}()
	}
	posted, unposted := make(chan error, manyCommands), make(chan error, 1)
	for range wire.FewMessages - 1 {
		begin(posted)
		guest.Within(t, ioTime, "a message arrives", arrived)
	}
	begin(unposted)
	guest.Eventually(t, ioTime, "all commands are in flight", func() bool { return counter(t, "inflight") == wire.FewMessages })
	time.Sleep((timeout + 1) * time.Second)
	if len(arrived) != 0 {
		t.Fatal("the last message has arrived, too")
	}
	g.HangUp()
	if err := guest.Within(t, ioTime, "the command ends that was not posted", unposted); err != nil {
		t.Errorf("the command that was not posted ended with %v", err)
	}
	for range wire.FewMessages - 1 {
		guest.EndsWith(t, guest.Within(t, ioTime, "a posted command ends", posted), []error{unix.EIO})
	}
}

// A target from before the promise refuses it. The client connects without.
func TestTargetDoesNotKnowThePromise(t *testing.T) {
	guest.CheckResources(t)
	g := faketarget.Start(t, "")
	g.RefuseFlags(wire.HelloFew)
	dev := attach(t, g, "")
	if err := write(t, dev, random(t, small)); err != nil {
		t.Fatal(err)
	}
	if n := g.Refused(); n != 1 {
		t.Errorf("%d connections were refused, want 1", n)
	}
}
