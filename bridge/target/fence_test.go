// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bytes"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"krping/bridge/store"
	"krping/bridge/transport"
	"krping/bridge/wire"
)

// A new connection of a queue is admitted only after all operations of the old one have ended.
func TestNewConnectionFencesTheOld(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		old := f.connect(hello(1, 0))
		other := f.connect(hello(1, 1))
		old.block = make(chan struct{})
		old.toTarget <- wire.Request{Command: wire.Command{Op: wire.OpWrite, Tag: 1, Length: 8192, Rkey: 1}}.Append(nil)
		synctest.Wait() // the write waits for its RDMA READ
		fresh := f.connect(hello(1, 0))
		synctest.Wait()
		if !old.Ended() {
			t.Error("the old connection is open")
		}
		if n := f.volume.Counters.Writes.Load(); n != 0 {
			t.Error("the old connection's write was stored")
		}
		for _, p := range []*pipe{fresh, other} {
			if a, _ := f.one(p, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
				t.Errorf("%+v", a)
			}
		}
	})
}

// executing is a transport that executes commands by itself.
type executing struct {
	*pipe
	volume transport.Volume
	took   []uint16 // tags
}

func (e *executing) Execute(to transport.Volume) { e.volume = to }
func (e *executing) Prepare()                    {}
func (e *executing) Interrupt()                  {}
func (e *executing) FreeTag(uint16)              {}
func (e *executing) Executed() bool              { return false }
func (e *executing) TakeTag(tag uint16) (int, bool) {
	e.took = append(e.took, tag)
	return 1, tag != 77
}

// What a transport does with the store by itself is waited for, too, also after the connection has ended.
func TestNewConnectionWaitsForExecutor(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.volume.Store = f.store.Store // whose contents it tells
		session, err := f.admit(hello(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		old := &executing{pipe: newPipe()}
		served := f.serveOn(session, old)
		if a, _ := f.one(old.pipe, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
			t.Fatalf("%+v", a)
		}
		if v := old.volume; len(v.Memory) != 4<<20 || v.Size.Load() != 4<<20 || v.Stable.Load() != 1 || !v.Writes || v.Depth != 4 || !v.Begin() {
			t.Fatalf("%+v", v)
		}
		old.Close() // the client's host has crashed, say
		synctest.Wait()
		admitted := make(chan struct{})
		go func() {
			defer close(admitted)
			fresh := f.connect(hello(1, 0))
			f.one(fresh, inlineRead(1, 0, 512))
		}()
		time.Sleep(time.Hour)
		select {
		case <-admitted:
			t.Error("a new connection was admitted while the old one may write")
		case <-served:
			t.Error("the connection has ended while it may write")
		default:
		}
		if old.volume.Begin() {
			t.Error("the old connection may begin to write")
		}
		old.volume.End()
		<-served
		<-admitted
	})
}

// Tags of commands that a transport executes are in flight, too.
func TestTagOfExecutor(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		session, err := f.admit(hello(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		e := &executing{pipe: newPipe()}
		served := f.serveOn(session, e)
		f.one(e.pipe, inlineRead(1, 0, 512))
		e.toTarget <- inlineRead(77, 0, 512).Append(nil)
		<-served
		if n := f.volume.Counters.Violations.Load(); n != 1 || len(e.took) != 2 {
			t.Errorf("%d violations, tags %v", n, e.took)
		}
	})
}

// A new connection waits for the store, but not for the old one's RDMA, which its peer may hold up.
func TestNewConnectionDoesNotWaitForRDMA(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		old := f.connect(hello(1, 0))
		old.block, old.hangs = make(chan struct{}), make(chan struct{})
		old.toTarget <- wire.Request{Command: wire.Command{Op: wire.OpWrite, Tag: 1, Length: 8192, Rkey: 1}}.Append(nil)
		synctest.Wait() // the write waits for its RDMA READ
		start := time.Now()
		fresh := f.connect(hello(1, 0))
		if a, _ := f.one(fresh, inlineRead(1, 0, 512)); a.Status != wire.StatusOK || time.Since(start) != 0 {
			t.Errorf("after %v: %+v", time.Since(start), a)
		}
		close(old.block) // the READ completes all the same
		close(old.hangs)
		synctest.Wait()
		if n := f.volume.Counters.Writes.Load(); n != 0 {
			t.Error("the old connection's write was stored")
		}
	})
}

// A queue that reconnects again and again is served each time, whatever the timing of the old
// connection's end and the new one's start.
func TestReconnectAgainAndAgain(t *testing.T) {
	f := newFixture(t)
	for range 500 {
		p := f.connect(hello(1, 0))
		if a, _ := f.one(p, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
			t.Fatalf("%+v", a)
		}
	}
}

// A new session is admitted only after the store has finished the calls of ended connections.
func TestNewSessionWaitsForTheStore(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		slow := &stalledStore{Store: f.store, resume: make(chan struct{})}
		f.volume.Store = slow
		old, busy := f.connect(hello(1, 0)), f.connect(hello(2, 0))
		old.toTarget <- inlineWrite(0, 0, bytes.Repeat([]byte{1}, 512)).Append(nil)
		synctest.Wait()
		if n := slow.calls.Load(); n != 1 {
			t.Fatalf("%d calls of the store, want the write", n)
		}
		old.Close()
		var admitted atomic.Bool
		go func() {
			if _, err := f.target.Admit(hello(3, 0).Append(nil), addr); err != nil {
				t.Error(err)
			}
			admitted.Store(true)
		}()
		synctest.Wait()
		if admitted.Load() {
			t.Error("a session was admitted during a write of an ended connection")
		}
		close(slow.resume)
		synctest.Wait()
		if !admitted.Load() {
			t.Error("the session was not admitted after the write")
		}
		if a, _ := f.one(busy, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
			t.Errorf("the other connection: %+v", a)
		}
	})
}

// A connection that ended before Serve executes nothing, as a new session did not wait for it.
func TestServeOfAnEndedConnection(t *testing.T) {
	f := newFixture(t)
	for range 20 {
		session, err := f.target.Admit(hello(1, 0).Append(nil), addr)
		if err != nil {
			t.Fatal(err)
		}
		p := newPipe()
		p.toTarget <- inlineWrite(0, 0, make([]byte, 512)).Append(nil)
		p.Close()
		f.target.Serve(t.Context(), session, p)
		f.target.Leave(session)
	}
	if n := f.volume.Counters.Writes.Load(); n != 0 {
		t.Errorf("%d writes were stored", n)
	}
}

// A new session waits for the running calls of an ended connection, not for its other commands.
func TestCommandsOfAnEndedConnectionAreDropped(t *testing.T) {
	const size = 4 * clearStep
	for name, command := range map[string]wire.Command{
		"digest": {Op: wire.OpDigest, Flags: wire.FlagInline, Length: 16 << 20},
		"zeroes": {Op: wire.OpWriteZeroes, Length: size},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fixture) { testDroppedCommands(t, f, command, size) })
		})
	}
}

func testDroppedCommands(t *testing.T, f *fixture, command wire.Command, size int64) {
	memory, err := store.Open("mem:", store.Options{Size: size})
	if err != nil {
		t.Fatal(err)
	}
	slow := &stalledStore{Store: memory, resume: make(chan struct{})}
	f.volume.Store, f.volume.storeSlots = slow, make(chan struct{}, 2)
	p := f.connect(hello(1, 0))
	for tag := range uint16(4) {
		command.Tag = tag
		p.toTarget <- wire.Request{Command: command}.Append(nil)
	}
	synctest.Wait()
	if n := slow.calls.Load(); n != 2 {
		t.Errorf("%d calls of the store, want 2", n)
	}
	p.Close()
	synctest.Wait()
	if !f.ended(hello(1, 0)) {
		t.Error("the target has not noticed the end of the connection")
	}
	close(slow.resume)
	f.connect(hello(2, 0))
	if n := slow.calls.Load(); n != 2 {
		t.Errorf("%d calls of the store, want only the 2 that were running", n)
	}
}

// ended reports whether the target has noticed that a connection has ended.
func (f *fixture) ended(h wire.Hello) bool {
	f.target.mu.Lock()
	defer f.target.mu.Unlock()
	c := f.target.conns[connKey{h.Volume.String(), h.Session, h.QueueIndex}]
	return c != nil && c.hasEnded()
}

// stalledStore is a store whose reads, writes and zeroing wait until resume is closed.
type stalledStore struct {
	store.Store
	calls  atomic.Int32
	resume chan struct{}
}

func (s *stalledStore) wait() {
	s.calls.Add(1)
	<-s.resume
}

func (s *stalledStore) ReadAt(p []byte, off int64) (int, error) {
	s.wait()
	return s.Store.ReadAt(p, off)
}

func (s *stalledStore) WriteAt(p []byte, off int64) (int, error) {
	s.wait()
	return s.Store.WriteAt(p, off)
}

func (s *stalledStore) Zero(off, n int64, keep bool) error {
	s.wait()
	return s.Store.Zero(off, n, keep)
}
