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
	"krping/test/guest/internal/guest"
)

const (
	broke = "the target broke the protocol: "
	lost  = "connection lost" // the device has refused something, or the target has gone
)

// Bytes of a response.
const (
	responseTag      = 0
	responseStatus   = 2
	responseFlags    = 3
	responseLength   = 4
	responseCRC      = 11 // its last byte, as of the next
	responseReserved = 15
)

// with changes a message from a byte on.
func with(at int, value ...byte) func(m []byte) []byte {
	return func(m []byte) []byte {
		copy(m[at:], value)
		return m
	}
}

// inline has a response say that so much data follows, and adds some.
func inline(length uint32, more int) func(m []byte) []byte {
	return func(m []byte) []byte {
		m[responseFlags] = wire.ResponseInline
		binary.BigEndian.PutUint32(m[responseLength:], length)
		return append(m, make([]byte, more)...)
	}
}

// changed answers as an honest target would, but for a change of the message.
func changed(change func(m []byte) []byte) func(l *link, r wire.Request) bool {
	return func(l *link, r wire.Request) bool {
		if msg, err := l.perform(r); err == nil {
			_ = l.Send(change(msg), r.Rkey)
		}
		return true
	}
}

func messageFibs() []fib {
	var fibs []fib
	for _, m := range []struct {
		name   string
		op     wire.Op
		n      int
		change func(m []byte) []byte
		says   string
	}{
		{"empty message", wire.OpWrite, small, func([]byte) []byte { return nil }, "empty message"},
		{"15 bytes", wire.OpWrite, small, func(m []byte) []byte { return m[:15] }, "message ends in a response (15)"},
		{"a byte behind it", wire.OpRead, small, func(m []byte) []byte { return append(m, 0) }, "message ends in a response (1)"},
		{"reserved field", wire.OpWrite, small, with(responseReserved, 1), "reserved field is not zero (1)"},
		{"unknown status", wire.OpWrite, small, with(responseStatus, 8), "unknown status (8)"},
		{"status of all ones", wire.OpWrite, large, with(responseStatus, 0xff), "unknown status (255)"},
		{"unknown flags", wire.OpWrite, small, with(responseFlags, 2), "unknown flags (2)"},
		{"data of 4097 bytes", wire.OpRead, small, inline(4097, 8), "inline data is too long (4097)"},
		{"data of 4 GiB less one", wire.OpRead, small, inline(math.MaxUint32, 8), "inline data is too long (4294967295)"},
		{"data behind the message", wire.OpRead, small, func(m []byte) []byte { return m[:len(m)-8] }, "inline data is too long (4096)"},
		{"no data", wire.OpRead, small, func(m []byte) []byte { return with(responseFlags, 0)(m)[:wire.ResponseSize] }, "inline data missing or not asked for (0)"},
		{"data of a write", wire.OpWrite, small, inline(small, small), "inline data missing or not asked for (1)"},
		{"data of no bytes", wire.OpWrite, small, inline(0, 0), "wrong length in a response (0)"},
		{"data of a failure", wire.OpRead, small, with(responseStatus, byte(wire.StatusIO)), "wrong length in a response (4096)"},
		{"length of half a write", wire.OpWrite, small, with(responseLength, 0, 0, 8, 0), "wrong length in a response (2048)"},
		{"length of half a read", wire.OpRead, small, with(responseLength, 0, 0, 8, 0), "wrong length in a response (2048)"},
		{"length of half a large read", wire.OpRead, large, with(responseLength, 0, 0, 0x80, 0), "wrong length in a response (32768)"},
		{"unknown tag", wire.OpWrite, small, with(responseTag, 0x0f, 0xff), "tag is not in flight (4095)"},
		{"tag of a command that is not in flight", wire.OpWrite, large, func(m []byte) []byte { m[1] ^= 1; return m }, "tag is not in flight"},
		{"tag of another generation", wire.OpRead, small, func(m []byte) []byte { m[0] ^= 0x80; return m }, "tag is not in flight"},
		{"the same answer twice", wire.OpRead, small, func(m []byte) []byte { return slices.Concat(m, m) }, "tag is not in flight"},
		{"a sign of life unasked", wire.OpWrite, small, func(m []byte) []byte {
			alive := wire.Response{Tag: wire.TagKeepAlive, Flags: wire.ResponseInline, Length: 8}
			return alive.Append(m, binary.BigEndian.AppendUint64(nil, capacity))
		}, "a sign of life that was not asked for"},
		{"sign of life without data", wire.OpKeepAlive, 0, func(m []byte) []byte { return inline(0, 0)(m)[:wire.ResponseSize] }, "a sign of life without a capacity (0)"},
		{"sign of life of 4 bytes", wire.OpKeepAlive, 0, inline(4, 0), "a sign of life without a capacity (4)"},
		{"sign of life that failed", wire.OpKeepAlive, 0, with(responseStatus, byte(wire.StatusIO)), "a sign of life without a capacity (8)"},
		{"capacity that shrinks", wire.OpKeepAlive, 0, ofCapacity(capacity - 512), "the volume has now a capacity of (1048064)"},
		{"capacity of half a block", wire.OpKeepAlive, 0, ofCapacity(capacity + 256), "the volume has now a capacity of (1048832)"},
		{"capacity over what the kernel has", wire.OpKeepAlive, 0, ofCapacity(1 << 63), "the volume has now a capacity of (9223372036854775808)"},
	} {
		fibs = append(fibs, fib{name: m.name, op: m.op, n: m.n, tell: changed(m.change), says: broke + m.says})
	}
	fibs[0].local = true
	return append(fibs,
		fib{name: "message larger than its receive", op: wire.OpWrite, n: small, says: lost, tell: changed(func(m []byte) []byte {
			return append(m, make([]byte, int(grant.MaxMessage)+8-len(m))...)
		})},
		fib{name: "answers to nothing, eight at once", op: wire.OpWrite, n: small, says: broke + "tag is not in flight (7)", often: 8, local: true, tell: func(l *link, _ wire.Request) bool {
			for range 8 {
				_ = l.Send(wire.Response{Tag: 7}.Append(nil, nil), 0)
			}
			return true
		}},
		fib{name: "an answer twice in two messages", op: wire.OpWrite, n: small, says: broke + "tag is not in flight", tell: func(l *link, r wire.Request) bool {
			l.answer(r)
			l.answer(r)
			return true
		}},
		replayFib())
}

func ofCapacity(n uint64) func(m []byte) []byte {
	return with(wire.ResponseSize, binary.BigEndian.AppendUint64(nil, n)...)
}

// replayFib answers a command with the answer to an earlier one that had its tag.
func replayFib() fib {
	const index = 0xfff // the rest of a tag is the generation
	old := map[uint16][]byte{}
	return fib{name: "answer of the tag's last use", op: wire.OpRead, n: small, says: broke + "tag is not in flight", tell: func(l *link, r wire.Request) bool {
		msg, err := l.perform(r)
		if err != nil {
			return false
		}
		last := old[r.Tag&index]
		if last != nil {
			msg = last
		}
		old[r.Tag&index] = bytes.Clone(msg)
		_ = l.Send(msg, 0)
		return last != nil
	}}
}

// keyFibs are about the keys that the commands of large data have.
func keyFibs() []fib {
	invalidating := func(key uint32) func(l *link, r wire.Request) bool {
		return func(l *link, r wire.Request) bool {
			if msg, err := l.perform(r); err == nil {
				_ = l.Send(msg, key)
			}
			return true
		}
	}
	// beside answers a command with the key of a large read that waits.
	beside := func(name string, n int, answer func(l *link, waits, r wire.Request), says string) fib {
		held := make(chan struct{}, 1)
		var waits *wire.Request
		return fib{name: name, op: wire.OpRead, n: n, says: broke + says, held: held, tell: func(l *link, r wire.Request) bool {
			if waits == nil {
				waits = &r
				held <- struct{}{}
				return false
			}
			answer(l, *waits, r)
			return true
		}}
	}
	denies := func(name string, op wire.Op, use func(l *link, r wire.Request) error) fib {
		return fib{name: name, op: op, n: large / 2, says: lost, tell: func(l *link, r wire.Request) bool {
			if use(l, r) == nil {
				l.g.t.Errorf("%s: it may", name)
				l.Close()
			}
			return true
		}}
	}
	junk := bytes.Repeat([]byte{0xa5}, small)
	nobodys := transport.Remote{Addr: small, Rkey: noKey}
	return []fib{
		{name: "a read's data comes with immediate data", op: wire.OpRead, n: large, says: "the peer sent immediate data and no message", tell: func(l *link, r wire.Request) bool {
			if data, err := l.Buffer(large); err == nil {
				_ = l.WriteImmediate(data, remote(r)) // the client may hang up before it is told of
				l.Free(data)
			}
			return true
		}},
		{name: "a read's key is not invalidated", op: wire.OpRead, n: large, tell: invalidating(0), says: broke + "our key was not invalidated"},
		{name: "a write's key is not invalidated", op: wire.OpWrite, n: large, tell: invalidating(0), says: broke + "our key was not invalidated", local: true},
		{name: "a key that nobody has is invalidated", op: wire.OpWrite, n: large, tell: invalidating(noKey), says: lost},
		{name: "a key that nobody has is invalidated by a small answer", op: wire.OpWrite, n: small, tell: invalidating(noKey), says: lost},
		beside("another command's key is invalidated", large, func(l *link, waits, r wire.Request) {
			if msg, err := l.perform(waits); err == nil {
				_ = l.Send(msg, r.Rkey)
			}
		}, "our key was not invalidated"),
		beside("another command's key is invalidated by a small answer", small, func(l *link, waits, r wire.Request) {
			if msg, err := l.perform(r); err == nil {
				_ = l.Send(msg, waits.Rkey)
			}
		}, "it invalidated a key of no request"),
		denies("reads with a key that nobody has", wire.OpRead, func(l *link, _ wire.Request) error {
			_, err := l.get(nobodys, small)
			return err
		}),
		denies("writes with a key that nobody has", wire.OpWrite, func(l *link, _ wire.Request) error { return l.putDenied(nobodys, junk) }),
		denies("reads what is to be read into", wire.OpRead, func(l *link, r wire.Request) error {
			_, err := l.get(remote(r), small)
			return err
		}),
		denies("writes to what is written", wire.OpWrite, func(l *link, r wire.Request) error { return l.putDenied(remote(r), junk) }),
		denies("reads a byte behind a write", wire.OpWrite, func(l *link, r wire.Request) error {
			_, err := l.get(remote(r), int(r.Length)+1)
			return err
		}),
		denies("writes a byte behind a read", wire.OpRead, func(l *link, r wire.Request) error {
			return l.putDenied(transport.Remote{Addr: r.Addr + uint64(r.Length) - small + 1, Rkey: r.Rkey}, junk)
		}),
		denies("reads the memory of a write behind its answer", wire.OpWrite, func(l *link, r wire.Request) error {
			l.answer(r)
			_, err := l.get(remote(r), small)
			return err
		}),
		denies("writes to the memory of a read behind its answer", wire.OpRead, func(l *link, r wire.Request) error {
			l.answer(r)
			return l.putDenied(remote(r), junk)
		}),
	}
}

// goneFibs hang up.
func goneFibs() []fib {
	gone := func(l *link, _ wire.Request) bool {
		l.Close()
		return true
	}
	return []fib{
		{name: "hangs up on a small write", op: wire.OpWrite, n: small, tell: gone, says: lost, local: true},
		{name: "hangs up on a small read", op: wire.OpRead, n: small, tell: gone, says: lost},
		{name: "hangs up on a large write", op: wire.OpWrite, n: large, tell: gone, says: lost},
		{name: "hangs up in the RDMA READ of a write", op: wire.OpWrite, n: large, says: lost, local: true, tell: func(l *link, r wire.Request) bool {
			read := make(chan struct{})
			go func() {
				defer close(read)
				_, _ = l.get(remote(r), large)
			}()
			time.Sleep(200 * time.Microsecond) // its first packets are on their way
			l.Close()
			<-read
			return true
		}},
		{name: "hangs up behind the RDMA WRITE of a read", op: wire.OpRead, n: large, says: lost, tell: func(l *link, r wire.Request) bool {
			_, _ = l.perform(r)
			l.Close()
			return true
		}},
		{name: "hangs up behind the answer to a write", op: wire.OpWrite, n: large, says: lost, tell: func(l *link, r wire.Request) bool {
			l.answer(r)
			_ = l.Flush()
			l.Close()
			return true
		}},
		{name: "hangs up on the next connection, too", op: wire.OpWrite, n: small, says: lost, tell: func(l *link, _ wire.Request) bool {
			l.g.greet(func(next *link) {
				l.g.greet(nil)
				next.Close()
			})
			l.Close()
			return true
		}},
	}
}

// caught waits until a fib has ended its connection, and the client is back.
func (f fib) caught(t *testing.T, log *kernelLog, told <-chan *link, reconnects int) {
	t.Helper()
	l := guest.Within(t, ioTime, "the target has lied", told)
	guest.Within(t, ioTime, "the connection ends", l.Done())
	log.says(t, f.says)
	guest.Eventually(t, ioTime, "the client is back", func() bool {
		return guest.Session(t, "vol0")["state"] == "live" && counter(t, "reconnects") > reconnects
	})
}

// provoke does I/O of the fib's kind until it is told.
func (f fib) provoke(t *testing.T, dev *os.File, data, got []byte, told <-chan *link) {
	t.Helper()
	for range 50 {
		var err error
		if f.op == wire.OpRead {
			err = reads(t, dev, got, 0)
		} else {
			err = writes(t, dev, data)
		}
		if err != nil {
			t.Fatalf("%v: %v", f.op, err)
		}
		if len(told) > 0 {
			return
		}
	}
}

// misleads has the fib told, and checks that the client's I/O is done, and its connection made anew.
func (f fib) misleads(t *testing.T, g *rogue, dev *os.File) {
	defer g.behaves()
	log, reconnects := openLog(t, max(1, f.often)), counter(t, "reconnects")
	data, got := noise(t, max(f.n, small)), guest.Aligned(t, max(f.n, small))
	if err := writes(t, dev, data); err != nil {
		t.Fatal(err)
	}
	told := g.tells(f)
	beside := make(chan error, 1)
	aside := guest.Aligned(t, large)
	if f.held != nil {
		go func() {
			_, err := dev.ReadAt(aside, capacity/2)
			beside <- err
		}()
		guest.Within(t, ioTime, "a large read waits", f.held)
	}
	if f.op == wire.OpWrite {
		_, _ = rand.Read(data) // never fails
	}
	want := bytes.Clone(data)
	if f.op != wire.OpKeepAlive {
		f.provoke(t, dev, data, got, told)
	}
	f.caught(t, log, told, reconnects)
	if !bytes.Equal(data, want) || f.op == wire.OpRead && !bytes.Equal(got, want) {
		t.Error("the memory of a read or a write has other data")
	}
	if f.held != nil {
		if err := guest.Within(t, ioTime, "the large read ends", beside); err != nil || !g.holds(capacity/2, aside) {
			t.Errorf("the large read: %v, or other data", err)
		}
	}
	if err := reads(t, dev, got, 0); err != nil || !bytes.Equal(got, want) || !g.holds(0, want) {
		t.Errorf("afterwards: %v, or other data than was written", err)
	}
}

// A client whose target lies ends the connection, and its I/O is done by the next one.
func TestLyingTargets(t *testing.T) {
	leavesNothing(t)
	g := startRogue(t)
	dev := g.attach(t, "")
	for i, f := range slices.Concat(messageFibs(), keyFibs(), goneFibs()) {
		if isSkipped(i) {
			continue
		}
		t.Run(f.name, func(t *testing.T) { f.misleads(t, g, dev) })
	}
}

// A target that misbehaves to a tap does not disturb the application, and gets what is written next.
func TestLyingTargetsOfATap(t *testing.T) {
	leavesNothing(t)
	g := startRogue(t)
	dev := g.attach(t, ",backing=ram:1M,mode=tap")
	for _, f := range slices.Concat(messageFibs(), keyFibs(), goneFibs()) {
		if !f.local {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			defer g.behaves()
			log, reconnects := openLog(t, max(1, f.often)), counter(t, "reconnects")
			data, got := noise(t, f.n), guest.Aligned(t, f.n)
			told := g.tells(f)
			if err := writes(t, dev, data); err != nil {
				t.Error(err)
			}
			f.caught(t, log, told, reconnects)
			if err := reads(t, dev, got, 0); err != nil || !bytes.Equal(got, data) {
				t.Errorf("a read: %v, or other data than was written", err)
			}
			data = noise(t, f.n)
			if err := writes(t, dev, data); err != nil {
				t.Error(err)
			}
			guest.Eventually(t, ioTime, "the target has it", func() bool { return g.holds(0, data) })
		})
	}
}

// wrongAnswer is one kind of I/O that the target answers wrongly without breaking the protocol.
type wrongAnswer struct {
	name   string
	op     wire.Op
	n      int // bytes
	answer func(l *link, r wire.Request)
	times  int   // at most so many commands are answered like this
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

func answerStatus(status wire.Status) func(l *link, r wire.Request) {
	return func(l *link, r wire.Request) {
		_ = l.Send(wire.Response{Tag: r.Tag, Status: status}.Append(nil, nil), r.Rkey)
	}
}

// answerWrongCRC sends the right data with a wrong CRC.
func answerWrongCRC(l *link, r wire.Request) {
	if msg, err := l.perform(r); err == nil {
		msg[responseCRC]++
		_ = l.Send(msg, r.Rkey)
	}
}

// answerWrongData sends wrong data with the CRC of the right data.
func answerWrongData(l *link, r wire.Request) {
	data := l.g.load(r)
	a := wire.Response{Tag: r.Tag, Length: r.Length, CRC: wire.CRC32C(data)}
	data[r.Length-1]++
	if r.Rkey == 0 {
		a.Flags = wire.ResponseInline
		_ = l.Send(a.Append(nil, data), 0)
	} else if l.put(remote(r), data) == nil {
		_ = l.Send(a.Append(nil, nil), r.Rkey)
	}
}

// A CRC that does not match, or a failure status, fails the I/O and never returns data; the connection stays.
func TestWrongDataAndFailures(t *testing.T) {
	leavesNothing(t)
	g := startRogue(t)
	dev := g.attach(t, "")
	for _, w := range wrongAnswers {
		t.Run(w.name, func(t *testing.T) { w.run(t, g, dev) })
	}
}

func (w wrongAnswer) run(t *testing.T, g *rogue, dev *os.File) {
	defer g.behaves()
	log := openLog(t, w.crcs)
	before, data := noise(t, w.n), noise(t, w.n)
	if err := writes(t, dev, before); err != nil {
		t.Fatal(err)
	}
	crcs, reconnects := counter(t, "crc_errors"), counter(t, "reconnects")
	err := w.io(t, g, dev, data)
	guest.EndsWith(t, err, []error{w.want})
	if n := counter(t, "crc_errors") - crcs; n != w.crcs {
		t.Errorf("%d CRC errors, want %d", n, w.crcs)
	}
	if counter(t, "reconnects") != reconnects {
		t.Error("the connection was lost")
	}
	if w.crcs > 0 {
		log.says(t, "trying again")
	}
	if w.crcs > 1 {
		log.says(t, "again, it fails")
	}
	w.checkData(t, g, dev, before, data)
}

// io reads into or writes from data while the target answers wrongly.
func (w wrongAnswer) io(t *testing.T, g *rogue, dev *os.File, data []byte) error {
	answered := 0
	g.tells(fib{op: w.op, n: w.n, tell: func(l *link, r wire.Request) bool {
		w.answer(l, r)
		answered++
		return answered == w.times
	}})
	defer g.behaves()
	if w.op == wire.OpRead {
		return reads(t, dev, data, 0)
	}
	return writes(t, dev, data)
}

// checkData checks what the I/O read, and what is on the volume after it.
func (w wrongAnswer) checkData(t *testing.T, g *rogue, dev *os.File, before, data []byte) {
	t.Helper()
	if w.op == wire.OpRead && w.want == nil && !bytes.Equal(data, before) {
		t.Error("the read returned other data than was written")
	}
	want := before
	if w.op == wire.OpWrite && w.want == nil {
		want = bytes.Clone(data)
	}
	if err := reads(t, dev, data, 0); err != nil || !bytes.Equal(data, want) || !g.holds(0, want) {
		t.Errorf("a read afterwards: %v, or other data", err)
	}
}
