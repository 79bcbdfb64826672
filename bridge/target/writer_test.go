// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bytes"
	"errors"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/store"
	"krping/bridge/wire"
)

// inBubbleAlone runs a test with a volume that one session may write to, and a clock of its own.
func inBubbleAlone(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	inBubble(t, func(t *testing.T, f *fixture) {
		f.volume.Shared = false
		f.serveWith(zerolog.Nop())
		test(t, f)
	})
}

func asked(session byte, flags uint8) wire.Hello {
	h := hello(session, 0)
	h.Flags = flags
	return h
}

// wantInUse checks that a client is refused and told who the writer is.
func (f *fixture) wantInUse(what string, h wire.Hello, peer, holder netip.Addr) {
	f.t.Helper()
	_, err := f.target.Admit(h.Append(nil), peer)
	var inUse *wire.InUse
	if !errors.As(err, &inUse) || inUse.Holder != holder || inUse.UUID != f.store.Identity().UUID {
		f.t.Errorf("%s: %v, want that %s is the writer", what, err, holder)
	}
}

// attach connects a session and checks its number as a writer.
func (f *fixture) attach(peer netip.Addr, h wire.Hello, number uint32) *pipe {
	f.t.Helper()
	session, err := f.target.Admit(h.Append(nil), peer)
	if err != nil {
		f.t.Fatalf("session %x: %v", h.Session[0], err)
	}
	p := f.serve(session)
	welcome, err := wire.DecodeWelcome(session.Private)
	if readOnly := f.volume.ReadOnly || h.Flags&wire.HelloReadOnly != 0; readOnly != (welcome.Flags&wire.VolumeReadOnly != 0) {
		f.t.Errorf("session %x: the welcome has the flags %#x", h.Session[0], welcome.Flags)
	}
	if err != nil || welcome.Writer != number || welcome.UUID != f.store.Identity().UUID {
		f.t.Errorf("session %x is writer number %d of volume %s, %v; want number %d of %s", h.Session[0], welcome.Writer, welcome.UUID, err, number, f.store.Identity().UUID)
	}
	f.one(p, keepAlive) // it counts as a writer
	synctest.Wait()
	return p
}

func (f *fixture) wantWrite(what string, p *pipe, want wire.Status) {
	f.t.Helper()
	if a, _ := f.one(p, inlineWrite(1, 0, make([]byte, 512))); a.Status != want {
		f.t.Errorf("%s: status %d, want %d", what, a.Status, want)
	}
}

var keepAlive = wire.Request{Command: wire.Command{Op: wire.OpKeepAlive, Flags: wire.FlagInline, Tag: wire.TagKeepAlive}}

func bye() wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpKeepAlive, Flags: wire.FlagInline | wire.FlagBye, Tag: wire.TagKeepAlive}}
}

func TestOneWriter(t *testing.T) {
	inBubbleAlone(t, func(t *testing.T, f *fixture) {
		first := f.attach(addr, hello(1, 0), 1)
		second := f.attach(addr, hello(1, 1), 1) // of the same session
		f.wantInUse("another host", hello(2, 0), other, addr)
		reader := f.attach(other, asked(4, wire.HelloReadOnly), 0)
		f.wantWrite("a client that only reads", reader, wire.StatusReadOnly)
		if a, _ := f.one(reader, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
			t.Errorf("%+v", a)
		}
		first.Close()
		synctest.Wait()
		f.wantInUse("with one connection left", hello(2, 0), other, addr)
		f.wantWrite("the writer", second, wire.StatusOK)
		f.attach(addr, hello(1, 0), 1)
		if n := f.target.Rejected.Load(); n != 2 {
			t.Errorf("%d clients are counted as rejected, want 2", n)
		}
	})
}

// A writer that has lost its connections finds the volume for 30 s, and so does its host if it was
// restarted. Nobody who has written meanwhile stays unnoticed.
func TestLostWriterKeepsTheVolume(t *testing.T) {
	inBubbleAlone(t, func(t *testing.T, f *fixture) {
		f.attach(addr, hello(1, 0), 1).Close()
		synctest.Wait()
		time.Sleep(holdTime - 1)
		f.wantInUse("another host", hello(2, 0), other, addr)
		f.attach(addr, hello(1, 0), 1).Close()
		synctest.Wait()
		time.Sleep(holdTime - 1)
		f.wantInUse("the time begins again", hello(2, 0), other, addr)
		f.attach(addr, hello(3, 0), 2).Close() // the host was restarted
		synctest.Wait()
		f.wantInUse("the session before the restart", hello(1, 0), other, addr)
		time.Sleep(holdTime)
		f.attach(other, hello(2, 0), 3).Close()
		synctest.Wait()
		time.Sleep(holdTime)
		f.attach(addr, hello(1, 0), 4)
	})
}

// A session that says BYE gives up the volume at once, even while its connections are open.
func TestBye(t *testing.T) {
	inBubbleAlone(t, func(t *testing.T, f *fixture) {
		a, b := f.attach(addr, hello(1, 0), 1), f.attach(addr, hello(1, 1), 1)
		if answer, _ := f.one(a, bye()); answer.Status != wire.StatusOK || len(answer.Data) != 8 {
			t.Errorf("%+v", answer)
		}
		a.Close()
		f.attach(other, hello(2, 0), 2)
		if !b.Ended() {
			t.Error("the writer before has a connection")
		}
		f.wantInUse("the writer before", hello(1, 0), addr, other)
	})
}

// A host that was restarted has a new session, and replaces the connections that the target still has.
func TestRestartedHost(t *testing.T) {
	inBubbleAlone(t, func(t *testing.T, f *fixture) {
		before := f.attach(addr, hello(1, 0), 1)
		f.wantWrite("the session after the restart", f.attach(addr, hello(2, 0), 2), wire.StatusOK)
		if !before.Ended() {
			t.Error("the session before the restart has a connection")
		}
		f.wantInUse("another host", hello(3, 0), other, addr)
	})
}

// One that attaches again after its BYE holds the volume again.
func TestAttachAfterBye(t *testing.T) {
	inBubbleAlone(t, func(t *testing.T, f *fixture) {
		f.one(f.attach(addr, hello(1, 0), 1), bye())
		f.attach(addr, hello(1, 1), 1)
		f.wantInUse("another host", hello(2, 0), other, addr)
	})
}

// A BYE of a client that only reads, or that has lost the volume, takes nothing from the writer.
func TestByeOfOthers(t *testing.T) {
	inBubbleAlone(t, func(t *testing.T, f *fixture) {
		reader := f.attach(addr, asked(3, wire.HelloReadOnly), 0)
		f.attach(addr, hello(1, 0), 1)
		f.one(reader, bye())
		f.wantInUse("another host", hello(2, 0), other, addr)
	})
}

// A take-over closes the writer's connections, and waits for its operations.
func TestTakeOver(t *testing.T) {
	inBubbleAlone(t, func(t *testing.T, f *fixture) {
		slow := &stalledStore{Store: f.store, resume: make(chan struct{})}
		f.volume.Store = slow
		reader := f.attach(addr, asked(4, wire.HelloReadOnly), 0)
		old := f.attach(addr, hello(1, 0), 1)
		old.toTarget <- inlineWrite(0, 0, bytes.Repeat([]byte{1}, 512)).Append(nil)
		waiting, err := f.target.Admit(hello(1, 1).Append(nil), addr) // and is not served yet
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		var admitted atomic.Int32
		for index := range uint16(2) {
			h := asked(2, wire.HelloTakeOver)
			h.QueueIndex = index
			go func() {
				if _, err := f.target.Admit(h.Append(nil), other); err != nil {
					t.Error(err)
				}
				admitted.Add(1)
			}()
		}
		synctest.Wait()
		if n := admitted.Load(); n != 0 || !old.Ended() {
			t.Errorf("%d connections were admitted during a write of the writer before; its connection has ended: %v", n, old.Ended())
		}
		f.wantInUse("the writer before", hello(1, 0), addr, other)
		close(slow.resume)
		synctest.Wait()
		if n := admitted.Load(); n != 2 {
			t.Errorf("%d connections were admitted after the write, want 2", n)
		}
		if p := f.serve(waiting); !waitEnded(p) {
			t.Error("a connection that was admitted before the take-over is served")
		}
		if a, _ := f.one(reader, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
			t.Errorf("a client that only reads: %+v", a)
		}
	})
}

func waitEnded(p *pipe) bool { synctest.Wait(); return p.Ended() }

// An attempt that was never served holds the volume for nobody, and takes no number: the client of the session, or another
// one that was here before the target's restart, would think that somebody has written.
func TestUnservedWriter(t *testing.T) {
	inBubbleAlone(t, func(t *testing.T, f *fixture) {
		session, err := f.admit(hello(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		f.wantInUse("meanwhile", hello(2, 0), other, addr)
		f.target.Leave(session)
		if session, err = f.admit(hello(1, 0)); err != nil || session.number != 1 {
			t.Fatalf("the same session again: %+v, %v", session, err)
		}
		f.target.Leave(session)
		f.attach(other, hello(2, 0), 1)
	})
}

// An attempt that was never served leaves the volume to the writer before, which continues.
func TestUnservedTakeOver(t *testing.T) {
	for name, flags := range map[string]uint8{"by take-over": wire.HelloTakeOver, "after the hold": 0} {
		t.Run(name, func(t *testing.T) {
			inBubbleAlone(t, func(t *testing.T, f *fixture) {
				first := f.attach(addr, hello(1, 0), 1)
				if flags == 0 {
					first.Close()
					time.Sleep(holdTime + time.Second)
				}
				var unserved []*Session
				for i, more := range []uint8{flags, wire.HelloTakeOver} { // the second one takes over from the first one
					session, err := f.target.Admit(asked(byte(2+i), more).Append(nil), other)
					if err != nil {
						t.Fatal(err)
					}
					unserved = append(unserved, session)
				}
				f.target.Leave(unserved[0])
				f.serve(unserved[1]).Close() // accepted, but without a command
				synctest.Wait()
				f.attach(addr, hello(1, 0), 1)
				f.attach(other, asked(9, wire.HelloTakeOver), 2)
			})
		})
	}
}

// A connection whose peer hangs in its end keeps the volume as long as one that is lost.
func TestHungConnectionKeepsVolumeForTheHold(t *testing.T) {
	inBubbleAlone(t, func(t *testing.T, f *fixture) {
		p := f.attach(addr, hello(1, 0), 1)
		p.hangs = make(chan struct{})
		defer close(p.hangs)
		go p.Close()
		synctest.Wait()
		f.wantInUse("at first", hello(2, 0), other, addr)
		time.Sleep(holdTime - time.Second)
		f.wantInUse("before the end of the hold", hello(2, 0), other, addr)
		time.Sleep(2 * time.Second)
		f.attach(other, hello(2, 0), 2)
	})
}

func TestSharedAndReadOnlyVolumesHaveNoWriter(t *testing.T) {
	for name, change := range map[string]func(v *Volume){"shared": func(v *Volume) { v.Shared = true }, "read-only": func(v *Volume) { v.ReadOnly = true }} {
		t.Run(name, func(t *testing.T) {
			inBubbleAlone(t, func(t *testing.T, f *fixture) {
				change(f.volume)
				f.serveWith(zerolog.Nop())
				f.attach(addr, hello(1, 0), 0)
				f.attach(other, asked(2, wire.HelloTakeOver), 0)
				want := wire.StatusOK
				if name == "read-only" {
					want = wire.StatusReadOnly
				}
				f.wantWrite(name, f.attach(other, hello(3, 0), 0), want)
			})
		})
	}
}

// The store keeps the writer over a restart of the target: it is number 1 of the new epoch, any other
// session a later one.
func TestWriterIsKept(t *testing.T) {
	inBubbleAlone(t, func(t *testing.T, f *fixture) {
		path := filepath.Join(t.TempDir(), "a.img")
		if _, err := store.Create(t.Context(), store.New{Path: path, Size: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		restart := func(shared bool) {
			t.Helper()
			_ = f.store.Close()
			var err error
			if f.store.Store, err = store.Open("file:"+path, store.Options{}); err != nil {
				t.Fatal(err)
			}
			f.volume = &Volume{Name: "vol0", BlockSize: 512, Store: f.store, Shared: shared}
			f.serveWith(zerolog.Nop())
		}
		restart(false)
		f.attach(addr, hello(1, 0), 1)
		restart(false)
		f.attach(addr, hello(1, 0), 1)
		restart(false)
		f.attach(other, hello(2, 0), 2).Close() // a session that was here before would notice
		restart(false)
		f.attach(addr, hello(1, 0), 2)
		restart(false)
		f.attach(addr, hello(1, 0), 1)
		if _, err := f.target.Admit(asked(2, wire.HelloTakeOver).Append(nil), other); err != nil {
			t.Fatal(err)
		}
		restart(false)                 // killed before session 2 knew its number
		f.attach(addr, hello(1, 0), 1) // nobody else has written
		if _, err := f.target.Admit(asked(2, wire.HelloTakeOver).Append(nil), other); err != nil {
			t.Fatal(err)
		}
		restart(false)
		f.attach(other, hello(2, 0), 2) // it cannot tell what session 1 has written meanwhile
		restart(true)
		f.attach(addr, hello(1, 0), 0)
		f.attach(other, hello(2, 0), 0)
		restart(false)
		f.attach(addr, hello(1, 0), 2)
	})
}

// A writer that cannot be kept with the store is refused.
func TestWriterThatCannotBeKept(t *testing.T) {
	inBubbleAlone(t, func(t *testing.T, f *fixture) {
		fault := errors.New("broken disk")
		f.store.SaveFault.Store(&fault)
		f.wantReject("a writer", hello(1, 0), wire.RejectResources)
		f.attach(other, asked(4, wire.HelloReadOnly), 0)
		f.store.SaveFault.Store(nil)
		session, err := f.admit(hello(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		f.store.SaveFault.Store(&fault)
		p := f.serve(session)
		p.toTarget <- inlineWrite(1, 0, bytes.Repeat([]byte{1}, 512)).Append(nil)
		if !waitEnded(p) {
			t.Error("a command of a writer that cannot be kept is executed")
		}
		written := make([]byte, 512)
		if _, err := f.store.ReadAt(written, 0); err != nil || written[0] != 0 {
			t.Errorf("data of a writer that cannot be kept is stored: %v", err)
		}
		f.store.SaveFault.Store(nil)
		p.Close()
		synctest.Wait()
		f.attach(other, hello(2, 0), 1) // the one that was never a writer does not hold the volume
	})
}

// Version 1 of the protocol gets what it knows.
func TestVersion1(t *testing.T) {
	inBubbleAlone(t, func(t *testing.T, f *fixture) {
		old := hello(1, 0)
		old.Version = 1
		session, err := f.admit(old)
		if err != nil || len(session.Private) != wire.WelcomeSize1 || session.Private[4] != 1 {
			t.Fatalf("%+v, %v", session, err)
		}
		p := f.serve(session)
		f.wantWrite("version 1", p, wire.StatusOK)
		p.toTarget <- bye().Append(nil)
		if !waitEnded(p) {
			t.Error("a BYE in version 1 is no violation")
		}
		old.Session[0] = 2
		_, err = f.target.Admit(old.Append(nil), other)
		var inUse *wire.InUse
		if !errors.As(err, &inUse) || len(inUse.Append(nil)) != wire.RejectSize || inUse.Append(nil)[4] != 1 {
			t.Errorf("another host: %v", err)
		}
		future := hello(1, 0)
		future.Version = 3
		_, err = f.admit(future)
		var reject *wire.Reject
		if !errors.As(err, &reject) || reject.Reason != wire.RejectVersion || reject.Value != 2 || reject.Append(nil)[4] != 2 {
			t.Errorf("version 3: %v", err)
		}
	})
}
