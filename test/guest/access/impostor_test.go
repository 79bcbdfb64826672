// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
)

// listen calls answer with each request to connect, until the end of the test, and then closes what
// answer uses.
func listen(t *testing.T, port int, answer func(r *verbs.Request), closeAll func()) {
	t.Helper()
	l, err := verbs.Listen(netip.AddrPortFrom(netip.MustParseAddr(guest.Addr(t)), uint16(port)))
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
			answer(request)
		}
	}()
	t.Cleanup(func() {
		l.StopAccepting()
		<-ended
		closeAll()
		l.Close()
	})
}

// impostor answers each request to connect, until the end of the test.
func impostor(t *testing.T, port int, answer func(r *verbs.Request)) *atomic.Int32 {
	t.Helper()
	var asked atomic.Int32
	listen(t, port, func(r *verbs.Request) {
		asked.Add(1)
		answer(r)
	}, func() {})
	return &asked
}

var welcome = wire.Welcome{Depth: 4, Capacity: size, Epoch: 1, BlockSize: 512, MaxData: 1 << 20, MaxInline: 4096, MaxMessage: 16384}

// accepts takes a client, and leaves it alone until it goes.
func accepts(private []byte) func(r *verbs.Request) {
	return func(r *verbs.Request) {
		conn, err := r.Accept(private, config)
		if err != nil {
			return
		}
		<-conn.Done()
		conn.Release()
	}
}

// challenges gives each client that asks one, and does then as it is told.
func challenges(do func(r *verbs.Request)) func(r *verbs.Request) {
	return func(r *verbs.Request) {
		hello, err := wire.DecodeHello(r.Private)
		if err == nil && hello.Flags == wire.HelloKey {
			r.Reject((&wire.Challenge{ID: 1, Nonce: wire.TargetNonce{1}}).Append(nil))
			return
		}
		do(r)
	}
}

// A client with a key is no client of who has not got it.
func TestImpostors(t *testing.T) {
	leavesNothing(t)
	plain := welcome.Append(nil)
	always := func(private []byte) func(r *verbs.Request) { return func(r *verbs.Request) { r.Reject(private) } }
	forged := func(key string) func(r *verbs.Request) {
		return func(r *verbs.Request) {
			hello, err := wire.DecodeHello(r.Private)
			if err != nil {
				t.Error(err)
			}
			transcript := wire.Transcript{Hello: hello, Volume: "vol0", Nonce: wire.TargetNonce{1}}
			proof := transcript.TargetProof([]byte(key), welcome)
			accepts(append(welcome.Append(nil), proof[:]...))(r)
		}
	}
	reflected := func(r *verbs.Request) {
		hello, _ := wire.DecodeHello(r.Private)
		accepts(append(welcome.Append(nil), hello.Answer.Proof[:]...))(r)
	}
	for name, tc := range map[string]struct {
		answer func(r *verbs.Request)
		want   error
		most   int32 // attempts
	}{
		"accepts at once":             {accepts(plain), unix.EKEYREJECTED, 1},
		"accepts at once with zeros":  {accepts(append(welcome.Append(nil), make([]byte, 16)...)), unix.EKEYREJECTED, 1},
		"proves nothing":              {challenges(accepts(plain)), unix.EKEYREJECTED, 2},
		"has another key":             {challenges(forged(another)), unix.EKEYREJECTED, 2},
		"sends the proof back":        {challenges(reflected), unix.EKEYREJECTED, 2},
		"accepts with nothing":        {challenges(accepts(nil)), unix.EKEYREJECTED, 2},
		"challenges for ever":         {always((&wire.Challenge{ID: 1}).Append(nil)), unix.ECONNREFUSED, 16},
		"has forgotten every time":    {always((&wire.Reject{Reason: wire.RejectStale}).Append(nil)), unix.ECONNREFUSED, 16},
		"refuses the key":             {challenges(always((&wire.Reject{Reason: wire.RejectKey}).Append(nil))), unix.EKEYREJECTED, 2},
		"a reason that nobody knows":  {always((&wire.Reject{Reason: 0xffff}).Append(nil)), unix.ECONNREFUSED, 1},
		"a challenge of another kind": {always(append((&wire.Challenge{ID: 1}).Append(nil)[:4], 0xff)), unix.ECONNREFUSED, 1},
	} {
		t.Run(name, func(t *testing.T) {
			port := nextPort()
			asked := impostor(t, port, tc.answer)
			err := commandWith("krping:k", secret, clientCommand(t, port, ",queues=1,key=krping:k"))
			if !errors.Is(err, tc.want) || asked.Load() > tc.most {
				t.Errorf("%v after %d attempts, want %v after %d at most", err, asked.Load(), tc.want, tc.most)
			}
			if guest.Session(t, "vol0") != nil {
				t.Error("there is a session")
			}
		})
	}
}

// A reject and a reply of any length end a client with an error, and nothing else.
func TestPrivateDataOfTheTarget(t *testing.T) {
	leavesNothing(t)
	challenge := (&wire.Challenge{ID: 1, Nonce: wire.TargetNonce{1}}).Append(nil)
	proven := append(welcome.Append(nil), make([]byte, 16)...)
	for _, tc := range []struct {
		name   string
		answer func(n int) func(r *verbs.Request)
		most   int
	}{
		{"reject", func(n int) func(r *verbs.Request) {
			return func(r *verbs.Request) { r.Reject(guest.Fill(challenge, n)) }
		}, 148},
		{"reply", func(n int) func(r *verbs.Request) { return challenges(accepts(guest.Fill(proven, n))) }, 196},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, n := range []int{0, 1, 4, 11, 12, 15, 16, 17, 31, 32, 33, 39, 40, 41, 55, 56, 57, 100, tc.most} {
				if n > tc.most {
					continue
				}
				port := nextPort()
				impostor(t, port, tc.answer(n))
				err := commandWith("krping:k", secret, clientCommand(t, port, ",queues=1,key=krping:k"))
				if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EKEYREJECTED) {
					t.Errorf("%d bytes: %v", n, err)
				}
			}
		})
	}
}

// The same of a target without a key, whose reply the transport fills up with zeros: the last byte of a welcome that
// is not zero is the third of its last four.
func TestWelcomesOfAnyLength(t *testing.T) {
	leavesNothing(t)
	const (
		least        = wire.WelcomeSize - 1
		mostOfAccept = 196
	)
	command := func(port int) error { return commandWith("", "", clientCommand(t, port, ",queues=1")) }
	for _, n := range guest.Lengths(least - 1) {
		port := nextPort()
		impostor(t, port, accepts(guest.Fill(welcome.Append(nil), n)))
		wants(t, fmt.Sprintf("%d bytes", n), command(port), unix.EPROTO)
	}
	port := nextPort()
	s := startSnoop(t, port, "")
	for _, n := range []int{wire.WelcomeSize, wire.WelcomeSize + 1, wire.ProvenWelcomeSize, wire.ProvenWelcomeSize + 1, mostOfAccept} {
		s.mu.Lock()
		s.reply = n
		s.mu.Unlock()
		wants(t, fmt.Sprintf("%d bytes", n), command(port), nil)
		if n == mostOfAccept {
			writeAndVerify(t, "/dev/"+guest.Session(t, "vol0")["dev"])
		}
		guest.MustKrpingctl(t, "stop", "vol0")
	}
}
