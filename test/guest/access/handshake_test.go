// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"bytes"
	"fmt"
	"math"
	"testing"
	"time"

	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

// A client that does not prove the key is rejected and disconnects nobody, even if it knows the session's UUID.
func TestHandshakeRejected(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		s := serve(t, target, secret)
		port := s.Port
		honest := fakeclient.ConnectKey(t, port, fakeclient.Hello(1), secret)
		sibling := fakeclient.Hello(1)
		sibling.QueueIndex = 1
		other := fakeclient.ConnectKey(t, port, sibling, secret)

		fakeclient.Rejected(t, "no key", port, fakeclient.Hello(1), wire.RejectNeedsKey)
		wrong, _ := fakeclient.Answer(fakeclient.Hello(1), fakeclient.Challenge(t, port, fakeclient.Hello(1)), another)
		fakeclient.Rejected(t, "another key", port, wrong, wire.RejectKey)
		fakeclient.Rejected(t, "another key again", port, wrong, wire.RejectStale)
		unasked, _ := fakeclient.Answer(fakeclient.Hello(1), &wire.Challenge{ID: 7}, secret)
		fakeclient.Rejected(t, "no challenge", port, unasked, wire.RejectStale)
		both := fakeclient.Hello(1)
		both.Flags = wire.HelloKey | wire.HelloProof
		fakeclient.Rejected(t, "both flags", port, both, wire.RejectInvalid)
		nowhere := fakeclient.Hello(1)
		nowhere.Flags, nowhere.Volume = wire.HelloKey, wire.VolumeIDOf("vol1")
		fakeclient.Rejected(t, "another volume", port, nowhere, wire.RejectVolume)
		for name, tc := range map[string]struct {
			change func(h *wire.Hello)
			want   wire.Reason
		}{
			"another session":      {func(h *wire.Hello) { h.Session[15]++ }, wire.RejectStale},
			"another queue":        {func(h *wire.Hello) { h.QueueIndex = 1 }, wire.RejectStale},
			"another challenge":    {func(h *wire.Hello) { h.Answer.Challenge++ }, wire.RejectStale},
			"an old challenge":     {func(h *wire.Hello) { h.Answer.Challenge -= 256 }, wire.RejectStale},
			"more queues":          {func(h *wire.Hello) { h.QueueCount++ }, wire.RejectKey},
			"another depth":        {func(h *wire.Hello) { h.Depth++ }, wire.RejectKey},
			"another nonce":        {func(h *wire.Hello) { h.Answer.Nonce[0]++ }, wire.RejectKey},
			"one bit of the proof": {func(h *wire.Hello) { h.Answer.Proof[15] ^= 1 }, wire.RejectKey},
			"no proof":             {func(h *wire.Hello) { h.Answer.Proof = wire.Proof{} }, wire.RejectKey},
		} {
			h, _ := fakeclient.Answer(fakeclient.Hello(1), fakeclient.Challenge(t, port, fakeclient.Hello(1)), secret)
			tc.change(&h)
			fakeclient.Rejected(t, name, port, h, tc.want)
		}
		for _, c := range []*fakeclient.Client{honest, other} {
			c.WantServed()
		}
		if s.Rejected() != 15 {
			t.Errorf("rejected=%d, want 15", s.Rejected())
		}

		h, _ := fakeclient.Answer(fakeclient.Hello(2), fakeclient.Challenge(t, port, fakeclient.Hello(2)), secret)
		served := fakeclient.Connect(t, port, h)
		fakeclient.Rejected(t, "replayed answer", port, h, wire.RejectStale)
		served.WantServed()

		// A session that reconnects replaces its own connection, and no other.
		again := fakeclient.ConnectKey(t, port, fakeclient.Hello(1), secret)
		honest.WantClosed("the session's old connection")
		for _, c := range []*fakeclient.Client{again, other, served} {
			c.WantServed()
		}
	})
}

// At one port the key and the challenge of a volume are useless for another volume.
func TestVolumesAtOnePort(t *testing.T) {
	for target, serve := range map[string]func(t *testing.T, port int){
		targets.Module.Name: func(t *testing.T, port int) {
			for _, v := range []struct{ name, size, key string }{{"vol0", "8M", secret}, {"other", "1M", another}, {"open", "1M", ""}} {
				command := guest.ServeCommand(t, v.name, port, "backing=ram:"+v.size)
				if v.key != "" {
					command += ",key=krping:k"
				}
				if err := commandWith("krping:k", v.key, command); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { guest.MustKrpingctl(t, "stop", "--target", v.name) })
			}
		},
		targets.Bridge.Name: func(t *testing.T, port int) {
			guest.StartBridge(t, port, guest.StorePath(t), "8MiB", "--key-file", targets.KeyFile(t, secret),
				"--volume", "other=mem:,size=1MiB,key-file="+targets.KeyFile(t, another), "--volume", "open=mem:,size=1MiB")
		},
	} {
		t.Run(target, func(t *testing.T) {
			guest.CheckResources(t)
			port := guest.NextPort()
			serve(t, port)
			volumesAtOnePort(t, port)
		})
	}
}

func volumesAtOnePort(t *testing.T, port int) {
	t.Helper()
	on := func(volume string) wire.Hello {
		h := fakeclient.Hello(1)
		h.Volume = wire.VolumeIDOf(volume)
		return h
	}
	owner := fakeclient.ConnectKey(t, port, on("vol0"), secret)
	neighbour := fakeclient.ConnectKey(t, port, on("other"), another) // of the same session UUID
	free := fakeclient.Connect(t, port, on("open"))
	asks := on("open")
	asks.Flags = wire.HelloKey
	fakeclient.Rejected(t, "key for a volume without a key", port, asks, wire.RejectNoKey)
	for _, tc := range []struct{ asked, key string }{{"vol0", another}, {"other", secret}} {
		h, _ := fakeclient.Answer(on(tc.asked), fakeclient.Challenge(t, port, on(tc.asked)), tc.key)
		fakeclient.Rejected(t, tc.asked+" with the other's key", port, h, wire.RejectKey)
	}
	// A challenge for other, answered for vol0 with the key of vol0.
	h, _ := fakeclient.Answer(on("vol0"), fakeclient.Challenge(t, port, on("other")), secret)
	fakeclient.Rejected(t, "another volume's challenge", port, h, wire.RejectKey)
	isolated(t, map[string]*fakeclient.Client{"vol0": owner, "other": neighbour, "open": free}, map[string]uint64{"vol0": size, "other": 1 << 20, "open": 1 << 20})
}

// isolated checks that each client reads what it wrote, whatever the others do, and that it cannot access anything
// beyond its volume.
func isolated(t *testing.T, clients map[string]*fakeclient.Client, sizes map[string]uint64) {
	t.Helper()
	data := func(volume string) []byte { return bytes.Repeat([]byte(volume + "-------")[:8], 512) }
	for volume, c := range clients {
		if a := c.Call(fakeclient.Write(2, 0, data(volume)))[0]; a.Status != wire.StatusOK {
			t.Errorf("%s: %+v", volume, a)
		}
	}
	for volume, c := range clients {
		end := sizes[volume]
		for _, offset := range []uint64{end, end - 512, end + 1<<20, 1 << 40, math.MaxInt64 - 4095 - 512, math.MaxUint64 - 4095, math.MaxUint64 - 511} {
			offset &^= 511
			if a := c.Call(fakeclient.Read(1, offset, 4096))[0]; a.Status != wire.StatusRange || a.Data != nil {
				t.Errorf("%s at %d: %+v", volume, offset, a.Response)
			}
			if a := c.Call(fakeclient.Write(2, offset, data("intruder")))[0]; a.Status != wire.StatusRange {
				t.Errorf("%s at %d: %+v", volume, offset, a.Response)
			}
		}
		if a := c.Call(fakeclient.Read(1, 0, 4096))[0]; a.Status != wire.StatusOK || !bytes.Equal(a.Data, data(volume)) {
			t.Errorf("%s: data of another client", volume)
		}
	}
}

// expires is how long a challenge is valid.
const expires = 30 * time.Second

// A flood of clients that ask for challenges and never answer them does not keep others out.
func TestFloodOfChallenges(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		port := serve(t, target, secret).Port
		honest := fakeclient.ConnectKey(t, port, fakeclient.Hello(1), secret)
		start := time.Now()
		first := fakeclient.Challenge(t, port, fakeclient.Hello(2))
		kept := fakeclient.Challenge(t, port, fakeclient.Hello(3))
		previous := kept.ID
		flood := 1000
		if testing.Short() {
			flood = 300
		}
		for i := range flood {
			h := fakeclient.Hello(4)
			h.Session[1], h.Session[2] = byte(i), byte(i>>8)
			last := fakeclient.Challenge(t, port, h)
			if i == 61 { // with kept and this one, 63 after the first
				answered, _ := fakeclient.Answer(fakeclient.Hello(3), kept, secret)
				_, err := fakeclient.Dial(t, port, answered.Append(nil), fakeclient.Config)
				if err != nil && time.Since(start) < expires {
					t.Errorf("a challenge among the last 64 of an address was dropped: %v", err)
				}
			}
			if int32(last.ID-previous) <= 0 {
				t.Errorf("challenge %d after %d", last.ID, previous)
			}
			previous = last.ID
		}
		t.Logf("%d clients in %v", flood, time.Since(start))
		answered, _ := fakeclient.Answer(fakeclient.Hello(2), first, secret)
		fakeclient.Rejected(t, "dropped challenge", port, answered, wire.RejectStale)
		honest.WantServed()
		fakeclient.ConnectKey(t, port, fakeclient.Hello(5), secret).WantServed()
	})
}

func TestChallengeExpires(t *testing.T) {
	guest.CheckResources(t)
	var stale []func()
	for _, target := range []targets.Target{targets.Module, targets.Bridge} {
		port := serve(t, target, secret).Port
		h, _ := fakeclient.Answer(fakeclient.Hello(1), fakeclient.Challenge(t, port, fakeclient.Hello(1)), secret)
		stale = append(stale, func() { fakeclient.Rejected(t, target.Name, port, h, wire.RejectStale) })
	}
	time.Sleep(expires + time.Second)
	for _, check := range stale {
		check()
	}
}

// A keyed hello that is cut to any length, or has any byte changed, is rejected or challenged.
func TestPrivateDataOfAnyLength(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		port := serve(t, target, secret).Port
		asks := fakeclient.Hello(1)
		asks.Flags = wire.HelloKey
		for _, n := range guest.Lengths(wire.HelloSize) {
			notAccepted(t, fmt.Sprintf("%d bytes", n), port, asks.Append(nil)[:n])
		}
		for _, n := range guest.Lengths(wire.HelloSize - 1) {
			answered, _ := fakeclient.Answer(fakeclient.Hello(1), fakeclient.Challenge(t, port, fakeclient.Hello(1)), secret)
			for answered.Answer.Proof[15] == 0 { // zeros are what the transport pads with
				answered, _ = fakeclient.Answer(fakeclient.Hello(1), fakeclient.Challenge(t, port, fakeclient.Hello(1)), secret)
			}
			notAccepted(t, fmt.Sprintf("an answer of %d bytes", n), port, answered.Append(nil)[:n])
		}
		for _, i := range guest.Lengths(wire.HelloSize - 1) {
			answered, _ := fakeclient.Answer(fakeclient.Hello(1), fakeclient.Challenge(t, port, fakeclient.Hello(1)), secret)
			private := answered.Append(nil)
			private[i] ^= 0x40
			notAccepted(t, fmt.Sprintf("an answer with byte %d changed", i), port, private)
		}
		fakeclient.ConnectKey(t, port, fakeclient.Hello(1), secret).WantServed()
	})
}

func notAccepted(t *testing.T, what string, port int, private []byte) {
	t.Helper()
	if _, err := fakeclient.Dial(t, port, private, fakeclient.Small); err == nil {
		t.Errorf("%s: accepted", what)
	}
}

// A hello that is cut is rejected for what is missing. If only zeros are missing, which the transport adds, it is accepted.
func TestHellosOfAnyLength(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		port := serve(t, target, "").Port
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
			what := fmt.Sprintf("%d bytes", n)
			c, err := fakeclient.Dial(t, port, fakeclient.Hello(1).Append(nil)[:n], fakeclient.Config)
			switch {
			case want != 0:
				version := map[wire.Reason]uint32{wire.RejectVersion: wire.Version} // the one that the target has
				fakeclient.WantRejected(t, what, err, want, version[want])
			case err != nil:
				t.Errorf("%s: %v", what, err)
			default:
				c.WantServed()
			}
		}
		fakeclient.Connect(t, port, fakeclient.Hello(1)).WantServed()
	})
}
