// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// liar is a client that does what it wants.
type liar struct {
	t    *testing.T
	n    *fakeNet
	h    wire.VerbsHello
	conn *fakeConn
	q    *fakeQueues
	peer []wire.VerbsInfo
	mem  transport.Memory
}

// connect makes the control connection and the queue pairs.
func (n *fakeNet) connectLiar(t *testing.T, h wire.VerbsHello) *liar {
	l := &liar{t: t, n: n, h: h}
	conn, err := n.Dial(t.Context(), h.Append(nil), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	l.conn = conn.(*fakeConn)
	l.q = n.newQueues(planOf(h, false).queueConfig(7))
	for i := 0; i < int(h.QPs) && h.QPType == wire.RC; i++ {
		h.Connection = uint16(i + 1)
		if err := n.DialQueue(t.Context(), l.q, i, h.Append(nil), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	l.mem, _ = l.q.Register(1<<16, transport.PeerWrites)
	return l
}

// queue returns a right QUEUE. With LAT, its memory is written to.
func (l *liar) queue(i int) wire.VerbsMessage {
	m := wire.VerbsMessage{Type: wire.VerbsQueue, Queue: uint16(i)}
	if l.h.Measure == wire.Latency {
		m.Info.Slots, m.Info.Addr, m.Info.Rkey = 1, l.mem.Addr, l.mem.Rkey
	}
	if l.h.QPType != wire.RC {
		a := l.q.Address(i)
		m.Info.QPN, m.Info.PSN = a.QPN, a.PSN
		if l.h.QPType == wire.UD {
			m.Info.QKey = a.QKey
		}
	}
	return m
}

func (l *liar) send(m wire.VerbsMessage) { l.raw(m.Append(nil)) }

func (l *liar) raw(b []byte) { _ = l.conn.Send(b, 0) }

// begin goes through the set-up.
func (l *liar) begin() {
	l.t.Helper()
	for i := range int(l.h.QPs) {
		l.send(l.queue(i))
	}
	for i := range int(l.h.QPs) {
		m := l.recv(wire.VerbsQueue)
		l.peer = append(l.peer, m.Info)
		if l.h.QPType != wire.RC {
			if err := l.q.Connect(i, transport.QueueAddress{QPN: m.Info.QPN}, 0); err != nil {
				l.t.Fatal(err)
			}
		}
	}
	l.send(wire.VerbsMessage{Type: wire.VerbsGo})
}

// recv returns the next message of a type.
func (l *liar) recv(want wire.VerbsMessageType) wire.VerbsMessage {
	l.t.Helper()
	for {
		message, err := l.conn.Recv()
		if err != nil {
			l.t.Fatalf("no %s: %v", want, err)
		}
		m, err := wire.DecodeVerbsMessage(message.Data)
		if err != nil {
			l.t.Fatal(err)
		}
		if m.Type == want {
			return m
		}
	}
}

// post posts a work request with data.
func (l *liar) post(w transport.Work, data []byte) {
	l.t.Helper()
	copy(l.mem.Data, data)
	w.Addr, w.Length, w.Lkey, w.Flags = l.mem.Addr, uint32(len(data)), l.mem.Lkey, transport.Signalled
	l.q.works[0] = w
	if _, err := l.q.Turn(1, 0, 0, false); err != nil {
		l.t.Fatal(err)
	}
}

func (l *liar) message(number uint32) []byte {
	return message(int(l.h.Size), tagOf(l.h.Group, 0, false), number)
}

func (l *liar) write(number uint64, immediate uint32) {
	l.writeTo(transport.Work{Op: transport.OpWriteImmediate, Immediate: immediate}, number)
}

// writeTo writes a message to its slot.
func (l *liar) writeTo(w transport.Work, number uint64) {
	slot := number % uint64(l.peer[0].Slots)
	w.Rkey, w.RemoteAddr = l.peer[0].Rkey, l.peer[0].Addr+slot*uint64(wire.VerbsSlot(int(l.h.Size)))
	l.post(w, l.message(uint32(number)))
}

func done(n uint64) wire.VerbsMessage { return wire.VerbsMessage{Type: wire.VerbsDone, Number: n} }

func check(n uint64) wire.VerbsMessage { return wire.VerbsMessage{Type: wire.VerbsCheck, Number: n} }

func validated(verb wire.Verb, qp wire.QPType) wire.VerbsHello {
	h := bandwidthHello(verb, qp)
	h.QPs, h.Validate = 1, true
	return h
}

// flood is a control connection whose peer sends without end.
type flood struct {
	Conn
	done chan struct{}
	once sync.Once
}

func (f *flood) Recv() (transport.Message, error) {
	select {
	case <-f.done:
		return transport.Message{}, errors.New("closed")
	default:
	}
	return transport.Message{Data: done(1).Append(nil), Release: func() error { return nil }}, nil
}

func (f *flood) Done() <-chan struct{} { return f.done }

func (f *flood) Close() { f.once.Do(func() { close(f.done) }) }

// Messages that nobody has handled yet do not fill the memory.
func TestFloodOfControlMessages(t *testing.T) {
	c := newControl(&flood{done: make(chan struct{})}, time.Hour, 1)
	defer c.close()
	late := time.After(10 * time.Second)
	for {
		select {
		case <-c.arrived:
		case <-late:
			t.Fatal("the flood does not end")
		}
		c.mu.Lock()
		err, waiting := c.err, len(c.messages)
		c.mu.Unlock()
		if waiting > wire.VerbsControlDepth(1) {
			t.Fatalf("%d messages wait, want at most %d", waiting, wire.VerbsControlDepth(1))
		}
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("the flood ends with %v, want %v", err, ErrProtocol)
			}
			return
		}
	}
}

// Each lie of a client ends the connection with an error that names the cause, of which the client is told.
func TestLiesOfClients(t *testing.T) {
	send, write, imm := validated(wire.VerbSend, wire.RC), validated(wire.VerbWrite, wire.RC), validated(wire.VerbWriteImmediate, wire.RC)
	uc, ud := validated(wire.VerbWrite, wire.UC), validated(wire.VerbSend, wire.UD)
	ucImm := validated(wire.VerbWriteImmediate, wire.UC)
	last := latencyHello(wire.VerbWriteImmediate, wire.UC)
	two := send
	two.QPs = 2
	duplex, ucDuplex := write, uc
	duplex.Duplex, ucDuplex.Duplex = true, true
	rated := ucDuplex
	rated.Rate = 1_000_000
	begin := func(l *liar, slots uint32) { // with memory for the server's WRITEs
		mem, err := l.q.Register(1<<16, transport.PeerWrites)
		if err != nil {
			l.t.Fatal(err)
		}
		m := l.queue(0)
		m.Info.Slots, m.Info.Addr, m.Info.Rkey = slots, mem.Addr, mem.Rkey
		l.send(m)
		l.recv(wire.VerbsQueue)
		l.send(wire.VerbsMessage{Type: wire.VerbsGo})
	}
	protocol := wire.VerbsErrorProtocol
	for name, tc := range map[string]struct {
		hello wire.VerbsHello
		lie   func(l *liar)
		want  string // in the server's error
		code  wire.VerbsErrorCode
	}{
		"says nothing":              {send, func(*liar) {}, "no QUEUE in", wire.VerbsErrorTimeout},
		"says nothing after QUEUE":  {send, func(l *liar) { l.send(l.queue(0)) }, "no GO in", wire.VerbsErrorTimeout},
		"message of 16 bytes":       {send, func(l *liar) { l.raw(make([]byte, 16)) }, "control message of 16 bytes", protocol},
		"unknown type":              {send, func(l *liar) { l.raw(append([]byte{9}, make([]byte, 63)...)) }, "unknown type 9", protocol},
		"reserved byte":             {send, func(l *liar) { l.raw(append([]byte{2, 1}, make([]byte, 62)...)) }, "reserved", protocol},
		"GO first":                  {send, func(l *liar) { l.send(wire.VerbsMessage{Type: wire.VerbsGo}) }, "GO instead of QUEUE", protocol},
		"queues in wrong order":     {two, func(l *liar) { l.send(l.queue(1)) }, "QUEUE 1 instead of 0", protocol},
		"queue twice":               {two, func(l *liar) { l.send(l.queue(0)); l.send(l.queue(0)) }, "QUEUE 0 instead of 1", protocol},
		"a queue pair number on rc": {send, func(l *liar) { m := l.queue(0); m.Info.QPN = 5; l.send(m) }, "over rc", protocol},
		"no queue pair number":      {uc, func(l *liar) { m := l.queue(0); m.Info.QPN = 0; l.send(m) }, "queue pair number 0", protocol},
		"a queue key on uc":         {uc, func(l *liar) { m := l.queue(0); m.Info.QKey = 1; l.send(m) }, "queue key 0x1", protocol},
		"memory without need":       {send, func(l *liar) { m := l.queue(0); m.Info.Slots, m.Info.Rkey = 1, 1; l.send(m) }, "memory, which nothing will use", protocol},
		"no slots":                  {duplex, func(l *liar) { l.send(l.queue(0)) }, "QUEUE 0 with 0 slots", protocol},
		"too many slots":            {duplex, func(l *liar) { m := l.queue(0); m.Info.Slots, m.Info.Rkey = 1<<31, 1; l.send(m) }, "slots", protocol},
		"no key":                    {duplex, func(l *liar) { m := l.queue(0); m.Info.Slots = 1; l.send(m) }, "without a key", protocol},
		"GO twice":                  {send, func(l *liar) { l.begin(); l.send(wire.VerbsMessage{Type: wire.VerbsGo}) }, "GO, which does not belong here", protocol},
		"CREDIT without need":       {send, func(l *liar) { l.begin(); l.send(wire.VerbsMessage{Type: wire.VerbsCredit, Number: 1}) }, "CREDIT", protocol},
		"REPORT without DONE":       {send, func(l *liar) { l.begin(); l.send(wire.VerbsMessage{Type: wire.VerbsReport}) }, "REPORT, which does not", protocol},
		"DONE twice":                {send, func(l *liar) { l.begin(); l.send(done(9)); l.send(done(9)) }, "DONE, which does not", protocol},
		"CHECK of a SEND":           {send, func(l *liar) { l.begin(); l.send(check(1)) }, "CHECK on the control connection", protocol},
		"CHECK of RC on control":    {write, func(l *liar) { l.begin(); l.send(check(1)) }, "CHECK on the control connection", protocol},
		"queue pair out of range":   {write, func(l *liar) { l.begin(); l.send(wire.VerbsMessage{Type: wire.VerbsCheck, Queue: 1}) }, "CHECK of queue pair 1 of 1", protocol},
		"DONE of less than arrived": {send, func(l *liar) {
			l.begin()
			l.post(transport.Work{Op: transport.OpSend}, l.message(0))
			l.settle()
			l.send(done(0))
		}, "DONE of 0 messages, but 1 arrived", protocol},
		"DONE of more than was sent": {send, func(l *liar) { l.begin(); l.send(done(5)) }, "messages were lost on a reliable connection: 5", protocol},
		"message too short":          {send, func(l *liar) { l.begin(); l.post(transport.Work{Op: transport.OpSend}, l.message(0)[1:]) }, "a message of 99 bytes on queue pair 0, instead of 100", protocol},
		"datagram too short":         {ud, func(l *liar) { l.begin(); l.post(transport.Work{Op: transport.OpSend}, l.message(0)[1:]) }, "a message of 99 bytes on queue pair 0, instead of 100", protocol},
		"message too long":           {send, func(l *liar) { l.begin(); l.post(transport.Work{Op: transport.OpSend}, make([]byte, 101)) }, "receive on queue pair 0: status 1", wire.VerbsErrorDevice},
		"WRITE_IMM instead of SEND":  {send, func(l *liar) { l.begin(); l.postWriteImm(0) }, "an RDMA WRITE with immediate data on queue pair 0", protocol},
		"SEND instead of WRITE_IMM":  {imm, func(l *liar) { l.begin(); l.post(transport.Work{Op: transport.OpSend}, l.message(0)[:64]) }, "a SEND on queue pair 0", protocol},
		"wrong immediate":            {imm, func(l *liar) { l.begin(); l.write(0, 1) }, "message 0 of queue pair 0 has immediate data 1", protocol},
		"immediate far ahead":        {ucImm, func(l *liar) { l.begin(); l.write(0, 1<<24) }, "immediate data 16777216", protocol},
		"immediate without credit":   {ucImm, func(l *liar) { l.begin(); l.write(0, 16) }, "message 16 of queue pair 0, with credit up to 16", protocol},
		"number after the last":      {last, func(l *liar) { l.begin(); l.write(0, 200) }, "message 200, after the last one", protocol},
		"short WRITE_IMM": {imm, func(l *liar) {
			l.begin()
			l.post(transport.Work{Op: transport.OpWriteImmediate, Rkey: l.peer[0].Rkey, RemoteAddr: l.peer[0].Addr}, l.message(0)[:50])
		}, "a message of 50 bytes", protocol},
		"no CHECK on a data queue":  {write, func(l *liar) { l.begin(); l.post(transport.Work{Op: transport.OpSend}, done(1).Append(nil)) }, "DONE of queue pair 0 on queue pair 0 instead of a CHECK", protocol},
		"garbage on a data queue":   {write, func(l *liar) { l.begin(); l.post(transport.Work{Op: transport.OpSend}, make([]byte, 64)) }, "on queue pair 0: control message of unknown type 0", protocol},
		"short CHECK":               {write, func(l *liar) { l.begin(); l.post(transport.Work{Op: transport.OpSend}, make([]byte, 63)) }, "a message of 63 bytes on queue pair 0 instead of a CHECK", protocol},
		"CHECK beyond the slots":    {write, func(l *liar) { l.begin(); l.post(transport.Work{Op: transport.OpSend}, check(17).Append(nil)) }, "CHECK up to message 17 of queue pair 0: must be 0 to 16", protocol},
		"control CHECK beyond":      {uc, func(l *liar) { l.begin(); l.send(check(17)) }, "CHECK up to message 17 of queue pair 0: must be 0 to 16", protocol},
		"gives no CREDIT":           {ucDuplex, func(l *liar) { begin(l, 4) }, "messages of 4 have completed, and no more in", wire.VerbsErrorTimeout},
		"gives no CREDIT to a rate": {rated, func(l *liar) { begin(l, 4) }, "messages of 4 have completed, and no more in", wire.VerbsErrorTimeout},
		"gives CREDIT for nothing": {ucDuplex, func(l *liar) {
			begin(l, 4)
			go func() {
				for l.conn.Send(wire.VerbsMessage{Type: wire.VerbsCredit}.Append(nil), 0) == nil {
					time.Sleep(50 * time.Millisecond)
				}
			}()
		}, "messages of 4 have completed, and no more in", wire.VerbsErrorTimeout},
		"hangs up":                 {send, func(l *liar) { l.begin(); l.conn.Close() }, "the peer has disconnected", 0},
		"ends with an error":       {send, func(l *liar) { l.begin(); l.send(wire.VerbsMessage{Type: wire.VerbsError, Number: 1}) }, "it is out of memory", 0},
		"stays after the REPORT":   {send, func(l *liar) { l.begin(); l.send(done(0)); l.recv(wire.VerbsReport) }, "does not disconnect after the REPORT", wire.VerbsErrorTimeout},
		"goes on after the REPORT": {send, func(l *liar) { l.begin(); l.send(done(0)); l.recv(wire.VerbsReport); l.send(done(0)); l.conn.Close() }, "a message after the REPORT", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNet(t)
			if tc.code == wire.VerbsErrorTimeout {
				n.server.Timeout = 10 * time.Second // within which the liar goes from step to step
			}
			l := n.connectLiar(t, tc.hello)
			tc.lie(l)
			select {
			case got := <-n.outcomes:
				if got.err == nil || !strings.Contains(got.err.Error(), tc.want) {
					t.Errorf("the server: %v, want %q", got.err, tc.want)
				}
			case <-time.After(2 * patience):
				t.Fatal("the server does not end")
			}
			if tc.code != 0 {
				if m := l.recv(wire.VerbsError); wire.VerbsErrorCode(m.Number) != tc.code {
					t.Errorf("the client is told %d, want %d", m.Number, tc.code)
				}
			}
		})
	}
}

// settle waits until the server has taken all messages, and posted their receives again.
func (l *liar) settle() {
	peer := l.q.pairs[0].peer
	for taken := false; !taken; time.Sleep(time.Millisecond) {
		l.n.mu.Lock()
		taken = len(peer.receives) == int(l.h.RxDepth)
		l.n.mu.Unlock()
	}
}

// postWriteImm consumes a receive of the server without touching its memory.
func (l *liar) postWriteImm(immediate uint32) {
	l.n.mu.Lock()
	defer l.n.mu.Unlock()
	peer := l.q.pairs[0].peer
	r, _ := peer.receive()
	peer.q.add(transport.Completion{ID: r.ID, Op: transport.DoneReceiveImmediate, Immediate: immediate, Length: l.h.Size, QPN: peer.qpn})
}

// A datagram of somebody else is ignored.
func TestForeignDatagram(t *testing.T) {
	n := newNet(t)
	l := n.connectLiar(t, validated(wire.VerbSend, wire.UD))
	l.begin()
	stranger := n.newQueues(transport.QueueConfig{Service: transport.UD, Queues: 1, Sends: 4, Receives: 1})
	own, peer := l.q, l.q.pairs[0].peer
	if err := stranger.Connect(0, transport.QueueAddress{QPN: peer.qpn}, 0); err != nil {
		t.Fatal(err)
	}
	l.q, l.mem = stranger, transport.Memory{}
	l.mem, _ = stranger.Register(4096, 0)
	l.post(transport.Work{Op: transport.OpSend}, make([]byte, 7))
	l.q = own
	l.mem, _ = own.Register(4096, 0)
	l.post(transport.Work{Op: transport.OpSend}, l.message(0))
	l.send(done(1))
	if m := l.recv(wire.VerbsReport); m.Report.Received != 1 || m.Report.Damaged != 0 {
		t.Errorf("report %+v", m.Report)
	}
	l.conn.Close()
	if got := <-n.outcomes; got.err != nil {
		t.Error(got.err)
	}
}

// A client of an endless test may end it by ERROR.
func TestStoppedClient(t *testing.T) {
	h := validated(wire.VerbSend, wire.RC)
	h.Count = 0
	n := newNet(t)
	l := n.connectLiar(t, h)
	l.begin()
	l.send(wire.VerbsMessage{Type: wire.VerbsError, Number: uint64(wire.VerbsErrorStopped)})
	if got := <-n.outcomes; got.err != nil {
		t.Error(got.err)
	}
}

func TestAdmit(t *testing.T) {
	good := bandwidthHello(wire.VerbSend, wire.RC)
	for name, tc := range map[string]struct {
		change func(h *wire.VerbsHello, a *transport.Ability)
		reason wire.Reason
		value  uint32
	}{
		"too large":             {func(h *wire.VerbsHello, _ *transport.Ability) { h.Size = 1<<20 + 1 }, wire.RejectTestSize, 1 << 20},
		"ud message":            {func(h *wire.VerbsHello, _ *transport.Ability) { h.QPType, h.Size = wire.UD, 1025 }, wire.RejectTestSize, 1024},
		"ud message, small mtu": {func(h *wire.VerbsHello, _ *transport.Ability) { h.QPType, h.Size, h.MTU = wire.UD, 513, 512 }, wire.RejectTestSize, 512},
		"invalid":               {func(h *wire.VerbsHello, _ *transport.Ability) { h.Verb = 9 }, wire.RejectInvalid, 0},
		"uc over iwarp":         {func(h *wire.VerbsHello, a *transport.Ability) { h.QPType, a.IWARP = wire.UC, true }, wire.RejectDevice, 1 << 24},
		"ud over iwarp":         {func(h *wire.VerbsHello, a *transport.Ability) { h.QPType, a.IWARP = wire.UD, true }, wire.RejectDevice, 2 << 24},
		"no srq":                {func(h *wire.VerbsHello, a *transport.Ability) { h.SRQ, a.SharedDepth = true, 0 }, wire.RejectDevice, 3 << 24},
		"no atomics": {func(h *wire.VerbsHello, a *transport.Ability) {
			*h, a.Atomics = bandwidthHello(wire.VerbFetchAdd, wire.RC), false
		}, wire.RejectDevice, 4 << 24},
		"immediate over iwarp": {func(h *wire.VerbsHello, a *transport.Ability) { h.Verb, a.IWARP = wire.VerbWriteImmediate, true }, wire.RejectDevice, 5 << 24},
		"mtu":                  {func(h *wire.VerbsHello, _ *transport.Ability) { h.MTU = 2048 }, wire.RejectDevice, 6 << 24},
		"depth":                {func(h *wire.VerbsHello, a *transport.Ability) { a.Depth = 63 }, wire.RejectDevice, 7<<24 | 63},
		"depth of an srq":      {func(h *wire.VerbsHello, a *transport.Ability) { h.SRQ, a.SharedDepth = true, 63 }, wire.RejectDevice, 8<<24 | 63},
		"reads": {func(h *wire.VerbsHello, a *transport.Ability) {
			*h, a.ReadResources = bandwidthHello(wire.VerbRead, wire.RC), 3
		}, wire.RejectDevice, 10<<24 | 3},
		"completions":         {func(h *wire.VerbsHello, a *transport.Ability) { a.Completions = 100 }, wire.RejectDevice, 11<<24 | 100},
		"queue pairs":         {func(h *wire.VerbsHello, a *transport.Ability) { a.Queues = 3 }, wire.RejectDevice, 12<<24 | 3},
		"data before control": {func(h *wire.VerbsHello, _ *transport.Ability) { h.Connection = 1 }, wire.RejectInvalid, 0},
	} {
		n := newNet(t)
		h, a := good, n.ability
		tc.change(&h, &a)
		session, err := n.server.Admit(h.Append(nil), clientAddr, a, nil)
		var reject *wire.Reject
		if session != nil || !errors.As(err, &reject) || reject.Reason != tc.reason || reject.Value != tc.value || reject.Detail == "" {
			t.Errorf("%s: %v, want reason %d, value %#x", name, err, tc.reason, tc.value)
		}
	}
	n := newNet(t)
	session, err := n.server.Admit(good.Append(nil), clientAddr, n.ability, nil)
	if err != nil {
		t.Fatal(err)
	}
	other := good
	other.Connection, other.TxDepth = 1, 8
	if _, err := n.server.Admit(other.Append(nil), clientAddr, n.ability, nil); err == nil {
		t.Error("a data queue pair of another test was admitted")
	}
	twin, err := n.server.Admit(good.Append(nil), clientAddr, n.ability, nil) // another client with that random number
	if err != nil {
		t.Fatal(err)
	}
	twin.Leave()
	requests := make([]*fakeRequest, 4)
	for i := range requests {
		requests[i] = &fakeRequest{answer: make(chan error, 1)}
		good.Connection = uint16(i + 1)
		if _, err := n.server.Admit(good.Append(nil), clientAddr, n.ability, requests[i]); (err == nil) != (i < 3) {
			t.Errorf("data queue pair %d of 3: %v", i+1, err)
		}
	}
	good.Connection = 2
	if _, err := n.server.Admit(good.Append(nil), clientAddr, n.ability, requests[0]); err == nil {
		t.Error("a data queue pair was admitted twice")
	}
	session.Leave()
	for i, r := range requests[:3] {
		if len(r.answer) == 0 {
			t.Errorf("request %d was not rejected", i)
		}
	}
	session.Leave()
}

// What a server does wrong ends a client with an error that names the cause.
func TestServersThatRefuse(t *testing.T) {
	n := newNet(t)
	n.failed = errors.New("no memory")
	client, server := n.run(t.Context(), bandwidthHello(wire.VerbSend, wire.RC))
	if client.err == nil || server.err == nil || !strings.Contains(server.err.Error()+client.err.Error(), "no memory") {
		t.Errorf("client: %v, server: %v", client.err, server.err)
	}
}
