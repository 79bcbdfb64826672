// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
)

// impostor answers each connect request, until the end of the test, and counts them.
func impostor(t *testing.T, port int, answer func(r *verbs.Request)) *atomic.Int32 {
	t.Helper()
	var requests atomic.Int32
	faketarget.Listen(t, port, func(r *verbs.Request) {
		requests.Add(1)
		answer(r)
	}, func() {})
	return &requests
}

// accept accepts a client, and waits until it disconnects.
func accept(private []byte) func(r *verbs.Request) {
	return func(r *verbs.Request) {
		conn, err := r.Accept(private, fakeclient.Config)
		if err != nil {
			return
		}
		<-conn.Done()
		conn.Release()
	}
}

func reject(private []byte) func(r *verbs.Request) {
	return func(r *verbs.Request) { r.Reject(private) }
}

// challengeFirst gives each client that asks a challenge, and calls then for its answer.
func challengeFirst(then func(r *verbs.Request)) func(r *verbs.Request) {
	return func(r *verbs.Request) {
		hello, err := wire.DecodeHello(r.Private)
		if err == nil && hello.Flags == wire.HelloKey {
			r.Reject(faketarget.Challenge.Append(nil))
			return
		}
		then(r)
	}
}

// A client with a key refuses a target that does not prove the same key.
func TestImpostors(t *testing.T) {
	guest.CheckResources(t)
	welcome := faketarget.Welcome.Append(nil)
	withZeros := append(bytes.Clone(welcome), make([]byte, 16)...)
	forged := func(r *verbs.Request) {
		hello, err := wire.DecodeHello(r.Private)
		if err != nil {
			t.Error(err)
		}
		accept(faketarget.Prove(hello, another, faketarget.Welcome))(r)
	}
	reflected := func(r *verbs.Request) {
		hello, _ := wire.DecodeHello(r.Private)
		accept(append(bytes.Clone(welcome), hello.Answer.Proof[:]...))(r)
	}
	for name, tc := range map[string]struct {
		answer func(r *verbs.Request)
		want   error
		most   int32 // attempts
	}{
		"accepts without a challenge":            {accept(welcome), unix.EKEYREJECTED, 1},
		"accepts without a challenge with zeros": {accept(withZeros), unix.EKEYREJECTED, 1},
		"accepts without a proof":                {challengeFirst(accept(welcome)), unix.EKEYREJECTED, 2},
		"has another key":                        {challengeFirst(forged), unix.EKEYREJECTED, 2},
		"sends the client's proof back":          {challengeFirst(reflected), unix.EKEYREJECTED, 2},
		"accepts without private data":           {challengeFirst(accept(nil)), unix.EKEYREJECTED, 2},
		"challenges each time":                   {reject((&wire.Challenge{ID: 1}).Append(nil)), unix.ECONNREFUSED, 16},
		"rejects each answer as stale":           {reject((&wire.Reject{Reason: wire.RejectStale}).Append(nil)), unix.ECONNREFUSED, 16},
		"rejects the key":                        {challengeFirst(reject((&wire.Reject{Reason: wire.RejectKey}).Append(nil))), unix.EKEYREJECTED, 2},
		"rejects with an unknown reason":         {reject((&wire.Reject{Reason: 0xffff}).Append(nil)), unix.ECONNREFUSED, 1},
		"rejects with a short challenge":         {reject(append((&wire.Challenge{ID: 1}).Append(nil)[:4], 0xff)), unix.ECONNREFUSED, 1},
	} {
		t.Run(name, func(t *testing.T) {
			port := guest.NextPort()
			requests := impostor(t, port, tc.answer)
			err := commandWith("krping:k", secret, clientCommand(t, port, ",queues=1,key=krping:k"))
			if !errors.Is(err, tc.want) || requests.Load() > tc.most {
				t.Errorf("%v after %d attempts, want %v after at most %d", err, requests.Load(), tc.want, tc.most)
			}
			if guest.Session(t, "vol0") != nil {
				t.Error("there is a session")
			}
		})
	}
}

// A target's reject or accept with private data of any length fails the command, and does no other harm.
func TestPrivateDataOfTheTarget(t *testing.T) {
	guest.CheckResources(t)
	challenge := faketarget.Challenge.Append(nil)
	proven := append(faketarget.Welcome.Append(nil), make([]byte, 16)...)
	for _, tc := range []struct {
		name   string
		answer func(n int) func(r *verbs.Request)
		most   int
	}{
		{"reject", func(n int) func(r *verbs.Request) { return reject(guest.Fill(challenge, n)) }, 148},
		{"accept", func(n int) func(r *verbs.Request) { return challengeFirst(accept(guest.Fill(proven, n))) }, 196},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, n := range []int{0, 1, 4, 11, 12, 15, 16, 17, 31, 32, 33, 39, 40, 41, 55, 56, 57, 100, tc.most} {
				if n > tc.most {
					continue
				}
				port := guest.NextPort()
				impostor(t, port, tc.answer(n))
				err := commandWith("krping:k", secret, clientCommand(t, port, ",queues=1,key=krping:k"))
				if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EKEYREJECTED) {
					t.Errorf("%d bytes: %v, want ECONNREFUSED or EKEYREJECTED", n, err)
				}
			}
		})
	}
}

// Without a key, a short welcome fails the command, and bytes after the welcome do not matter. The transport pads with
// zeros, and the last byte of the fake target's welcome that must not be zero is the first of the UUID.
func TestWelcomesOfAnyLength(t *testing.T) {
	guest.CheckResources(t)
	const (
		least        = wire.WelcomeSize1 + 1
		mostOfAccept = 196
	)
	attachTo := func(port int) error { return guest.Command(clientCommand(t, port, ",queues=1"), guest.Limit) }
	for _, n := range guest.Lengths(least - 1) {
		port := guest.NextPort()
		impostor(t, port, accept(guest.Fill(faketarget.Welcome.Append(nil), n)))
		wantError(t, fmt.Sprintf("%d bytes", n), attachTo(port), unix.EPROTO)
	}
	g := faketarget.Start(t, "")
	for _, n := range []int{wire.WelcomeSize, wire.WelcomeSize + 1, wire.ProvenWelcomeSize, wire.ProvenWelcomeSize + 1, mostOfAccept} {
		g.Reply(guest.Fill(faketarget.Welcome.Append(nil), n))
		wantError(t, fmt.Sprintf("%d bytes", n), attachTo(g.Port), nil)
		if n == mostOfAccept {
			writeAndVerify(t, "/dev/"+guest.Session(t, "vol0")["dev"])
		}
		guest.MustKrpingctl(t, "stop", "vol0")
	}
}
