// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostiletarget

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/transport"
	"krping/bridge/wire"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

const (
	broke = "the target broke the protocol: "
	lost  = "connection lost" // a device has refused an access, or the target has gone
)

// Offsets in a response.
const (
	responseTag      = 0
	responseStatus   = 2
	responseFlags    = 3
	responseLength   = 4
	responseCRC      = 11 // its last byte, as of the next
	responseReserved = 15
)

// misbehaviour is what a target does with one command, or a few of a kind, and how the client reacts.
type misbehaviour struct {
	name  string
	op    wire.Op
	n     int // bytes
	do    func(c *faketarget.Conn, r wire.Request) (done bool)
	log   string        // line of the client's kernel
	lines int           // how many such lines; 0: one
	held  chan struct{} // if not nil, it delivers that a large read has arrived, which waits meanwhile
	tap   bool          // tested with a tap, too
}

// start makes the target misbehave, and delivers the connection on which it is done.
func (m misbehaviour) start(g *faketarget.Target) <-chan *faketarget.Conn {
	return g.Misbehave(faketarget.Misbehaviour{Op: m.op, N: m.n, AnySize: m.held != nil, Do: m.do})
}

// with changes bytes of a message.
func with(at int, value ...byte) func(m []byte) []byte {
	return func(m []byte) []byte {
		copy(m[at:], value)
		return m
	}
}

// inline makes a response announce inline data of a length, and appends n bytes.
func inline(length uint32, n int) func(m []byte) []byte {
	return func(m []byte) []byte {
		m[responseFlags] = wire.ResponseInline
		binary.BigEndian.PutUint32(m[responseLength:], length)
		return append(m, make([]byte, n)...)
	}
}

// changed sends the right answer with a change.
func changed(change func(m []byte) []byte) func(c *faketarget.Conn, r wire.Request) bool {
	return func(c *faketarget.Conn, r wire.Request) bool {
		if msg, err := c.Perform(r); err == nil {
			_ = c.Send(change(msg), r.Rkey)
		}
		return true
	}
}

// wrongMessages are answers that break the protocol.
func wrongMessages() []misbehaviour {
	var all []misbehaviour
	for _, m := range []struct {
		name   string
		op     wire.Op
		n      int
		change func(m []byte) []byte
		log    string
	}{
		{"empty message", wire.OpWrite, small, func([]byte) []byte { return nil }, "empty message"},
		{"15 bytes", wire.OpWrite, small, func(m []byte) []byte { return m[:15] }, "message ends in a response (15)"},
		{"a byte after the data", wire.OpRead, small, func(m []byte) []byte { return append(m, 0) }, "message ends in a response (1)"},
		{"reserved field", wire.OpWrite, small, with(responseReserved, 1), "reserved field is not zero (1)"},
		{"unknown status", wire.OpWrite, small, with(responseStatus, 8), "unknown status (8)"},
		{"status of all ones", wire.OpWrite, large, with(responseStatus, 0xff), "unknown status (255)"},
		{"unknown flags", wire.OpWrite, small, with(responseFlags, 2), "unknown flags (2)"},
		{"data of 4097 bytes", wire.OpRead, small, inline(4097, 8), "inline data is too long (4097)"},
		{"data of 4 GiB less one", wire.OpRead, small, inline(math.MaxUint32, 8), "inline data is too long (4294967295)"},
		{"data past the end of the message", wire.OpRead, small, func(m []byte) []byte { return m[:len(m)-8] }, "inline data is too long (4096)"},
		{"read without data", wire.OpRead, small, func(m []byte) []byte { return with(responseFlags, 0)(m)[:wire.ResponseSize] }, "inline data missing or not asked for (0)"},
		{"write with data", wire.OpWrite, small, inline(small, small), "inline data missing or not asked for (1)"},
		{"inline data of 0 bytes", wire.OpWrite, small, inline(0, 0), "wrong length in a response (0)"},
		{"failed read with data", wire.OpRead, small, with(responseStatus, byte(wire.StatusIO)), "wrong length in a response (4096)"},
		{"half of the length of a write", wire.OpWrite, small, with(responseLength, 0, 0, 8, 0), "wrong length in a response (2048)"},
		{"half of the length of a read", wire.OpRead, small, with(responseLength, 0, 0, 8, 0), "wrong length in a response (2048)"},
		{"half of the length of a large read", wire.OpRead, large, with(responseLength, 0, 0, 0x80, 0), "wrong length in a response (32768)"},
		{"unknown tag", wire.OpWrite, small, with(responseTag, 0x0f, 0xff), "tag is not in flight (4095)"},
		{"tag of a command that is not in flight", wire.OpWrite, large, func(m []byte) []byte { m[1] ^= 1; return m }, "tag is not in flight"},
		{"tag of another generation", wire.OpRead, small, func(m []byte) []byte { m[0] ^= 0x80; return m }, "tag is not in flight"},
		{"the same answer twice", wire.OpRead, small, func(m []byte) []byte { return slices.Concat(m, m) }, "tag is not in flight"},
		{"KEEP_ALIVE response without a command", wire.OpWrite, small, func(m []byte) []byte {
			alive := wire.Response{Tag: wire.TagKeepAlive, Flags: wire.ResponseInline, Length: 8}
			return alive.Append(m, binary.BigEndian.AppendUint64(nil, capacity))
		}, "unexpected keep-alive response"},
		{"KEEP_ALIVE response without data", wire.OpKeepAlive, 0, func(m []byte) []byte { return inline(0, 0)(m)[:wire.ResponseSize] }, "keep-alive response without a capacity (0)"},
		{"KEEP_ALIVE response with 4 bytes", wire.OpKeepAlive, 0, inline(4, 0), "keep-alive response without a capacity (4)"},
		{"failed KEEP_ALIVE", wire.OpKeepAlive, 0, with(responseStatus, byte(wire.StatusIO)), "keep-alive response without a capacity (8)"},
		{"smaller capacity", wire.OpKeepAlive, 0, ofCapacity(capacity - 512), "invalid new capacity (1048064)"},
		{"capacity with half a block", wire.OpKeepAlive, 0, ofCapacity(capacity + 256), "invalid new capacity (1048832)"},
		{"capacity of 2^63 bytes", wire.OpKeepAlive, 0, ofCapacity(1 << 63), "invalid new capacity (9223372036854775808)"},
	} {
		all = append(all, misbehaviour{name: m.name, op: m.op, n: m.n, do: changed(m.change), log: broke + m.log})
	}
	all[0].tap = true
	return append(all,
		misbehaviour{name: "message larger than the receive buffer", op: wire.OpWrite, n: small, log: lost, do: changed(func(m []byte) []byte {
			return append(m, make([]byte, int(faketarget.Welcome.MaxMessage)+8-len(m))...)
		})},
		misbehaviour{name: "eight answers without a command", op: wire.OpWrite, n: small, log: broke + "tag is not in flight (7)", lines: 8, tap: true, do: func(c *faketarget.Conn, _ wire.Request) bool {
			for range 8 {
				_ = c.Send(wire.Response{Tag: 7}.Append(nil, nil), 0)
			}
			return true
		}},
		misbehaviour{name: "the same answer in two messages", op: wire.OpWrite, n: small, log: broke + "tag is not in flight", do: func(c *faketarget.Conn, r wire.Request) bool {
			c.Answer(r)
			c.Answer(r)
			return true
		}},
		replayedAnswer())
}

func ofCapacity(n uint64) func(m []byte) []byte {
	return with(wire.ResponseSize, binary.BigEndian.AppendUint64(nil, n)...)
}

// replayedAnswer answers a command with the answer to an earlier command in the same slot.
func replayedAnswer() misbehaviour {
	const index = 0xfff // of the slot; the rest of a tag is a generation
	old := map[uint16][]byte{}
	return misbehaviour{name: "replayed answer", op: wire.OpRead, n: small, log: broke + "tag is not in flight", do: func(c *faketarget.Conn, r wire.Request) bool {
		msg, err := c.Perform(r)
		if err != nil {
			return false
		}
		last := old[r.Tag&index]
		if last != nil {
			msg = last
		}
		old[r.Tag&index] = bytes.Clone(msg)
		_ = c.Send(msg, 0)
		return last != nil
	}}
}

// wrongRkeys misuse rkeys, which commands with large data have.
func wrongRkeys() []misbehaviour {
	invalidating := func(key uint32) func(c *faketarget.Conn, r wire.Request) bool {
		return func(c *faketarget.Conn, r wire.Request) bool {
			if msg, err := c.Perform(r); err == nil {
				_ = c.Send(msg, key)
			}
			return true
		}
	}
	// beside answers a read while an earlier large read waits.
	beside := func(name string, n int, answer func(c *faketarget.Conn, waits, r wire.Request), log string) misbehaviour {
		held := make(chan struct{}, 1)
		var waits *wire.Request
		return misbehaviour{name: name, op: wire.OpRead, n: n, log: broke + log, held: held, do: func(c *faketarget.Conn, r wire.Request) bool {
			if waits == nil {
				waits = &r
				held <- struct{}{}
				return false
			}
			answer(c, *waits, r)
			return true
		}}
	}
	// denied accesses memory that the client's device must not allow it.
	denied := func(name string, op wire.Op, use func(c *faketarget.Conn, r wire.Request) error) misbehaviour {
		return misbehaviour{name: name, op: op, n: large / 2, log: lost, do: func(c *faketarget.Conn, r wire.Request) bool {
			if use(c, r) == nil {
				c.Target.Errorf("%s: the access was allowed", name)
				c.Close()
			}
			return true
		}}
	}
	junk := bytes.Repeat([]byte{0xa5}, small)
	unknown := transport.Remote{Addr: small, Rkey: noKey}
	return []misbehaviour{
		{name: "RDMA WRITE with immediate data", op: wire.OpRead, n: large, log: "the peer sent immediate data and no message", do: func(c *faketarget.Conn, r wire.Request) bool {
			if data, err := c.Buffer(large); err == nil {
				_ = c.WriteImmediate(data, faketarget.Remote(r)) // the client may disconnect before the completion
				c.Free(data)
			}
			return true
		}},
		{name: "rkey of a read is not invalidated", op: wire.OpRead, n: large, do: invalidating(0), log: broke + "our key was not invalidated"},
		{name: "rkey of a write is not invalidated", op: wire.OpWrite, n: large, do: invalidating(0), log: broke + "our key was not invalidated", tap: true},
		{name: "unknown rkey is invalidated", op: wire.OpWrite, n: large, do: invalidating(noKey), log: lost},
		{name: "unknown rkey is invalidated by an inline answer", op: wire.OpWrite, n: small, do: invalidating(noKey), log: lost},
		beside("another command's rkey is invalidated", large, func(c *faketarget.Conn, waits, r wire.Request) {
			if msg, err := c.Perform(waits); err == nil {
				_ = c.Send(msg, r.Rkey)
			}
		}, "our key was not invalidated"),
		beside("another command's rkey is invalidated by an inline answer", small, func(c *faketarget.Conn, waits, r wire.Request) {
			if msg, err := c.Perform(r); err == nil {
				_ = c.Send(msg, waits.Rkey)
			}
		}, "invalidated key of no request"),
		denied("RDMA READ with an unknown rkey", wire.OpRead, func(c *faketarget.Conn, _ wire.Request) error {
			_, err := c.Get(unknown, small)
			return err
		}),
		denied("RDMA WRITE with an unknown rkey", wire.OpWrite, func(c *faketarget.Conn, _ wire.Request) error { return c.PutDenied(unknown, junk) }),
		denied("RDMA READ of the memory of a read", wire.OpRead, func(c *faketarget.Conn, r wire.Request) error {
			_, err := c.Get(faketarget.Remote(r), small)
			return err
		}),
		denied("RDMA WRITE to the memory of a write", wire.OpWrite, func(c *faketarget.Conn, r wire.Request) error { return c.PutDenied(faketarget.Remote(r), junk) }),
		denied("RDMA READ past the end", wire.OpWrite, func(c *faketarget.Conn, r wire.Request) error {
			_, err := c.Get(faketarget.Remote(r), int(r.Length)+1)
			return err
		}),
		denied("RDMA WRITE past the end", wire.OpRead, func(c *faketarget.Conn, r wire.Request) error {
			return c.PutDenied(transport.Remote{Addr: r.Addr + uint64(r.Length) - small + 1, Rkey: r.Rkey}, junk)
		}),
		denied("RDMA READ after the answer", wire.OpWrite, func(c *faketarget.Conn, r wire.Request) error {
			c.Answer(r)
			_, err := c.Get(faketarget.Remote(r), small)
			return err
		}),
		denied("RDMA WRITE after the answer", wire.OpRead, func(c *faketarget.Conn, r wire.Request) error {
			c.Answer(r)
			return c.PutDenied(faketarget.Remote(r), junk)
		}),
	}
}

// disconnects are targets that disconnect at various steps.
func disconnects() []misbehaviour {
	gone := func(c *faketarget.Conn, _ wire.Request) bool {
		c.Close()
		return true
	}
	return []misbehaviour{
		{name: "disconnects during a small write", op: wire.OpWrite, n: small, do: gone, log: lost, tap: true},
		{name: "disconnects during a small read", op: wire.OpRead, n: small, do: gone, log: lost},
		{name: "disconnects during a large write", op: wire.OpWrite, n: large, do: gone, log: lost},
		{name: "disconnects during an RDMA READ", op: wire.OpWrite, n: large, log: lost, tap: true, do: func(c *faketarget.Conn, r wire.Request) bool {
			read := make(chan struct{})
			go func() {
				defer close(read)
				_, _ = c.Get(faketarget.Remote(r), large)
			}()
			time.Sleep(200 * time.Microsecond) // its first packets are on their way
			c.Close()
			<-read
			return true
		}},
		{name: "disconnects after an RDMA WRITE", op: wire.OpRead, n: large, log: lost, do: func(c *faketarget.Conn, r wire.Request) bool {
			_, _ = c.Perform(r)
			c.Close()
			return true
		}},
		{name: "disconnects after the answer to a write", op: wire.OpWrite, n: large, log: lost, do: func(c *faketarget.Conn, r wire.Request) bool {
			c.Answer(r)
			_ = c.Flush()
			c.Close()
			return true
		}},
		{name: "disconnects the next connection, too", op: wire.OpWrite, n: small, log: lost, do: func(c *faketarget.Conn, _ wire.Request) bool {
			c.Target.Greet(func(next *faketarget.Conn) {
				c.Target.Greet(nil)
				next.Close()
			})
			c.Close()
			return true
		}},
	}
}

// detected waits until a misbehaviour has ended its connection, and the client has reconnected.
func (m misbehaviour) detected(t *testing.T, log *kernelLog, done <-chan *faketarget.Conn, reconnects int) {
	t.Helper()
	c := guest.Within(t, ioTime, "the target misbehaves", done)
	guest.Within(t, ioTime, "the connection ends", c.Done())
	log.waitFor(t, m.log)
	guest.Eventually(t, ioTime, "the client has reconnected", func() bool {
		return guest.Session(t, "vol0")["state"] == "live" && counter(t, "reconnects") > reconnects
	})
}

// provoke does I/O until the target has misbehaved.
func (m misbehaviour) provoke(t *testing.T, dev *os.File, data, got []byte, done <-chan *faketarget.Conn) {
	t.Helper()
	for range 50 {
		var err error
		if m.op == wire.OpRead {
			err = read(t, dev, got, 0)
		} else {
			err = write(t, dev, data)
		}
		if err != nil {
			t.Fatalf("%v: %v", m.op, err)
		}
		if len(done) > 0 {
			return
		}
	}
}

// run checks that the client ends the connection, reconnects, and completes its I/O with the right data.
func (m misbehaviour) run(t *testing.T, g *faketarget.Target, dev *os.File) {
	defer g.Behave()
	log, reconnects := openLog(t, max(1, m.lines)), counter(t, "reconnects")
	data, got := random(t, max(m.n, small)), guest.Aligned(t, max(m.n, small))
	if err := write(t, dev, data); err != nil {
		t.Fatal(err)
	}
	done := m.start(g)
	waiting := make(chan error, 1)
	beside := guest.Aligned(t, large)
	if m.held != nil {
		go func() {
			_, err := dev.ReadAt(beside, capacity/2)
			waiting <- err
		}()
		guest.Within(t, ioTime, "a large read waits", m.held)
	}
	if m.op == wire.OpWrite {
		_, _ = rand.Read(data) // never fails
	}
	want := bytes.Clone(data)
	if m.op != wire.OpKeepAlive {
		m.provoke(t, dev, data, got, done)
	}
	m.detected(t, log, done, reconnects)
	if !bytes.Equal(data, want) || m.op == wire.OpRead && !bytes.Equal(got, want) {
		t.Error("the memory of the read or write has other data")
	}
	if m.held != nil {
		if err := guest.Within(t, ioTime, "the large read ends", waiting); err != nil || !g.Holds(capacity/2, beside) {
			t.Errorf("the large read: %v, or other data", err)
		}
	}
	if err := read(t, dev, got, 0); err != nil || !bytes.Equal(got, want) || !g.Holds(0, want) {
		t.Errorf("a read afterwards: %v, or other data than was written", err)
	}
}

func misbehaviours() []misbehaviour {
	return slices.Concat(wrongMessages(), wrongRkeys(), disconnects())
}

func TestMisbehaviour(t *testing.T) {
	guest.CheckResources(t)
	g := faketarget.Start(t, "")
	dev := attach(t, g, "")
	for i, m := range misbehaviours() {
		if isSkipped(i) {
			continue
		}
		t.Run(m.name, func(t *testing.T) { m.run(t, g, dev) })
	}
}

// A target that misbehaves to a tap does not disturb the application, and gets what is written next.
func TestMisbehaviourToATap(t *testing.T) {
	guest.CheckResources(t)
	g := faketarget.Start(t, "")
	dev := attach(t, g, ",backing=ram:1M,mode=tap")
	for _, m := range misbehaviours() {
		if !m.tap {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			defer g.Behave()
			log, reconnects := openLog(t, max(1, m.lines)), counter(t, "reconnects")
			data, got := random(t, m.n), guest.Aligned(t, m.n)
			done := m.start(g)
			if err := write(t, dev, data); err != nil {
				t.Error(err)
			}
			m.detected(t, log, done, reconnects)
			if err := read(t, dev, got, 0); err != nil || !bytes.Equal(got, data) {
				t.Errorf("read: %v, or other data than was written", err)
			}
			data = random(t, m.n)
			if err := write(t, dev, data); err != nil {
				t.Error(err)
			}
			guest.Eventually(t, ioTime, "the target has the data", func() bool { return g.Holds(0, data) })
		})
	}
}

// wrongAnswer is one kind of I/O that the target answers wrongly without breaking the protocol.
type wrongAnswer struct {
	name   string
	op     wire.Op
	n      int // bytes
	answer func(c *faketarget.Conn, r wire.Request)
	times  int   // how many commands are answered like this, at most
	want   error // of the I/O
	crcs   int   // CRC errors that the client counts
}

var wrongAnswers = []wrongAnswer{
	{"small read with a wrong CRC", wire.OpRead, small, answerWrongCRC, 9, unix.EIO, 2},
	{"large read with a wrong CRC", wire.OpRead, large, answerWrongCRC, 9, unix.EIO, 2},
	{"small read of wrong data", wire.OpRead, small, answerWrongData, 9, unix.EIO, 2},
	{"large read of wrong data", wire.OpRead, large, answerWrongData, 9, unix.EIO, 2},
	{"small read of wrong data, once", wire.OpRead, small, answerWrongData, 1, nil, 1},
	{"large read of wrong data, once", wire.OpRead, large, answerWrongData, 1, nil, 1},
	{"small write with CRC status", wire.OpWrite, small, answerStatus(wire.StatusCRC), 9, unix.EIO, 2},
	{"large write with CRC status", wire.OpWrite, large, answerStatus(wire.StatusCRC), 9, unix.EIO, 2},
	{"small write with CRC status, once", wire.OpWrite, small, answerStatus(wire.StatusCRC), 1, nil, 1},
	{"large write with CRC status, once", wire.OpWrite, large, answerStatus(wire.StatusCRC), 1, nil, 1},
	{"store failure", wire.OpRead, large, answerStatus(wire.StatusIO), 1, unix.EIO, 0},
	{"range outside the volume", wire.OpRead, small, answerStatus(wire.StatusRange), 1, unix.EIO, 0},
	{"read-only", wire.OpWrite, small, answerStatus(wire.StatusReadOnly), 1, unix.EIO, 0},
	{"no space", wire.OpWrite, large, answerStatus(wire.StatusNoSpace), 1, unix.ENOSPC, 0},
	{"unsupported", wire.OpWrite, small, answerStatus(wire.StatusUnsupported), 1, unix.EOPNOTSUPP, 0},
	{"invalid", wire.OpWrite, small, answerStatus(wire.StatusInvalid), 1, unix.EIO, 0},
}

func answerStatus(status wire.Status) func(c *faketarget.Conn, r wire.Request) {
	return func(c *faketarget.Conn, r wire.Request) {
		_ = c.Send(wire.Response{Tag: r.Tag, Status: status}.Append(nil, nil), r.Rkey)
	}
}

// answerWrongCRC sends the right data with a wrong CRC.
func answerWrongCRC(c *faketarget.Conn, r wire.Request) {
	if msg, err := c.Perform(r); err == nil {
		msg[responseCRC]++
		_ = c.Send(msg, r.Rkey)
	}
}

// answerWrongData sends wrong data with the CRC of the right data.
func answerWrongData(c *faketarget.Conn, r wire.Request) {
	data := c.Target.Load(r)
	a := wire.Response{Tag: r.Tag, Length: r.Length, CRC: wire.CRC32C(data)}
	data[r.Length-1]++
	if r.Rkey == 0 {
		a.Flags = wire.ResponseInline
		_ = c.Send(a.Append(nil, data), 0)
	} else if c.Put(faketarget.Remote(r), data) == nil {
		_ = c.Send(a.Append(nil, nil), r.Rkey)
	}
}

// A CRC that does not match, or a failure status, fails the I/O and never returns data; the connection stays.
func TestWrongDataAndFailures(t *testing.T) {
	guest.CheckResources(t)
	g := faketarget.Start(t, "")
	dev := attach(t, g, "")
	for _, w := range wrongAnswers {
		t.Run(w.name, func(t *testing.T) { w.run(t, g, dev) })
	}
}

func (w wrongAnswer) run(t *testing.T, g *faketarget.Target, dev *os.File) {
	defer g.Behave()
	log := openLog(t, w.crcs)
	before, data := random(t, w.n), random(t, w.n)
	if err := write(t, dev, before); err != nil {
		t.Fatal(err)
	}
	crcs, reconnects := counter(t, "crc_errors"), counter(t, "reconnects")
	err := w.io(t, g, dev, data)
	guest.EndsWith(t, err, []error{w.want})
	if n := counter(t, "crc_errors") - crcs; n != w.crcs {
		t.Errorf("%d CRC errors, want %d", n, w.crcs)
	}
	if counter(t, "reconnects") != reconnects {
		late.Errorf(t, "the connection was lost") // KEEP_ALIVE was not answered in time, or the answer has ended it
	}
	if w.crcs > 0 {
		log.waitFor(t, "trying again")
	}
	if w.crcs > 1 {
		log.waitFor(t, "again, it fails")
	}
	w.checkData(t, g, dev, before, data)
}

// io reads into or writes from data while the target answers wrongly.
func (w wrongAnswer) io(t *testing.T, g *faketarget.Target, dev *os.File, data []byte) error {
	answered := 0
	g.Misbehave(faketarget.Misbehaviour{Op: w.op, N: w.n, Do: func(c *faketarget.Conn, r wire.Request) bool {
		w.answer(c, r)
		answered++
		return answered == w.times
	}})
	defer g.Behave()
	if w.op == wire.OpRead {
		return read(t, dev, data, 0)
	}
	return write(t, dev, data)
}

// checkData checks what the I/O read, and what is on the volume after it.
func (w wrongAnswer) checkData(t *testing.T, g *faketarget.Target, dev *os.File, before, data []byte) {
	t.Helper()
	if w.op == wire.OpRead && w.want == nil && !bytes.Equal(data, before) {
		t.Error("the read returned other data than was written")
	}
	want := before
	if w.op == wire.OpWrite && w.want == nil {
		want = bytes.Clone(data)
	}
	if err := read(t, dev, data, 0); err != nil || !bytes.Equal(data, want) || !g.Holds(0, want) {
		t.Errorf("a read afterwards: %v, or other data", err)
	}
}
