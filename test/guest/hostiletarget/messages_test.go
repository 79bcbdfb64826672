// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostiletarget

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"krping/bridge/wire"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
)

// A target takes messages, and answers none. The client sends no more than it has promised, and the next one when one is
// answered. At first it had receives for fewer answers.
func TestFewMessages(t *testing.T) {
	guest.CheckResources(t)
	const depth, waiting = 128, 7
	type message struct {
		c        *faketarget.Conn
		commands []wire.Request
	}
	arrived := make(chan message, depth)
	var hold atomic.Bool
	g := faketarget.Start(t, "")
	g.Grant(granting(func(w *wire.Welcome) { w.Depth = depth }))
	g.Misbehave(faketarget.Misbehaviour{Op: wire.OpRead, AnySize: true, Do: func(c *faketarget.Conn, r wire.Request) bool {
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
			_, err := dev.ReadAt(buf, 0)
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
	for range wire.FewMessages {
		begin()
		unanswered = append(unanswered, take())
	}
	stalls := counter(t, "stalls")
	for range waiting {
		begin()
	}
	guest.Eventually(t, ioTime, "a command waits for a message", func() bool { return counter(t, "stalls") > stalls })
	time.Sleep(100 * time.Millisecond)
	if n := counter(t, "inflight"); n != wire.FewMessages || len(arrived) != 0 {
		t.Errorf("%d commands are in flight, and %d messages more have arrived, want %d and none", n, len(arrived), wire.FewMessages)
	}
	answer(unanswered[0])
	for left := waiting; left > 0; {
		m := take()
		left -= len(m.commands)
		answer(m)
	}
	for _, m := range unanswered[1:] {
		answer(m)
	}
	for range wire.FewMessages + waiting {
		if err := guest.Within(t, ioTime, "a read ends", ended); err != nil {
			t.Error(err)
		}
	}
	if n := counter(t, "errors"); n != 0 {
		t.Errorf("%d errors, want 0", n)
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
