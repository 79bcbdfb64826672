// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostiletarget

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"

	"krping/bridge/wire"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// A target has no receives left, so that commands gather at the client, and answers those that it has not got. It knows
// which tags they have.
func TestAnswersBeforeCommands(t *testing.T) {
	needs.Test(t, needs.RoCE) // iWARP completes a SEND that found no receive
	guest.CheckResources(t)
	const depth, slot = 32, generation - 1
	g := faketarget.Start(t, "")
	g.Grant(granting(func(w *wire.Welcome) { w.Depth = depth }))
	last := map[uint16]uint16{} // tag by slot
	all := make(chan struct{})
	var hold atomic.Bool
	done := g.Misbehave(faketarget.Misbehaviour{Op: wire.OpRead, AnySize: true, Do: func(c *faketarget.Conn, r wire.Request) bool {
		last[r.Tag&slot] = r.Tag
		select {
		case <-all:
		default:
			if !hold.Load() || r.Length != small || r.Offset != 0 {
				c.Answer(r)
				return false
			}
			<-all
		}
		for i := range uint16(depth) {
			if i == r.Tag&slot {
				continue
			}
			unsent := r
			unsent.Tag = i
			if tag, used := last[i]; used {
				unsent.Tag = tag + generation
			}
			c.Answer(unsent)
		}
		return true
	}})
	dev := guest.OpenDirect(t, guest.Attach(t, g.Port, fmt.Sprintf(",queues=1,depth=%d,heartbeat=20", depth)))
	t.Cleanup(func() {
		_ = dev.Close()
		stopInTime(t, "")
		isGone(t)
	})
	log := openLog(t, 2)
	hold.Store(true)
	ended := make(chan error, depth)
	for i := range depth {
		got := guest.Aligned(t, small)
		go func() {
			_, err := dev.ReadAt(got, 0)
			if err == nil && !g.Holds(0, got) {
				err = errors.New("other data than the target's")
			}
			ended <- err
		}()
		guest.Eventually(t, ioTime, "the command is in flight", func() bool { return guest.Session(t, "vol0")["inflight"] == strconv.Itoa(i+1) })
	}
	close(all)
	c := guest.Within(t, ioTime, "the target misbehaves", done)
	guest.Within(t, ioTime, "the connection ends", c.Done())
	log.waitFor(t, broke+"answer to a command that was not sent")
	for range depth {
		if err := guest.Within(t, ioTime, "a read ends", ended); err != nil {
			t.Error(err)
		}
	}
	if n := counter(t, "errors"); n != 0 {
		t.Errorf("%d errors, want 0", n)
	}
}
