// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"krping/bridge/store"
	"krping/bridge/wire"
)

func TestViolationClosesOnlyItsConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		good := f.connect(hello(1, 0))
		for name, msg := range map[string][]byte{
			"no command":      []byte("garbage that is no command at all"),
			"tag in flight":   append(wire.Request{Command: wire.Command{Op: wire.OpWrite, Tag: 1, Length: 512, Rkey: 1}}.Append(nil), inlineRead(1, 0, 512).Append(nil)...),
			"more than depth": bytes.Repeat(wire.Request{Command: wire.Command{Op: wire.OpFlush}}.Append(nil), 5),
			"wrong rkey":      wire.Request{Command: wire.Command{Op: wire.OpRead, Tag: 1, Length: 512, Rkey: 77}}.Append(nil),
		} {
			p := f.connect(hello(2, 0))
			p.toTarget <- msg
			synctest.Wait()
			if !p.Ended() {
				t.Errorf("%s: the connection is open", name)
			}
		}
		if a, _ := f.one(good, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
			t.Errorf("another connection: %+v", a)
		}
	})
}

func TestAdmitRejects(t *testing.T) {
	f := newFixture(t)
	for name, tc := range map[string]struct {
		change func(*wire.Hello)
		want   wire.Reason
	}{
		"volume": {func(h *wire.Hello) { h.Volume = wire.VolumeIDOf("nosuch") }, wire.RejectVolume},
		"queues": {func(h *wire.Hello) { h.QueueCount = 65 }, wire.RejectQueues},
		"depth":  {func(h *wire.Hello) { h.Depth = 0 }, wire.RejectInvalid},
	} {
		h := hello(1, 0)
		tc.change(&h)
		_, err := f.target.Admit(h.Append(nil), addr)
		var reject *wire.Reject
		if !errors.As(err, &reject) || reject.Reason != tc.want {
			t.Errorf("%s: %v, want reason %d", name, err, tc.want)
		}
	}
}

// A client may have a message for each command unanswered, or FewMessages if it promises that; and a KEEP_ALIVE.
func TestUnansweredMessages(t *testing.T) {
	f := newFixture(t)
	for _, tc := range []struct {
		depth uint16
		flags uint8
		want  int
	}{
		{MaxDepth, 0, MaxDepth + 1},
		{MaxDepth + 1, 0, MaxDepth + 1}, // not granted
		{MaxDepth, wire.HelloFew, wire.FewMessages + 1},
		{wire.FewMessages - 1, wire.HelloFew, wire.FewMessages},
	} {
		h := hello(1, 0)
		h.Depth, h.Flags = tc.depth, tc.flags
		s, err := f.target.Admit(h.Append(nil), addr)
		if err != nil {
			t.Fatal(err)
		}
		if n := s.Messages(); n != tc.want {
			t.Errorf("depth %d, flags %#x: %d messages, want %d", tc.depth, tc.flags, n, tc.want)
		}
		f.target.Leave(s)
	}
}

// The connection of a client whose host has crashed is closed; one that is only idle stays.
func TestProbe(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		dead, idle := f.connect(hello(1, 0)), f.connect(hello(2, 0))
		time.Sleep(5 * probeInterval)
		for _, p := range []*pipe{dead, idle} {
			if a, _ := f.one(p, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
				t.Errorf("%+v", a)
			}
		}
		dead.dead.Store(true)
		time.Sleep(2 * probeInterval)
		synctest.Wait()
		if !dead.Ended() {
			t.Error("the connection of the dead client is open")
		}
		if a, _ := f.one(idle, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
			t.Errorf("the idle connection: %+v", a)
		}
	})
}

func TestWelcomeFlags(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.img")
	if _, err := store.Create(t.Context(), store.New{Path: path, Size: 4096}); err != nil {
		t.Fatal(err)
	}
	file, err := store.Open("file:"+path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	f := newFixture(t)
	for want, volume := range map[uint8]*Volume{
		wire.VolumeVolatile:  {BlockSize: 512, Store: f.store},
		0:                    {BlockSize: 512, Store: file},
		wire.VolumeReadOnly:  {BlockSize: 512, Store: file, ReadOnly: true},
		wire.VolumeWriteback: {BlockSize: 512, Store: file, Writeback: true},
	} {
		if got := f.target.newSession(hello(1, 0), volume, addr).Welcome.Flags; got != want {
			t.Errorf("flags %#x, want %#x", got, want)
		}
	}
}

// A welcome says whether several sessions may write, and whether a power loss may leave half a block.
func TestWelcomeCaps(t *testing.T) {
	f := newFixture(t)
	for _, tc := range []struct {
		volume *Volume
		block  uint32 // of the store
		want   uint32
	}{
		{volume: &Volume{BlockSize: 4096}},
		{volume: &Volume{BlockSize: 4096, Shared: true}, want: wire.CapShared},
		{volume: &Volume{BlockSize: 4096}, block: 512, want: wire.CapTornBlocks},
		{volume: &Volume{BlockSize: 4096}, block: 4096},
		{volume: &Volume{BlockSize: 512}, block: 512},
		{volume: &Volume{BlockSize: 512}, block: 4096},
		{volume: &Volume{BlockSize: 4096, Shared: true}, block: 512, want: wire.CapShared | wire.CapTornBlocks},
	} {
		tc.volume.Store = limited{f.store, store.Features{Block: tc.block}}
		if got := f.target.newSession(hello(1, 0), tc.volume, addr).Welcome.Caps; got != tc.want {
			t.Errorf("blocks of %d bytes, shared %v, of a store with %d: capabilities %#x, want %#x",
				tc.volume.BlockSize, tc.volume.Shared, tc.block, got, tc.want)
		}
	}
}

func TestEachTargetHasItsEpoch(t *testing.T) {
	a, b := newFixture(t), newFixture(t)
	if a.target.epoch == b.target.epoch {
		t.Error("two targets have the same epoch")
	}
}
