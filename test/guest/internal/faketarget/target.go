// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package faketarget serves vol0 from memory, and breaks the protocol where a test tells it to.
package faketarget

import (
	"bytes"
	"crypto/rand"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"krping/bridge/uuid"
	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
)

// Sizes in bytes.
const (
	Capacity = 1 << 20
	Small    = 4096  // data that travels in a message
	Large    = 65536 // the most data that the target moves by RDMA
)

// Welcome is what the target grants unless a test changes it.
var Welcome = wire.Welcome{
	Depth: 4, Capacity: Capacity, Epoch: 1, BlockSize: 512, MaxData: Large, MaxInline: Small, MaxMessage: 16384,
	UUID: uuid.UUID{1}, Writer: 1,
}

// Challenge is the one that targets with a key give.
var Challenge = &wire.Challenge{ID: 1, Nonce: wire.TargetNonce{1}}

// Target serves vol0.
type Target struct {
	Port  int
	t     testing.TB
	key   string
	conns sync.WaitGroup

	mu           sync.Mutex
	live         map[*Conn]bool
	welcome      wire.Welcome // for the limits of a connection
	private      []byte       // of the accept
	reject       []byte       // private data; nil: accepts
	unknown      uint8        // flags of a hello that are refused
	refused      int          // connections, for these flags
	greet        func(c *Conn)
	misbehaviour *misbehaviour
	memory       []byte
}

// Listen calls serve for each connect request, until stop or the end of the test, and then end.
func Listen(t testing.TB, port int, serve func(r *verbs.Request), end func()) (stop func()) {
	t.Helper()
	l, err := verbs.Listen(netip.AddrPortFrom(netip.MustParseAddr(guest.Addr(t)), uint16(port)), nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			request, err := l.Accept()
			if err != nil {
				return
			}
			serve(request)
		}
	}()
	stop = sync.OnceFunc(func() {
		l.StopAccepting()
		<-ended
		end()
		l.Close()
	})
	t.Cleanup(stop)
	return stop
}

// Start serves random data until the end of the test, with a key unless it is "".
func Start(t testing.TB, key string) *Target {
	t.Helper()
	g := &Target{Port: guest.NextPort(), t: t, key: key, live: map[*Conn]bool{}, memory: make([]byte, Capacity)}
	_, _ = rand.Read(g.memory) // never fails
	g.Grant(Welcome)
	Listen(t, g.Port, func(r *verbs.Request) { g.conns.Go(func() { g.serve(r) }) }, func() {
		g.HangUp()
		g.conns.Wait()
	})
	return g
}

// Grant sets the welcome of later connections.
func (g *Target) Grant(w wire.Welcome) { g.Reply(w.Append(nil)) }

// Reply sets the private data with which a target without a key accepts later connections.
func (g *Target) Reply(private []byte) {
	// The client does not use a welcome that it refuses.
	w, _ := wire.DecodeWelcome(append(bytes.Clone(private), make([]byte, wire.WelcomeSize)...))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.welcome, g.private = w, private
}

// Refuse rejects later connections of a target without a key, with that private data.
func (g *Target) Refuse(private []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reject = private
}

// RefuseFlags rejects later hellos that have one of the flags, as a target that does not know them.
func (g *Target) RefuseFlags(flags uint8) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unknown = flags
}

// Refused returns how many connections were rejected for their flags.
func (g *Target) Refused() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused
}

// Errorf fails the test of this target.
func (g *Target) Errorf(format string, args ...any) {
	g.t.Helper()
	g.t.Errorf(format, args...)
}

// HangUp closes all connections.
func (g *Target) HangUp() {
	g.mu.Lock()
	conns := slices.Collect(maps.Keys(g.live))
	g.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// Greet sets what is done first on later connections; nil is nothing.
func (g *Target) Greet(do func(c *Conn)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.greet = do
}

// Holds says whether the volume has the data at an offset.
func (g *Target) Holds(offset int, data []byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return bytes.HasPrefix(g.memory[offset:], data)
}

// Load returns the data that a READ asks for.
func (g *Target) Load(r wire.Request) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return bytes.Clone(g.memory[r.Offset:][:r.Length])
}

// Prove appends to a welcome the proof that a target with the key gives to the answer of Challenge.
func Prove(answer wire.Hello, key string, w wire.Welcome) []byte {
	transcript := wire.Transcript{Hello: answer, Volume: wire.VolumeIDOf("vol0"), Nonce: Challenge.Nonce}
	proof := transcript.TargetProof([]byte(key), w)
	return append(w.Append(nil), proof[:]...)
}

// accept returns the private data of the accept, or of a reject.
func (g *Target) accept(request *verbs.Request) (private []byte, w wire.Welcome, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reject != nil {
		return g.reject, g.welcome, false
	}
	hello, err := wire.DecodeHello(request.Private)
	if hello.Flags&g.unknown != 0 {
		g.refused++
		return (&wire.Reject{Reason: wire.RejectInvalid}).Append(nil), g.welcome, false
	}
	if g.key == "" {
		return g.private, g.welcome, true
	}
	if err != nil || hello.Flags&wire.HelloProof == 0 {
		return Challenge.Append(nil), g.welcome, false
	}
	return Prove(hello, g.key, g.welcome), g.welcome, true
}

// Receives returns how many messages a connection can take before their receives are posted again.
func Receives(w wire.Welcome) int { return int(min(w.Depth, 4)) + 1 }

func (g *Target) serve(request *verbs.Request) {
	private, w, ok := g.accept(request)
	if !ok {
		request.Reject(private)
		return
	}
	conn, err := request.Accept(private, verbs.Config{
		Receives: Receives(w), MaxMessage: int(min(w.MaxMessage, 65536)) + 4096, Buffers: 2, MaxData: Large,
	})
	if err != nil {
		return // the client has gone
	}
	c := &Conn{Conn: conn, Target: g, limits: wire.Limits{
		BlockSize: w.BlockSize, MaxData: w.MaxData, MaxInline: w.MaxInline, MaxMessage: w.MaxMessage, Depth: w.Depth,
	}}
	g.mu.Lock()
	g.live[c] = true
	greet := g.greet
	g.mu.Unlock()
	if greet != nil {
		greet(c)
	}
	c.serve()
	g.mu.Lock()
	delete(g.live, c)
	g.mu.Unlock()
	conn.Release()
}
