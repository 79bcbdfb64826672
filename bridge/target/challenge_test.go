// SPDX-License-Identifier: Apache-2.0

package target

import (
	"net/netip"
	"testing"
	"time"

	"krping/bridge/wire"
)

var (
	addr  = netip.MustParseAddr("192.168.77.2")
	other = netip.MustParseAddr("192.168.77.3")
)

func answer(c *wire.Challenge) wire.Hello {
	return wire.Hello{Flags: wire.HelloProof, Session: wire.SessionID{1}, QueueIndex: 1, QueueCount: 2, Depth: 1, Answer: wire.KeyAnswer{Challenge: c.ID}}
}

func TestChallengeIsTakenOnce(t *testing.T) {
	table := newChallenges()
	asks := wire.Hello{Flags: wire.HelloKey, Session: wire.SessionID{1}, QueueIndex: 1, QueueCount: 2, Depth: 1, Volume: "v"}
	first, second := table.give(addr, asks), table.give(addr, asks)
	if first.Nonce == second.Nonce || first.ID == second.ID {
		t.Error("two challenges are the same")
	}
	for name, change := range map[string]func(h *wire.Hello){
		"another session": func(h *wire.Hello) { h.Session[15] = 1 },
		"another queue":   func(h *wire.Hello) { h.QueueIndex = 0 },
		"another id":      func(h *wire.Hello) { h.Answer.Challenge += 2 },
		"id of before":    func(h *wire.Hello) { h.Answer.Challenge -= maxChallenges },
	} {
		h := answer(first)
		change(&h)
		if _, ok := table.take(addr, h); ok {
			t.Errorf("%s takes it", name)
		}
	}
	if _, ok := table.take(other, answer(first)); ok {
		t.Error("another address takes it")
	}
	if got, ok := table.take(addr, answer(first)); !ok || got != (wire.Transcript{Hello: answer(first), Volume: "v", Nonce: first.Nonce}) {
		t.Errorf("%+v, %v: whom it was given to cannot take it", got, ok)
	}
	if _, ok := table.take(addr, answer(first)); ok {
		t.Error("it was taken twice")
	}
	if got, ok := table.take(addr, answer(second)); !ok || got.Nonce != second.Nonce {
		t.Errorf("%+v, %v: the second cannot be taken", got, ok)
	}
}

func TestChallengeExpires(t *testing.T) {
	table := newChallenges()
	now := time.Now()
	table.now = func() time.Time { return now }
	asks := answer(&wire.Challenge{})
	for after, want := range map[time.Duration]bool{challengeTime - 1: true, challengeTime: false} {
		c := table.give(addr, asks)
		now = now.Add(after)
		if _, ok := table.take(addr, answer(c)); ok != want {
			t.Errorf("after %v: %v", after, ok)
		}
	}
}

func TestFullTableForgetsTheOldest(t *testing.T) {
	table := newChallenges()
	table.next = 0xffffffff // ids wrap
	asks := answer(&wire.Challenge{})
	var given []*wire.Challenge
	for range maxChallenges + 1 {
		given = append(given, table.give(addr, asks))
	}
	if _, ok := table.take(addr, answer(given[0])); ok {
		t.Error("the oldest is still there")
	}
	for i, c := range given[1:] {
		if _, ok := table.take(addr, answer(c)); !ok {
			t.Errorf("challenge %d of %d is not there", i+1, maxChallenges)
		}
	}
}
