// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/crowd"
	"krping/test/guest/internal/guest"
)

const (
	noKey        = 0xdeadbeef // nobody has it
	size         = 8 << 20    // of the volume
	opKeepAlive  = wire.Op(7)
	tagKeepAlive = 0xffff
)

// client is a client of the protocol in user space, which may lie.
type client struct {
	*verbs.Conn
	t       *testing.T
	welcome wire.Welcome
}

func hello(change func(h *wire.Hello)) []byte {
	h := wire.Hello{QueueCount: 1, Depth: 4, Session: wire.SessionID{1, 2, 3}, Volume: "vol0"}
	change(&h)
	return h.Append(nil)
}

func dial(t *testing.T, private []byte, config verbs.Config) (*client, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, reply, err := verbs.Dial(ctx, netip.AddrPortFrom(netip.MustParseAddr(guest.Addr(t)), port), private, config)
	if err != nil {
		return nil, err
	}
	t.Cleanup(conn.Release)
	c := &client{Conn: conn, t: t}
	c.welcome, err = wire.DecodeWelcome(reply)
	return c, err
}

var config = verbs.Config{Receives: 8, MaxMessage: 32768, Buffers: 1, MaxData: 4096}

func connect(t *testing.T, change func(h *wire.Hello)) *client {
	t.Helper()
	c, err := dial(t, hello(change), config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func honest(*wire.Hello) {}

// call sends a message of commands and returns the answers to all of them.
func (c *client) call(requests ...wire.Request) []wire.Answer {
	c.t.Helper()
	var msg []byte
	for _, r := range requests {
		msg = r.Append(msg)
	}
	if err := c.Send(msg, 0); err != nil {
		c.t.Fatal(err)
	}
	var answers []wire.Answer
	for len(answers) < len(requests) {
		message, err := c.Recv()
		if err != nil {
			c.t.Fatalf("no answer: %v", err)
		}
		some, err := wire.DecodeAnswers(bytes.Clone(message.Data))
		if err != nil {
			c.t.Fatal(err)
		}
		answers = append(answers, some...)
		if err := message.Release(); err != nil {
			c.t.Fatal(err)
		}
	}
	return answers
}

func write(tag uint16, offset uint64, data []byte) wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpWrite, Flags: wire.FlagInline, Tag: tag, Length: uint32(len(data)), Offset: offset,
		CRC: wire.CRC32C(data)}, Data: data}
}

func read(tag uint16, offset uint64, n uint32) wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpRead, Flags: wire.FlagInline, Tag: tag, Length: n, Offset: offset}}
}

func request(op wire.Op, flags uint8, length uint32) wire.Request {
	return wire.Request{Command: wire.Command{Op: op, Flags: flags, Length: length}}
}

func keepAlive() wire.Request {
	return wire.Request{Command: wire.Command{Op: opKeepAlive, Flags: wire.FlagInline, Tag: tagKeepAlive}}
}

func TestStatuses(t *testing.T) {
	for name, v := range map[string]struct {
		backing string
		flags   uint8
	}{"ram": {"ram:8M", wire.VolumeVolatile}, "disk": {loop(t, "8M"), 0}} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			guest.Serve(t, "vol0", port, "backing="+v.backing)
			c := connect(t, honest)
			if w := c.welcome; w.Capacity != size || w.Depth != 4 || w.BlockSize != 512 || w.Flags != v.flags || w.Epoch == 0 {
				t.Errorf("welcome %+v", w)
			}
			data := bytes.Repeat([]byte{0, 1, 0, 2, 0, 0, 0, 3}, 512)
			bad := write(2, 4096, data)
			bad.CRC++
			for _, tc := range []struct {
				name    string
				request wire.Request
				want    wire.Status
			}{
				{"write", write(1, 0, data), wire.StatusOK},
				{"wrong CRC", bad, wire.StatusCRC},
				{"at the end", write(3, size, data), wire.StatusRange},
				{"over the end", write(4, size-512, data), wire.StatusRange},
				{"offset of all ones", write(5, math.MaxUint64-511, data), wire.StatusRange},
				{"sum that overflows", read(6, math.MaxUint64-4095, 4096), wire.StatusRange},
				{"flush", request(wire.OpFlush, 0, 0), wire.StatusOK},
				{"zeroes over the end", wire.Request{Command: wire.Command{Op: wire.OpWriteZeroes, Length: 2 << 30}}, wire.StatusRange},
				{"discard over the end", wire.Request{Command: wire.Command{Op: wire.OpDiscard, Length: size, Offset: 512}}, wire.StatusRange},
				{"digest over the end", wire.Request{Command: wire.Command{Op: wire.OpDigest, Flags: wire.FlagInline, Length: 16 << 20}}, wire.StatusRange},
			} {
				answer := c.call(tc.request)[0]
				if answer.Status != tc.want || answer.Tag != tc.request.Tag || tc.want != wire.StatusOK && (answer.Length != 0 || answer.Data != nil) {
					t.Errorf("%s: %+v, want status %d", tc.name, answer, tc.want)
				}
			}
			// Several in one message; nothing of what was refused is stored.
			answers := c.call(read(7, 0, 4096), read(8, 4096, 4096), keepAlive())
			for _, a := range answers {
				switch {
				case a.Tag == 7 && (!bytes.Equal(a.Data, data) || a.CRC != wire.CRC32C(data)):
					t.Error("what was read is not what was written")
				case a.Tag == 8 && !bytes.Equal(a.Data, make([]byte, 4096)):
					t.Error("a write with a wrong CRC was stored")
				case a.Tag == tagKeepAlive && (len(a.Data) != 8 || binary.BigEndian.Uint64(a.Data) != size || a.CRC != 0):
					t.Errorf("KEEP_ALIVE: %+v", a)
				}
			}
			for _, op := range []wire.Op{wire.OpDiscard, wire.OpWriteZeroes} {
				c.call(write(9, 4096, data))
				r := request(op, 0, 8192)
				if op == wire.OpWriteZeroes {
					r.Flags = wire.FlagFUA
				}
				if a := c.call(r)[0]; a.Status != wire.StatusOK || a.Length != 0 {
					t.Errorf("%v: %+v", op, a)
				}
				if a := c.call(read(1, 4096, 4096))[0]; !bytes.Equal(a.Data, make([]byte, 4096)) {
					t.Errorf("there is data after %v", op)
				}
			}
			c.call(write(1, 0, data))
			digest := request(wire.OpDigest, wire.FlagInline, 4096)
			if a := c.call(digest)[0]; a.Length != 4 || binary.BigEndian.Uint32(a.Data) != wire.CRC32C(data) {
				t.Errorf("digest: %+v", a)
			}
			digest.Flags |= wire.FlagSHA256
			if a := c.call(digest)[0]; a.Length != 32 {
				t.Errorf("digest: %+v", a)
			}
			wants(t, guest.Volume(t, "vol0"), "violations", "0", "crc_errors", "1", "inflight", "0", "queues", "1")
		})
	}
}

func TestReadOnlyStatuses(t *testing.T) {
	guest.Serve(t, "vol0", port, "read_only,backing=ram:8M")
	c := connect(t, honest)
	large := wire.Request{Command: wire.Command{Op: wire.OpWrite, Length: 1 << 20, Addr: 4096, Rkey: noKey}}
	for _, r := range []wire.Request{write(1, 0, make([]byte, 512)), request(wire.OpDiscard, 0, 512), request(wire.OpWriteZeroes, 0, 512)} {
		if a := c.call(r)[0]; a.Status != wire.StatusReadOnly {
			t.Errorf("%v: %+v", r.Op, a)
		}
	}
	if a := c.call(request(wire.OpFlush, 0, 0))[0]; a.Status != wire.StatusOK {
		t.Errorf("flush: %+v", a)
	}
	// Its key is invalidated, which this side's device refuses.
	if err := c.Send(large.Append(nil), 0); err != nil {
		t.Fatal(err)
	}
	c.isEnded()
}

// isEnded checks that the target ends the connection.
func (c *client) isEnded() {
	c.t.Helper()
	select {
	case <-c.Done():
	case <-time.After(15 * time.Second):
		c.t.Error("the target keeps the connection")
	}
}

func violations() map[string][]byte {
	lie := func(change func(r *wire.Request)) []byte {
		r := read(1, 0, 4096)
		change(&r)
		return r.Append(nil)
	}
	op := func(r wire.Request) []byte { return r.Append(nil) }
	short := write(1, 0, make([]byte, 4096)).Append(nil)
	messages := map[string][]byte{
		"empty":                       {},
		"one byte":                    {1},
		"31 bytes":                    short[:31],
		"a command and a byte":        append(op(request(wire.OpFlush, 0, 0)), 2),
		"data ends behind":            short[:len(short)-1],
		"no data":                     short[:32],
		"length 0":                    lie(func(r *wire.Request) { r.Length = 0 }),
		"length 511":                  lie(func(r *wire.Request) { r.Length = 511 }),
		"length of all ones":          lie(func(r *wire.Request) { r.Length = math.MaxUint32 }),
		"more inline than allowed":    lie(func(r *wire.Request) { r.Length = 4608 }),
		"offset 1":                    lie(func(r *wire.Request) { r.Offset = 1 }),
		"inline and a key":            lie(func(r *wire.Request) { r.Rkey = noKey }),
		"neither inline nor a key":    lie(func(r *wire.Request) { r.Flags = 0 }),
		"an address without a key":    lie(func(r *wire.Request) { r.Addr = 4096 }),
		"FUA of a READ":               lie(func(r *wire.Request) { r.Flags |= wire.FlagFUA }),
		"SHA256 of a READ":            lie(func(r *wire.Request) { r.Flags |= wire.FlagSHA256 }),
		"CRC of a READ":               lie(func(r *wire.Request) { r.CRC = 1 }),
		"the tag of KEEP_ALIVE":       lie(func(r *wire.Request) { r.Tag = tagKeepAlive }),
		"more than 1 MiB":             lie(func(r *wire.Request) { r.Flags, r.Rkey, r.Length = 0, noKey, 1<<20+512 }),
		"FLUSH with a length":         op(request(wire.OpFlush, 0, 512)),
		"inline FLUSH":                op(request(wire.OpFlush, wire.FlagInline, 0)),
		"inline DISCARD":              op(request(wire.OpDiscard, wire.FlagInline, 512)),
		"DISCARD of more than 2 GiB":  op(request(wire.OpDiscard, 0, 2<<30+512)),
		"DISCARD of nothing":          op(request(wire.OpDiscard, 0, 0)),
		"DIGEST that is not inline":   op(request(wire.OpDigest, 0, 512)),
		"DIGEST of more than 16 MiB":  op(request(wire.OpDigest, wire.FlagInline, 16<<20+512)),
		"KEEP_ALIVE with a length":    op(request(opKeepAlive, wire.FlagInline, 512)),
		"KEEP_ALIVE with another tag": op(request(opKeepAlive, wire.FlagInline, 0)),
		"two KEEP_ALIVEs":             keepAlive().Append(op(keepAlive())),
		"a tag twice":                 read(1, 512, 512).Append(op(read(1, 0, 512))),
		"more commands than the depth": read(5, 0, 512).Append(read(4, 0, 512).Append(read(3, 0, 512).Append(
			read(2, 0, 512).Append(op(read(1, 0, 512)))))),
	}
	for _, bad := range []wire.Op{0, 8, 255} {
		messages[fmt.Sprintf("op %d", bad)] = op(request(bad, wire.FlagInline, 512))
	}
	for bit := 3; bit < 8; bit++ {
		messages[fmt.Sprintf("flag 0x%x", 1<<bit)] = lie(func(r *wire.Request) { r.Flags |= 1 << bit })
	}
	return messages
}

func TestViolations(t *testing.T) {
	leavesNothing(t)
	guest.Serve(t, "vol0", port, "backing=ram:8M")
	messages := violations()
	for name, msg := range messages {
		t.Run(name, func(t *testing.T) {
			c := connect(t, honest)
			if err := c.Send(msg, 0); err != nil {
				t.Fatal(err)
			}
			c.isEnded()
		})
	}
	wants(t, guest.Volume(t, "vol0"), "violations", strconv.Itoa(len(messages)))
	// What the device refuses is no violation of the protocol, and ends the connection too.
	key := func(op wire.Op) []byte {
		return wire.Request{Command: wire.Command{Op: op, Length: 1 << 20, Addr: 4096, Rkey: noKey}}.Append(nil)
	}
	for name, msg := range map[string][]byte{
		"WRITE with a key that nobody has": key(wire.OpWrite),
		"READ with a key that nobody has":  key(wire.OpRead),
		"message of 16385 bytes":           make([]byte, 16385),
	} {
		t.Run(name, func(t *testing.T) {
			c := connect(t, honest)
			if err := c.Send(msg, 0); err != nil {
				t.Fatal(err)
			}
			c.isEnded()
		})
	}
	t.Run("invalidates a key that nobody has", func(t *testing.T) {
		c := connect(t, honest)
		if err := c.Send(request(wire.OpFlush, 0, 0).Append(nil), noKey); err != nil {
			t.Fatal(err)
		}
		c.isEnded()
	})
	dev := guest.Attach(t, port, "") // a good client is served
	verify(t, dev)
}

func TestBadHellos(t *testing.T) {
	leavesNothing(t)
	guest.Serve(t, "vol0", port, "backing=ram:8M")
	at := func(i int, value byte) []byte {
		h := hello(honest)
		h[i] = value
		return h
	}
	for _, tc := range []struct {
		name   string
		hello  []byte
		reason wire.Reason
		value  uint32
	}{
		{"none", nil, wire.RejectMagic, 0},
		{"magic", at(3, 0), wire.RejectMagic, 0},
		{"version", at(4, 2), wire.RejectVersion, 1},
		{"an unknown flag", at(5, 4), wire.RejectInvalid, 0},
		{"two flags", at(5, 3), wire.RejectInvalid, 0},
		{"a key for a volume without", at(5, 1), wire.RejectNoKey, 0},
		{"an answer to no challenge", at(5, 2), wire.RejectStale, 0},
		{"index", at(7, 1), wire.RejectInvalid, 0},
		{"no queue", at(9, 0), wire.RejectInvalid, 0},
		{"no depth", at(11, 0), wire.RejectInvalid, 0},
		{"no name", hello(func(h *wire.Hello) { h.Volume = "" }), wire.RejectInvalid, 0},
		{"a name with a slash", hello(func(h *wire.Hello) { h.Volume = "a/b" }), wire.RejectInvalid, 0},
		{"a name without end", append(hello(func(h *wire.Hello) { h.Volume = "abcdefghijklmnopqrstuvwxyz0" })[:55], 'x'), wire.RejectInvalid, 0},
		{"another volume", hello(func(h *wire.Hello) { h.Volume = "vol1" }), wire.RejectVolume, 0},
		{"65 queues", at(9, 65), wire.RejectQueues, 64},
	} {
		_, err := dial(t, tc.hello, config)
		var rejected *verbs.RejectedError
		if !errors.As(err, &rejected) {
			t.Errorf("%s: %v, want a reject", tc.name, err)
			continue
		}
		reject, err := wire.DecodeReject(rejected.Private)
		if err != nil || reject.Reason != tc.reason || reject.Value != tc.value {
			t.Errorf("%s: %+v, %v, want reason %d, value %d", tc.name, reject, err, tc.reason, tc.value)
		}
	}
	wants(t, guest.Volume(t, "vol0"), "connections", "0", "queues", "0")
}

// A new connection of a session's queue replaces the old one.
func TestFencing(t *testing.T) {
	leavesNothing(t)
	guest.Serve(t, "vol0", port, "backing="+loop(t, "8M"))
	old := connect(t, honest)
	other := connect(t, func(h *wire.Hello) { h.QueueCount, h.QueueIndex = 2, 1 })
	if err := old.Send(request(wire.OpDigest, wire.FlagInline, size).Append(nil), 0); err != nil {
		t.Fatal(err)
	}
	c := connect(t, honest)
	old.isEnded()
	for _, alive := range []*client{c, other} {
		if a := alive.call(read(1, 0, 512))[0]; a.Status != wire.StatusOK {
			t.Errorf("%+v", a)
		}
	}
	wants(t, guest.Volume(t, "vol0"), "queues", "2", "connections", "3")
}

// Silent clients take what there is, are refused then, and keep neither a good one that finds a place
// waiting nor a stop.
func TestManySilentClients(t *testing.T) {
	leavesNothing(t)
	guest.Serve(t, "vol0", port, "backing=ram:8M")
	silent := verbs.Config{Receives: 2, MaxMessage: 64, Buffers: 1, MaxData: 4096}
	private := func(i int) []byte {
		return hello(func(h *wire.Hello) { h.Depth, h.Session = 1, wire.SessionID{byte(i), byte(i >> 8), 1} })
	}
	const most = 256
	taken := crowd.Dial(t, crowd.Size(), func(i int) (*client, error) { return dial(t, private(i), silent) }, crowd.Busy(most))
	crowd.Filled(t, len(taken), most)
	wants(t, guest.Volume(t, "vol0"), "queues", "256", "connections", strconv.Itoa(len(taken)), "rejected", strconv.Itoa(crowd.Size()-len(taken)))
	// One of them may come again.
	again, err := dial(t, private(7), silent)
	if err != nil {
		t.Fatalf("a client that is fenced: %v", err)
	}
	again.Close()
	guest.Eventually(t, 10*time.Second, "there is a place", func() bool { return guest.Volume(t, "vol0")["queues"] != "256" })
	verify(t, guest.Attach(t, port, ",queues=1"))
	if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
		t.Error(err)
	}
	start := time.Now()
	if err := guest.Command("stop,target,block=vol0", guest.Limit); err != nil {
		t.Error(err)
	}
	t.Logf("stopped after %v", time.Since(start)) // which has to tear down their ends, too
}
