// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bytes"
	"errors"
	"github.com/rs/zerolog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"krping/bridge/access"
	"krping/bridge/store"
	"krping/bridge/transport"
	"krping/bridge/wire"
)

var errClosed = errors.New("closed")

// pipe is a transport in memory. The test is the client.
type pipe struct {
	toTarget chan []byte
	toClient chan sent
	memory   []byte // of the client, with rkey 1
	closed   chan struct{}
	once     sync.Once
	ending   atomic.Bool   // Close was called
	dead     atomic.Bool   // Probe fails
	block    chan struct{} // RDMA READs wait until it is closed, unless it is nil
	hangs    chan struct{} // Close, and what waits for it, wait until it is closed, unless it is nil
}

type sent struct {
	msg        []byte
	invalidate uint32
}

func newPipe() *pipe {
	return &pipe{toTarget: make(chan []byte, 16), toClient: make(chan sent, 256), memory: make([]byte, 2<<20), closed: make(chan struct{})}
}

func (p *pipe) Recv() (transport.Message, error) {
	select {
	case msg := <-p.toTarget:
		return transport.Message{Data: msg, Release: func() error { clear(msg); return nil }}, nil
	case <-p.closed:
		return transport.Message{}, errClosed
	}
}

func (p *pipe) Send(msg []byte, invalidate uint32) error {
	p.toClient <- sent{bytes.Clone(msg), invalidate}
	return nil
}

func (p *pipe) wait() error {
	if p.block == nil {
		return nil
	}
	select {
	case <-p.block:
		return nil
	case <-p.closed:
		return errClosed
	}
}

func (p *pipe) Read(b []byte, from transport.Remote) error {
	if from.Rkey != 1 {
		return errClosed
	}
	copy(b, p.memory[from.Addr:])
	return p.wait()
}

func (p *pipe) WriteAndSend(b []byte, to transport.Remote, msg []byte) error {
	if to.Rkey != 1 {
		return errClosed
	}
	copy(p.memory[to.Addr:], b)
	return p.Send(msg, to.Rkey)
}

func (p *pipe) Probe() error {
	if p.dead.Load() {
		return errClosed
	}
	return nil
}

func (p *pipe) Buffer(n int) ([]byte, error) { return make([]byte, n), nil }
func (p *pipe) Free([]byte)                  {}
func (p *pipe) Close() {
	p.ending.Store(true)
	if p.hangs != nil {
		<-p.hangs
	}
	p.once.Do(func() { close(p.closed) })
}
func (p *pipe) Peer() string { return "test" }
func (p *pipe) Ended() bool  { return p.ending.Load() }

// fixture is a target with one volume, vol0, in memory. Several sessions may write to it.
type fixture struct {
	t      testing.TB
	target *Target
	volume *Volume
	store  *store.Faulty
}

// limited is a store that can do only what its features say.
type limited struct {
	store.Store
	features store.Features
}

func (l limited) Features() store.Features { return l.features }

func (l limited) Discard(off, n int64) error {
	if !l.features.Discard {
		return store.ErrUnsupported
	}
	return l.Store.Discard(off, n)
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	s, err := store.Open("mem:", store.Options{Size: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, store: &store.Faulty{Store: s}}
	f.volume = &Volume{Name: "vol0", Store: f.store, BlockSize: 512, Shared: true}
	if f.target, err = New(zerolog.Nop(), access.List{netip.PrefixFrom(addr, 32)}, f.volume); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.volume.threads.close)
	return f
}

// inBubble runs a test with a clock of its own: time passes only while every goroutine waits,
// so neither load nor a slow machine changes what the test sees.
func inBubble(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newFixture(t)) })
}

// serveWith replaces the target by one with another log, all addresses allowed, and more volumes.
func (f *fixture) serveWith(log zerolog.Logger, more ...*Volume) {
	f.t.Helper()
	var err error
	if f.target, err = New(log, nil, append([]*Volume{f.volume}, more...)...); err != nil {
		f.t.Fatal(err)
	}
}

func hello(session byte, index uint16) wire.Hello {
	return wire.Hello{QueueIndex: index, QueueCount: 2, Depth: 4, Session: wire.SessionID{session}, Volume: wire.VolumeIDOf("vol0")}
}

// connect serves a new connection until the test ends.
func (f *fixture) connect(h wire.Hello) *pipe {
	f.t.Helper()
	return f.connectFrom(addr, h)
}

func (f *fixture) connectFrom(peer netip.Addr, h wire.Hello) *pipe {
	f.t.Helper()
	session, err := f.target.Admit(h.Append(nil), peer)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.serve(session)
}

// serve serves an admitted session until the test ends.
func (f *fixture) serve(session *Session) *pipe {
	f.t.Helper()
	p := newPipe()
	f.serveOn(session, p)
	return p
}

// serveOn serves an admitted session on a transport until the test ends, or the channel is closed.
func (f *fixture) serveOn(session *Session, tr transport.Transport) (served chan struct{}) {
	f.t.Helper()
	served = make(chan struct{})
	go func() {
		defer close(served)
		defer f.target.Leave(session)
		f.target.Serve(f.t.Context(), session, tr)
	}()
	f.t.Cleanup(func() { tr.Close(); <-served })
	return served
}

// answers waits for the next message and returns its responses and the key it invalidates.
func (f *fixture) answers(p *pipe) ([]wire.Answer, uint32) {
	f.t.Helper()
	select {
	case s := <-p.toClient:
		answers, err := wire.DecodeAnswers(s.msg)
		if err != nil {
			f.t.Fatal(err)
		}
		return answers, s.invalidate
	case <-p.closed:
		f.t.Fatal("the connection was closed before an answer")
	}
	return nil, 0
}

// one sends a command and waits for its answer, alone in a message.
func (f *fixture) one(p *pipe, r wire.Request) (wire.Answer, uint32) {
	f.t.Helper()
	p.toTarget <- r.Append(nil)
	answers, key := f.answers(p)
	if len(answers) != 1 || answers[0].Tag != r.Tag {
		f.t.Fatalf("%+v: answers %+v, want one", r.Command, answers)
	}
	return answers[0], key
}

func inlineWrite(tag uint16, offset uint64, data []byte) wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpWrite, Flags: wire.FlagInline, Tag: tag, Length: uint32(len(data)), Offset: offset, CRC: wire.CRC32C(data)}, Data: data}
}

func inlineRead(tag uint16, offset uint64, n uint32) wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpRead, Flags: wire.FlagInline, Tag: tag, Length: n, Offset: offset}}
}
