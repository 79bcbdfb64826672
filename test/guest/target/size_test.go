// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"bytes"
	"encoding/binary"
	"testing"

	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// Commands beyond the new end of a volume are refused, and do not make its file longer again.
func TestShrunkVolume(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		store, resize := g.NewResizable(t, size)
		served := g.Serve(t, targets.Config{Store: store, Shared: true})
		c := fakeclient.Connect(t, served.Port, fakeclient.Hello(1))
		const left = size / 2
		wantSize := func() {
			t.Helper()
			if a := c.Call(fakeclient.KeepAlive())[0]; len(a.Data) != 8 || binary.BigEndian.Uint64(a.Data) != left {
				t.Errorf("KEEP_ALIVE: %+v, want %d", a, left)
			}
		}
		resize(left)
		if served.Bridge != nil { // it looks at the size for a KEEP_ALIVE and every 10 s
			wantSize()
		}
		data := bytes.Repeat([]byte{7}, 4096)
		at := func(r wire.Request, offset uint64) wire.Request { r.Offset = offset; return r }
		for name, r := range map[string]wire.Request{
			"read at the end":                fakeclient.Read(1, left, 512),
			"read across the end":            fakeclient.Read(1, left-512, 1024),
			"read at the old end":            fakeclient.Read(1, size-512, 512),
			"write at the end":               fakeclient.Write(1, left, data),
			"write across the end":           fakeclient.Write(1, left-512, data),
			"digest across the end":          at(fakeclient.Command(wire.OpDigest, wire.FlagInline, 1024), left-512),
			"zeroes across the end":          at(fakeclient.Command(wire.OpWriteZeroes, wire.FlagNoUnmap, 1024), left-512),
			"discard across the end":         at(fakeclient.Command(wire.OpDiscard, 0, 1024), left-512),
			"zeroes from the end to the old": at(fakeclient.Command(wire.OpWriteZeroes, wire.FlagNoUnmap, left), left),
		} {
			if a := c.Call(r)[0]; a.Status != wire.StatusRange {
				t.Errorf("%s: %+v, want status %d", name, a, wire.StatusRange)
			}
		}
		for _, r := range []wire.Request{fakeclient.Write(1, left-4096, data), fakeclient.Read(1, left-4096, 4096)} {
			if a := c.Call(r)[0]; a.Status != wire.StatusOK || r.Op == wire.OpRead && !bytes.Equal(a.Data, data) {
				t.Errorf("%v before the end: %+v", r.Op, a)
			}
		}
		wantSize()
		if w := fakeclient.Connect(t, served.Port, fakeclient.Hello(2)).Welcome; w.Capacity != left {
			t.Errorf("a new client's welcome has a capacity of %d, want %d", w.Capacity, left)
		}
		served.WantVolume(t, "size", "4194304", "violations", "0")
	})
}
