// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"krping/bridge/transport"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/late"
)

// What the clients write before they disconnect.
const (
	inlineAt, inlineSize = 1 << 20, 4096
	largeAt, largeSize   = 2 << 20, 1 << 20
	clearedAt            = 4 << 20
)

// leaver is a client that disconnects.
type leaver struct {
	*fakeclient.Client
	t      *testing.T
	fill   byte // fills all that it writes and lends; no earlier client has used it
	memory transport.Remote
}

func (l *leaver) write() wire.Request {
	return fakeclient.Write(2, inlineAt, bytes.Repeat([]byte{l.fill}, inlineSize))
}

// sendLarge sends a command whose data is in the client's memory.
func (l *leaver) sendLarge(op wire.Op) {
	l.t.Helper()
	data := bytes.Repeat([]byte{l.fill}, largeSize)
	l.memory = l.LendData(data)
	l.Post(fakeclient.Large(op, largeAt, data, l.memory))
}

// begin sends such a command and waits until its data is being moved.
func (l *leaver) begin(op wire.Op) {
	l.t.Helper()
	const some = 20 // packets of at least 256
	before, end := guest.SentPackets(l.t), time.Now().Add(guest.Slow(late.Limit(10*time.Second)))
	l.sendLarge(op)
	for guest.SentPackets(l.t) < before+some {
		if time.Now().After(end) {
			l.t.Fatal(late.Mark + "the target does not move the data")
		}
	}
}

// step is what a client does before it disconnects.
type step struct {
	name    string
	do      func(l *leaver)
	acked   bool                              // the target has acknowledged what was written
	partway func(l *leaver, stored bool) bool // whether the client disconnected before all data was moved; nil: does not matter
}

func steps() []step {
	steps := []step{
		{name: "the accept", do: func(*leaver) {}},
		{name: "half a message", do: func(l *leaver) {
			msg := l.write().Append(nil)
			l.PostMessage(msg[:len(msg)/2])
			_ = l.Flush() // it ends the connection
		}},
		{name: "a WRITE", do: func(l *leaver) { l.Post(l.write()) }},
		{name: "a WRITE and its response", do: func(l *leaver) {
			if a := l.Call(l.write())[0]; a.Status != wire.StatusOK {
				l.t.Errorf("%+v", a)
			}
		}, acked: true},
		{name: "a large WRITE", do: func(l *leaver) { l.sendLarge(wire.OpWrite) }},
		{name: "a large READ", do: func(l *leaver) { l.sendLarge(wire.OpRead) }},
		{name: "some of an RDMA READ", do: func(l *leaver) { l.begin(wire.OpWrite) },
			partway: func(_ *leaver, stored bool) bool { return !stored }},
		{name: "some of an RDMA WRITE", do: func(l *leaver) { l.begin(wire.OpRead) },
			partway: func(l *leaver, _ bool) bool { return l.Lent(l.memory, largeSize)[largeSize-1] == l.fill }},
	}
	for name, c := range map[string]wire.Command{
		"a READ":         {Op: wire.OpRead, Flags: wire.FlagInline, Length: 4096},
		"a FLUSH":        {Op: wire.OpFlush},
		"a DISCARD":      {Op: wire.OpDiscard, Length: largeSize, Offset: clearedAt},
		"a WRITE_ZEROES": {Op: wire.OpWriteZeroes, Length: largeSize, Offset: clearedAt},
		"a DIGEST":       {Op: wire.OpDigest, Flags: wire.FlagInline, Length: largeSize, Offset: largeAt},
		"a KEEP_ALIVE":   {Op: wire.OpKeepAlive, Flags: wire.FlagInline, Tag: wire.TagKeepAlive},
	} {
		steps = append(steps, step{name: name, do: func(l *leaver) { l.Post(wire.Request{Command: c}) }})
	}
	return steps
}

// holds says whether a range holds n bytes of fill. If not, it must hold n bytes of before.
func holds(t *testing.T, c *fakeclient.Client, offset uint64, n int, fill, before byte) bool {
	t.Helper()
	a := c.Call(wire.Request{Command: wire.Command{Op: wire.OpDigest, Flags: wire.FlagInline, Length: uint32(n), Offset: offset}})[0]
	if a.Status != wire.StatusOK || len(a.Data) != 4 {
		t.Fatalf("%+v", a)
	}
	is := func(b byte) bool { return binary.BigEndian.Uint32(a.Data) == wire.CRC32C(bytes.Repeat([]byte{b}, n)) }
	if !is(fill) && !is(before) {
		t.Errorf("the %d bytes at %d are neither the old nor the new data", n, offset)
	}
	return is(fill)
}

// Clients disconnect at each step. An unacknowledged write is done completely or not at all, an acknowledged one is
// not lost, and other clients are still served.
func TestDisconnectAtEachStep(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		port := serve(t, target, "").Port
		other := fakeclient.Connect(t, port, fakeclient.Hello(1))
		if a := other.Call(wire.Request{Command: wire.Command{Op: wire.OpWriteZeroes, Length: size}})[0]; a.Status != wire.StatusOK {
			t.Fatalf("%+v", a)
		}
		var fill, inline, moved byte // the last fill, and what is at inlineAt and largeAt
		for _, s := range steps() {
			t.Run("after "+s.name, func(t *testing.T) {
				for try := 1; ; try++ {
					fill++
					l := &leaver{t: t, Client: fakeclient.Connect(t, port, fakeclient.Hello(2)), fill: fill}
					s.do(l)
					l.Close()
					next := fakeclient.Connect(t, port, fakeclient.Hello(2)) // after all commands of the last one have ended
					if holds(t, next, inlineAt, inlineSize, fill, inline) {
						inline = fill
					} else if s.acked {
						t.Error("an acknowledged write is lost")
					}
					stored := holds(t, next, largeAt, largeSize, fill, moved)
					if stored {
						moved = fill
					}
					for _, c := range []*fakeclient.Client{next, other} {
						c.WantServed()
					}
					if s.partway == nil || s.partway(l, stored) {
						return
					}
					if try == 10 {
						t.Fatal("in each try all data was moved before the client disconnected")
					}
				}
			})
		}
		dev := attach(t, port, "--queues", "1")
		writeAndVerify(t, dev)
		guest.MustKrpingctl(t, "stop", "vol0")
	})
}
