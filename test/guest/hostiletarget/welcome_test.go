// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostiletarget

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

// isSkipped says whether the case of that number is left out.
func isSkipped(i int) bool { return testing.Short() && i%3 != 0 }

// attachFails checks that a client of the rogue ends with one of the errors, in time and with nothing left.
func (g *rogue) attachFails(t *testing.T, want ...error) {
	t.Helper()
	start := time.Now()
	guest.EndsWith(t, guest.Command(g.command(""), guest.Limit), want)
	if took := time.Since(start); took > guest.Slow(5*time.Second) {
		late.Errorf(t, "the command ended after %v", took)
	}
	isGone(t)
}

// ofBytes is the welcome with other bytes from one on.
func ofBytes(at int, value ...byte) []byte { return with(at, value...)(grant.Append(nil)) }

// TestLyingWelcomes has welcomes that no client takes: one field of each is not right.
func TestLyingWelcomes(t *testing.T) {
	leavesNothing(t)
	g := startRogue(t)
	field := func(change func(w *wire.Welcome)) []byte { return granting(change).Append(nil) }
	// RoCE pads with zeros what is too short.
	cut := func(roce string) string {
		if guest.IWARP(t) {
			return "length "
		}
		return roce
	}
	for i, tc := range []struct {
		name    string
		private []byte
		says    string
	}{
		{"no byte", nil, cut("magic 0")},
		{"all but the sizes", grant.Append(nil)[:24], cut("block size 0")},
		{"magic", ofBytes(3, 'b'), "magic "},
		{"version 2", ofBytes(4, 2), "version 2"},
		{"unknown flag", field(func(w *wire.Welcome) { w.Flags = 0x08 }), "flags 8"},
		{"blocks of no bytes", field(func(w *wire.Welcome) { w.BlockSize = 0 }), "block size 0"},
		{"blocks of 513 bytes", field(func(w *wire.Welcome) { w.BlockSize = 513 }), "block size 513"},
		{"blocks of 1024 bytes", field(func(w *wire.Welcome) { w.BlockSize = 1024 }), "block size 1024"},
		{"no capacity", field(func(w *wire.Welcome) { w.Capacity = 0 }), "capacity 0"},
		{"odd capacity", field(func(w *wire.Welcome) { w.Capacity++ }), "capacity 1048577"},
		{"capacity of half a large block", field(func(w *wire.Welcome) { w.BlockSize, w.Capacity = 4096, capacity+2048 }), "capacity 1050624"},
		{"capacity over what the kernel has", field(func(w *wire.Welcome) { w.Capacity = 1 << 63 }), "capacity 9223372036854775808"},
		{"no large data", field(func(w *wire.Welcome) { w.MaxData = 0 }), "max_data 0"},
		{"large data of less than a page", field(func(w *wire.Welcome) { w.MaxData = 4095 }), "max_data 4095"},
		{"messages of 63 bytes", field(func(w *wire.Welcome) { w.MaxMessage, w.MaxInline = 63, 32 }), "max_message 63"},
		{"messages over 64 KiB", field(func(w *wire.Welcome) { w.MaxMessage = 65537 }), "max_message 65537"},
		{"messages of 4 GiB less one", field(func(w *wire.Welcome) { w.MaxMessage = 0xffffffff }), "max_message 4294967295"},
		{"inline data of 31 bytes", field(func(w *wire.Welcome) { w.MaxInline = 31 }), "max_inline 31"},
		{"inline data larger than its message", field(func(w *wire.Welcome) { w.MaxInline = w.MaxMessage - 31 }), "max_inline 16353"},
		{"inline data of 4 GiB less one", field(func(w *wire.Welcome) { w.MaxInline = 0xffffffff }), "max_inline 4294967295"},
		{"no command in flight", field(func(w *wire.Welcome) { w.Depth = 0 }), "depth 0"},
		{"one command more than was asked for", field(func(w *wire.Welcome) { w.Depth++ }), "depth 5"},
	} {
		if isSkipped(i) {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			log := openLog(t, 1)
			g.replies(tc.private)
			g.attachFails(t, unix.EPROTO)
			log.says(t, "the target's welcome is refused: "+tc.says)
		})
	}
}

// What is at the limits is none of the lies.
func TestExtremeGrants(t *testing.T) {
	leavesNothing(t)
	for name, w := range map[string]wire.Welcome{
		"the least": granting(func(w *wire.Welcome) {
			w.Depth, w.Capacity, w.BlockSize, w.MaxData, w.MaxInline, w.MaxMessage = 1, small, 4096, 4096, 32, 64
		}),
		"the most": granting(func(w *wire.Welcome) { w.MaxInline, w.MaxMessage, w.MaxData = 65536-32, 65536, 0xffffffff }),
	} {
		t.Run(name, func(t *testing.T) {
			g := startRogue(t)
			g.grants(w)
			dev := g.attach(t, "")
			data, got := noise(t, small), guest.Aligned(t, small)
			if err := writes(t, dev, data); err != nil {
				t.Error(err)
			}
			if err := reads(t, dev, got, 0); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%v, or other data than was written", err)
			}
		})
	}
}

// A target that lies or hangs up while a client attaches fails the command: adding the disk reads it.
func TestTargetsThatLieAtOnce(t *testing.T) {
	leavesNothing(t)
	for _, tc := range []struct {
		name   string
		greets func(l *link)
		tell   func(l *link, r wire.Request) bool
	}{
		{"hangs up when it has accepted", func(l *link) { l.Close() }, nil},
		{"an empty message unasked", func(l *link) { _ = l.Send(nil, 0) }, nil},
		{"an answer to nothing", func(l *link) { _ = l.Send(wire.Response{}.Append(nil, nil), 0) }, nil},
		{"hangs up on the first command", nil, func(l *link, _ wire.Request) bool { l.Close(); return true }},
		{"an empty answer to the first command", nil, func(l *link, _ wire.Request) bool { _ = l.Send(nil, 0); return true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := startRogue(t)
			g.greet(tc.greets)
			if tc.tell != nil {
				g.tells(fib{op: wire.OpRead, n: small, tell: tc.tell})
			}
			g.attachFails(t, unix.ECONNRESET, unix.ETIMEDOUT, unix.EPROTO)
		})
	}
}

// comesBack has the target go and come back with another welcome, and returns how a write ends meanwhile.
func (g *rogue) comesBack(t *testing.T, dev *os.File, w wire.Welcome) error {
	t.Helper()
	g.grants(w)
	g.hangUp()
	return writes(t, dev, noise(t, small))
}

// A target that is not the one it was gets nothing of what waits: the device fails, and says why.
func TestTargetsThatChange(t *testing.T) {
	const (
		limits = "the target's limits are not what they were"
		other  = "the target is not the one it was: I/O fails from now on"
	)
	for i, tc := range []struct {
		name          string
		before, after func(w *wire.Welcome)
		says          string // "" if it may
	}{
		{"less inline data", nil, func(w *wire.Welcome) { w.MaxInline = 2048 }, limits},
		{"more inline data", nil, func(w *wire.Welcome) { w.MaxInline = 8192 }, limits},
		{"larger blocks", nil, func(w *wire.Welcome) { w.BlockSize = 4096 }, limits},
		{"less large data", nil, func(w *wire.Welcome) { w.MaxData = 32768 }, limits},
		{"shorter messages", nil, func(w *wire.Welcome) { w.MaxMessage = 8192 }, limits},
		{"fewer commands in flight", nil, func(w *wire.Welcome) { w.Depth-- }, limits},
		{"read-only", nil, func(w *wire.Welcome) { w.Flags = wire.VolumeReadOnly }, limits},
		{"no longer write-through", nil, func(w *wire.Welcome) { w.Flags = wire.VolumeWriteback }, limits},
		{"volatile", nil, func(w *wire.Welcome) { w.Flags = wire.VolumeVolatile }, limits},
		{"a smaller volume", nil, func(w *wire.Welcome) { w.Capacity -= 512 }, "the volume has shrunk from 1048576 to 1048064 bytes"},
		{"a welcome that lies", nil, func(w *wire.Welcome) { w.Capacity++ }, "the target's welcome is refused: capacity 1048577"},
		{"a new life of a volatile volume", func(w *wire.Welcome) { w.Flags = wire.VolumeVolatile }, func(w *wire.Welcome) { w.Epoch++ },
			"the target has lost its volume, which was in memory"},
		{"a new life with writes that were not flushed", func(w *wire.Welcome) { w.Flags = wire.VolumeWriteback }, func(w *wire.Welcome) { w.Epoch++ },
			"the target has lost writes that were not flushed"},
		{"a new life of a write-through volume", nil, func(w *wire.Welcome) { w.Epoch++ }, ""},
		{"a larger volume", nil, func(w *wire.Welcome) { w.Capacity += 4096 }, ""},
	} {
		if isSkipped(i) {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			leavesNothing(t)
			g := startRogue(t)
			w := grant
			if tc.before != nil {
				tc.before(&w)
			}
			g.grants(w)
			dev := g.attach(t, "")
			if err := writes(t, dev, noise(t, small)); err != nil {
				t.Fatal(err)
			}
			log := openLog(t, 1)
			tc.after(&w)
			err := g.comesBack(t, dev, w)
			if tc.says == "" {
				if err != nil || counter(t, "reconnects") != 1 {
					t.Errorf("write: %v, session: %v", err, guest.Session(t, "vol0"))
				}
				return
			}
			guest.EndsWith(t, err, []error{unix.EIO})
			log.says(t, tc.says)
			log.says(t, other)
			if state := guest.Session(t, "vol0")["state"]; state != "failed" {
				t.Errorf("the session is %s, not failed", state)
			}
			if err := reads(t, dev, guest.Aligned(t, small), 0); !errors.Is(err, unix.EIO) {
				t.Errorf("a read of what has failed: %v", err)
			}
		})
	}
}

// A target that accepts its client and then says nothing, or nothing that it was asked, is none that is back.
func TestTargetsThatOnlyAccept(t *testing.T) {
	leavesNothing(t)
	for name, greets := range map[string]func(l *link){
		"says nothing": func(l *link) { <-l.Done() },
		"says what nobody asked": func(l *link) {
			_ = l.Send(nil, 0)
			<-l.Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := startRogue(t)
			dev := g.attach(t, ",timeout=600,fast_fail=2")
			g.greet(greets)
			g.hangUp()
			guest.EndsWith(t, writes(t, dev, noise(t, small)), []error{unix.EIO})
			if n, state := counter(t, "reconnects"), guest.Session(t, "vol0")["state"]; n != 0 || state != "reconnecting" {
				t.Errorf("%d reconnects, the session is %s", n, state)
			}
			g.greet(nil)
			guest.Eventually(t, ioTime, "the session is live", func() bool { return guest.Session(t, "vol0")["state"] == "live" })
			if err := writes(t, dev, noise(t, small)); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("a client that comes", func(t *testing.T) {
		g := startRogue(t)
		g.greet(func(l *link) { <-l.Done() })
		if err := guest.Command(g.command(""), guest.Limit); !errors.Is(err, unix.ETIMEDOUT) {
			t.Errorf("%v, want %v", err, unix.ETIMEDOUT)
		}
	})
}

// A target that accepts a client again and again and never answers it holds I/O up for as long as that was told to
// wait, and no longer. It is asked less and less often.
func TestTargetsThatNeverAnswer(t *testing.T) {
	leavesNothing(t)
	hangsUpAfterASign := fib{op: wire.OpKeepAlive, tell: func(l *link, r wire.Request) bool {
		l.answer(r)
		time.Sleep(guest.Slow(50 * time.Millisecond)) // or its client would not be back
		l.Close()
		return false
	}}
	for _, tc := range []struct {
		name string
		fib  fib
	}{
		{"hangs up on each command", fib{op: wire.OpWrite, n: small, tell: func(l *link, _ wire.Request) bool { l.Close(); return false }}},
		{"an empty answer to each command", fib{op: wire.OpWrite, n: small, tell: func(l *link, _ wire.Request) bool { _ = l.Send(nil, 0); return false }}},
		{"hangs up on each client", hangsUpAfterASign},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const wait = 2 // seconds
			g := startRogue(t)
			dev := g.attach(t, fmt.Sprintf(",timeout=%d", wait))
			g.tells(tc.fib)
			g.hangUp()
			start := time.Now()
			guest.EndsWith(t, writes(t, dev, noise(t, small)), []error{unix.EIO})
			if took := time.Since(start); took < (wait-1)*time.Second {
				t.Errorf("the write failed after %v", took)
			} else if took > wait*time.Second+guest.Slow(5*time.Second) {
				late.Errorf(t, "the write failed after %v", took)
			}
			if n := counter(t, "reconnects"); n > 10 {
				t.Errorf("%d reconnects", n)
			}
			write := guest.StartWrite(t, dev, noise(t, small))
			write.Waits(200 * time.Millisecond)
			stopInTime(t, ",force")
			write.Fails(5 * time.Second)
		})
		t.Run(tc.name+"/fast_fail", func(t *testing.T) {
			g := startRogue(t)
			dev := g.attach(t, ",timeout=600,fast_fail=2")
			g.tells(tc.fib)
			g.hangUp()
			guest.EndsWith(t, writes(t, dev, noise(t, small)), []error{unix.EIO}) // and does not wait for 600 s
		})
	}
	t.Run("a timeout shorter than the longest backoff", func(t *testing.T) {
		g := startRogue(t)
		g.attach(t, ",timeout=1")
		g.tells(hangsUpAfterASign)
		g.hangUp()
		for reconnects := 0; reconnects < 6; reconnects = counter(t, "reconnects") {
			if state := guest.Session(t, "vol0")["state"]; state == "failed" {
				t.Fatalf("the session has failed after %d reconnects", reconnects)
			}
			time.Sleep(50 * time.Millisecond)
		}
		g.behaves()
		guest.Eventually(t, ioTime, "the session is live", func() bool { return guest.Session(t, "vol0")["state"] == "live" })
	})
}
