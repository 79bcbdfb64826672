// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostileping

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
)

// misbehaviour is what a client does wrong, and the error with which a server in the kernel ends.
type misbehaviour struct {
	name string
	do   func(p *peer)
	want []error
}

func ends(errs ...error) []error { return errs }

// A device that denies access ends the queue pairs of both sides. The disconnect of the hostile side may overtake the
// denial.
var (
	denied      = ends(unix.EPROTO, unix.ECONNRESET)
	deniedAtEnd = ends(unix.EPROTO, nil) // in a step in which a disconnect is no error
)

// openings are wrong first messages, for all tests.
func openings() []misbehaviour {
	wrong := []misbehaviour{
		{"sends nothing", func(*peer) {}, ends(unix.ETIMEDOUT)},
		{"invalidates an unknown rkey", func(p *peer) { p.send(p.lend(short).Append(nil), fakeclient.NoKey) }, ends(unix.EPROTO)},
	}
	for _, n := range []int{0, 1, 15, 17, 64} {
		want := ends(unix.EPROTO)
		if n > wire.PingMessageSize { // the device refuses it
			want = deniedAtEnd
		}
		wrong = append(wrong, misbehaviour{fmt.Sprintf("message of %d bytes", n), func(p *peer) { p.send(make([]byte, n), 0) }, want})
	}
	for name, change := range map[string]func(m *wire.PingMessage){
		"no rkey":                  func(m *wire.PingMessage) { m.Rkey = 0 },
		"length 0":                 func(m *wire.PingMessage) { m.Length = 0 },
		"longer than the server's": func(m *wire.PingMessage) { m.Length = size + 1 },
		"largest length":           func(m *wire.PingMessage) { m.Length = 0xffffffff },
	} {
		wrong = append(wrong, wrongSource(name, change, ends(unix.EPROTO)))
	}
	return wrong
}

// The steps of a client that keeps to the protocol, in pings and in the tests.
var (
	pingSteps = []step{
		{"connecting", func(*peer) {}},
		{"announcing its source", func(p *peer) { p.sendMessage(p.lend(short)) }},
		{"the first go-ahead", func(p *peer) { p.recvMessage() }},
		{"announcing its sink", func(p *peer) { p.sendMessage(p.lend(short)) }},
		{"the second go-ahead", func(p *peer) { p.recvMessage() }},
	}
	testSteps = []step{
		{"connecting", func(*peer) {}},
		{"announcing its sink", func(p *peer) { p.sendMessage(p.lend(size)) }},
		{"receiving the server's sink", func(p *peer) { p.sink = p.recvMessage() }},
	}
)

func take(p *peer, steps []step) {
	p.t.Helper()
	for _, s := range steps {
		s.do(p)
	}
}

// stops returns a client that stalls after each step, and one that disconnects after each step with an error.
func stops(steps []step, disconnected [][]error) []misbehaviour {
	var wrong []misbehaviour
	for i, s := range steps {
		sofar := steps[:i+1]
		wrong = append(wrong,
			misbehaviour{"stalls after " + s.name, func(p *peer) { take(p, sofar) }, ends(unix.ETIMEDOUT)},
			misbehaviour{"disconnects after " + s.name, func(p *peer) { take(p, sofar); p.disconnect() }, disconnected[i]})
	}
	return wrong
}

func pingMisbehaviour() []misbehaviour {
	wrong := append(openings(), stops(pingSteps, [][]error{
		ends(nil),
		ends(unix.ECONNRESET),
		ends(unix.ECONNRESET),
		ends(nil, unix.ECONNRESET), // the server's part may be done
		ends(nil),
	})...)
	for name, change := range map[string]func(m *wire.PingMessage){
		"unknown rkey":         func(m *wire.PingMessage) { m.Rkey = fakeclient.NoKey },
		"address 0":            func(m *wire.PingMessage) { m.Addr = 0 },
		"address past the end": func(m *wire.PingMessage) { m.Addr += uint64(m.Length) },
	} {
		wrong = append(wrong, wrongSource(name, change, denied), wrongPingSink(name, short, change, deniedAtEnd))
	}
	return append(wrong,
		wrongSource("length larger than the memory", func(m *wire.PingMessage) { m.Length++ }, denied),
		wrongPingSink("no rkey", short, func(m *wire.PingMessage) { m.Rkey = 0 }, ends(unix.EPROTO)),
		wrongPingSink("length 0", short, func(m *wire.PingMessage) { m.Length = 0 }, ends(unix.EPROTO)),
		wrongPingSink("smaller than the source", short-1, func(m *wire.PingMessage) {}, ends(unix.EPROTO)),
		wrongPingSink("length larger than the memory", short-1, func(m *wire.PingMessage) { m.Length = 0xffffffff }, deniedAtEnd),
		misbehaviour{"eight messages at once", func(p *peer) {
			p.keepsReceives = true
			msg := p.lend(short).Append(nil)
			for range 8 {
				if p.Send(msg, 0) != nil {
					break
				}
			}
		}, ends(unix.EPROTO)},
		misbehaviour{"posts no receive", func(p *peer) {
			p.keepsReceives = true
			take(p, pingSteps)
			take(p, pingSteps[:2])
		}, ends(unix.ETIMEDOUT)},
		misbehaviour{"posts no receive and continues", func(p *peer) {
			p.keepsReceives = true
			take(p, pingSteps)
			take(p, pingSteps[:2])
			p.sendMessage(p.lend(short))
		}, ends(unix.ETIMEDOUT, unix.EPROTO)}, // EPROTO: out of turn, if the server is late
		misbehaviour{"RDMA WRITE with an unknown rkey", func(p *peer) {
			take(p, pingSteps[:3])
			if err := p.write(wire.PingMessage{Addr: 4096, Rkey: fakeclient.NoKey}, short, 1); err == nil {
				p.t.Error("the access was allowed")
			}
		}, ends(unix.ECONNRESET)},
	)
}

func wrongSource(name string, change func(m *wire.PingMessage), want []error) misbehaviour {
	return misbehaviour{"wrong source: " + name, func(p *peer) {
		m := p.lend(short)
		change(&m)
		p.sendMessage(m)
	}, want}
}

func wrongPingSink(name string, n uint32, change func(m *wire.PingMessage), want []error) misbehaviour {
	return misbehaviour{"wrong sink: " + name, func(p *peer) {
		take(p, pingSteps[:3])
		m := p.lend(n)
		change(&m)
		p.sendMessage(m)
	}, want}
}

// testMisbehaviour is that of clients of rlat, wlat and bw.
func testMisbehaviour() []misbehaviour {
	return append(openings(),
		misbehaviour{"disconnects after connecting", func(p *peer) { p.disconnect() }, ends(nil)},
		misbehaviour{"disconnects after telling of its sink", func(p *peer) { take(p, testSteps[:2]); p.disconnect() }, ends(nil)},
		misbehaviour{"disconnects during the test", func(p *peer) { take(p, testSteps); p.disconnect() }, ends(nil)},
		misbehaviour{"message of 17 bytes during the test", func(p *peer) { take(p, testSteps); p.send(make([]byte, 17), 0) }, deniedAtEnd},
	)
}

// writeMessageLength sends immediate data with the length of a message.
func writeMessageLength(p *peer) {
	take(p, testSteps)
	p.writeImmediate(p.sink, wire.PingMessageSize)
}

// lentMisbehaviour is that in tests whose server only lends its memory.
func lentMisbehaviour() []misbehaviour {
	return append(testMisbehaviour(),
		misbehaviour{"message during the test", func(p *peer) { take(p, testSteps); p.goAhead() }, ends(unix.EPROTO)},
		misbehaviour{"RDMA WRITE with immediate data", func(p *peer) { take(p, testSteps); p.writeImmediate(p.sink, size) }, ends(unix.EPROTO)},
		misbehaviour{"RDMA WRITE of a message's length with immediate data", writeMessageLength, ends(unix.EPROTO)},
		misbehaviour{"invalidates the server's rkey", func(p *peer) {
			take(p, testSteps)
			p.send(make([]byte, wire.PingMessageSize), p.sink.Rkey)
		}, ends(unix.EPROTO)},
		wrongSink("unknown rkey", func(m *wire.PingMessage) { m.Rkey = fakeclient.NoKey }, func(*peer) {}),
		misbehaviour{"RDMA WRITE past the end of the server's sink", func(p *peer) {
			take(p, testSteps)
			p.sink.Addr++
			if p.write(p.sink, size, 1) == nil {
				p.t.Error("the access was allowed")
			}
		}, ends(nil)},
	)
}

// writtenMisbehaviour is that in tests whose server writes to the client's sink as soon as begin has run.
func writtenMisbehaviour(begin func(p *peer)) []misbehaviour {
	return append(testMisbehaviour(),
		wrongSink("unknown rkey", func(m *wire.PingMessage) { m.Rkey = fakeclient.NoKey }, begin),
		wrongSink("address 0", func(m *wire.PingMessage) { m.Addr = 0 }, begin),
		wrongSink("past the end", func(m *wire.PingMessage) { m.Addr++ }, begin),
	)
}

// wrongSink announces a wrong sink of the client.
func wrongSink(name string, change func(m *wire.PingMessage), begin func(p *peer)) misbehaviour {
	return misbehaviour{"wrong sink: " + name, func(p *peer) {
		m := p.lend(size)
		change(&m)
		p.sendMessage(m)
		begin(p)
	}, deniedAtEnd}
}

// beginWriting makes a server of wlat write to the client's sink.
func beginWriting(p *peer) {
	p.t.Helper()
	_ = p.write(p.recvMessage(), size, 1) // the connection may end before the completion
}

func latencyMisbehaviour() []misbehaviour {
	return append(writtenMisbehaviour(beginWriting),
		misbehaviour{"writes nothing", func(p *peer) { take(p, testSteps) }, ends(unix.ETIMEDOUT)},
		misbehaviour{"writes once", func(p *peer) {
			take(p, testSteps)
			if err := p.write(p.sink, size, 1); err != nil {
				p.t.Error(err)
			}
		}, ends(unix.ETIMEDOUT)},
		misbehaviour{"writes a wrong number", func(p *peer) {
			take(p, testSteps)
			if err := p.write(p.sink, size, 2); err != nil {
				p.t.Error(err)
			}
		}, ends(unix.ETIMEDOUT)},
	)
}

// kinds are the hellos that servers accept, by their options.
var kinds = map[string]wire.TestHello{
	"":           {Test: wire.TestPing, Size: size, QPs: 1},
	",rlat":      {Test: wire.TestReadLatency, Size: size, QPs: 1},
	",wlat":      {Test: wire.TestWriteLatency, Size: size, QPs: 1},
	",bw":        {Test: wire.TestBandwidth, Size: size, QPs: 1},
	",bw,duplex": {Test: wire.TestBandwidth, Size: size, QPs: 1, Duplex: true},
	",bw,qps=2":  {Test: wire.TestBandwidth, Size: size, QPs: 2, Group: 7},
}

// server starts a server with the options.
func server(t *testing.T, options string) (writer, netip.AddrPort) {
	t.Helper()
	return serverWithin(t, 2, options)
}

// serverWithin is server with another timeout, in seconds.
func serverWithin(t *testing.T, timeout int, options string) (writer, netip.AddrPort) {
	t.Helper()
	addr := nextAddr(t)
	return write("server,addr=%s,port=%d,timeout=%d,size=%d%s", addr.Addr(), addr.Port(), timeout, size, options), addr
}

func TestHostileClients(t *testing.T) {
	guest.CheckResources(t)
	for _, tc := range []struct {
		name, options string
		wrong         []misbehaviour
	}{
		{"ping", "", pingMisbehaviour()},
		{"rlat", ",rlat", lentMisbehaviour()},
		{"bw", ",bw", lentMisbehaviour()},
		{"duplex", ",bw,duplex", writtenMisbehaviour(func(*peer) {})},
		{"wlat", ",wlat", latencyMisbehaviour()},
	} {
		for _, m := range tc.wrong {
			t.Run(tc.name+"/"+m.name, func(t *testing.T) {
				if tc.name != "wlat" { // it spins, and would slow the others down
					t.Parallel()
				}
				endsAfter(t, func() (writer, *peer) {
					w, addr := server(t, tc.options)
					return w, connect(t, addr, kinds[tc.options].Append(nil))
				}, m.do, m.want)
			})
		}
	}
}

// rxe of 6.1 may keep its reference to a memory region until the queue pair is destroyed: on the debug kernel in about
// one of 50 runs.
func TestImmediateDataRepeatedly(t *testing.T) {
	guest.CheckResources(t)
	for i := range 100 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			endsAfter(t, func() (writer, *peer) {
				w, addr := server(t, ",bw")
				return w, connect(t, addr, kinds[",bw"].Append(nil))
			}, writeMessageLength, ends(unix.EPROTO))
		})
	}
}

// Clients of rlat and bw send nothing during the test: the server does not time out.
func TestSilentClientsOfLentMemory(t *testing.T) {
	guest.CheckResources(t)
	for _, options := range []string{",rlat", ",bw"} {
		t.Run(options[1:], func(t *testing.T) {
			t.Parallel()
			w, addr := server(t, options)
			p := connect(t, addr, kinds[options].Append(nil))
			take(p, testSteps)
			select {
			case end := <-w.ended:
				t.Fatalf("the server has ended: %v", end.err)
			case <-time.After(timeout + 2*time.Second):
			}
			p.Close()
			w.ends(t, nil)
		})
	}
}

// A server in the kernel has one client and rejects all others. They do not disturb the first one, although it sends
// nothing meanwhile.
func TestManyClientsOfAServer(t *testing.T) {
	guest.CheckResources(t)
	addr := nextAddr(t)
	ended := guest.StartServer(t, fmt.Sprintf("server,addr=%s,port=%d,timeout=600,size=%d", addr.Addr(), addr.Port(), size))
	p := connect(t, addr, nil)
	const many = 200 // each may take 4 s, if its reject is lost
	if others := fakeclient.DialMany(t, many, dialTo(t, addr, nil), withoutReason); len(others) > 0 {
		t.Errorf("%d other clients were accepted", len(others))
	}
	take(p, pingSteps)
	p.Close()
	if err := guest.Within(t, guest.Limit, "the server ends", ended); err != nil {
		t.Error(err)
	}
}

// withoutReason checks for a reject by rdma_cm, which has no reason of the server.
func withoutReason(r *verbs.RejectedError) error {
	const consumerDefined = 28 // IB_CM_REJ_CONSUMER_DEFINED
	if _, err := wire.DecodeReject(r.Private); err == nil || r.Status != consumerDefined {
		return fmt.Errorf("%w with %x, want status %d and no reason", r, r.Private, consumerDefined)
	}
	return nil
}
