// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostiletarget

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/wire"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
)

// A write on which the target disconnects each time fails after five losses, and no other I/O does.
func TestRequestKillsItsConnection(t *testing.T) {
	guest.CheckResources(t)
	const at = capacity / 2
	for _, tc := range []struct {
		name   string
		n      int
		beside int // writers of other places
	}{
		{"alone", small, 0},
		{"beside others", small, 12},
		{"large, beside others", large, 12},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := faketarget.Start(t, "")
			dev := guest.OpenDirect(t, guest.Attach(t, g.Port, fmt.Sprintf(",queues=2,depth=%d,heartbeat=2", faketarget.Welcome.Depth)))
			t.Cleanup(func() {
				_ = dev.Close()
				stopInTime(t, "")
				isGone(t)
			})
			log := openLog(t, 1)
			var killed atomic.Int32
			g.Misbehave(faketarget.Misbehaviour{Op: wire.OpWrite, N: tc.n, Do: func(c *faketarget.Conn, r wire.Request) bool {
				if r.Offset != at {
					c.Answer(r)
					return false
				}
				killed.Add(1)
				c.Close()
				return false
			}})
			stop := otherWriters(t, dev, tc.beside, tc.n)
			start := time.Now()
			guilty := make(chan error, 1)
			data := random(t, tc.n)
			go func() {
				_, err := dev.WriteAt(data, at)
				guilty <- err
			}()
			err := guest.Within(t, 60*time.Second, "the write ends", guilty)
			t.Logf("the write ended after %v: %v; %s reconnects", time.Since(start), err, guest.Session(t, "vol0")["reconnects"])
			guest.EndsWith(t, err, []error{unix.EIO})
			stop()
			log.waitFor(t, fmt.Sprintf("WRITE of %d bytes at sector %d: its connection was lost 5 times in a row", tc.n, at/512))
			if n := killed.Load(); n < 5 {
				t.Errorf("the write was sent %d times, want at least 5", n)
			}
			if n := counter(t, "errors"); n != 1 {
				t.Errorf("%d errors, want 1", n)
			}
			if err := write(t, dev, random(t, tc.n)); err != nil {
				t.Errorf("a write afterwards: %v", err)
			}
		})
	}
}

// otherWriters starts n writers, each of its own place in the first half of the disk, until stop. They may not fail.
func otherWriters(t *testing.T, dev *os.File, n, size int) (stop func()) {
	var writers sync.WaitGroup
	var over atomic.Bool
	for i := range n {
		data := random(t, size)
		writers.Go(func() {
			for !over.Load() {
				if _, err := dev.WriteAt(data, int64(i*size%(capacity/2))); err != nil {
					t.Errorf("a write beside others: %v", err)
					return
				}
			}
		})
	}
	return func() {
		over.Store(true)
		ended := make(chan struct{})
		go func() {
			writers.Wait()
			close(ended)
		}()
		guest.Within(t, ioTime, "the writers end", ended)
	}
}

// A target that drops each of its connections before it answers is an outage: it fails no I/O before the timeout.
func TestManyLossesOfAnOutage(t *testing.T) {
	guest.CheckResources(t)
	g := faketarget.Start(t, "")
	dev := attach(t, g, "")
	g.Misbehave(faketarget.Misbehaviour{Op: wire.OpWrite, N: small, AnySize: true, Do: func(c *faketarget.Conn, _ wire.Request) bool {
		c.Close()
		return false
	}})
	waiting := guest.StartWrite(t, dev, random(t, small))
	lost := func(n int) {
		t.Helper()
		guest.Eventually(t, ioTime, fmt.Sprintf("%d reconnects", n), func() bool { return counter(t, "reconnects") >= n })
	}
	lost(1)
	g.Misbehave(faketarget.Misbehaviour{Op: wire.OpKeepAlive, Do: func(c *faketarget.Conn, r wire.Request) bool {
		c.Answer(r)
		time.Sleep(guest.Slow(50 * time.Millisecond)) // until the client counts as reconnected
		c.Close()
		return false
	}})
	lost(8)
	g.Behave()
	waiting.Succeeds(ioTime)
	if n := counter(t, "errors"); n != 0 {
		t.Errorf("%d errors, want 0", n)
	}
}
