// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"
	"unsafe"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// fabric connects the queue pairs of two sides in memory. One lock protects all of it.
type fabric struct {
	mu    sync.Mutex
	keys  uint32
	qpn   uint32
	pairs map[uint32]*fakePair // by number
	// fault decides what becomes of a message that is about to arrive: how many copies of it do. It may
	// change the data. Nil: one.
	fault   func(m *fakeMessage) (copies int)
	ability transport.Ability
	mtu     int
	failed  error // of the next Register
}

// fakeMessage is a SEND, WRITE or WRITE_IMM on its way.
type fakeMessage struct {
	from   *fakePair
	work   transport.Work
	data   []byte
	number int // of the messages of its queue pair, from 0
}

func newFabric() *fabric {
	return &fabric{
		pairs: map[uint32]*fakePair{}, qpn: 16, mtu: 1024,
		ability: transport.Ability{PortMTU: 1024, Depth: 16384, Completions: 1 << 20, SharedDepth: 16384, Reads: 16, ReadResources: 16, Queues: 4096, Atomics: true},
	}
}

// fakeQueues implements transport.Queues.
type fakeQueues struct {
	f      *fabric
	config transport.QueueConfig
	pairs  []*fakePair
	shared []transport.Receive
	memory map[uint32]*fakeMemory // by rkey, which is also the lkey
	done   []transport.Completion
	out    []transport.Completion
	works  [transport.TurnSize]transport.Work
	recvs  [transport.TurnSize]transport.Receive
	cond   *sync.Cond
	woken  bool
	closed bool
}

type fakeMemory struct {
	transport.Memory
	use transport.Access
}

type fakePair struct {
	q        *fakeQueues
	qpn      uint32
	peer     *fakePair
	receives []transport.Receive
	waiting  []fakeMessage // RC: for a receive
	posted   []transport.Work
	sent     int
}

func (f *fabric) newQueues(config transport.QueueConfig) *fakeQueues {
	q := &fakeQueues{f: f, config: config, memory: map[uint32]*fakeMemory{}, cond: sync.NewCond(&f.mu)}
	f.mu.Lock()
	defer f.mu.Unlock()
	for range config.Queues {
		f.qpn++
		p := &fakePair{q: q, qpn: f.qpn}
		f.pairs[f.qpn] = p
		q.pairs = append(q.pairs, p)
	}
	return q
}

func (q *fakeQueues) Register(n int, use transport.Access) (transport.Memory, error) {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if q.f.failed != nil {
		return transport.Memory{}, q.f.failed
	}
	q.f.keys++
	words := make([]uint64, (n+7)/8+8) // aligned
	data := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
	m := &fakeMemory{transport.Memory{Data: data, Addr: uint64(uintptr(unsafe.Pointer(&words[0]))), Lkey: q.f.keys, Rkey: q.f.keys}, use}
	q.memory[q.f.keys] = m
	return m.Memory, nil
}

// at returns n bytes at an address, nil if they are not all in the memory.
func (q *fakeQueues) at(key uint32, addr uint64, n uint32, use transport.Access) []byte {
	m := q.memory[key]
	if m == nil || m.use&use != use || addr < m.Addr || addr+uint64(n) > m.Addr+uint64(len(m.Data)) {
		return nil
	}
	return m.Data[addr-m.Addr:][:n:n]
}

func (q *fakeQueues) Address(i int) transport.QueueAddress {
	return transport.QueueAddress{QPN: q.pairs[i].qpn, PSN: uint32(i), QKey: q.config.QKey}
}

func (q *fakeQueues) Connect(i int, peer transport.QueueAddress, _ int) error {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	if q.pairs[i].peer = q.f.pairs[peer.QPN]; q.pairs[i].peer == nil {
		return errors.New("no such queue pair")
	}
	return nil
}

func (q *fakeQueues) Batch() ([]transport.Work, []transport.Receive) { return q.works[:], q.recvs[:] }

func (q *fakeQueues) Turn(works, receives int, wait time.Duration, _ bool) ([]transport.Completion, error) {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	for _, r := range q.recvs[:receives] {
		if q.config.Shared {
			q.shared = append(q.shared, r)
			continue
		}
		p := q.pairs[r.Queue]
		p.receives = append(p.receives, r)
		if len(p.receives) > q.config.Receives {
			return nil, errors.New("too many receives")
		}
	}
	for _, p := range q.pairs {
		p.retry()
	}
	for _, w := range q.works[:works] {
		p := q.pairs[w.Queue]
		if p.posted = append(p.posted, w); len(p.posted) > q.config.Sends {
			return nil, errors.New("too many work requests")
		}
		p.post(w)
	}
	if len(q.done) == 0 && wait > 0 {
		late := time.AfterFunc(wait, func() {
			q.f.mu.Lock()
			defer q.f.mu.Unlock()
			q.woken = true
			q.cond.Broadcast()
		})
		for len(q.done) == 0 && !q.woken {
			q.cond.Wait()
		}
		late.Stop()
		q.woken = false
	}
	n := min(len(q.done), transport.TurnSize)
	q.out = append(q.out[:0], q.done[:n]...)
	q.done = append(q.done[:0], q.done[n:]...)
	return q.out, nil
}

// complete completes a work request, and with it those before it.
func (p *fakePair) complete(w transport.Work, status uint32) {
	for i, posted := range p.posted {
		if posted.ID == w.ID {
			if w.Flags&transport.Signalled != 0 || status != 0 {
				p.posted = p.posted[i+1:]
			}
			break
		}
	}
	if w.Flags&transport.Signalled != 0 || status != 0 {
		p.q.add(transport.Completion{ID: w.ID, Status: status, QPN: p.qpn})
	}
}

func (q *fakeQueues) add(c transport.Completion) {
	q.done = append(q.done, c)
	q.cond.Broadcast()
}

func (p *fakePair) post(w transport.Work) {
	local := p.q.at(w.Lkey, w.Addr, w.Length, 0)
	if local == nil || p.peer == nil {
		p.complete(w, 4) // local protection error
		return
	}
	switch w.Op {
	case transport.OpRead, transport.OpFetchAdd, transport.OpCompareSwap:
		p.fetch(w, local)
		return
	}
	m := fakeMessage{from: p, work: w, data: append([]byte(nil), local...), number: p.sent}
	p.sent++
	copies := 1
	if p.q.f.fault != nil {
		copies = p.q.f.fault(&m)
	}
	for range copies {
		if p.q.config.Service == transport.RC && len(p.waiting) > 0 {
			p.waiting = append(p.waiting, m)
		} else if !p.deliver(m) {
			p.waiting = append(p.waiting, m)
			return
		}
	}
	if len(p.waiting) == 0 {
		p.complete(w, 0)
	}
}

// retry delivers messages that found no receive.
func (p *fakePair) retry() {
	if p.peer == nil {
		return
	}
	for _, from := range []*fakePair{p.peer} {
		for len(from.waiting) > 0 && from.deliver(from.waiting[0]) {
			w := from.waiting[0].work
			from.waiting = from.waiting[1:]
			from.complete(w, 0)
		}
	}
}

// deliver puts a message where it belongs. It returns false if an RC message lacks a receive.
func (p *fakePair) deliver(m fakeMessage) bool {
	w, to := m.work, p.peer
	if w.Op == transport.OpWrite || w.Op == transport.OpWriteImmediate {
		slot := to.q.at(w.Rkey, w.RemoteAddr, uint32(len(m.data)), transport.PeerWrites)
		if slot == nil {
			if p.q.config.Service == transport.RC {
				p.complete(w, 10) // remote access error
			}
			return true
		}
		if w.Op == transport.OpWrite {
			copy(slot, m.data)
			to.q.cond.Broadcast()
			return true
		}
		r, ok := to.receive()
		if !ok {
			return p.q.config.Service != transport.RC
		}
		copy(slot, m.data)
		to.q.add(transport.Completion{ID: r.ID, Op: transport.DoneReceiveImmediate, Length: uint32(len(m.data)), Immediate: w.Immediate, QPN: to.qpn})
		return true
	}
	r, ok := to.receive()
	if !ok {
		return p.q.config.Service != transport.RC
	}
	headroom := uint32(0)
	if p.q.config.Service == transport.UD {
		headroom = transport.GRH
	}
	n := headroom + uint32(len(m.data))
	buffer := to.q.at(r.Lkey, r.Addr, r.Length, 0)
	if n > r.Length || buffer == nil {
		to.q.add(transport.Completion{ID: r.ID, Status: 1, QPN: to.qpn}) // local length error
		return true
	}
	copy(buffer[headroom:], m.data)
	to.q.add(transport.Completion{ID: r.ID, Op: transport.DoneReceive, Length: n, QPN: to.qpn, SourceQPN: p.qpn})
	return true
}

func (p *fakePair) receive() (transport.Receive, bool) {
	list := &p.receives
	if p.q.config.Shared {
		list = &p.q.shared
	}
	if len(*list) == 0 {
		return transport.Receive{}, false
	}
	r := (*list)[0]
	*list = (*list)[1:]
	return r, true
}

func (p *fakePair) fetch(w transport.Work, local []byte) {
	use := transport.PeerAtomics
	if w.Op == transport.OpRead {
		use = transport.PeerReads
	}
	remote := p.peer.q.at(w.Rkey, w.RemoteAddr, w.Length, use)
	if remote == nil {
		p.complete(w, 10)
		return
	}
	copy(local, remote)
	if w.Op != transport.OpRead {
		old := binary.NativeEndian.Uint64(remote)
		switch {
		case w.Op == transport.OpFetchAdd:
			binary.NativeEndian.PutUint64(remote, old+w.CompareAdd)
		case old == w.CompareAdd:
			binary.NativeEndian.PutUint64(remote, w.Swap)
		}
	} else if p.q.f.fault != nil {
		m := fakeMessage{from: p, work: w, data: local, number: p.sent}
		p.q.f.fault(&m)
	}
	p.sent++
	p.complete(w, 0)
}

// Exchange leaves all to Turn.
func (q *fakeQueues) Exchange(*transport.Exchange) ([]transport.Completion, error) { return nil, nil }

func (q *fakeQueues) Wake() {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	q.woken = true
	q.cond.Broadcast()
}

func (q *fakeQueues) Watch(b *byte, old byte, wait time.Duration) (byte, bool) {
	for end := time.Now().Add(wait); ; time.Sleep(10 * time.Microsecond) {
		q.f.mu.Lock()
		now := *b
		q.f.mu.Unlock()
		if now != old {
			return now, true
		}
		if time.Now().After(end) {
			return 0, false
		}
	}
}

func (q *fakeQueues) StatusText(status uint32) string { return fmt.Sprintf("status %d", status) }

func (q *fakeQueues) Close() {
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	q.closed = true
	for _, p := range q.pairs {
		delete(q.f.pairs, p.qpn)
		if p.peer != nil {
			p.peer.peer = nil
		}
	}
}

// fakeConn implements Conn.
type fakeConn struct {
	f        *fabric
	peer     *fakeConn
	messages chan []byte
	done     chan struct{}
	once     *sync.Once // of both ends
	both     []chan struct{}
	queues   *fakeQueues
}

func (f *fabric) connect() (client, server *fakeConn) {
	once := new(sync.Once)
	done := []chan struct{}{make(chan struct{}), make(chan struct{})}
	client = &fakeConn{f: f, messages: make(chan []byte, 8192), done: done[0], once: once, both: done}
	server = &fakeConn{f: f, messages: make(chan []byte, 8192), done: done[1], once: once, both: done}
	client.peer, server.peer = server, client
	return client, server
}

func (c *fakeConn) Recv() (transport.Message, error) {
	select { // what has arrived before the end
	case b := <-c.messages:
		return transport.Message{Data: b, Release: func() error { return nil }}, nil
	default:
	}
	select {
	case b := <-c.messages:
		return transport.Message{Data: b, Release: func() error { return nil }}, nil
	case <-c.done:
		return transport.Message{}, errors.New("closed")
	}
}

func (c *fakeConn) Send(msg []byte, _ uint32) error {
	select {
	case <-c.done:
		return errors.New("closed")
	default:
	}
	c.peer.messages <- append([]byte(nil), msg...)
	return nil
}

func (c *fakeConn) Probe() error {
	select {
	case <-c.done:
		return errors.New("closed")
	default:
		return nil
	}
}

func (c *fakeConn) Done() <-chan struct{} { return c.done }
func (c *fakeConn) Peer() string          { return "peer" }
func (c *fakeConn) Close() {
	c.once.Do(func() {
		for _, done := range c.both {
			close(done)
		}
	})
}
func (c *fakeConn) Ability() (transport.Ability, error) { return c.f.ability, nil }
func (c *fakeConn) PathMTU() (int, error)               { return c.f.mtu, nil }

func (c *fakeConn) NewQueues(config transport.QueueConfig) (transport.Queues, error) {
	c.queues = c.f.newQueues(config)
	return c.queues, nil
}

// patience is what an end waits for the other one, which may have no processor for seconds on a busy host.
const patience = 30 * time.Second

// fakeNet is a fabric with a server, and the Dialer of its clients.
type fakeNet struct {
	*fabric
	t        testing.TB
	server   *Server
	serving  sync.WaitGroup
	outcomes chan outcome // of the server
}

type outcome struct {
	result Result
	err    error
}

var clientAddr = netip.MustParseAddr("10.0.0.2")

func newNet(t testing.TB) *fakeNet {
	n := &fakeNet{fabric: newFabric(), t: t, server: &Server{MaxSize: 1 << 20, Timeout: patience}, outcomes: make(chan outcome, 16)}
	t.Cleanup(n.serving.Wait)
	return n
}

func (n *fakeNet) Dial(_ context.Context, private []byte, _, _ int) (Conn, error) {
	session, err := n.server.Admit(private, clientAddr, n.ability, nil)
	if err != nil {
		return nil, err
	}
	client, server := n.connect()
	n.serving.Go(func() {
		result, err := session.Serve(n.t.Context(), server)
		n.outcomes <- outcome{result, err}
	})
	return client, nil
}

// fakeRequest implements transport.Incoming.
type fakeRequest struct {
	q      *fakeQueues
	index  int
	answer chan error
}

func (r *fakeRequest) AcceptQueue(q transport.Queues, index int) error {
	own := q.(*fakeQueues)
	r.q.f.mu.Lock()
	own.pairs[index].peer, r.q.pairs[r.index].peer = r.q.pairs[r.index], own.pairs[index]
	r.q.f.mu.Unlock()
	r.answer <- nil
	return nil
}

func (r *fakeRequest) Reject([]byte) { r.answer <- errors.New("rejected") }

func (n *fakeNet) DialQueue(ctx context.Context, q transport.Queues, index int, private []byte, _, _ int) error {
	r := &fakeRequest{q.(*fakeQueues), index, make(chan error, 1)}
	if _, err := n.server.Admit(private, clientAddr, n.ability, r); err != nil {
		return err
	}
	select {
	case err := <-r.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *fakeNet) Release(Conn) {}

// run runs a test against the server.
func (n *fakeNet) run(ctx context.Context, h wire.VerbsHello) (client, server outcome) {
	c := Client{Dialer: n, Timeout: patience}
	client.result, client.err = c.Run(ctx, h)
	if n.t.Failed() {
		return client, server
	}
	select {
	case server = <-n.outcomes:
	case <-time.After(2 * patience):
		n.t.Fatalf("the server does not end; client: %v", client.err)
	}
	return client, server
}

// bandwidthHello returns a hello that goes with a verb and a type of queue pairs.
func bandwidthHello(verb wire.Verb, qp wire.QPType) wire.VerbsHello {
	h := wire.VerbsHello{Size: 100, QPs: 3, Group: uint16(rand.Uint32()), Verb: verb, QPType: qp, Measure: wire.Bandwidth, Count: 500, TxDepth: 16, Signal: 4}
	if verb.Receives() {
		h.RxDepth = 64
	}
	if verb.Fetches() {
		h.Reads = 4
	}
	if verb.IsAtomic() {
		h.Size = 8
	}
	return h
}

func latencyHello(verb wire.Verb, qp wire.QPType) wire.VerbsHello {
	h := bandwidthHello(verb, qp)
	h.Measure, h.QPs, h.TxDepth, h.Signal, h.Count = wire.Latency, 1, 1, 1, 200
	return h
}
