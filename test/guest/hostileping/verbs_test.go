// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostileping

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
)

// Types of struct krping_verbs_msg.
const (
	msgQueue = iota + 1
	msgGo
	msgCheck
	msgCredit
	msgDone
	msgReport
	msgError
)

// verbsHello is struct krping_verbs_hello of a test of SENDs on one UD queue pair, which needs no data connection. Bytes at
// offsets are replaced.
func verbsHello(changes map[int]byte) []byte {
	h := make([]byte, 48)
	copy(h, "KRPT")
	h[4], h[5] = 1, 5                       // version, test
	binary.BigEndian.PutUint32(h[8:], 64)   // size
	binary.BigEndian.PutUint16(h[12:], 1)   // qps
	binary.BigEndian.PutUint16(h[14:], 777) // group
	h[16], h[17], h[18] = 1, 3, 1           // SEND, UD, BW
	binary.BigEndian.PutUint16(h[36:], 4)   // txdepth
	binary.BigEndian.PutUint16(h[38:], 4)   // rxdepth
	binary.BigEndian.PutUint16(h[40:], 1)   // signal
	for at, b := range changes {
		h[at] = b
	}
	return h
}

// control is a struct krping_verbs_msg of queue pair 0, with a number. Bytes at offsets are replaced.
func control(kind byte, number uint64, changes map[int]byte) []byte {
	m := make([]byte, 64)
	m[0] = kind
	binary.BigEndian.PutUint64(m[8:], number)
	for at, b := range changes {
		m[at] = b
	}
	return m
}

// queue is a QUEUE of a client that only sends, with queue pair 0x11, packet number 0x22 and key 0x33.
func queue(changes map[int]byte) []byte {
	m := control(msgQueue, 0, map[int]byte{11: 0x11, 15: 0x22, 19: 0x33})
	for at, b := range changes {
		m[at] = b
	}
	return m
}

func TestBadVerbsHellos(t *testing.T) {
	guest.CheckResources(t)
	const invalid = wire.RejectInvalid
	for _, tc := range []struct {
		name    string
		changes map[int]byte
		reason  wire.Reason
		value   uint32
	}{
		{"another version", map[int]byte{4: 2}, wire.RejectVersion, 1},
		{"another test", map[int]byte{5: 3}, wire.RejectTest, 5},
		{"no hello", map[int]byte{0: 0}, wire.RejectTest, 5},
		{"flags of the hello", map[int]byte{6: 2}, invalid, 0},
		{"no size", map[int]byte{11: 0}, invalid, 0},
		{"too large", map[int]byte{9: 1}, wire.RejectTestSize, size},
		{"no queue pairs", map[int]byte{13: 0}, invalid, 0},
		{"too many queue pairs", map[int]byte{12: 0xff}, invalid, 0},
		{"no verb", map[int]byte{16: 0}, invalid, 0},
		{"unknown verb", map[int]byte{16: 7}, invalid, 0},
		{"WRITE on UD", map[int]byte{16: 2, 39: 0}, invalid, 0},
		{"no type", map[int]byte{17: 0}, invalid, 0},
		{"unknown type", map[int]byte{17: 4}, invalid, 0},
		{"unknown measure", map[int]byte{18: 3}, invalid, 0},
		{"unknown flag", map[int]byte{19: 8}, invalid, 0},
		{"LAT with duplex", map[int]byte{18: 2, 19: 1, 37: 1}, invalid, 0},
		{"data connection first", map[int]byte{21: 1}, invalid, 0},
		{"bad MTU", map[int]byte{22: 3}, invalid, 0},
		{"count and duration", map[int]byte{27: 1, 31: 1}, invalid, 0},
		{"no send queue", map[int]byte{37: 0}, invalid, 0},
		{"too deep a send queue", map[int]byte{36: 0xff}, invalid, 0},
		{"no receives", map[int]byte{39: 0}, invalid, 0},
		{"SRQ too small", map[int]byte{13: 5, 19: 4}, invalid, 0},
		{"nothing signalled", map[int]byte{41: 0}, invalid, 0},
		{"signalled beyond the queue", map[int]byte{41: 5}, invalid, 0},
		{"another inline size", map[int]byte{43: 9}, invalid, 0},
		{"READs of a SEND", map[int]byte{44: 1}, invalid, 0},
		{"reserved field", map[int]byte{47: 1}, invalid, 0},
		{"deep queues of many queue pairs", map[int]byte{12: 4, 13: 0, 17: 2, 19: 1, 36: 0x3e, 38: 0x3e}, wire.RejectResources, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr := nextAddr(t)
			w := write("server,verbs,addr=%s,port=%d,timeout=2,size=%d", addr.Addr(), addr.Port(), size)
			wantRejected(t, addr, verbsHello(tc.changes), tc.reason, tc.value)
			w.ends(t, unix.EPROTO)
		})
	}
}

// verbsConfig has receives for what the server sends.
var verbsConfig = verbs.Config{Receives: 8, MaxMessage: 64, Buffers: 1, MaxData: size}

// connectVerbs connects as soon as the server listens.
func connectVerbs(t *testing.T, port int, hello map[int]byte) *peer {
	t.Helper()
	var p *peer
	guest.Eventually(t, 20*time.Second, "the server accepts a client", func() bool {
		conn, _, err := fakeclient.DialConn(t, port, verbsHello(hello), verbsConfig)
		if err != nil {
			return false
		}
		p = newPeer(t, conn)
		return true
	})
	return p
}

// Clients that break the protocol of the control connection, or stop. The server ends in time, and says why.
func TestHostileVerbsClients(t *testing.T) {
	guest.CheckResources(t)
	say := func(messages ...[]byte) func(p *peer) {
		return func(p *peer) {
			for _, m := range messages {
				p.send(m, 0)
			}
		}
	}
	violation := []error{unix.EPROTO}
	silent := []error{unix.ETIMEDOUT}
	// After GO, it says more.
	goAndSay := func(messages ...[]byte) func(p *peer) {
		return func(p *peer) {
			p.begin(queue(nil))
			say(messages...)(p)
		}
	}
	for _, tc := range []struct {
		name string
		do   func(p *peer)
		want []error
	}{
		{"silence", say(), silent},
		{"silence after QUEUE", say(queue(nil)), silent},
		{"disconnect", func(p *peer) { p.disconnect() }, []error{unix.ECONNRESET}},
		{"disconnect after GO", func(p *peer) { p.begin(queue(nil)); p.disconnect() }, []error{unix.ECONNRESET}},
		{"short message", say(make([]byte, 16)), violation},
		{"no type", say(control(0, 0, nil)), violation},
		{"unknown type", say(control(99, 0, nil)), violation},
		{"reserved field", say(queue(map[int]byte{1: 1})), violation},
		{"reserved field of QUEUE", say(queue(map[int]byte{39: 1})), violation},
		{"unused part", say(queue(map[int]byte{63: 1})), violation},
		{"unknown queue pair", say(queue(map[int]byte{3: 1})), violation},
		{"no queue pair number", say(queue(map[int]byte{11: 0})), violation},
		{"queue pair number too large", say(queue(map[int]byte{8: 1})), violation},
		{"packet number too large", say(queue(map[int]byte{12: 1})), violation},
		{"privileged key", say(queue(map[int]byte{16: 0x80})), violation},
		{"slots of no target", say(queue(map[int]byte{23: 1})), violation},
		{"memory of no target", say(queue(map[int]byte{35: 1})), violation},
		{"QUEUE twice", say(queue(nil), queue(nil)), violation},
		{"GO without QUEUE", say(control(msgGo, 0, nil)), violation},
		{"GO twice", goAndSay(control(msgGo, 0, nil)), violation},
		{"GO with a number", say(queue(nil), control(msgGo, 1, nil)), violation},
		{"CHECK of SENDs", goAndSay(control(msgCheck, 1, nil)), violation},
		{"CREDIT to no initiator", goAndSay(control(msgCredit, 0, nil)), violation},
		{"DONE before GO", say(queue(nil), control(msgDone, 0, nil)), violation},
		{"REPORT without DONE", goAndSay(control(msgReport, 0, nil)), violation},
		{"ERROR", goAndSay(control(msgError, 1, nil)), []error{unix.ECONNRESET}},
		{"unknown ERROR", goAndSay(control(msgError, 1<<40, nil)), []error{unix.ECONNRESET}},
		{"stop", goAndSay(control(msgError, 3, nil)), []error{nil}},
		{"loss of everything", func(p *peer) {
			goAndSay(control(msgDone, 1<<63, nil))(p)
			wantReport(p, 1<<63)
			p.disconnect()
		}, []error{nil}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			endsAfter(t, func() (writer, *peer) {
				port := guest.NextPort()
				w := write("server,verbs,addr=%s,port=%d,timeout=2,size=%d", guest.Addr(t), port, size)
				return w, connectVerbs(t, port, nil)
			}, tc.do, tc.want)
		})
	}
}

// Hellos of other tests.
var (
	ucWrites  = map[int]byte{13: 2, 16: 2, 17: 2, 19: 2, 39: 0} // two queue pairs, with VALIDATE
	rcLatency = map[int]byte{16: 2, 17: 1, 18: 2, 37: 1, 39: 0} // of WRITEs
	rcSends   = map[int]byte{17: 1}
	duplex    = map[int]byte{19: 1, 27: 4} // four messages each way
)

// Clients of other tests that break the protocol.
func TestHostileVerbsClientsOfOtherTests(t *testing.T) {
	guest.CheckResources(t)
	afterDone := func(report []byte) func(p *peer, port int) {
		return func(p *peer, _ int) {
			p.begin(queue(map[int]byte{23: 4}))
			p.expect(msgDone)
			p.send(report, 0)
		}
	}
	for _, tc := range []struct {
		name  string
		hello map[int]byte
		do    func(p *peer, port int)
		want  []error
	}{
		{"CHECK before there is memory", ucWrites, func(p *peer, _ int) { p.send(control(msgCheck, 1, map[int]byte{3: 1}), 0) }, []error{unix.EPROTO}},
		{"GO before there is memory", rcLatency, func(p *peer, _ int) {
			p.send(control(msgQueue, 0, map[int]byte{23: 1, 35: 1}), 0)
			p.send(control(msgGo, 0, nil), 0)
		}, []error{unix.EPROTO, unix.ETIMEDOUT}}, // it waits for the data connection if GO is later than the memory
		{"no REPORT", duplex, func(p *peer, _ int) { p.begin(queue(map[int]byte{23: 4})); p.expect(msgDone) }, []error{unix.ETIMEDOUT}},
		{"REPORT of too few", duplex, afterDone(control(msgReport, 3, nil)), []error{unix.EPROTO}},
		{"REPORT of too many", duplex, afterDone(control(msgReport, 5, nil)), []error{unix.EPROTO}},
		{"REPORT of no kind of damage", duplex, afterDone(control(msgReport, 4, map[int]byte{47: 1})), []error{unix.EPROTO}},
		{"REPORT of a kind of no damage", duplex, afterDone(control(msgReport, 4, map[int]byte{60: 1})), []error{unix.EPROTO}},
		{"REPORT with a reserved field", duplex, afterDone(control(msgReport, 4, map[int]byte{63: 1})), []error{unix.EPROTO}},
		{"loss on RC", rcSends, func(p *peer, port int) {
			data, _, err := fakeclient.DialConn(p.t, port, verbsHello(map[int]byte{17: 1, 21: 1}), verbsConfig)
			if err != nil {
				p.t.Fatal(err)
			}
			defer data.Release()
			p.begin(control(msgQueue, 0, nil))
			p.send(control(msgDone, 5, nil), 0)
			wantReport(p, 5)
			p.disconnect()
		}, []error{unix.EPROTO}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var port int
			endsAfter(t, func() (writer, *peer) {
				port = guest.NextPort()
				w := write("server,verbs,addr=%s,port=%d,timeout=2,size=%d", guest.Addr(t), port, size)
				return w, connectVerbs(t, port, tc.hello)
			}, func(p *peer) { tc.do(p, port) }, tc.want)
		})
	}
}

// begin sends QUEUE and, once the server has sent its own, GO.
func (p *peer) begin(queue []byte) {
	p.t.Helper()
	p.send(queue, 0)
	p.expect(msgQueue)
	p.send(control(msgGo, 0, nil), 0)
}

// expect waits for a message of a type, and returns it.
func (p *peer) expect(kind byte) []byte {
	p.t.Helper()
	for {
		m, err := p.Recv()
		if err != nil {
			p.t.Fatalf("no message of type %d: %v", kind, err)
		}
		data := bytes.Clone(m.Data)
		_ = m.Release() // the connection may have ended already
		if data[0] == kind {
			return data
		}
	}
}

// wantReport waits for a REPORT of lost messages.
func wantReport(p *peer, lost uint64) {
	p.t.Helper()
	if got := binary.BigEndian.Uint64(p.expect(msgReport)[16:]); got != lost {
		p.t.Errorf("REPORT: %d messages lost, want %d", got, lost)
	}
}

// A server whose client was hostile ends; the next one serves.
func TestVerbsServerAfterHostileClients(t *testing.T) {
	guest.CheckResources(t)
	addr := nextAddr(t)
	done := guest.StartServer(t, fmt.Sprintf("server,verbs,addr=%s,port=%d", addr.Addr(), addr.Port()))
	if err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,verb=send,qp=ud,bw,count=100", addr.Addr(), addr.Port()), guest.Limit); err != nil {
		t.Errorf("a good client: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("server: %v", err)
	}
}
