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
	"krping/test/guest/internal/crowd"
	"krping/test/guest/internal/guest"
)

// lie is what a client does that it should not, and how a server in the kernel ends then.
type lie struct {
	name string
	do   func(p *peer)
	want []error
}

func ends(errs ...error) []error { return errs }

// A device that denies access ends the hostile side's queue pair, too. Its disconnect may
// overtake the denial.
var (
	denied        = ends(unix.EPROTO, unix.ECONNRESET)
	deniedAtAnEnd = ends(unix.EPROTO, nil) // where a disconnect is no error
)

// openings are wrong first messages, of all tests.
func openings() []lie {
	lies := []lie{
		{"says nothing", func(*peer) {}, ends(unix.ETIMEDOUT)},
		{"invalidates a key that nobody has", func(p *peer) { p.send(p.lend(short).Append(nil), noKey) }, ends(unix.EPROTO)},
	}
	for _, n := range []int{0, 1, 15, 17, 64} {
		want := ends(unix.EPROTO)
		if n > wire.PingMessageSize { // the device refuses it
			want = deniedAtAnEnd
		}
		lies = append(lies, lie{fmt.Sprintf("message of %d bytes", n), func(p *peer) { p.send(make([]byte, n), 0) }, want})
	}
	for name, change := range map[string]func(m *wire.PingMessage){
		"no key":                   func(m *wire.PingMessage) { m.Rkey = 0 },
		"no length":                func(m *wire.PingMessage) { m.Length = 0 },
		"longer than the server's": func(m *wire.PingMessage) { m.Length = size + 1 },
		"length of 4 GiB less one": func(m *wire.PingMessage) { m.Length = 0xffffffff },
	} {
		lies = append(lies, sourceLie(name, change, ends(unix.EPROTO)))
	}
	return lies
}

// The steps of an honest client, in pings and in the tests.
var (
	pingSteps = []step{
		{"connecting", func(*peer) {}},
		{"telling of its source", func(p *peer) { p.tell(p.lend(short)) }},
		{"the first go-ahead", func(p *peer) { p.hear() }},
		{"telling of its sink", func(p *peer) { p.tell(p.lend(short)) }},
		{"the second go-ahead", func(p *peer) { p.hear() }},
	}
	testSteps = []step{
		{"connecting", func(*peer) {}},
		{"telling of its sink", func(p *peer) { p.tell(p.lend(size)) }},
		{"hearing of the server's sink", func(p *peer) { p.sink = p.hear() }},
	}
)

func take(p *peer, steps []step) {
	p.t.Helper()
	for _, s := range steps {
		s.do(p)
	}
}

// stalls after each step, and hangs up after each step with the error that belongs to it.
func stops(steps []step, hangUp [][]error) []lie {
	var lies []lie
	for i, s := range steps {
		sofar := steps[:i+1]
		lies = append(lies,
			lie{"stalls after " + s.name, func(p *peer) { take(p, sofar) }, ends(unix.ETIMEDOUT)},
			lie{"hangs up after " + s.name, func(p *peer) { take(p, sofar); p.hangUp() }, hangUp[i]})
	}
	return lies
}

func pingLies() []lie {
	lies := append(openings(), stops(pingSteps, [][]error{
		ends(nil),
		ends(unix.ECONNRESET),
		ends(unix.ECONNRESET),
		ends(nil, unix.ECONNRESET), // the server's part may be done
		ends(nil),
	})...)
	for name, change := range map[string]func(m *wire.PingMessage){
		"a key that nobody has":     func(m *wire.PingMessage) { m.Rkey = noKey },
		"an address of no memory":   func(m *wire.PingMessage) { m.Addr = 0 },
		"an address behind its own": func(m *wire.PingMessage) { m.Addr += uint64(m.Length) },
	} {
		lies = append(lies, sourceLie(name, change, denied), sinkLie(name, short, change, deniedAtAnEnd))
	}
	return append(lies,
		sourceLie("longer than it is", func(m *wire.PingMessage) { m.Length++ }, denied),
		sinkLie("no key", short, func(m *wire.PingMessage) { m.Rkey = 0 }, ends(unix.EPROTO)),
		sinkLie("no length", short, func(m *wire.PingMessage) { m.Length = 0 }, ends(unix.EPROTO)),
		sinkLie("smaller than the source", short-1, func(m *wire.PingMessage) {}, ends(unix.EPROTO)),
		sinkLie("smaller than it says", short-1, func(m *wire.PingMessage) { m.Length = 0xffffffff }, deniedAtAnEnd),
		lie{"eight messages at once", func(p *peer) {
			p.deaf = true
			msg := p.lend(short).Append(nil)
			for range 8 {
				if p.Send(msg, 0) != nil {
					break
				}
			}
		}, ends(unix.EPROTO)},
		lie{"takes no go-ahead", func(p *peer) {
			p.deaf = true
			take(p, pingSteps)
			take(p, pingSteps[:2])
		}, ends(unix.ETIMEDOUT)},
		lie{"takes no go-ahead and goes on", func(p *peer) {
			p.deaf = true
			take(p, pingSteps)
			take(p, pingSteps[:2])
			p.tell(p.lend(short))
		}, ends(unix.ETIMEDOUT, unix.EPROTO)}, // out of turn, if the server is late
		lie{"writes where it may not", func(p *peer) {
			take(p, pingSteps[:3])
			if err := p.write(wire.PingMessage{Addr: 4096, Rkey: noKey}, short, 1); err == nil {
				p.t.Error("it may")
			}
		}, ends(unix.ECONNRESET)},
	)
}

func sourceLie(name string, change func(m *wire.PingMessage), want []error) lie {
	return lie{"told of memory: " + name, func(p *peer) {
		m := p.lend(short)
		change(&m)
		p.tell(m)
	}, want}
}

func sinkLie(name string, n uint32, change func(m *wire.PingMessage), want []error) lie {
	return lie{"told of a sink: " + name, func(p *peer) {
		take(p, pingSteps[:3])
		m := p.lend(n)
		change(&m)
		p.tell(m)
	}, want}
}

// testLies are those of rlat, wlat and bw.
func testLies() []lie {
	return append(openings(),
		lie{"hangs up after connecting", func(p *peer) { p.hangUp() }, ends(nil)},
		lie{"hangs up after telling of its sink", func(p *peer) { take(p, testSteps[:2]); p.hangUp() }, ends(nil)},
		lie{"hangs up in the test", func(p *peer) { take(p, testSteps); p.hangUp() }, ends(nil)},
		lie{"a message of 17 bytes in the test", func(p *peer) { take(p, testSteps); p.send(make([]byte, 17), 0) }, deniedAtAnEnd},
	)
}

// writeMessageLength has immediate data arrive with the length of a message.
func writeMessageLength(p *peer) {
	take(p, testSteps)
	p.writeImmediate(p.sink, wire.PingMessageSize)
}

// lentLies are those of the tests whose server only lends its memory.
func lentLies() []lie {
	return append(testLies(),
		lie{"a message in the test", func(p *peer) { take(p, testSteps); p.goAhead() }, ends(unix.EPROTO)},
		lie{"writes with immediate data", func(p *peer) { take(p, testSteps); p.writeImmediate(p.sink, size) }, ends(unix.EPROTO)},
		lie{"writes a message's length with immediate data", writeMessageLength, ends(unix.EPROTO)},
		lie{"invalidates the server's key", func(p *peer) {
			take(p, testSteps)
			p.send(make([]byte, wire.PingMessageSize), p.sink.Rkey)
		}, ends(unix.EPROTO)},
		wrongSink("a key that nobody has", func(m *wire.PingMessage) { m.Rkey = noKey }, func(*peer) {}),
		lie{"writes behind the server's sink", func(p *peer) {
			take(p, testSteps)
			p.sink.Addr++
			if p.write(p.sink, size, 1) == nil {
				p.t.Error("it may")
			}
		}, ends(nil)},
	)
}

// writtenLies are those of the tests whose server writes to the client's sink, which begins it
// in some way.
func writtenLies(begin func(p *peer)) []lie {
	return append(testLies(),
		wrongSink("a key that nobody has", func(m *wire.PingMessage) { m.Rkey = noKey }, begin),
		wrongSink("an address of no memory", func(m *wire.PingMessage) { m.Addr = 0 }, begin),
		wrongSink("longer than it is", func(m *wire.PingMessage) { m.Addr++ }, begin),
	)
}

// wrongSink lies about the client's sink.
func wrongSink(name string, change func(m *wire.PingMessage), begin func(p *peer)) lie {
	return lie{"told of a sink: " + name, func(p *peer) {
		m := p.lend(size)
		change(&m)
		p.tell(m)
		begin(p)
	}, deniedAtAnEnd}
}

// beginWriting makes a server of wlat write to the client's sink.
func beginWriting(p *peer) {
	p.t.Helper()
	_ = p.write(p.hear(), size, 1) // the end may come before the completion
}

func latencyLies() []lie {
	return append(writtenLies(beginWriting),
		lie{"writes nothing", func(p *peer) { take(p, testSteps) }, ends(unix.ETIMEDOUT)},
		lie{"writes once", func(p *peer) {
			take(p, testSteps)
			if err := p.write(p.sink, size, 1); err != nil {
				p.t.Error(err)
			}
		}, ends(unix.ETIMEDOUT)},
		lie{"writes a wrong number", func(p *peer) {
			take(p, testSteps)
			if err := p.write(p.sink, size, 2); err != nil {
				p.t.Error(err)
			}
		}, ends(unix.ETIMEDOUT)},
	)
}

// kinds of servers, by their options.
var kinds = map[string]wire.TestHello{
	"":           {Test: wire.TestPing, Size: size, QPs: 1},
	",rlat":      {Test: wire.TestReadLatency, Size: size, QPs: 1},
	",wlat":      {Test: wire.TestWriteLatency, Size: size, QPs: 1},
	",bw":        {Test: wire.TestBandwidth, Size: size, QPs: 1},
	",bw,duplex": {Test: wire.TestBandwidth, Size: size, QPs: 1, Duplex: true},
	",bw,qps=2":  {Test: wire.TestBandwidth, Size: size, QPs: 2, Group: 7},
}

// server begins a server with the options.
func server(t *testing.T, options string) (writer, netip.AddrPort) {
	t.Helper()
	addr := address(t)
	return write("server,addr=%s,port=%d,timeout=2,size=%d%s", addr.Addr(), addr.Port(), size, options), addr
}

func TestHostileClients(t *testing.T) {
	leavesNothing(t)
	for _, tc := range []struct {
		name, options string
		lies          []lie
	}{
		{"ping", "", pingLies()},
		{"rlat", ",rlat", lentLies()},
		{"bw", ",bw", lentLies()},
		{"duplex", ",bw,duplex", writtenLies(func(*peer) {})},
		{"wlat", ",wlat", latencyLies()},
	} {
		for _, lie := range tc.lies {
			t.Run(tc.name+"/"+lie.name, func(t *testing.T) {
				if tc.name != "wlat" { // which spins, and would slow the others
					t.Parallel()
				}
				meets(t, func() (writer, *peer) {
					w, addr := server(t, tc.options)
					return w, connect(t, addr, kinds[tc.options].Append(nil))
				}, lie.do, lie.want)
			})
		}
	}
}

// rxe of 6.1 may keep its reference to a memory region until the queue pair is destroyed: about once in 50 of
// these, on the debug kernel.
func TestImmediateDataAgainAndAgain(t *testing.T) {
	leavesNothing(t)
	for i := range 100 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			meets(t, func() (writer, *peer) {
				w, addr := server(t, ",bw")
				return w, connect(t, addr, kinds[",bw"].Append(nil))
			}, writeMessageLength, ends(unix.EPROTO))
		})
	}
}

// A client of rlat and bw needs no answer: one that is silent is no liar.
func TestSilentClientsMayStay(t *testing.T) {
	leavesNothing(t)
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

// A server has one client. Others are refused, however many they are, and do not keep that one waiting, which
// is silent for as long as they come.
func TestManyClientsOfAServer(t *testing.T) {
	leavesNothing(t)
	addr := address(t)
	ended := guest.StartServer(t, fmt.Sprintf("server,addr=%s,port=%d,timeout=600,size=%d", addr.Addr(), addr.Port(), size))
	p := connect(t, addr, nil)
	const many = 200 // each may take 4 s, where the refusal is lost
	if others := crowd.Dial(t, many, dialTo(t, addr, nil), withoutReason); len(others) > 0 {
		t.Errorf("%d others were taken", len(others))
	}
	take(p, pingSteps)
	p.Close()
	if err := guest.Within(t, guest.Limit, "the server ends", ended); err != nil {
		t.Error(err)
	}
}

// withoutReason is how rdma_cm refuses for a server that has its client.
func withoutReason(r *verbs.RejectedError) error {
	const consumerDefined = 28 // IB_CM_REJ_CONSUMER_DEFINED
	if _, err := wire.DecodeReject(r.Private); err == nil || r.Status != consumerDefined {
		return fmt.Errorf("%w with %x, want status %d and no reason", r, r.Private, consumerDefined)
	}
	return nil
}
