// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/access"
	"krping/bridge/store"
	"krping/bridge/transport"
	"krping/bridge/wire"
)

var errClosed = errors.New("closed")

// pipe is a transport within this process: the test is the client.
type pipe struct {
	toTarget chan []byte
	toClient chan sent
	memory   []byte // of the client; rkey 1 opens it
	closed   chan struct{}
	once     sync.Once
	dead     atomic.Bool   // the client answers nothing any more
	block    chan struct{} // RDMA operations wait for it, if it is not nil
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
func (p *pipe) Close()                       { p.once.Do(func() { close(p.closed) }) }
func (p *pipe) Peer() string                 { return "test" }
func (p *pipe) Ended() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}

type fixture struct {
	t      *testing.T
	target *Target
	volume *Volume
	store  *store.Faulty
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	s, err := store.Open("mem:", 4<<20, false)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, store: &store.Faulty{Store: s}}
	f.volume = &Volume{Name: "vol0", Store: f.store, BlockSize: 512}
	if f.target, err = New(zerolog.Nop(), access.List{netip.PrefixFrom(addr, 32)}, f.volume); err != nil {
		t.Fatal(err)
	}
	return f
}

func hello(session byte, index uint16) wire.Hello {
	return wire.Hello{QueueIndex: index, QueueCount: 2, Depth: 4, Session: wire.SessionID{session}, Volume: "vol0"}
}

// connect serves a new connection until the test ends.
func (f *fixture) connect(h wire.Hello) *pipe {
	f.t.Helper()
	session, err := f.target.Admit(h.Append(nil), addr)
	if err != nil {
		f.t.Fatal(err)
	}
	p := newPipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer f.target.Leave(session)
		f.target.Serve(f.t.Context(), session, p)
	}()
	f.t.Cleanup(func() { p.Close(); <-served })
	return p
}

func (f *fixture) answers(p *pipe) ([]wire.Answer, uint32) {
	f.t.Helper()
	select {
	case s := <-p.toClient:
		answers, err := wire.DecodeAnswers(s.msg)
		if err != nil {
			f.t.Fatal(err)
		}
		return answers, s.invalidate
	case <-time.After(10 * time.Second):
		f.t.Fatal("no answer")
	case <-p.closed:
		f.t.Fatal("the connection is closed")
	}
	return nil, 0
}

func (f *fixture) one(p *pipe, r wire.Request) (wire.Answer, uint32) {
	f.t.Helper()
	p.toTarget <- r.Append(nil)
	answers, key := f.answers(p)
	if len(answers) != 1 || answers[0].Tag != r.Tag {
		f.t.Fatalf("%+v: answers %+v", r.Command, answers)
	}
	return answers[0], key
}

func inlineWrite(tag uint16, offset uint64, data []byte) wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpWrite, Flags: wire.FlagInline, Tag: tag, Length: uint32(len(data)), Offset: offset, CRC: wire.CRC32C(data)}, Data: data}
}

func inlineRead(tag uint16, offset uint64, n uint32) wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpRead, Flags: wire.FlagInline, Tag: tag, Length: n, Offset: offset}}
}

func TestInlineWriteAndRead(t *testing.T) {
	f := newFixture(t)
	p := f.connect(hello(1, 0))
	data := bytes.Repeat([]byte("krping\x00\x00"), 64)
	if a, key := f.one(p, inlineWrite(9, 1024, data)); a.Status != wire.StatusOK || a.Length != 512 || key != 0 {
		t.Errorf("write: %+v, key %d", a, key)
	}
	if a, _ := f.one(p, inlineRead(9, 1024, 512)); a.Status != wire.StatusOK || !bytes.Equal(a.Data, data) || a.CRC != wire.CRC32C(data) {
		t.Errorf("read: %+v", a)
	}
}

func TestLargeWriteAndReadGiveTheKeyBack(t *testing.T) {
	f := newFixture(t)
	p := f.connect(hello(1, 0))
	for i := range p.memory[:65536] {
		p.memory[i] = byte(i * 7)
	}
	write := wire.Command{Op: wire.OpWrite, Tag: 1, Length: 65536, Offset: 512, Rkey: 1, CRC: wire.CRC32C(p.memory[:65536])}
	if a, key := f.one(p, wire.Request{Command: write}); a.Status != wire.StatusOK || key != 1 {
		t.Errorf("write: %+v, key %d", a, key)
	}
	read := wire.Command{Op: wire.OpRead, Tag: 2, Length: 65536, Offset: 512, Addr: 1 << 20, Rkey: 1}
	if a, key := f.one(p, wire.Request{Command: read}); a.Status != wire.StatusOK || a.CRC != write.CRC || key != 1 || !bytes.Equal(p.memory[1<<20:1<<20+65536], p.memory[:65536]) {
		t.Errorf("read: %+v, key %d", a, key)
	}
	outside := wire.Command{Op: wire.OpRead, Tag: 3, Length: 65536, Offset: 4 << 20, Rkey: 1}
	if a, key := f.one(p, wire.Request{Command: outside}); a.Status != wire.StatusRange || key != 1 || a.Length != 0 {
		t.Errorf("read outside the volume: %+v, key %d", a, key)
	}
}

func TestStatuses(t *testing.T) {
	f := newFixture(t)
	p := f.connect(hello(1, 0))
	data := make([]byte, 512)
	bad := inlineWrite(1, 0, data)
	bad.CRC ^= 1
	if a, _ := f.one(p, bad); a.Status != wire.StatusCRC {
		t.Errorf("wrong CRC: %+v", a)
	}
	fault := errors.New("broken disk")
	f.store.WriteFault.Store(&fault)
	if a, _ := f.one(p, inlineWrite(1, 0, data)); a.Status != wire.StatusIO {
		t.Errorf("store that fails: %+v", a)
	}
	f.store.ReadFault.Store(&fault)
	if a, _ := f.one(p, inlineRead(1, 0, 512)); a.Status != wire.StatusIO || a.Data != nil {
		t.Errorf("store that fails: %+v", a)
	}
	if a, _ := f.one(p, inlineRead(1, 1<<62, 512)); a.Status != wire.StatusRange {
		t.Errorf("outside: %+v", a)
	}
	unsupported := store.ErrUnsupported
	f.store.ClearFault.Store(&unsupported)
	if a, _ := f.one(p, wire.Request{Command: wire.Command{Op: wire.OpDiscard, Tag: 1, Length: 512}}); a.Status != wire.StatusUnsupported {
		t.Errorf("discard: %+v", a)
	}
	f.volume.ReadOnly = true
	if a, _ := f.one(p, inlineWrite(1, 0, data)); a.Status != wire.StatusReadOnly {
		t.Errorf("read-only: %+v", a)
	}
	if n := f.volume.Counters.CRCErrors.Load(); n != 1 {
		t.Errorf("%d CRC errors counted", n)
	}
}

func TestDiscardAndWriteZeroes(t *testing.T) {
	f := newFixture(t)
	p := f.connect(hello(1, 0))
	ones := bytes.Repeat([]byte{1}, 4096)
	for _, op := range []wire.Op{wire.OpDiscard, wire.OpWriteZeroes} {
		if a, _ := f.one(p, inlineWrite(1, 0, ones)); a.Status != wire.StatusOK {
			t.Fatalf("write: %+v", a)
		}
		if a, key := f.one(p, wire.Request{Command: wire.Command{Op: op, Tag: 1, Offset: 512, Length: 1024}}); a.Status != wire.StatusOK || a.Length != 0 || key != 0 {
			t.Errorf("%v: %+v", op, a)
		}
		want := append(append(bytes.Clone(ones[:512]), make([]byte, 1024)...), ones[:2560]...)
		if a, _ := f.one(p, inlineRead(1, 0, 4096)); !bytes.Equal(a.Data, want) { // of memory a discard leaves zeros, too
			t.Errorf("%v: the wrong bytes are zero", op)
		}
		if a, _ := f.one(p, wire.Request{Command: wire.Command{Op: op, Tag: 1, Offset: 4<<20 - 512, Length: 1024}}); a.Status != wire.StatusRange {
			t.Errorf("%v beyond the end: %+v", op, a)
		}
	}
	f.volume.ReadOnly = true
	if a, _ := f.one(p, wire.Request{Command: wire.Command{Op: wire.OpDiscard, Tag: 1, Length: 512}}); a.Status != wire.StatusReadOnly {
		t.Errorf("read-only: %+v", a)
	}
}

// A sign of life comes while the store is busy with as many commands as are allowed, and
// tells of the store's size of that moment.
func TestKeepAlive(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(t.TempDir(), "grows")
	s, err := store.Open("file:"+path, 1<<20, true)
	if err != nil {
		t.Fatal(err)
	}
	f.store.Store = s
	p := f.connect(hello(1, 0))
	p.block = make(chan struct{})
	for tag := range uint16(4) {
		p.toTarget <- wire.Request{Command: wire.Command{
			Op: wire.OpWrite, Tag: tag, Length: 8192, Offset: uint64(tag) * 8192, Rkey: 1, CRC: wire.CRC32C(make([]byte, 8192)),
		}}.Append(nil)
	}
	alive := wire.Request{Command: wire.Command{Op: wire.OpKeepAlive, Flags: wire.FlagInline, Tag: wire.TagKeepAlive}}
	for _, size := range []int64{1 << 20, 2<<20 + 100} {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		a, _ := f.one(p, alive)
		if want := binary.BigEndian.AppendUint64(nil, uint64(size&^511)); a.Status != wire.StatusOK || !bytes.Equal(a.Data, want) {
			t.Errorf("%d bytes: %+v", size, a)
		}
	}
	close(p.block)
	for answered := 0; answered < 4; {
		answers, _ := f.answers(p)
		answered += len(answers)
	}
}

func TestDigest(t *testing.T) {
	f := newFixture(t)
	p := f.connect(hello(1, 0))
	want := sha256.Sum256(make([]byte, 1<<20))
	a, _ := f.one(p, wire.Request{Command: wire.Command{Op: wire.OpDigest, Flags: wire.FlagInline | wire.FlagSHA256, Tag: 5, Length: 1 << 20}})
	if a.Status != wire.StatusOK || !bytes.Equal(a.Data, want[:]) {
		t.Errorf("%+v", a)
	}
}

func TestBatch(t *testing.T) {
	f := newFixture(t)
	p := f.connect(hello(1, 0))
	var msg []byte
	for tag := range uint16(4) {
		msg = inlineWrite(tag, uint64(tag)*512, bytes.Repeat([]byte{byte(tag)}, 512)).Append(msg)
	}
	p.toTarget <- msg
	seen := map[uint16]bool{}
	for len(seen) < 4 {
		answers, _ := f.answers(p)
		for _, a := range answers {
			if a.Status != wire.StatusOK || seen[a.Tag] {
				t.Errorf("%+v", a)
			}
			seen[a.Tag] = true
		}
	}
	got := make([]byte, 4)
	for i := range got {
		_, _ = f.store.ReadAt(got[i:i+1], int64(i)*512)
	}
	if !bytes.Equal(got, []byte{0, 1, 2, 3}) {
		t.Errorf("stored %v", got)
	}
}

func TestViolationEndsTheConnectionOnly(t *testing.T) {
	f := newFixture(t)
	good := f.connect(hello(1, 0))
	for name, messages := range map[string][][]byte{
		"garbage":          {[]byte("garbage that is no command at all")},
		"tag in flight":    {append(wire.Request{Command: wire.Command{Op: wire.OpWrite, Tag: 1, Length: 512, Rkey: 1}}.Append(nil), inlineRead(1, 0, 512).Append(nil)...)},
		"more than depth":  {bytes.Repeat(wire.Request{Command: wire.Command{Op: wire.OpFlush}}.Append(nil), 5)},
		"wrong remote key": {wire.Request{Command: wire.Command{Op: wire.OpRead, Tag: 1, Length: 512, Rkey: 77}}.Append(nil)},
	} {
		p := f.connect(hello(2, 0))
		for _, msg := range messages {
			p.toTarget <- msg
		}
		select {
		case <-p.closed:
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the connection goes on", name)
		}
	}
	if a, _ := f.one(good, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
		t.Errorf("another connection: %+v", a)
	}
}

func TestRejects(t *testing.T) {
	f := newFixture(t)
	for name, tc := range map[string]struct {
		change func(*wire.Hello)
		want   wire.Reason
	}{
		"volume": {func(h *wire.Hello) { h.Volume = "nosuch" }, wire.RejectVolume},
		"queues": {func(h *wire.Hello) { h.QueueCount = 65 }, wire.RejectQueues},
		"depth":  {func(h *wire.Hello) { h.Depth = 0 }, wire.RejectInvalid},
	} {
		h := hello(1, 0)
		tc.change(&h)
		_, err := f.target.Admit(h.Append(nil), addr)
		var reject *wire.Reject
		if !errors.As(err, &reject) || reject.Reason != tc.want {
			t.Errorf("%s: %v, want reason %d", name, err, tc.want)
		}
	}
}

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

// A client that dies while it is idle is noticed, one that lives is left alone.
func TestSilentClient(t *testing.T) {
	f := newFixture(t)
	f.target.probeInterval = 20 * time.Millisecond
	dead, idle := f.connect(hello(1, 0)), f.connect(hello(2, 0))
	time.Sleep(100 * time.Millisecond)
	for _, p := range []*pipe{dead, idle} {
		if a, _ := f.one(p, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
			t.Errorf("%+v", a)
		}
	}
	dead.dead.Store(true)
	select {
	case <-dead.closed:
	case <-time.After(5 * time.Second):
		t.Error("the connection of the dead client goes on")
	}
	if a, _ := f.one(idle, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
		t.Errorf("another connection: %+v", a)
	}
}

func TestWelcomeTellsOfTheVolume(t *testing.T) {
	file, err := store.Open("file:"+filepath.Join(t.TempDir(), "a.img"), 4096, false)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	f := newFixture(t)
	for want, volume := range map[uint8]*Volume{
		wire.VolumeVolatile:  {BlockSize: 512, Store: f.store},
		0:                    {BlockSize: 512, Store: file},
		wire.VolumeReadOnly:  {BlockSize: 512, Store: file, ReadOnly: true},
		wire.VolumeWriteback: {BlockSize: 512, Store: file, Writeback: true},
	} {
		if got := f.target.newSession(hello(1, 0), volume).Welcome.Flags; got != want {
			t.Errorf("flags %#x, want %#x", got, want)
		}
	}
}

func TestEpochIsNew(t *testing.T) {
	a, b := newFixture(t), newFixture(t)
	if a.target.epoch == b.target.epoch {
		t.Error("two targets have the same epoch")
	}
}
