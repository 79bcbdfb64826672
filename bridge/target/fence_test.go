// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"krping/bridge/store"
	"krping/bridge/wire"
)

// A new connection of a queue is admitted only when no operation of the old one runs.
func TestFence(t *testing.T) {
	f := newFixture(t)
	old := f.connect(hello(1, 0))
	other := f.connect(hello(1, 1))
	old.block = make(chan struct{})
	old.toTarget <- wire.Request{Command: wire.Command{Op: wire.OpWrite, Tag: 1, Length: 8192, Rkey: 1}}.Append(nil)
	time.Sleep(50 * time.Millisecond)
	fresh := f.connect(hello(1, 0))
	select {
	case <-old.closed:
	default:
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
}

// slowStore has writes wait.
type slowStore struct {
	store.Store
	writing, goOn chan struct{}
}

func (s *slowStore) WriteAt(p []byte, off int64) (int, error) {
	s.writing <- struct{}{}
	<-s.goOn
	return s.Store.WriteAt(p, off)
}

// What the store still does for a connection that has ended comes before a new session's commands.
func TestFenceOfAnotherSession(t *testing.T) {
	f := newFixture(t)
	slow := &slowStore{f.store, make(chan struct{}), make(chan struct{})}
	f.volume.Store = slow
	old, busy := f.connect(hello(1, 0)), f.connect(hello(2, 0))
	data := bytes.Repeat([]byte{1}, 512)
	old.toTarget <- wire.Request{
		Command: wire.Command{Op: wire.OpWrite, Flags: wire.FlagInline, Length: 512, CRC: wire.CRC32C(data)}, Data: data,
	}.Append(nil)
	<-slow.writing
	old.Close()
	admitted := make(chan struct{})
	go func() {
		defer close(admitted)
		if _, err := f.target.Admit(hello(3, 0).Append(nil), addr); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-admitted:
		t.Error("a session is admitted while a write of an older one is under way")
	case <-time.After(50 * time.Millisecond):
	}
	close(slow.goOn)
	<-admitted
	if a, _ := f.one(busy, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
		t.Errorf("a connection that lives: %+v", a)
	}
}

// A connection that has ended before it is served does nothing: a new session did not wait for it.
func TestEndedBeforeItIsServed(t *testing.T) {
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

// Who comes after a connection that has ended waits for what the store does for that, not for all it was asked.
func TestAbandonedCommands(t *testing.T) {
	const size = 4 * clearStep
	for name, command := range map[string]wire.Command{
		"digest": {Op: wire.OpDigest, Flags: wire.FlagInline, Length: 16 << 20},
		"zeroes": {Op: wire.OpWriteZeroes, Length: size},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			memory, err := store.Open("mem:", size, false)
			if err != nil {
				t.Fatal(err)
			}
			slow := &stalled{Store: memory, goOn: make(chan struct{})}
			f.volume.Store, f.volume.storeSlots = slow, make(chan struct{}, 2)
			p := f.connect(hello(1, 0))
			for tag := range uint16(4) {
				command.Tag = tag
				p.toTarget <- wire.Request{Command: command}.Append(nil)
			}
			until := func(what string, condition func() bool) {
				t.Helper()
				for end := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						close(slow.goOn)
						t.Fatalf("not within a minute: %s", what)
					}
				}
			}
			until("two calls of the store", func() bool { return slow.calls.Load() == 2 })
			p.Close()
			until("the queue has ended", func() bool { return f.ended(hello(1, 0)) })
			close(slow.goOn)
			f.connect(hello(2, 0))
			if n := slow.calls.Load(); n != 2 {
				t.Errorf("%d calls of the store, of which 2 were under way", n)
			}
		})
	}
}

// ended says whether the target has noticed that a queue's connection has ended.
func (f *fixture) ended(h wire.Hello) bool {
	f.target.mu.Lock()
	defer f.target.mu.Unlock()
	q := f.target.conns[connKey{h.Volume, h.Session, h.QueueIndex}]
	return q != nil && q.ended.Load()
}

// stalled is a store in which all waits but a look at its size.
type stalled struct {
	store.Store
	calls atomic.Int32
	goOn  chan struct{}
}

func (s *stalled) wait() {
	s.calls.Add(1)
	<-s.goOn
}

func (s *stalled) ReadAt(p []byte, off int64) (int, error) {
	s.wait()
	return s.Store.ReadAt(p, off)
}

func (s *stalled) WriteAt(p []byte, off int64) (int, error) {
	s.wait()
	return s.Store.WriteAt(p, off)
}

func (s *stalled) Zero(off, n int64) error {
	s.wait()
	return s.Store.Zero(off, n)
}

// A queue whose client connects again and again is served each time, however the end of
// the old connection and the start of the new one fall together.
func TestFenceAgainAndAgain(t *testing.T) {
	f := newFixture(t)
	for range 500 {
		p := f.connect(hello(1, 0))
		if a, _ := f.one(p, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
			t.Fatalf("%+v", a)
		}
	}
}
