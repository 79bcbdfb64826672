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
	"krping/test/guest/internal/guest"
)

// Where in the volume clients write that go, and how much.
const (
	inlineAt, inlineSize = 1 << 20, 4096
	largeAt, largeSize   = 2 << 20, 1 << 20
	clearedAt            = 4 << 20
)

// leaver is a client that goes.
type leaver struct {
	*client
	fill   byte // of all that it writes, and of what it lends; of nothing that was written before
	memory transport.Remote
}

func (l *leaver) write() wire.Request {
	return write(inlineAt, bytes.Repeat([]byte{l.fill}, inlineSize))
}

// sendLarge sends a command with memory of the client's.
func (l *leaver) sendLarge(op wire.Op) {
	l.t.Helper()
	data := bytes.Repeat([]byte{l.fill}, largeSize)
	l.memory = l.lend(data)
	l.send(large(op, largeAt, data, l.memory))
}

// begin waits until the data of such a command is being moved.
func (l *leaver) begin(op wire.Op) {
	l.t.Helper()
	const some = 20 // packets of at least 256
	before, end := guest.SentPackets(l.t), time.Now().Add(guest.Slow(10*time.Second))
	l.sendLarge(op)
	for guest.SentPackets(l.t) < before+some {
		if time.Now().After(end) {
			l.t.Fatal("the target does not move the data")
		}
	}
}

// step is what a client does before it goes.
type step struct {
	name  string
	do    func(l *leaver)
	acked bool                              // what it writes is acknowledged
	midst func(l *leaver, stored bool) bool // has it gone before the data was moved? nil: that does not matter
}

func steps() []step {
	steps := []step{
		{name: "the accept", do: func(*leaver) {}},
		{name: "half a message", do: func(l *leaver) {
			msg := l.write().Append(nil)
			if err := l.Send(msg[:len(msg)/2], 0); err != nil {
				l.t.Fatal(err)
			}
			_ = l.Flush() // it ends the connection
		}},
		{name: "a WRITE", do: func(l *leaver) { l.send(l.write()) }},
		{name: "a WRITE and its response", do: func(l *leaver) {
			if a := l.call(l.write()); a.Status != wire.StatusOK {
				l.t.Errorf("%+v", a)
			}
		}, acked: true},
		{name: "a large WRITE", do: func(l *leaver) { l.sendLarge(wire.OpWrite) }},
		{name: "a large READ", do: func(l *leaver) { l.sendLarge(wire.OpRead) }},
		{name: "some of an RDMA READ", do: func(l *leaver) { l.begin(wire.OpWrite) },
			midst: func(_ *leaver, stored bool) bool { return !stored }},
		{name: "some of an RDMA WRITE", do: func(l *leaver) { l.begin(wire.OpRead) },
			midst: func(l *leaver, _ bool) bool { return lent(l.t, l.memory, largeSize)[largeSize-1] == l.fill }},
	}
	for name, c := range map[string]wire.Command{
		"a READ":         {Op: wire.OpRead, Flags: wire.FlagInline, Length: 4096},
		"a FLUSH":        {Op: wire.OpFlush},
		"a DISCARD":      {Op: wire.OpDiscard, Length: largeSize, Offset: clearedAt},
		"a WRITE_ZEROES": {Op: wire.OpWriteZeroes, Length: largeSize, Offset: clearedAt},
		"a DIGEST":       {Op: wire.OpDigest, Flags: wire.FlagInline, Length: largeSize, Offset: largeAt},
		"a KEEP_ALIVE":   {Op: wire.OpKeepAlive, Flags: wire.FlagInline, Tag: wire.TagKeepAlive},
	} {
		steps = append(steps, step{name: name, do: func(l *leaver) { l.send(wire.Request{Command: c}) }})
	}
	return steps
}

// holds returns whether a range holds n bytes of the fill; if it does not, it has to hold those of before.
func (c *client) holds(offset uint64, n int, fill, before byte) bool {
	c.t.Helper()
	a := c.call(wire.Request{Command: wire.Command{Op: wire.OpDigest, Flags: wire.FlagInline, Length: uint32(n), Offset: offset}})
	if a.Status != wire.StatusOK || len(a.Data) != 4 {
		c.t.Fatalf("%+v", a)
	}
	is := func(b byte) bool { return binary.BigEndian.Uint32(a.Data) == wire.CRC32C(bytes.Repeat([]byte{b}, n)) }
	if !is(fill) && !is(before) {
		c.t.Errorf("%d bytes at %d are neither what they were nor what was written", n, offset)
	}
	return is(fill)
}

// Clients that go at any step: what is not acknowledged is written as a whole or not at all, what is
// acknowledged is there, and other clients go on.
func TestDisconnects(t *testing.T) {
	onBoth(t, func(t *testing.T, target target) {
		port := nextPort()
		target.serve(t, port, "", "")
		other := connectOpen(t, port, hello(1))
		if a := other.call(wire.Request{Command: wire.Command{Op: wire.OpWriteZeroes, Length: size}}); a.Status != wire.StatusOK {
			t.Fatalf("%+v", a)
		}
		var fill, inline, moved byte // the last one, and what is at inlineAt and largeAt
		for _, s := range steps() {
			t.Run(s.name, func(t *testing.T) {
				for try := 1; ; try++ {
					fill++
					l := &leaver{client: connectOpen(t, port, hello(2)), fill: fill}
					s.do(l)
					l.Close()
					next := connectOpen(t, port, hello(2)) // which waits for all that is under way of the last
					if next.holds(inlineAt, inlineSize, fill, inline) {
						inline = fill
					} else if s.acked {
						t.Error("an acknowledged write is lost")
					}
					stored := next.holds(largeAt, largeSize, fill, moved)
					if stored {
						moved = fill
					}
					for _, c := range []*client{next, other} {
						c.isServed()
					}
					if s.midst == nil || s.midst(l, stored) {
						return
					}
					if try == 10 {
						t.Fatal("each time the data had been moved before the client was gone")
					}
				}
			})
		}
		dev := attach(t, port, "--queues", "1")
		writeAndVerify(t, dev)
		guest.MustKrpingctl(t, "stop", "vol0")
	})
}
