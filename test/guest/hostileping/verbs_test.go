// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostileping

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
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

// badVerbsHello is a hello and the reason why it is rejected.
type badVerbsHello struct {
	name    string
	changes map[int]byte
	reason  wire.Reason
	value   uint32
}

const invalid = wire.RejectInvalid

// badVerbsHellos are rejected by each server of verbs tests.
var badVerbsHellos = []badVerbsHello{
	{"another version", map[int]byte{4: 2}, wire.RejectVersion, 1},
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
	{"number that does not fit", map[int]byte{11: 3, 19: 2}, invalid, 0},
	{"READs of a SEND", map[int]byte{44: 1}, invalid, 0},
	{"reserved field", map[int]byte{47: 1}, invalid, 0},
}

func TestBadVerbsHellos(t *testing.T) {
	t.Run("module", func(t *testing.T) {
		guest.CheckResources(t)
		for _, tc := range append([]badVerbsHello{
			{"another test", map[int]byte{5: 3}, wire.RejectTest, 5},
			{"no hello", map[int]byte{0: 0}, wire.RejectTest, 5},
			{"deep queues of many queue pairs", map[int]byte{12: 4, 13: 0, 17: 2, 19: 1, 36: 0x3e, 38: 0x3e}, wire.RejectResources, 0},
		}, badVerbsHellos...) {
			t.Run(tc.name, func(t *testing.T) {
				addr := nextAddr(t)
				w := write("server,verbs,addr=%s,port=%d,timeout=2,size=%d", addr.Addr(), addr.Port(), size)
				wantRejected(t, addr, verbsHello(tc.changes), tc.reason, tc.value)
				w.ends(t, unix.EPROTO)
			})
		}
	})
	t.Run("bridge", func(t *testing.T) {
		guest.CheckResources(t)
		addr := nextAddr(t)
		startBridge(t, addr)
		for _, tc := range badVerbsHellos {
			t.Run(tc.name, func(t *testing.T) { wantRejected(t, addr, verbsHello(tc.changes), tc.reason, tc.value) })
		}
		wantAnswers(t, addr)
	})
}

// verbsConfig has receives for what the server sends.
var verbsConfig = verbs.Config{Receives: 8, MaxMessage: 128, Buffers: 1, MaxData: size}

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

// hostileVerbsClient breaks the protocol, or stops.
type hostileVerbsClient struct {
	name  string
	hello map[int]byte // changes
	do    func(p *peer, port int)
	want  []error // of the module's server
}

// against runs hostile clients against both servers. The module's ends in time with an error; the bridge's tells the client
// why it ends, and serves the next one.
func against(t *testing.T, clients []hostileVerbsClient) {
	t.Run("module", func(t *testing.T) {
		guest.CheckResources(t)
		for _, tc := range clients {
			t.Run(tc.name, func(t *testing.T) {
				var port int
				endsAfter(t, func() (writer, *peer) {
					port = guest.NextPort()
					w := write("server,verbs,addr=%s,port=%d,timeout=2,size=%d", guest.Addr(t), port, size)
					return w, connectVerbs(t, port, tc.hello)
				}, func(p *peer) { tc.do(p, port) }, tc.want)
				if slices.Equal(tc.want, []error{unix.ECONNRESET}) {
					saysWhyItEnded(t, port)
				}
			})
		}
	})
	t.Run("bridge", func(t *testing.T) {
		survives(t, func(t *testing.T, addr netip.AddrPort) {
			for _, tc := range clients {
				t.Run(tc.name, func(t *testing.T) {
					t.Parallel()
					p := connectVerbs(t, int(addr.Port()), tc.hello)
					tc.do(p, int(addr.Port()))
					if codes := codesOf(tc.want); len(codes) > 0 && !p.disconnected {
						if got := p.expect(msgError)[15]; !slices.Contains(codes, got) {
							t.Errorf("the bridge ends with ERROR %d, want one of %d", got, codes)
						}
					}
					p.wantClosed()
				})
			}
		})
	})
}

// saysWhyItEnded checks that the server of a port has logged how it has lost its client.
func saysWhyItEnded(t *testing.T, port int) {
	log := guest.Run(t, "sh", "-c", fmt.Sprintf("dmesg | grep 'server:.*:%d\\]'", port))
	if !strings.Contains(log, "the connection was lost before the test had ended") && !strings.Contains(log, "the peer has ended the test") {
		t.Errorf("the log does not say why the server has ended:\n%s", log)
	}
}

// codesOf returns the numbers of the ERRORs that a server sends which ends with one of some errors.
func codesOf(errs []error) (codes []byte) {
	for _, err := range errs {
		switch err {
		case unix.EPROTO:
			codes = append(codes, 2)
		case unix.ETIMEDOUT:
			codes = append(codes, 4)
		}
	}
	return codes
}

// Clients that break the protocol of the control connection, or stop.
func TestHostileVerbsClients(t *testing.T) {
	say := func(messages ...[]byte) func(p *peer, _ int) {
		return func(p *peer, _ int) {
			for _, m := range messages {
				p.send(m, 0)
			}
		}
	}
	violation := []error{unix.EPROTO}
	silent := []error{unix.ETIMEDOUT}
	// After GO, it says more.
	goAndSay := func(messages ...[]byte) func(p *peer, _ int) {
		return func(p *peer, _ int) {
			p.begin(queue(nil))
			say(messages...)(p, 0)
		}
	}
	against(t, []hostileVerbsClient{
		{"silence", nil, say(), silent},
		{"silence after QUEUE", nil, say(queue(nil)), silent},
		{"disconnect", nil, func(p *peer, _ int) { p.disconnect() }, []error{unix.ECONNRESET}},
		{"disconnect after GO", nil, func(p *peer, _ int) { p.begin(queue(nil)); p.disconnect() }, []error{unix.ECONNRESET}},
		{"short message", nil, say(make([]byte, 16)), violation},
		{"long message", nil, func(p *peer, _ int) {
			p.send(make([]byte, 65), 0)
			p.disconnected = true // its queue pair has failed
		}, []error{unix.EPROTO, unix.ECONNRESET}},
		{"no type", nil, say(control(0, 0, nil)), violation},
		{"unknown type", nil, say(control(99, 0, nil)), violation},
		{"reserved field", nil, say(queue(map[int]byte{1: 1})), violation},
		{"reserved field of QUEUE", nil, say(queue(map[int]byte{39: 1})), violation},
		{"unused part", nil, say(queue(map[int]byte{63: 1})), violation},
		{"unknown queue pair", nil, say(queue(map[int]byte{3: 1})), violation},
		{"no queue pair number", nil, say(queue(map[int]byte{11: 0})), violation},
		{"queue pair number too large", nil, say(queue(map[int]byte{8: 1})), violation},
		{"packet number too large", nil, say(queue(map[int]byte{12: 1})), violation},
		{"privileged key", nil, say(queue(map[int]byte{16: 0x80})), violation},
		{"slots of no target", nil, say(queue(map[int]byte{23: 1})), violation},
		{"memory of no target", nil, say(queue(map[int]byte{35: 1})), violation},
		{"QUEUE twice", nil, say(queue(nil), queue(nil)), violation},
		{"GO without QUEUE", nil, say(control(msgGo, 0, nil)), violation},
		{"GO twice", nil, goAndSay(control(msgGo, 0, nil)), violation},
		{"GO with a number", nil, say(queue(nil), control(msgGo, 1, nil)), violation},
		{"CHECK of SENDs", nil, goAndSay(control(msgCheck, 1, nil)), violation},
		{"CREDIT to no initiator", nil, goAndSay(control(msgCredit, 0, nil)), violation},
		{"DONE before GO", nil, say(queue(nil), control(msgDone, 0, nil)), violation},
		{"REPORT without DONE", nil, goAndSay(control(msgReport, 0, nil)), violation},
		{"ERROR", nil, goAndSay(control(msgError, 1, nil)), []error{unix.ECONNRESET}},
		{"unknown ERROR", nil, goAndSay(control(msgError, 1<<40, nil)), []error{unix.ECONNRESET}},
		{"stop", nil, goAndSay(control(msgError, 3, nil)), []error{nil}},
		{"loss of everything", nil, func(p *peer, _ int) {
			goAndSay(control(msgDone, 1<<63, nil))(p, 0)
			wantReport(p, 1<<63)
			p.disconnect()
		}, []error{nil}},
	})
}

// Hellos of other tests.
var (
	ucWrites  = map[int]byte{13: 2, 16: 2, 17: 2, 19: 2, 39: 0} // two queue pairs, with VALIDATE
	rcLatency = map[int]byte{16: 2, 17: 1, 18: 2, 37: 1, 39: 0} // of WRITEs
	rcSends   = map[int]byte{17: 1}
	lossy     = map[int]byte{15: 8, 17: 1} // like rcSends, but of another group: clients of the bridge run at the same time
	duplex    = map[int]byte{19: 1, 27: 4} // four messages each way
)

// Clients of other tests that break the protocol.
func TestHostileVerbsClientsOfOtherTests(t *testing.T) {
	afterDone := func(report []byte) func(p *peer, port int) {
		return func(p *peer, _ int) {
			p.begin(queue(map[int]byte{23: 4}))
			p.expect(msgDone)
			p.send(report, 0)
		}
	}
	against(t, []hostileVerbsClient{
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
		{"disconnect before the data connection", rcSends, func(p *peer, _ int) { p.disconnect() }, []error{unix.ECONNRESET}},
		{"loss on RC", lossy, func(p *peer, port int) {
			data, _, err := fakeclient.DialConn(p.t, port, verbsHello(map[int]byte{15: 8, 17: 1, 21: 1}), verbsConfig)
			if err != nil {
				p.t.Fatal(err)
			}
			defer data.Release()
			p.begin(control(msgQueue, 0, nil))
			p.send(control(msgDone, 5, nil), 0)
			wantReport(p, 5)
			p.disconnect()
		}, []error{unix.EPROTO}},
	})
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
	for timedOut := false; ; {
		m, err := p.Recv()
		if err != nil {
			late.ErrorfIf(p.t, timedOut, "no message of type %d: %v", kind, err)
			p.t.FailNow()
		}
		data := bytes.Clone(m.Data)
		_ = m.Release() // the connection may have ended already
		if data[0] == kind {
			return data
		}
		timedOut = timedOut || data[0] == msgError && wire.VerbsErrorCode(binary.BigEndian.Uint64(data[8:])) == wire.VerbsErrorTimeout
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
