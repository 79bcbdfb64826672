// SPDX-License-Identifier: Apache-2.0

//go:build lab

package v1peer

import (
	"bytes"
	"sync"
	"testing"

	"krping/bridge/transport"
	"krping/bridge/verbs"
	v1 "krping/bridge/wire/v1"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
)

// Target serves vol0 as a target of version 1 did, with a key unless it is "".
type Target struct {
	Port   int
	Volume *v1.Volume
	Stop   func() // hangs up and no longer listens
	t      testing.TB
	key    string
	conns  sync.WaitGroup

	mu       sync.Mutex
	live     map[*verbs.Conn]bool
	accepted int
	others   map[byte]int // rejected hellos, by their version
}

// Start serves until Stop or the end of the test.
func Start(t testing.TB, key string) *Target { t.Helper(); return StartAt(t, guest.NextPort(), key) }

// StartAt is Start on a port.
func StartAt(t testing.TB, port int, key string) *Target {
	t.Helper()
	g := &Target{Port: port, Volume: v1.NewVolume(Size), t: t, key: key, live: map[*verbs.Conn]bool{}, others: map[byte]int{}}
	g.Stop = faketarget.Listen(t, g.Port, func(r *verbs.Request) { g.conns.Go(func() { g.serve(r) }) }, func() {
		g.HangUp()
		g.conns.Wait()
	})
	return g
}

// HangUp closes all connections.
func (g *Target) HangUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.live {
		c.Close()
	}
}

// Accepted returns how many connections were accepted, and how many hellos of each other version
// were rejected.
func (g *Target) Accepted() (accepted int, others map[byte]int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	accepted, others = g.accepted, g.others
	g.accepted, g.others = 0, map[byte]int{}
	return accepted, others
}

// answer returns the private data of an accept or a reject.
func (g *Target) answer(hello []byte) (private []byte, accept bool) {
	rejects, plain, keyed := v1.Recorded(g.t, "rejects"), v1.Recorded(g.t, "plain"), v1.Recorded(g.t, "key")
	switch {
	case len(hello) < v1.HelloSize || !bytes.HasPrefix(hello, []byte("KRPB")):
		g.t.Errorf("not a hello: %x", hello)
		return rejects.Find("reject of a hello that is not krping's").Bytes(nil), false
	case hello[4] != 1:
		g.mu.Lock()
		g.others[hello[4]]++
		g.mu.Unlock()
		return rejects.Find("reject of a hello of version 2").Bytes(nil), false
	case g.key == "" && g.isLike(plain.Find("hello"), hello):
		return plain.Find("welcome").Bytes(v1.Values{"depth": hello[10:12]}), true
	case g.key != "" && hello[5] == 1 && g.isLike(keyed.Find("hello, queue 0"), hello):
		return keyed.Find("challenge, queue 0").Bytes(nil), false
	case g.key != "" && hello[5] == 2 && g.isLike(keyed.Find("answer, queue 0"), hello):
		return g.prove(keyed, hello)
	}
	return rejects.Find("reject of unknown flags").Bytes(nil), false
}

// isLike checks that a hello differs from the recorded one in the queue, the number of queues, the
// depth and the variable parts only.
func (g *Target) isLike(recorded v1.Message, hello []byte) bool {
	like := bytes.Clone(hello)
	copy(like[6:12], recorded.Bytes(nil)[6:12])
	if _, err := recorded.Match(like, nil); err != nil {
		g.t.Errorf("a client of version 1 sent another hello: %v", err)
		return false
	}
	return true
}

// prove checks the client's proof.
func (g *Target) prove(keyed v1.Conversation, answer []byte) (private []byte, accept bool) {
	h := v1.Handshake{Challenge: keyed.Find("challenge, queue 0").Bytes(nil), Answer: answer[:v1.HelloSize], Volume: "vol0"}
	if !bytes.Equal(h.ClientProof(g.key), answer[40:v1.HelloSize]) {
		g.t.Error("the client's proof is not that of version 1")
		return v1.Recorded(g.t, "rejects").Find("reject of a wrong proof").Bytes(nil), false
	}
	welcome := keyed.Find("proven welcome, queue 0")
	values := v1.Values{"depth": answer[10:12]}
	values["target_proof"] = h.TargetProof(g.key, welcome.Bytes(values))
	return welcome.Bytes(values), true
}

func (g *Target) serve(request *verbs.Request) {
	private, accept := g.answer(request.Private)
	if !accept {
		request.Reject(private)
		return
	}
	conn, err := request.Accept(private, verbs.Config{Receives: 130, MaxMessage: 33024, Buffers: 4, MaxData: 1 << 20})
	if err != nil {
		return // the client has gone
	}
	g.mu.Lock()
	g.live[conn] = true
	g.accepted++
	g.mu.Unlock()
	g.execute(conn)
	g.mu.Lock()
	delete(g.live, conn)
	g.mu.Unlock()
	conn.Release()
}

// execute answers commands until the connection ends.
func (g *Target) execute(c *verbs.Conn) {
	for {
		message, err := c.Recv()
		if err != nil {
			return
		}
		msg := bytes.Clone(message.Data)
		if message.Release() != nil {
			return
		}
		replies, err := g.Volume.Answer(msg, lent{c})
		if err != nil {
			if !c.Ended() {
				g.t.Errorf("a client of version 1 broke the protocol: %v", err)
			}
			return
		}
		for _, r := range replies {
			if c.Send(r.Message, r.Invalidate) != nil {
				return
			}
		}
	}
}

// lent is the client's memory.
type lent struct{ *verbs.Conn }

func (l lent) Fetch(addr uint64, rkey uint32, n int) ([]byte, error) {
	buf, err := l.Buffer(n)
	if err != nil {
		return nil, err
	}
	defer l.Free(buf)
	if err := l.Read(buf, transport.Remote{Addr: addr, Rkey: rkey}); err != nil {
		return nil, err
	}
	return bytes.Clone(buf), nil
}

func (l lent) Put(addr uint64, rkey uint32, data []byte) error {
	buf, err := l.Buffer(len(data))
	if err != nil {
		return err
	}
	defer l.Free(buf)
	copy(buf, data)
	return l.Write(buf, transport.Remote{Addr: addr, Rkey: rkey})
}
