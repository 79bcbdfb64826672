// SPDX-License-Identifier: Apache-2.0

package target

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"krping/bridge/wire"
)

var (
	addr  = netip.MustParseAddr("192.168.77.2")
	other = netip.MustParseAddr("192.168.77.3")
)

// answerTo is a hello that answers a challenge.
func answerTo(c *wire.Challenge) wire.Hello {
	return wire.Hello{Flags: wire.HelloProof, Session: wire.SessionID{1}, QueueIndex: 1, QueueCount: 2, Depth: 1, Answer: wire.KeyAnswer{Challenge: c.ID}}
}

func TestChallengeIsAnsweredOnce(t *testing.T) {
	table := newChallenges()
	asks := wire.Hello{Flags: wire.HelloKey, Session: wire.SessionID{1}, QueueIndex: 1, QueueCount: 2, Depth: 1, Volume: wire.VolumeIDOf("v")}
	first, second := table.issue(addr, asks), table.issue(addr, asks)
	if first.Nonce == second.Nonce || first.ID == second.ID {
		t.Error("two challenges have the same nonce or id")
	}
	for name, change := range map[string]func(h *wire.Hello){
		"another session": func(h *wire.Hello) { h.Session[15] = 1 },
		"another queue":   func(h *wire.Hello) { h.QueueIndex = 0 },
		"unknown id":      func(h *wire.Hello) { h.Answer.Challenge += 2 },
	} {
		h := answerTo(first)
		change(&h)
		if _, ok := table.redeem(addr, h); ok {
			t.Errorf("%s is accepted", name)
		}
	}
	if _, ok := table.redeem(other, answerTo(first)); ok {
		t.Error("another address is accepted")
	}
	if got, ok := table.redeem(addr, answerTo(first)); !ok || got != (wire.Transcript{Hello: answerTo(first), Volume: wire.VolumeIDOf("v"), Nonce: first.Nonce}) {
		t.Errorf("the right answer: %+v, %v", got, ok)
	}
	if _, ok := table.redeem(addr, answerTo(first)); ok {
		t.Error("the same answer is accepted twice")
	}
	if got, ok := table.redeem(addr, answerTo(second)); !ok || got.Nonce != second.Nonce {
		t.Errorf("the answer to the second challenge: %+v, %v", got, ok)
	}
}

func TestChallengeExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newChallenges()
		for after, want := range map[time.Duration]bool{challengeTime - 1: true, challengeTime: false} {
			c := table.issue(addr, answerTo(&wire.Challenge{}))
			time.Sleep(after)
			if _, ok := table.redeem(addr, answerTo(c)); ok != want {
				t.Errorf("accepted after %v: %v, want %v", after, ok, want)
			}
		}
	})
}

func TestNewChallengeReplacesOldestOfItsAddress(t *testing.T) {
	table := newChallenges()
	table.next = 0xffffffff // ids wrap around
	theirs := table.issue(other, answerTo(&wire.Challenge{}))
	var issued []*wire.Challenge
	for range 2 * maxChallenges {
		issued = append(issued, table.issue(addr, answerTo(&wire.Challenge{})))
	}
	replaced := len(issued) - maxPeerChallenges
	for i, c := range issued {
		if _, ok := table.redeem(addr, answerTo(c)); ok != (i >= replaced) {
			t.Errorf("challenge %d of %d is pending: %v", i+1, len(issued), ok)
		}
	}
	if _, ok := table.redeem(other, answerTo(theirs)); !ok {
		t.Error("the challenge of another address was replaced")
	}
}

// Of too many challenges, those of the addresses with most are replaced.
func TestManyAddressesFillTheTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // none expires
		const addresses = maxChallenges/maxPeerChallenges + 6
		table := newChallenges()
		theirs := table.issue(other, answerTo(&wire.Challenge{}))
		for i := range addresses * maxPeerChallenges {
			table.issue(netip.AddrFrom4([4]byte{10, 0, 0, byte(i % addresses)}), answerTo(&wire.Challenge{}))
		}
		if n := len(table.pending); n != maxChallenges {
			t.Errorf("%d challenges are pending, want %d", n, maxChallenges)
		}
		if _, ok := table.redeem(other, answerTo(theirs)); !ok {
			t.Error("the only challenge of an address was replaced")
		}
	})
}
