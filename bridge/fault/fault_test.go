// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"krping/bridge/store"
	"krping/bridge/transport"
	"krping/bridge/verbstest"
	"krping/bridge/wire"
)

func newFaults(t *testing.T) *Faults {
	t.Helper()
	f, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *Faults) set(t *testing.T, p Point, knob string, value int) {
	t.Helper()
	if err := os.WriteFile(f.path(p, knob), []byte(strconv.Itoa(value)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// times returns how often a fault happens at n opportunities.
func (f *Faults) times(p Point, volume string, n int) (happened int) {
	for range n {
		if f.happens(p, volume) {
			happened++
		}
	}
	return happened
}

// memoryQueues are queue pairs that return completions, and memory of the heap.
type memoryQueues struct {
	transport.Queues
	receives [transport.TurnSize]transport.Receive
	done     []transport.Completion
	keys     uint32
}

func (q *memoryQueues) Register(n int, _ transport.Access) (transport.Memory, error) {
	q.keys++
	return transport.Memory{Data: make([]byte, n), Addr: uint64(q.keys) << 32, Lkey: q.keys}, nil
}

func (q *memoryQueues) Batch() ([]transport.Work, []transport.Receive) { return nil, q.receives[:] }

func (q *memoryQueues) Turn(int, int, time.Duration, bool) ([]transport.Completion, error) {
	return q.done, nil
}

func (q *memoryQueues) Watch(b *byte, old byte, _ time.Duration) (byte, bool) { return *b, *b != old }

type memoryConn struct {
	verbstest.Conn
	q *memoryQueues
}

func (c memoryConn) NewQueues(transport.QueueConfig) (transport.Queues, error) { return c.q, nil }

// A bit is flipped in each slot, or in the message that has arrived and in no other memory.
func TestVerbsCorrupt(t *testing.T) {
	f := newFaults(t)
	slots := strings.Repeat("\x01"+strings.Repeat("\x00", 63), 2)
	for use, want := range map[transport.Access]string{
		transport.PeerWrites:  slots,
		transport.PeerReads:   slots,
		transport.PeerAtomics: slots,
		0:                     strings.Repeat("\x00", 73) + "\x01" + strings.Repeat("\x00", 54),
	} {
		inner := &memoryQueues{}
		q, err := f.VerbsConn(memoryConn{q: inner}, 10).NewQueues(transport.QueueConfig{})
		if err != nil || q.(interface{ Unwrap() transport.Queues }).Unwrap() != inner {
			t.Fatal(err)
		}
		other, _ := q.Register(128, 0)
		m, _ := q.Register(128, use)
		inner.receives[0] = transport.Receive{ID: 7, Addr: m.Addr + 64, Length: 10, Lkey: m.Lkey}
		inner.done = []transport.Completion{{ID: 7, Op: transport.DoneReceive, Length: 10}, {ID: 8}}
		for rate := range 2 {
			f.set(t, VerbsCorrupt, "rate", rate)
			if _, err := q.Turn(0, 1, 0, false); err != nil {
				t.Fatal(err)
			}
			if changed := string(m.Data) != string(make([]byte, 128)); changed != (rate > 0) {
				t.Errorf("use %d, rate %d: changed is %v", use, rate, changed)
			}
		}
		if string(m.Data) != want || string(other.Data) != string(make([]byte, 128)) {
			t.Errorf("use %d: %x and %x", use, m.Data, other.Data)
		}
	}
}

// A bit of the slot is flipped when a watched byte has changed.
func TestVerbsCorruptWatched(t *testing.T) {
	f := newFaults(t)
	f.set(t, VerbsCorrupt, "rate", 1)
	q, err := f.VerbsConn(memoryConn{q: &memoryQueues{}}, 10).NewQueues(transport.QueueConfig{})
	if err != nil {
		t.Fatal(err)
	}
	m, _ := q.Register(64, transport.PeerWrites)
	last := &m.Data[9]
	if _, changed := q.Watch(last, 0, 0); changed || m.Data[0] != 0 {
		t.Errorf("nothing was written: changed is %v, data %x", changed, m.Data)
	}
	*last = 5
	if now, changed := q.Watch(last, 0, 0); !changed || now != 5 || m.Data[0] != 1 {
		t.Errorf("5 was written: %d, changed is %v, data %x", now, changed, m.Data)
	}
}

func TestKnobs(t *testing.T) { synctest.Test(t, testKnobs) }

func testKnobs(t *testing.T) {
	f := newFaults(t)
	if n := f.times(SendDrop, "vol0", 10); n != 0 {
		t.Errorf("without a rate it happened %d times", n)
	}
	f.set(t, SendDrop, "rate", 3)
	if n := f.times(SendDrop, "vol0", 9); n != 3 {
		t.Errorf("with rate 3 it happened %d times of 9", n)
	}
	if n := f.times(RecvDrop, "vol0", 9); n != 0 {
		t.Errorf("another fault happened %d times", n)
	}
	if n := f.knob(SendDrop, "fired"); n != 3 {
		t.Errorf("fired is %d, want 3", n)
	}
	f.set(t, SendDrop, "gap_ms", 5000)
	time.Sleep(5*time.Second - time.Nanosecond)
	if n := f.times(SendDrop, "vol0", 9); n != 0 {
		t.Errorf("within the gap it happened %d times", n)
	}
	time.Sleep(time.Nanosecond)
	if n := f.times(SendDrop, "vol0", 9); n != 1 {
		t.Errorf("after the gap it happened %d times, want 1", n)
	}
	f.set(t, SendDrop, "gap_ms", 0)
	if err := os.WriteFile(filepath.Join(f.dir, "session"), []byte("vol1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if a, b := f.times(SendDrop, "vol0", 9), f.times(SendDrop, "vol1", 9); a != 0 || b != 3 {
		t.Errorf("limited to vol1 it happened %d times to vol0, and %d to vol1", a, b)
	}
}

// connection is a transport with messages to receive. It records what is sent.
type connection struct {
	transport.Transport
	messages, sent [][]byte
	moved          []byte
	closed         bool
}

func (c *connection) Recv() (transport.Message, error) {
	if c.closed || len(c.messages) == 0 {
		return transport.Message{}, errors.New("closed")
	}
	msg := c.messages[0]
	c.messages = c.messages[1:]
	return transport.Message{Data: msg, Release: func() error { return nil }}, nil
}

func (c *connection) Send(msg []byte, _ uint32) error { c.sent = append(c.sent, msg); return nil }

func (c *connection) WriteAndSend(p []byte, _ transport.Remote, msg []byte) error {
	c.moved = bytes.Clone(p)
	return c.Send(msg, 0)
}

func (c *connection) Read(p []byte, _ transport.Remote) error { clear(p); return nil }
func (c *connection) Buffer(n int) ([]byte, error)            { return make([]byte, n), nil }
func (c *connection) Close()                                  { c.closed = true }

// Each fault of a connection acts as its name says on two received messages (a write and a
// KEEP_ALIVE), an RDMA READ, an RDMA WRITE and two sent messages.
func TestTransport(t *testing.T) { synctest.Test(t, testTransport) }

func testTransport(t *testing.T) {
	const delay = 3 * time.Second
	keepAlive := wire.Request{Command: wire.Command{Op: wire.OpKeepAlive}}.Append(nil)
	write := wire.Request{Command: wire.Command{Op: wire.OpWrite}}.Append(nil)
	type outcome struct {
		received, sent int
		took           time.Duration
		read, moved    byte
		failed, closed bool
	}
	none := outcome{received: 2, sent: 2}
	for p, want := range map[Point]outcome{
		"none":        none,
		RecvDrop:      {sent: 2},
		KeepAliveLost: {received: 1, sent: 2},
		RecvDelay:     {received: 2, sent: 2, took: 2 * delay},
		RecvCorrupt:   {received: 2, sent: 2, read: 1},
		SendDrop:      {received: 2, sent: 1}, // the message after the RDMA WRITE is sent
		SendDuplicate: {received: 2, sent: 3},
		SendCorrupt:   {received: 2, sent: 2, moved: 1},
		PostFail:      {received: 2, failed: true},
		RegRefuse:     {received: 2, sent: 2, failed: true},
		Disconnect:    {received: 1, sent: 2, closed: true},
	} {
		f := newFaults(t)
		if p != "none" {
			f.set(t, p, "ms", int(delay.Milliseconds()))
			f.set(t, p, "rate", 1)
		}
		c := &connection{messages: [][]byte{write, keepAlive}}
		conn := f.Transport(c, "vol0")
		began := time.Now()
		var got outcome
		for {
			if _, err := conn.Recv(); err != nil {
				break
			}
			got.received++
		}
		var data [1]byte
		_, noBuffer := conn.Buffer(1)
		err := errors.Join(noBuffer, conn.Read(data[:], transport.Remote{}), conn.Send(nil, 0), conn.WriteAndSend(make([]byte, 1), transport.Remote{}, nil))
		got.failed, got.closed, got.sent, got.read, got.took = err != nil, c.closed, len(c.sent), data[0], time.Since(began)
		if c.moved != nil {
			got.moved = c.moved[0]
		}
		if got != want {
			t.Errorf("%s: %+v, want %+v", p, got, want)
		}
	}
}

func TestStore(t *testing.T) { synctest.Test(t, testStore) }

func testStore(t *testing.T) {
	f := newFaults(t)
	mem, err := store.Open("mem:", store.Options{Size: 4096})
	if err != nil {
		t.Fatal(err)
	}
	s := f.Store(mem, "vol0")
	buf := make([]byte, 512)
	if _, err := s.ReadAt(buf, 0); err != nil {
		t.Error(err)
	}
	f.set(t, StoreShort, "rate", 1)
	if n, err := s.ReadAt(buf, 0); n != 256 || err == nil {
		t.Errorf("a short read returned %d bytes, %v", n, err)
	}
	f.set(t, StoreStall, "rate", 1)
	f.set(t, StoreStall, "ms", 3000)
	began := time.Now()
	if _, err := s.WriteAt(buf, 0); err != nil || time.Since(began) != 3*time.Second {
		t.Errorf("a stalled write took %v, %v; want 3 s", time.Since(began), err)
	}
	f.set(t, StoreRefresh, "rate", 1)
	if s.Refresh() == nil {
		t.Error("Refresh does not fail")
	}
}

func TestReject(t *testing.T) {
	f := newFaults(t)
	if err := f.Reject("vol0"); err != nil {
		t.Errorf("rejected without a fault: %v", err)
	}
	f.set(t, Reject, "rate", 1)
	if f.Reject("vol0") == nil || f.Reject("") == nil {
		t.Error("no client is rejected")
	}
}
