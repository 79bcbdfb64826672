// SPDX-License-Identifier: Apache-2.0

package target

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/wire"
)

// The connections of one volume are limited, from the moment on that a client is admitted, and take no
// place of another's.
func TestTooManyConnections(t *testing.T) {
	f := newFixture(t)
	other := &Volume{Name: "vol1", Store: f.store, BlockSize: 512}
	var err error
	if f.target, err = New(zerolog.Nop(), nil, f.volume, other); err != nil {
		t.Fatal(err)
	}
	admit := func(n int, volume string) (*Session, error) {
		h := hello(0, 0)
		h.Volume = volume
		h.Session = wire.SessionID{1, byte(n), byte(n >> 8)}
		return f.target.Admit(h.Append(nil), addr)
	}
	var last *Session
	for n := range MaxConnections {
		if last, err = admit(n, "vol0"); err != nil {
			t.Fatalf("client %d: %v", n, err)
		}
	}
	var reject *wire.Reject
	if _, err := admit(MaxConnections, "vol0"); !errors.As(err, &reject) || reject.Reason != wire.RejectBusy {
		t.Errorf("one more: %v, want to be rejected as busy", err)
	}
	if _, err := admit(0, "vol1"); err != nil {
		t.Errorf("another volume: %v", err)
	}
	p := newPipe()
	p.Close()
	f.target.Serve(t.Context(), last, p)
	if _, err := admit(MaxConnections, "vol0"); !errors.As(err, &reject) || reject.Reason != wire.RejectBusy {
		t.Errorf("while what the last one had is given back: %v, want to be rejected as busy", err)
	}
	f.target.Leave(last)
	if _, err := admit(MaxConnections, "vol0"); err != nil {
		t.Errorf("after one has left: %v", err)
	}
}

// Where all places are taken, connections may still be replaced, and more than one at a time.
func TestReplacedWhereAllPlacesAreTaken(t *testing.T) {
	f := newFixture(t)
	slow := &stalled{Store: f.store, goOn: make(chan struct{})}
	f.volume.Store, f.volume.storeSlots = slow, make(chan struct{}, MaxConnections)
	numbered := func(n int) wire.Hello {
		h := hello(0, 0)
		h.Session = wire.SessionID{1, byte(n), byte(n >> 8)}
		return h
	}
	for n := range MaxConnections {
		p := f.connect(numbered(n))
		p.toTarget <- inlineWrite(0, 0, make([]byte, 512)).Append(nil)
	}
	for slow.calls.Load() < MaxConnections {
		time.Sleep(time.Millisecond)
	}
	admitted := make(chan error)
	for n := range 3 {
		go func() {
			_, err := f.target.Admit(numbered(n).Append(nil), addr)
			admitted <- err
		}()
	}
	time.Sleep(50 * time.Millisecond) // all wait for the writes
	close(slow.goOn)
	for range 3 {
		if err := <-admitted; err != nil {
			t.Errorf("a replacement: %v", err)
		}
	}
	var reject *wire.Reject
	if _, err := f.target.Admit(numbered(MaxConnections).Append(nil), addr); !errors.As(err, &reject) || reject.Reason != wire.RejectBusy {
		t.Errorf("one more: %v, want to be rejected as busy", err)
	}
}

// A store that stalls holds few threads of the process, and a DIGEST's memory is there a few times, however
// many commands wait; a sign of life does not wait.
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
			f := newFixture(t)
			slow := &stalled{Store: f.store, goOn: make(chan struct{})}
			f.volume.Store = slow
			var err error
			if f.target, err = New(zerolog.Nop(), nil, f.volume); err != nil {
				t.Fatal(err)
			}
			var last *pipe
			for n := range byte(4) {
				h := hello(n, 0)
				h.Depth = MaxDepth
				last = f.connect(h)
				for tag := range uint16(MaxDepth) {
					tc.request.Tag = tag
					last.toTarget <- tc.request.Append(nil)
				}
			}
			alive := wire.Request{Command: wire.Command{Op: wire.OpKeepAlive, Tag: wire.TagKeepAlive, Flags: wire.FlagInline}}
			if a, _ := f.one(last, alive); a.Status != wire.StatusOK {
				t.Errorf("sign of life: %+v", a)
			}
			time.Sleep(100 * time.Millisecond)
			if n := slow.calls.Load(); n != tc.calls {
				t.Errorf("%d of %d commands are in the store, want %d", n, 4*MaxDepth, tc.calls)
			}
			close(slow.goOn)
		})
	}
}

// countedLines counts the lines of a log.
type countedLines struct{ n atomic.Int32 }

func (c *countedLines) Write(p []byte) (int, error) {
	c.n.Add(1)
	return len(p), nil
}

// A client cannot fill the log.
func TestLogOfBadData(t *testing.T) {
	f := newFixture(t)
	var log countedLines
	var err error
	if f.target, err = New(zerolog.New(&log), nil, f.volume); err != nil {
		t.Fatal(err)
	}
	p := f.connect(hello(1, 0))
	bad := inlineWrite(1, 0, make([]byte, 512))
	bad.CRC ^= 1
	for range 200 {
		if a, _ := f.one(p, bad); a.Status != wire.StatusCRC {
			t.Fatalf("%+v", a)
		}
	}
	if n := log.n.Load(); n > 30 {
		t.Errorf("%d lines for 200 writes with a wrong CRC", n)
	}
	if n := f.volume.Counters.CRCErrors.Load(); n != 200 {
		t.Errorf("%d are counted", n)
	}
}

// Nor can clients that come and go.
func TestLogOfClients(t *testing.T) {
	f := newFixture(t)
	var log countedLines
	var err error
	if f.target, err = New(zerolog.New(&log), nil, f.volume); err != nil {
		t.Fatal(err)
	}
	const clients = 400
	for n := range clients {
		p := f.connect(hello(1, 0)) // fences the one before
		if n%2 == 0 {
			p.toTarget <- []byte("no command")
			<-p.closed
		}
	}
	if n := log.n.Load(); n < 10 || n > clients/2 {
		t.Errorf("%d lines for %d clients", n, clients)
	}
}
