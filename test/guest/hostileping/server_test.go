// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostileping

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/transport"
	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
)

const pings = ",count=2,validate" // options of most clients

// client starts a client with the options and returns its connect request.
func client(t *testing.T, options string) (writer, *verbs.Request) {
	t.Helper()
	addr := nextAddr(t)
	l, err := verbs.Listen(addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	w := write("client,addr=%s,port=%d,timeout=2%s", addr.Addr(), addr.Port(), options)
	late := time.AfterFunc(guest.Limit, l.StopAccepting)
	defer late.Stop()
	r, err := l.Accept()
	if err != nil {
		t.Fatalf("no client: %v", err)
	}
	return w, r
}

func TestRejectingServers(t *testing.T) {
	guest.CheckResources(t)
	for name, private := range map[string][]byte{
		"without private data":    nil,
		"with a reason":           (&wire.Reject{Reason: wire.RejectTest, Value: 3}).Append(nil),
		"with an unknown reason":  (&wire.Reject{Reason: 0xffff, Value: 0xffffffff}).Append(nil),
		"with half a reason":      (&wire.Reject{Reason: wire.RejectTest}).Append(nil)[:7],
		"with 148 bytes of noise": bytes.Repeat([]byte{0xa5}, 148),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, r := client(t, pings)
			r.Reject(private)
			w.ends(t, unix.ECONNREFUSED)
		})
	}
}

func TestServerThatNeverAnswers(t *testing.T) {
	guest.CheckResources(t)
	w, r := client(t, pings)
	w.ends(t, unix.ETIMEDOUT)
	r.Reject(nil)
}

// The steps of a server that keeps to the protocol, in pings and in the tests.
var (
	answerSteps = []step{
		{"accepting", func(*peer) {}},
		{"receiving the source", func(p *peer) { p.source = p.recvMessage() }},
		{"reading", func(p *peer) { p.readSource() }},
		{"the first go-ahead", func(p *peer) { p.goAhead() }},
		{"receiving the sink", func(p *peer) { p.sink = p.recvMessage() }},
		{"writing", func(p *peer) { p.writeSink() }},
		{"the second go-ahead", func(p *peer) { p.goAhead() }},
	}
	lendSteps = []step{
		{"accepting", func(*peer) {}},
		{"receiving the client's sink", func(p *peer) { p.sink = p.recvMessage() }},
		{"announcing its sink", func(p *peer) { p.sendMessage(p.lend(size)) }},
	}
)

func (p *peer) readSource() {
	p.t.Helper()
	if err := p.read(p.source, p.source.Length); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) writeSink() {
	p.t.Helper()
	if err := p.Write(p.data, transport.Remote{Addr: p.sink.Addr, Rkey: p.sink.Rkey}); err != nil {
		p.t.Fatal(err)
	}
	p.Free(p.data)
}

// answer is what a server does after it has accepted a client, and the error with which the client ends.
type answer struct {
	name, options string
	do            func(p *peer)
	want          []error
}

// A device that has not yet seen its connection established disconnects without telling the peer.
var early = ends(unix.ECONNRESET, unix.ETIMEDOUT)

// wrongSize returns the errors of a client that receives a message of n bytes.
func wrongSize(n int) []error {
	if n > wire.PingMessageSize { // the device refuses it
		return denied
	}
	return ends(unix.EPROTO)
}

func pingAnswers() []answer {
	var answers []answer
	for i, s := range answerSteps {
		sofar := answerSteps[:i+1]
		lost := early
		if i > 2 {
			lost = ends(unix.ECONNRESET)
		}
		answers = append(answers,
			answer{"stalls after " + s.name, pings, func(p *peer) { take(p, sofar) }, ends(unix.ETIMEDOUT)},
			answer{"disconnects after " + s.name, pings, func(p *peer) { take(p, sofar); p.disconnect() }, lost})
	}
	for _, n := range []int{0, 1, 15, 17, 64} {
		answers = append(answers, answer{fmt.Sprintf("go-ahead of %d bytes", n), pings, func(p *peer) { p.recvMessage(); p.send(make([]byte, n), 0) }, wrongSize(n)})
	}
	const inv = ",count=2,mem_mode=reg,server_inv"
	return append(answers,
		answer{"disconnects after the last ping", pings, func(p *peer) { take(p, answerSteps); take(p, answerSteps); p.disconnect() }, ends(nil)},
		answer{"neither reads nor writes", pings, func(p *peer) { p.recvMessage(); p.goAhead(); p.recvMessage(); p.goAhead() }, ends(unix.EBADMSG)},
		answer{"writes half", pings, func(p *peer) {
			take(p, answerSteps[:5])
			p.data = p.data[:short/2]
			take(p, answerSteps[5:])
		}, ends(unix.EBADMSG)},
		answer{"writes with one bit flipped", pings, func(p *peer) {
			take(p, answerSteps[:5])
			p.data[short-1] ^= 1
			take(p, answerSteps[5:])
		}, ends(unix.EBADMSG)},
		answer{"immediate data instead of a go-ahead", pings, func(p *peer) {
			take(p, answerSteps[:6])
			data := p.buffer(wire.PingMessageSize)
			defer p.Free(data)
			_ = p.WriteImmediate(data, transport.Remote{Addr: p.sink.Addr, Rkey: p.sink.Rkey})
		}, ends(unix.EPROTO)},
		answer{"two go-aheads for one source", pings, func(p *peer) {
			p.recvMessage()
			p.goAhead()
			_ = p.Send(make([]byte, wire.PingMessageSize), 0)
		}, ends(unix.EPROTO, unix.EBADMSG)}, // EBADMSG: taken for the go-ahead of the sink
		answer{"eight go-aheads at once", pings, func(p *peer) {
			p.recvMessage()
			for range 8 {
				_ = p.Send(make([]byte, wire.PingMessageSize), 0)
			}
		}, ends(unix.EPROTO, unix.EBADMSG)},
		answer{"RDMA WRITE to the source", pings, func(p *peer) {
			take(p, answerSteps[:3])
			if p.Write(p.data, transport.Remote{Addr: p.source.Addr, Rkey: p.source.Rkey}) == nil {
				p.t.Error("the access was allowed")
			}
		}, ends(unix.ECONNRESET)},
		answer{"RDMA READ past the end of the source", pings, func(p *peer) {
			if p.read(p.recvMessage(), size) == nil {
				p.t.Error("the access was allowed")
			}
		}, ends(unix.ECONNRESET)},
		answer{"invalidates an rkey without server_inv", pings, func(p *peer) {
			p.send(make([]byte, wire.PingMessageSize), p.recvMessage().Rkey)
		}, ends(unix.EPROTO)},
		answer{"does not invalidate", inv, func(p *peer) { p.recvMessage(); p.goAhead() }, ends(unix.EPROTO)},
		answer{"invalidates an unknown rkey", inv, func(p *peer) {
			p.recvMessage()
			p.send(make([]byte, wire.PingMessageSize), fakeclient.NoKey)
		}, ends(unix.EPROTO)},
		answer{"RDMA READ with an invalidated rkey", inv, func(p *peer) {
			p.source = p.recvMessage()
			p.send(make([]byte, wire.PingMessageSize), p.source.Rkey)
			p.recvMessage()
			if p.read(p.source, short) == nil {
				p.t.Error("the access was allowed")
			}
		}, ends(unix.ECONNRESET)},
	)
}

// lendAnswers are those to clients of the tests, which never end by themselves.
func lendAnswers(test string) []answer {
	options := "," + test + ",size=" + fmt.Sprint(size)
	var answers []answer
	for i, s := range lendSteps {
		sofar := lendSteps[:i+1]
		if i < 2 {
			answers = append(answers, answer{"stalls after " + s.name, options, func(p *peer) { take(p, sofar) }, ends(unix.ETIMEDOUT)})
		}
		if i > 0 {
			answers = append(answers, answer{"disconnects after " + s.name, options, func(p *peer) { take(p, sofar); p.disconnect() }, early})
		}
	}
	for _, wrong := range []struct {
		name   string
		change func(m *wire.PingMessage)
		want   []error
	}{
		{"no rkey", func(m *wire.PingMessage) { m.Rkey = 0 }, ends(unix.EPROTO)},
		{"length 0", func(m *wire.PingMessage) { m.Length = 0 }, ends(unix.EPROTO)},
		{"smaller than the size", func(m *wire.PingMessage) { m.Length-- }, ends(unix.EPROTO)},
		{"unknown rkey", func(m *wire.PingMessage) { m.Rkey = fakeclient.NoKey }, denied},
		{"address 0", func(m *wire.PingMessage) { m.Addr = 0 }, denied},
	} {
		answers = append(answers, answer{"wrong sink: " + wrong.name, options, func(p *peer) {
			p.recvMessage()
			m := p.lend(size)
			wrong.change(&m)
			p.sendMessage(m)
		}, wrong.want})
	}
	for _, n := range []int{0, 1, 15, 17, 64} {
		answers = append(answers, answer{fmt.Sprintf("message of %d bytes", n), options, func(p *peer) { p.recvMessage(); p.send(make([]byte, n), 0) }, wrongSize(n)})
	}
	return append(answers, answer{"message of 17 bytes during the test", options, func(p *peer) { take(p, lendSteps); p.send(make([]byte, 17), 0) }, wrongSize(17)})
}

// movedAnswers adds an error that the client finds only when it has moved all of the server's sink.
func movedAnswers(test string) []answer {
	return append(lendAnswers(test), answer{"wrong sink: length larger than the memory", "," + test + ",size=" + fmt.Sprint(size), func(p *peer) {
		p.recvMessage()
		m := p.lend(size - 1)
		m.Length = size
		p.sendMessage(m)
	}, denied})
}

func latencyAnswers() []answer {
	const options = ",wlat,size=4096"
	return append(movedAnswers("wlat"),
		answer{"never writes", options, func(p *peer) { take(p, lendSteps) }, ends(unix.ETIMEDOUT)},
		answer{"writes once", options, func(p *peer) { take(p, lendSteps); _ = p.write(p.sink, size, 1) }, ends(unix.ETIMEDOUT)},
		answer{"writes a wrong number", options, func(p *peer) { take(p, lendSteps); _ = p.write(p.sink, size, 77) }, ends(unix.ETIMEDOUT)},
		answer{"RDMA WRITE past the end of the client's sink", options, func(p *peer) {
			take(p, lendSteps)
			p.sink.Addr++
			if p.write(p.sink, size, 1) == nil {
				p.t.Error("the access was allowed")
			}
		}, ends(unix.ECONNRESET)},
	)
}

func TestHostileServers(t *testing.T) {
	guest.CheckResources(t)
	for name, answers := range map[string][]answer{
		"ping": pingAnswers(), "rlat": movedAnswers("rlat"), "bw": movedAnswers("bw"), "wlat": latencyAnswers(), "fr": lendAnswers("fr"),
	} {
		for _, a := range answers {
			t.Run(name+"/"+a.name, func(t *testing.T) {
				if name != "wlat" { // it spins, and would slow the others down
					t.Parallel()
				}
				endsAfter(t, func() (writer, *peer) {
					w, r := client(t, a.options)
					conn, err := r.Accept(nil, config)
					if err != nil {
						t.Fatal(err)
					}
					return w, newPeer(t, conn)
				}, a.do, a.want)
			})
		}
	}
}
