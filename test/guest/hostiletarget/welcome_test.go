// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostiletarget

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/uuid"
	"krping/bridge/wire"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

// isSkipped says whether -short leaves out the case of that number.
func isSkipped(i int) bool { return testing.Short() && i%3 != 0 }

// attachFails checks that attaching fails with one of the errors, in time, and leaves nothing behind.
func attachFails(t *testing.T, g *faketarget.Target, want ...error) {
	t.Helper()
	start := time.Now()
	guest.EndsWith(t, guest.Command(command(t, g, ""), guest.Limit), want)
	if took := time.Since(start); took > guest.Slow(5*time.Second) {
		late.Errorf(t, "the command ended after %v, want at most 5 s", took)
	}
	isGone(t)
}

// withBytes returns the welcome with changed bytes.
func withBytes(at int, value ...byte) []byte {
	return with(at, value...)(faketarget.Welcome.Append(nil))
}

// Welcomes that a client refuses, because one field is invalid.
func TestInvalidWelcomes(t *testing.T) {
	guest.CheckResources(t)
	g := faketarget.Start(t, "")
	field := func(change func(w *wire.Welcome)) []byte { return granting(change).Append(nil) }
	// RoCE pads short private data with zeros.
	cut := func(roce string) string {
		if guest.IWARP(t) {
			return "length "
		}
		return roce
	}
	for i, tc := range []struct {
		name    string
		private []byte
		log     string
	}{
		{"empty", nil, cut("magic 0")},
		{"sizes missing", faketarget.Welcome.Append(nil)[:24], cut("block size 0")},
		{"magic", withBytes(3, 'b'), "magic "},
		{"version 1 to a client of version 2", withBytes(4, 1), "version 1"},
		{"version 3", withBytes(4, 3), "version 3"},
		{"unknown flag", field(func(w *wire.Welcome) { w.Flags = 0x08 }), "flags 8"},
		{"block size 0", field(func(w *wire.Welcome) { w.BlockSize = 0 }), "block size 0"},
		{"block size 513", field(func(w *wire.Welcome) { w.BlockSize = 513 }), "block size 513"},
		{"block size 1024", field(func(w *wire.Welcome) { w.BlockSize = 1024 }), "block size 1024"},
		{"capacity 0", field(func(w *wire.Welcome) { w.Capacity = 0 }), "capacity 0"},
		{"odd capacity", field(func(w *wire.Welcome) { w.Capacity++ }), "capacity 1048577"},
		{"capacity with half a large block", field(func(w *wire.Welcome) { w.BlockSize, w.Capacity = 4096, capacity+2048 }), "capacity 1050624"},
		{"capacity of 2^63 bytes", field(func(w *wire.Welcome) { w.Capacity = 1 << 63 }), "capacity 9223372036854775808"},
		{"max_data 0", field(func(w *wire.Welcome) { w.MaxData = 0 }), "max_data 0"},
		{"max_data less than a page", field(func(w *wire.Welcome) { w.MaxData = 4095 }), "max_data 4095"},
		{"max_message 63", field(func(w *wire.Welcome) { w.MaxMessage, w.MaxInline = 63, 32 }), "max_message 63"},
		{"max_message more than 64 KiB", field(func(w *wire.Welcome) { w.MaxMessage = 65537 }), "max_message 65537"},
		{"largest max_message", field(func(w *wire.Welcome) { w.MaxMessage = 0xffffffff }), "max_message 4294967295"},
		{"max_inline 31", field(func(w *wire.Welcome) { w.MaxInline = 31 }), "max_inline 31"},
		{"max_inline larger than a message", field(func(w *wire.Welcome) { w.MaxInline = w.MaxMessage - 31 }), "max_inline 16353"},
		{"largest max_inline", field(func(w *wire.Welcome) { w.MaxInline = 0xffffffff }), "max_inline 4294967295"},
		{"no UUID", field(func(w *wire.Welcome) { w.UUID = uuid.UUID{} }), "UUID 0"},
		{"reserved field", withBytes(87, 1), "reserved field 1"},
		{"depth 0", field(func(w *wire.Welcome) { w.Depth = 0 }), "depth 0"},
		{"depth larger than asked for", field(func(w *wire.Welcome) { w.Depth++ }), "depth 5"},
	} {
		if isSkipped(i) {
			continue
		}
		t.Run(tc.name, func(t *testing.T) {
			log := openLog(t, 1)
			g.Reply(tc.private)
			attachFails(t, g, unix.EPROTO)
			log.waitFor(t, "the target's welcome is invalid: "+tc.log)
		})
	}
}

// The client accepts a welcome whose fields are at the limits.
func TestWelcomesAtTheLimits(t *testing.T) {
	guest.CheckResources(t)
	for name, w := range map[string]wire.Welcome{
		"smallest": granting(func(w *wire.Welcome) {
			w.Depth, w.Capacity, w.BlockSize, w.MaxData, w.MaxInline, w.MaxMessage = 1, small, 4096, 4096, 32, 64
		}),
		"largest": granting(func(w *wire.Welcome) { w.MaxInline, w.MaxMessage, w.MaxData = 65536-32, 65536, 0xffffffff }),
	} {
		t.Run(name, func(t *testing.T) {
			g := faketarget.Start(t, "")
			g.Grant(w)
			dev := attach(t, g, "")
			data, got := random(t, small), guest.Aligned(t, small)
			if err := write(t, dev, data); err != nil {
				t.Error(err)
			}
			if err := read(t, dev, got, 0); err != nil || !bytes.Equal(got, data) {
				t.Errorf("read: %v, or other data than was written", err)
			}
		})
	}
}

// A target that misbehaves while a client attaches makes the command fail: to add a disk, the kernel reads it.
func TestMisbehaviourDuringAttach(t *testing.T) {
	guest.CheckResources(t)
	for _, tc := range []struct {
		name   string
		greets func(c *faketarget.Conn)
		do     func(c *faketarget.Conn, r wire.Request) bool
	}{
		{"disconnects after the accept", func(c *faketarget.Conn) { c.Close() }, nil},
		{"empty message without a command", func(c *faketarget.Conn) { _ = c.Send(nil, 0) }, nil},
		{"answer without a command", func(c *faketarget.Conn) { _ = c.Send(wire.Response{}.Append(nil, nil), 0) }, nil},
		{"disconnects on the first command", nil, func(c *faketarget.Conn, _ wire.Request) bool { c.Close(); return true }},
		{"empty answer to the first command", nil, func(c *faketarget.Conn, _ wire.Request) bool { _ = c.Send(nil, 0); return true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := faketarget.Start(t, "")
			g.Greet(tc.greets)
			if tc.do != nil {
				g.Misbehave(faketarget.Misbehaviour{Op: wire.OpRead, N: small, Do: tc.do})
			}
			attachFails(t, g, unix.ECONNRESET, unix.ETIMEDOUT, unix.EPROTO)
		})
	}
}

// reconnect makes the client reconnect and get another welcome, and returns how a write ends meanwhile.
func reconnect(t *testing.T, g *faketarget.Target, dev *os.File, w wire.Welcome) error {
	t.Helper()
	g.Grant(w)
	g.HangUp()
	return write(t, dev, random(t, small))
}

// A target that comes back with another volume gets none of the waiting I/O: the session fails, and the log says why.
func TestTargetChanges(t *testing.T) {
	const (
		limits = "the target's limits have changed"
		other  = "the target is not the one it was: I/O fails from now on"
		writer = "another client has written to the volume meanwhile"
	)
	for _, tc := range []struct {
		name          string
		before, after func(w *wire.Welcome)
		log           string // "": the client accepts it
	}{
		{"smaller max_inline", nil, func(w *wire.Welcome) { w.MaxInline = 2048 }, ""},
		{"larger max_inline", nil, func(w *wire.Welcome) { w.MaxInline = 8192 }, ""},
		{"larger blocks", nil, func(w *wire.Welcome) { w.BlockSize = 4096 }, limits},
		{"smaller max_data", nil, func(w *wire.Welcome) { w.MaxData = 32768 }, limits},
		{"message without room for a large command", nil, func(w *wire.Welcome) { w.MaxMessage = small + 31 },
			"the target's welcome is invalid: max_inline 4096"},
		{"larger max_message", nil, func(w *wire.Welcome) { w.MaxMessage += 8 }, limits},
		{"smaller depth", nil, func(w *wire.Welcome) { w.Depth-- }, limits},
		{"read-only", nil, func(w *wire.Welcome) { w.Flags = wire.VolumeReadOnly }, limits},
		{"write-back", nil, func(w *wire.Welcome) { w.Flags = wire.VolumeWriteback }, limits},
		{"volatile", nil, func(w *wire.Welcome) { w.Flags = wire.VolumeVolatile }, limits},
		{"smaller capacity", nil, func(w *wire.Welcome) { w.Capacity -= 512 }, "the volume has shrunk from 1048576 to 1048064 bytes"},
		{"invalid welcome", nil, func(w *wire.Welcome) { w.Capacity++ }, "the target's welcome is invalid: capacity 1048577"},
		{"new epoch of a volatile volume", func(w *wire.Welcome) { w.Flags = wire.VolumeVolatile }, func(w *wire.Welcome) { w.Epoch++ },
			"the target has lost its volume, which was in memory"},
		{"new epoch after unflushed writes", func(w *wire.Welcome) { w.Flags = wire.VolumeWriteback }, func(w *wire.Welcome) { w.Epoch++ },
			"the target has lost writes that were not flushed"},
		{"new epoch of a write-through volume", nil, func(w *wire.Welcome) { w.Epoch++ }, ""},
		{"another UUID", nil, func(w *wire.Welcome) { w.UUID[15]++ },
			"the target has another volume: its UUID is 01000000-0000-0000-0000-000000000001, not 01000000-0000-0000-0000-000000000000"},
		{"another writer meanwhile", nil, func(w *wire.Welcome) { w.Writer = 3 }, writer},
		{"another writer since the target started", nil, func(w *wire.Welcome) { w.Epoch, w.Writer = 2, 2 }, writer},
		{"no writer", nil, func(w *wire.Welcome) { w.Writer = 0 }, writer},
		{"first writer of a new epoch", func(w *wire.Welcome) { w.Writer = 3 }, func(w *wire.Welcome) { w.Epoch, w.Writer = 2, 1 }, ""},
		{"other capabilities and slots", nil, func(w *wire.Welcome) { w.Caps = 0xffffffff; w.Slots = wire.Slots{Addr: 1, Rkey: 2, Size: 3, Count: 4} }, ""},
		{"larger capacity", nil, func(w *wire.Welcome) { w.Capacity += 4096 }, ""},
		{"smaller max_message", nil, func(w *wire.Welcome) { w.MaxMessage = 2 * (32 + small) }, ""},
		{"smallest max_message", nil, func(w *wire.Welcome) { w.MaxMessage = 32 + small }, ""},
		{"larger max_data", nil, func(w *wire.Welcome) { w.MaxData *= 2 }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			guest.CheckResources(t)
			g := faketarget.Start(t, "")
			w := faketarget.Welcome
			if tc.before != nil {
				tc.before(&w)
			}
			g.Grant(w)
			dev := attach(t, g, "")
			if err := write(t, dev, random(t, small)); err != nil {
				t.Fatal(err)
			}
			log := openLog(t, 1)
			tc.after(&w)
			err := reconnect(t, g, dev, w)
			if tc.log == "" {
				if err != nil || counter(t, "reconnects") != 1 {
					t.Fatalf("write: %v, session: %v", err, guest.Session(t, "vol0"))
				}
				stop := otherWriters(t, dev, 12, small) // their commands share messages
				time.Sleep(300 * time.Millisecond)
				stop()
				want, got := random(t, 2*small), guest.Aligned(t, 2*small)
				if err := errors.Join(write(t, dev, want), read(t, dev, got, 0)); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes: %v, or other data than was written", len(want), err)
				}
				return
			}
			guest.EndsWith(t, err, []error{unix.EIO})
			log.waitFor(t, tc.log)
			log.waitFor(t, other)
			if state := guest.Session(t, "vol0")["state"]; state != "failed" {
				t.Errorf("the session is %s, not failed", state)
			}
			if err := read(t, dev, guest.Aligned(t, small), 0); !errors.Is(err, unix.EIO) {
				t.Errorf("read of a failed session: %v, want EIO", err)
			}
		})
	}
}

// While the client was away, another one became the writer. The session fails at once.
func TestVolumeTakenMeanwhile(t *testing.T) {
	guest.CheckResources(t)
	g := faketarget.Start(t, "")
	dev := attach(t, g, "")
	log := openLog(t, 1)
	inUse := wire.InUse{Holder: netip.MustParseAddr("10.1.2.3"), UUID: faketarget.Welcome.UUID}
	g.Refuse(inUse.Append(nil))
	g.HangUp()
	guest.EndsWith(t, write(t, dev, random(t, small)), []error{unix.EIO})
	log.waitFor(t, "another client, 10.1.2.3, has taken the volume")
	guest.WantFields(t, guest.Session(t, "vol0"), "state", "failed")
}

// A client that is refused because another one writes to the volume says so.
func TestVolumeInUse(t *testing.T) {
	guest.CheckResources(t)
	g := faketarget.Start(t, "")
	inUse := wire.InUse{Holder: netip.MustParseAddr("fd00::1"), UUID: faketarget.Welcome.UUID}
	for _, private := range [][]byte{inUse.Append(nil), inUse.Append(nil)[:wire.RejectSize]} {
		log := openLog(t, 1)
		g.Refuse(private)
		for _, options := range []string{"", ",take_over"} { // refused again with TAKE_OVER
			guest.EndsWith(t, guest.Command(command(t, g, options), guest.Limit), []error{unix.EBUSY})
			isGone(t)
		}
		if len(private) > wire.RejectSize {
			log.waitFor(t, "another client, fd00::1, writes to the volume: attach with read_only, or replace it with take_over")
		}
	}
}

// A session that is stopped says so.
func TestStopSaysBye(t *testing.T) {
	guest.CheckResources(t)
	g := faketarget.Start(t, "")
	guest.Attach(t, g.Port, ",queues=2")
	byes := make(chan uint8, 100)
	g.Misbehave(faketarget.Misbehaviour{Op: wire.OpKeepAlive, Do: func(c *faketarget.Conn, r wire.Request) bool {
		byes <- r.Flags & wire.FlagBye
		c.Answer(r)
		return false
	}})
	stopInTime(t, "")
	var last uint8
	for len(byes) > 0 {
		last = <-byes
	}
	if last == 0 {
		t.Error("the last KEEP_ALIVE before the stop has no BYE")
	}
}

// Accepting the connection does not prove recovery: without an answer to KEEP_ALIVE the session stays
// reconnecting.
func TestTargetOnlyAccepts(t *testing.T) {
	guest.CheckResources(t)
	for name, greets := range map[string]func(c *faketarget.Conn){
		"sends nothing": func(c *faketarget.Conn) { <-c.Done() },
		"sends an empty message": func(c *faketarget.Conn) {
			_ = c.Send(nil, 0)
			<-c.Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := faketarget.Start(t, "")
			dev := attach(t, g, ",timeout=600,fast_fail=2")
			g.Greet(greets)
			g.HangUp()
			guest.EndsWith(t, write(t, dev, random(t, small)), []error{unix.EIO})
			if n, state := counter(t, "reconnects"), guest.Session(t, "vol0")["state"]; n != 0 || state != "reconnecting" {
				t.Errorf("%d reconnects, the session is %s", n, state)
			}
			g.Greet(nil)
			guest.Eventually(t, ioTime, "the session is live", func() bool { return guest.Session(t, "vol0")["state"] == "live" })
			if err := write(t, dev, random(t, small)); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("new client", func(t *testing.T) {
		g := faketarget.Start(t, "")
		g.Greet(func(c *faketarget.Conn) { <-c.Done() })
		if err := guest.Command(command(t, g, ""), guest.Limit); !errors.Is(err, unix.ETIMEDOUT) {
			t.Errorf("%v, want %v", err, unix.ETIMEDOUT)
		}
	})
}

// A target that accepts connections but never answers I/O delays it until timeout= or fast_fail= and no longer. The
// client reconnects less and less often.
func TestTargetNeverAnswers(t *testing.T) {
	guest.CheckResources(t)
	disconnectsLive := faketarget.Misbehaviour{Op: wire.OpKeepAlive, Do: func(c *faketarget.Conn, r wire.Request) bool {
		c.Answer(r)
		time.Sleep(guest.Slow(50 * time.Millisecond)) // until the client counts as reconnected
		c.Close()
		return false
	}}
	for _, tc := range []struct {
		name string
		does faketarget.Misbehaviour
	}{
		{"disconnects on each command", faketarget.Misbehaviour{Op: wire.OpWrite, N: small, Do: func(c *faketarget.Conn, _ wire.Request) bool { c.Close(); return false }}},
		{"empty answer to each command", faketarget.Misbehaviour{Op: wire.OpWrite, N: small, Do: func(c *faketarget.Conn, _ wire.Request) bool { _ = c.Send(nil, 0); return false }}},
		{"disconnects each live client", disconnectsLive},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const wait = 2 // seconds
			g := faketarget.Start(t, "")
			dev := attach(t, g, fmt.Sprintf(",timeout=%d", wait))
			g.Misbehave(tc.does)
			g.HangUp()
			start := time.Now()
			guest.EndsWith(t, write(t, dev, random(t, small)), []error{unix.EIO})
			if took := time.Since(start); took < (wait-1)*time.Second {
				t.Errorf("the write failed after %v, want about 2 s", took)
			} else if took > wait*time.Second+guest.Slow(5*time.Second) {
				late.Errorf(t, "the write failed after %v, want about 2 s", took)
			}
			if n := counter(t, "reconnects"); n > 10 {
				t.Errorf("%d reconnects, want at most 10", n)
			}
			waiting := guest.StartWrite(t, dev, random(t, small))
			waiting.Waits(200 * time.Millisecond)
			stopInTime(t, ",force")
			waiting.Fails(5 * time.Second)
		})
		t.Run(tc.name+"/fast_fail", func(t *testing.T) {
			g := faketarget.Start(t, "")
			dev := attach(t, g, ",timeout=600,fast_fail=2")
			g.Misbehave(tc.does)
			g.HangUp()
			guest.EndsWith(t, write(t, dev, random(t, small)), []error{unix.EIO}) // before timeout=
		})
	}
	t.Run("timeout shorter than the longest backoff", func(t *testing.T) {
		g := faketarget.Start(t, "")
		attach(t, g, ",timeout=3")
		g.Misbehave(disconnectsLive)
		g.HangUp()
		for reconnects := 0; reconnects < 6; reconnects = counter(t, "reconnects") {
			if state := guest.Session(t, "vol0")["state"]; state == "failed" {
				late.Errorf(t, "the session has failed after %d reconnects", reconnects)
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		g.Behave()
		guest.Eventually(t, ioTime, "the session is live", func() bool { return guest.Session(t, "vol0")["state"] == "live" })
	})
}
