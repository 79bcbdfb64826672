// SPDX-License-Identifier: Apache-2.0

package target

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/wire"
)

// peerOf is the address of the n-th of many sessions, two of which are at each address.
func peerOf(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(n >> 9), byte(n >> 1)}) }

func (f *fixture) admitNumbered(n int) (*Session, error) {
	return f.target.Admit(numbered(n).Append(nil), peerOf(n))
}

// numbered is a hello of the n-th of many sessions.
func numbered(n int) wire.Hello {
	h := hello(0, 0)
	h.Session = wire.SessionID{1, byte(n), byte(n >> 8)}
	return h
}

func wantBusy(t *testing.T, what string, err error) {
	t.Helper()
	var reject *wire.Reject
	if !errors.As(err, &reject) || reject.Reason != wire.RejectBusy {
		t.Errorf("%s: %v, want reason %d", what, err, wire.RejectBusy)
	}
}

// Each volume has its own limit, and a connection counts from Admit to Leave.
func TestMaxConnections(t *testing.T) {
	f := newFixture(t)
	f.serveWith(zerolog.Nop(), &Volume{Name: "vol1", Store: f.store, BlockSize: 512, Shared: true})
	var last *Session
	var err error
	for n := range MaxConnections {
		if last, err = f.admitNumbered(n); err != nil {
			t.Fatalf("client %d: %v", n, err)
		}
	}
	_, err = f.admitNumbered(MaxConnections)
	wantBusy(t, "one more", err)
	elsewhere := numbered(0)
	elsewhere.Volume = wire.VolumeIDOf("vol1")
	if _, err := f.admit(elsewhere); err != nil {
		t.Errorf("another volume: %v", err)
	}
	p := newPipe()
	p.Close()
	f.target.Serve(t.Context(), last, p)
	_, err = f.admitNumbered(MaxConnections)
	wantBusy(t, "one more, before Leave", err)
	f.target.Leave(last)
	if _, err := f.admitNumbered(MaxConnections); err != nil {
		t.Errorf("one more, after Leave: %v", err)
	}
}

// One address cannot take all connections of a volume.
func TestMaxConnectionsOfAnAddress(t *testing.T) {
	f := newFixture(t)
	f.serveWith(zerolog.Nop(), &Volume{Name: "vol1", Store: f.store, BlockSize: 512, Shared: true})
	var last *Session
	for n := range MaxPeerConnections {
		var err error
		if last, err = f.admit(numbered(n)); err != nil {
			t.Fatalf("client %d: %v", n, err)
		}
	}
	_, err := f.admit(numbered(MaxPeerConnections))
	wantBusy(t, "one more", err)
	if _, err := f.target.Admit(numbered(MaxPeerConnections).Append(nil), other); err != nil {
		t.Errorf("another address: %v", err)
	}
	elsewhere := numbered(0)
	elsewhere.Volume = wire.VolumeIDOf("vol1")
	if _, err := f.admit(elsewhere); err != nil {
		t.Errorf("another volume: %v", err)
	}
	f.target.Leave(last)
	if _, err := f.admit(numbered(MaxPeerConnections)); err != nil {
		t.Errorf("one more, after Leave: %v", err)
	}
	if n := len(f.target.peers); n != 3 {
		t.Errorf("%d addresses are counted, want 3", n)
	}
}

// With the maximum of connections, sessions may still replace theirs, several at a time.
func TestReplaceConnectionsAtTheMaximum(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		slow := &stalledStore{Store: f.store, resume: make(chan struct{})}
		f.serveWith(zerolog.Nop())
		f.volume.Store, f.volume.storeSlots = slow, make(chan struct{}, MaxConnections)
		for n := range MaxConnections {
			p := f.connectFrom(peerOf(n), numbered(n))
			p.toTarget <- inlineWrite(0, 0, make([]byte, 512)).Append(nil)
		}
		synctest.Wait()
		if n := slow.calls.Load(); n != MaxConnections {
			t.Fatalf("%d calls of the store, want %d", n, MaxConnections)
		}
		admitted := make(chan error, 3)
		for n := range 3 {
			go func() {
				_, err := f.admitNumbered(n)
				admitted <- err
			}()
		}
		synctest.Wait()
		if n := len(admitted); n != 0 {
			t.Errorf("%d replacements did not wait for the writes", n)
		}
		close(slow.resume)
		for range 3 {
			if err := <-admitted; err != nil {
				t.Errorf("a replacement: %v", err)
			}
		}
		_, err := f.admitNumbered(MaxConnections)
		wantBusy(t, "one more", err)
	})
}

// A stalled store holds few threads of the process and few buffers of DIGESTs, however many
// commands wait. KEEP_ALIVE does not wait.
func TestStalledStore(t *testing.T) {
	for _, tc := range []struct {
		request wire.Request
		calls   int32
	}{
		{inlineWrite(0, 0, make([]byte, 512)), storeCalls},
		{wire.Request{Command: wire.Command{Op: wire.OpWriteZeroes, Length: 4 << 20}}, storeCalls},
		{wire.Request{Command: wire.Command{Op: wire.OpDigest, Flags: wire.FlagInline, Length: 4 << 20}}, digests},
	} {
		t.Run(tc.request.Op.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fixture) { testStalledStore(t, f, tc.request, tc.calls) })
		})
	}
}

func testStalledStore(t *testing.T, f *fixture, request wire.Request, calls int32) {
	slow := &stalledStore{Store: f.store, resume: make(chan struct{})}
	f.volume.Store = slow
	f.serveWith(zerolog.Nop())
	var last *pipe
	for n := range byte(4) {
		h := hello(1+n, 0)
		h.Depth = MaxDepth
		last = f.connect(h)
		for tag := range uint16(MaxDepth) {
			request.Tag = tag
			last.toTarget <- request.Append(nil)
		}
	}
	keepAlive := wire.Request{Command: wire.Command{Op: wire.OpKeepAlive, Tag: wire.TagKeepAlive, Flags: wire.FlagInline}}
	if a, _ := f.one(last, keepAlive); a.Status != wire.StatusOK {
		t.Errorf("KEEP_ALIVE: %+v", a)
	}
	synctest.Wait()
	if n := slow.calls.Load(); n != calls {
		t.Errorf("%d calls of the store for %d commands, want %d", n, 4*MaxDepth, calls)
	}
	close(slow.resume)
}

// countedLines counts the lines of a log.
type countedLines struct{ n atomic.Int32 }

func (c *countedLines) Write(p []byte) (int, error) {
	c.n.Add(1)
	return len(p), nil
}

func (c *countedLines) want(t *testing.T, want int32) {
	t.Helper()
	if n := c.n.Swap(0); n != want {
		t.Errorf("%d lines in the log, want %d", n, want)
	}
}

func TestLogOfWrongData(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		var log countedLines
		f.serveWith(zerolog.New(&log))
		p := f.connect(hello(1, 0))
		bad := inlineWrite(1, 0, make([]byte, 512))
		bad.CRC ^= 1
		for range 200 {
			if a, _ := f.one(p, bad); a.Status != wire.StatusCRC {
				t.Fatalf("%+v", a)
			}
		}
		log.want(t, 1+logOthers) // one says that the client has connected
		if n := f.volume.Counters.CRCErrors.Load(); n != 200 {
			t.Errorf("%d CRC errors are counted, want 200", n)
		}
	})
}

// Clients that connect again and again do not fill the log.
func TestLogOfReconnects(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		var log countedLines
		f.serveWith(zerolog.New(&log))
		for range 3 {
			for n := range 400 {
				p := f.connect(hello(1, 0)) // fences the one before
				synctest.Wait()             // it is served
				if n%2 == 0 {
					p.toTarget <- []byte("no command")
					<-p.closed
				}
			}
			log.want(t, logInfos+logOthers)
			time.Sleep(logPeriod + 1)
		}
	})
}
