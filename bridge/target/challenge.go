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
	maxChallenges = 256              // that wait for answers at a time
	challengeTime = 30 * time.Second // that one may wait
)

// challenges wait for their answers, in a table of fixed size, so that a flood of clients takes
// no memory. When it is full, the oldest is forgotten.
type challenges struct {
	now func() time.Time

	mu      sync.Mutex
	next    uint32                 // takes the place of the oldest
	pending [maxChallenges]pending // by id modulo their number
}

// pending is a challenge, and whom it was given to.
type pending struct {
	waits   bool
	id      uint32
	expires time.Time
	volume  string
	asked   asked
	nonce   wire.TargetNonce
}

// asked is what an answer has to be from, and for.
type asked struct {
	addr    netip.Addr
	session wire.SessionID
	index   uint16
}

func askedBy(addr netip.Addr, h wire.Hello) asked { return asked{addr, h.Session, h.QueueIndex} }

func newChallenges() *challenges {
	var first [4]byte
	_, _ = rand.Read(first[:]) // never fails
	return &challenges{now: time.Now, next: binary.BigEndian.Uint32(first[:])}
}

// give makes a challenge for a client.
func (c *challenges) give(addr netip.Addr, h wire.Hello) *wire.Challenge {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &c.pending[c.next%maxChallenges]
	*p = pending{waits: true, id: c.next, expires: c.now().Add(challengeTime), volume: h.Volume, asked: askedBy(addr, h)}
	_, _ = rand.Read(p.nonce[:])
	c.next++
	return &wire.Challenge{ID: p.id, Nonce: p.nonce}
}

// take returns what the challenge was that a client answers, for this once. An answer of
// somebody else, wrong as it is, leaves the challenge to the one who got it.
func (c *challenges) take(addr netip.Addr, h wire.Hello) (wire.Transcript, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &c.pending[h.Answer.Challenge%maxChallenges]
	if !p.waits || p.id != h.Answer.Challenge || p.asked != askedBy(addr, h) || !c.now().Before(p.expires) {
		return wire.Transcript{}, false
	}
	p.waits = false
	return wire.Transcript{Hello: h, Volume: p.volume, Nonce: p.nonce}, true
}
