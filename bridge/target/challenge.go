// SPDX-License-Identifier: Apache-2.0

package target

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"krping/bridge/wire"
)

const (
	maxChallenges = 256              // pending at a time
	challengeTime = 30 * time.Second // to answer a challenge
)

// challenges is a table of pending challenges. Its size is fixed, so a flood of clients takes
// no memory; a new challenge replaces the oldest.
type challenges struct {
	mu      sync.Mutex
	next    uint32                 // id of the next challenge
	pending [maxChallenges]pending // by id modulo maxChallenges
}

// pending is a challenge that may be answered once.
type pending struct {
	valid     bool
	id        uint32
	expires   time.Time
	volume    string
	requester requester
	nonce     wire.TargetNonce
}

// requester is who may answer a challenge, and for which connection.
type requester struct {
	addr    netip.Addr
	session wire.SessionID
	index   uint16
}

func requesterOf(addr netip.Addr, h wire.Hello) requester {
	return requester{addr, h.Session, h.QueueIndex}
}

func newChallenges() *challenges {
	var first [4]byte
	_, _ = rand.Read(first[:]) // never fails
	return &challenges{next: binary.BigEndian.Uint32(first[:])}
}

// issue makes a challenge for a client.
func (c *challenges) issue(addr netip.Addr, h wire.Hello) *wire.Challenge {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &c.pending[c.next%maxChallenges]
	*p = pending{valid: true, id: c.next, expires: time.Now().Add(challengeTime), volume: h.Volume, requester: requesterOf(addr, h)}
	_, _ = rand.Read(p.nonce[:]) // never fails
	c.next++
	return &wire.Challenge{ID: p.id, Nonce: p.nonce}
}

// redeem returns the transcript of the challenge that a client answers, and removes the
// challenge. An answer from another client does not consume the challenge.
func (c *challenges) redeem(addr netip.Addr, h wire.Hello) (wire.Transcript, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &c.pending[h.Answer.Challenge%maxChallenges]
	if !p.valid || p.id != h.Answer.Challenge || p.requester != requesterOf(addr, h) || !time.Now().Before(p.expires) {
		return wire.Transcript{}, false
	}
	p.valid = false
	return wire.Transcript{Hello: h, Volume: p.volume, Nonce: p.nonce}, true
}
