// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
)

// What does not prove the key is refused, and ends nobody's connection: also of who knows the
// session's UUID.
func TestHandshakeIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, target target) {
		port := nextPort()
		s := target.serve(t, port, secret, "")
		honest := connect(t, port, hello(1), secret)
		sibling := hello(1)
		sibling.QueueIndex = 1
		other := connect(t, port, sibling, secret)

		refused(t, "no key", port, hello(1), wire.RejectNeedsKey)
		wrong, _ := answer(hello(1), challenge(t, port, hello(1)), another)
		refused(t, "another key", port, wrong, wire.RejectKey)
		refused(t, "another key again", port, wrong, wire.RejectStale)
		unasked, _ := answer(hello(1), &wire.Challenge{ID: 7}, secret)
		refused(t, "no challenge", port, unasked, wire.RejectStale)
		both := hello(1)
		both.Flags = wire.HelloKey | wire.HelloProof
		refused(t, "both flags", port, both, wire.RejectInvalid)
		nowhere := hello(1)
		nowhere.Flags, nowhere.Volume = wire.HelloKey, "vol1"
		refused(t, "another volume", port, nowhere, wire.RejectVolume)
		for name, tc := range map[string]struct {
			change func(h *wire.Hello)
			want   wire.Reason
		}{
			"another session":            {func(h *wire.Hello) { h.Session[15]++ }, wire.RejectStale},
			"another queue":              {func(h *wire.Hello) { h.QueueIndex = 1 }, wire.RejectStale},
			"another challenge":          {func(h *wire.Hello) { h.Answer.Challenge++ }, wire.RejectStale},
			"a challenge of long before": {func(h *wire.Hello) { h.Answer.Challenge -= 256 }, wire.RejectStale},
			"more queues":                {func(h *wire.Hello) { h.QueueCount++ }, wire.RejectKey},
			"another depth":              {func(h *wire.Hello) { h.Depth++ }, wire.RejectKey},
			"another nonce":              {func(h *wire.Hello) { h.Answer.Nonce[0]++ }, wire.RejectKey},
			"a bit of the proof":         {func(h *wire.Hello) { h.Answer.Proof[15] ^= 1 }, wire.RejectKey},
			"no proof":                   {func(h *wire.Hello) { h.Answer.Proof = wire.Proof{} }, wire.RejectKey},
		} {
			h, _ := answer(hello(1), challenge(t, port, hello(1)), secret)
			tc.change(&h)
			refused(t, name, port, h, tc.want)
		}
		for _, c := range []*client{honest, other} {
			c.isServed()
		}
		if s.rejected() != 15 {
			t.Errorf("rejected=%d, want 15", s.rejected())
		}

		h, _ := answer(hello(2), challenge(t, port, hello(2)), secret)
		served, _ := dial(t, port, h, config)
		if served == nil {
			t.Fatal("the right answer is refused")
		}
		refused(t, "a replay", port, h, wire.RejectStale)
		served.isServed()

		// The session itself fences its old connection, and no other.
		again := connect(t, port, hello(1), secret)
		honest.isEnded()
		for _, c := range []*client{again, other, served} {
			c.isServed()
		}
	})
}

// The challenge that a volume gives is worth nothing for another, and none for a client without
// one.
func TestVolumesOfOneBridge(t *testing.T) {
	leavesNothing(t)
	port := nextPort()
	guest.StartBridge(t, port, guest.StorePath(t), "8MiB", "--key-file", keyFile(t, secret),
		"--volume", "other=mem:,size=1MiB,key-file="+keyFile(t, another), "--volume", "open=mem:,size=1MiB")
	on := func(volume string) wire.Hello {
		h := hello(1)
		h.Volume = volume
		return h
	}
	owner := connect(t, port, on("vol0"), secret)
	neighbour := connect(t, port, on("other"), another) // of the same session UUID
	free, private := dial(t, port, on("open"), config)
	if free == nil {
		t.Fatalf("a volume without a key: %x", private)
	}
	asks := on("open")
	asks.Flags = wire.HelloKey
	refused(t, "a key for a volume without", port, asks, wire.RejectNoKey)
	for _, tc := range []struct{ asked, key string }{{"vol0", another}, {"other", secret}} {
		h, _ := answer(on(tc.asked), challenge(t, port, on(tc.asked)), tc.key)
		refused(t, tc.asked+" with the other's key", port, h, wire.RejectKey)
	}
	// A challenge for other, answered for vol0 with the key of vol0.
	h, _ := answer(on("vol0"), challenge(t, port, on("other")), secret)
	refused(t, "another volume's challenge", port, h, wire.RejectKey)
	isolated(t, map[string]*client{"vol0": owner, "other": neighbour, "open": free}, map[string]uint64{"vol0": size, "other": 1 << 20, "open": 1 << 20})
}

// Two volumes of the module, on ports of their own.
func TestVolumesOfTheModule(t *testing.T) {
	leavesNothing(t)
	clients := map[string]*client{}
	for _, volume := range []string{"vol0", "vol1"} {
		port := nextPort()
		command := fmt.Sprintf("server,addr=%s,port=%d,block=%s,backing=ram:8M,key=krping:k", guest.Addr(t), port, volume)
		if err := commandWith("krping:k", secret, command); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { guest.MustKrpingctl(t, "stop", "--target", volume) })
		h := hello(1)
		h.Volume = volume
		clients[volume] = connect(t, port, h, secret)
		if volume == "vol1" {
			h.Volume = "vol0"
			h.Flags = wire.HelloKey
			refused(t, "the other's volume", port, h, wire.RejectVolume)
		}
	}
	isolated(t, clients, map[string]uint64{"vol0": size, "vol1": size})
}

// isolated checks that each client reads what it wrote, whatever the others do, and nothing
// beyond its volume.
func isolated(t *testing.T, clients map[string]*client, sizes map[string]uint64) {
	t.Helper()
	data := func(volume string) []byte { return bytes.Repeat([]byte(volume + "-------")[:8], 512) }
	for volume, c := range clients {
		if a := c.call(write(0, data(volume))); a.Status != wire.StatusOK {
			t.Errorf("%s: %+v", volume, a)
		}
	}
	for volume, c := range clients {
		end := sizes[volume]
		for _, offset := range []uint64{end, end - 512, end + 1<<20, 1 << 40, math.MaxInt64 - 4095 - 512, math.MaxUint64 - 4095, math.MaxUint64 - 511} {
			offset &^= 511
			if a := c.call(read(offset, 4096)); a.Status != wire.StatusRange || a.Data != nil {
				t.Errorf("%s at %d: %+v", volume, offset, a.Response)
			}
			if a := c.call(write(offset, data("intruder"))); a.Status != wire.StatusRange {
				t.Errorf("%s at %d: %+v", volume, offset, a.Response)
			}
		}
		if a := c.call(read(0, 4096)); a.Status != wire.StatusOK || !bytes.Equal(a.Data, data(volume)) {
			t.Errorf("%s: another's data", volume)
		}
	}
}

// lapses is after how long a challenge is not valid any more.
const lapses = 30 * time.Second

// A flood of clients that never answer takes neither the place of those that do for long, nor
// memory.
func TestFloodOfChallenges(t *testing.T) {
	onBoth(t, func(t *testing.T, target target) {
		port := nextPort()
		target.serve(t, port, secret, "")
		honest := connect(t, port, hello(1), secret)
		start := time.Now()
		first := challenge(t, port, hello(2))
		kept, forgotten := challenge(t, port, hello(3)), 0
		flood := 1000
		if testing.Short() {
			flood = 300
		}
		for i := range flood {
			h := hello(4)
			h.Session[1], h.Session[2] = byte(i), byte(i>>8)
			last := challenge(t, port, h)
			if i == 253 { // with kept and this, 255 behind the first
				answered, _ := answer(hello(3), kept, secret)
				c, _ := dial(t, port, answered, config)
				if c == nil && time.Since(start) < lapses {
					t.Error("a challenge among the last 256 is forgotten")
				}
			}
			if last.ID-first.ID == 256 {
				forgotten++
			}
		}
		t.Logf("%d clients in %v", flood, time.Since(start))
		if forgotten != 1 {
			t.Errorf("ids are not in order")
		}
		answered, _ := answer(hello(2), first, secret)
		refused(t, "one that was forgotten", port, answered, wire.RejectStale)
		honest.isServed()
		connect(t, port, hello(5), secret).isServed()
	})
}

func TestChallengeLapses(t *testing.T) {
	leavesNothing(t)
	var stale []func()
	for _, target := range targets {
		port := nextPort()
		target.serve(t, port, secret, "")
		h, _ := answer(hello(1), challenge(t, port, hello(1)), secret)
		stale = append(stale, func() { refused(t, target.name, port, h, wire.RejectStale) })
	}
	time.Sleep(lapses + time.Second)
	for _, check := range stale {
		check()
	}
}

// A hello of any length, and with any byte of it changed, is refused or challenged; and the target
// goes on.
func TestPrivateDataOfAnyLength(t *testing.T) {
	onBoth(t, func(t *testing.T, target target) {
		port := nextPort()
		target.serve(t, port, secret, "")
		asks := hello(1)
		asks.Flags = wire.HelloKey
		for n := range wire.HelloSize + 1 {
			conn, _, err := dialRaw(t, port, asks.Append(nil)[:n], small)
			if err == nil {
				conn.Release()
				t.Errorf("%d bytes are accepted", n)
			}
		}
		for n := range wire.HelloSize {
			answered, _ := answer(hello(1), challenge(t, port, hello(1)), secret)
			for answered.Answer.Proof[15] == 0 { // which padding would mend
				answered, _ = answer(hello(1), challenge(t, port, hello(1)), secret)
			}
			conn, _, err := dialRaw(t, port, answered.Append(nil)[:n], small)
			if err == nil {
				conn.Release()
				t.Errorf("an answer of %d bytes is accepted", n)
			}
		}
		for i := range wire.HelloSize {
			answered, _ := answer(hello(1), challenge(t, port, hello(1)), secret)
			private := answered.Append(nil)
			private[i] ^= 0x40
			conn, _, err := dialRaw(t, port, private, small)
			if err == nil {
				conn.Release()
				t.Errorf("an answer with byte %d changed is accepted", i)
			}
		}
		connect(t, port, hello(1), secret).isServed()
	})
}

// A hello of any length is refused for what is missing of it, or served if that is no more than zeros, which the
// transport adds.
func TestHellosOfAnyLength(t *testing.T) {
	onBoth(t, func(t *testing.T, target target) {
		port := nextPort()
		target.serve(t, port, "", "")
		for _, n := range guest.Lengths(wire.HelloSize) {
			var want wire.Reason
			switch {
			case n < 4:
				want = wire.RejectMagic
			case n < 5:
				want = wire.RejectVersion
			case n < 29: // no name
				want = wire.RejectInvalid
			case n < 32: // a part of it
				want = wire.RejectVolume
			}
			conn, _, err := dialRaw(t, port, hello(1).Append(nil)[:n], config)
			var rejected *verbs.RejectedError
			switch {
			case err == nil:
				c := &client{Conn: conn, t: t}
				c.isServed()
				conn.Release()
				if want != 0 {
					t.Errorf("%d bytes are accepted", n)
				}
			case errors.As(err, &rejected):
				if reject, err := wire.DecodeReject(rejected.Private); err != nil || reject.Reason != want {
					t.Errorf("%d bytes: %+v, %v, want reason %d", n, reject, err, want)
				}
			default:
				t.Errorf("%d bytes: %v", n, err)
			}
		}
		connectOpen(t, port, hello(1)).isServed()
	})
}
