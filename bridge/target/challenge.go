// SPDX-License-Identifier: Apache-2.0

package target

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"time"

	"krping/bridge/wire"
)

const (
	maxChallenges     = 1024             // pending at a time
	maxPeerChallenges = MaxQueues        // of one address
	challengeTime     = 30 * time.Second // to answer a challenge
)

// challenges has the pending challenges, oldest first. Their number is limited, so a flood of clients
// takes no memory, and that of each address is, so one address does not replace the challenges of
// others.
type challenges struct {
	mu      sync.Mutex
	next    uint32 // id of the next challenge
	pending []pending
}

// pending is a challenge that may be answered once.
type pending struct {
	id        uint32
	expires   time.Time
	volume    wire.VolumeID
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
	c.makeRoom(addr)
	p := pending{id: c.next, expires: time.Now().Add(challengeTime), volume: h.Volume, requester: requesterOf(addr, h)}
	_, _ = rand.Read(p.nonce[:]) // never fails
	c.next++
	c.pending = append(c.pending, p)
	return &wire.Challenge{ID: p.id, Nonce: p.nonce}
}

// makeRoom removes expired challenges, and if there are still too many, the oldest one of the address, or
// of the address that has most.
func (c *challenges) makeRoom(addr netip.Addr) {
	now := time.Now()
	c.pending = slices.DeleteFunc(c.pending, func(p pending) bool { return !now.Before(p.expires) })
	count := map[netip.Addr]int{}
	most := addr
	for _, p := range c.pending {
		peer := p.requester.addr
		if count[peer]++; count[peer] > count[most] {
			most = peer
		}
	}
	switch {
	case count[addr] >= maxPeerChallenges:
		c.removeOldest(addr)
	case len(c.pending) >= maxChallenges:
		c.removeOldest(most)
	}
}

func (c *challenges) removeOldest(addr netip.Addr) {
	if i := slices.IndexFunc(c.pending, func(p pending) bool { return p.requester.addr == addr }); i >= 0 {
		c.pending = slices.Delete(c.pending, i, i+1)
	}
}

// redeem returns the transcript of the challenge that a client answers, and removes the
// challenge. An answer from another client does not consume the challenge.
func (c *challenges) redeem(addr netip.Addr, h wire.Hello) (wire.Transcript, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.pending, func(p pending) bool { return p.id == h.Answer.Challenge })
	if i < 0 {
		return wire.Transcript{}, false
	}
	p := c.pending[i]
	if p.requester != requesterOf(addr, h) || !time.Now().Before(p.expires) {
		return wire.Transcript{}, false
	}
	c.pending = slices.Delete(c.pending, i, i+1)
	return wire.Transcript{Hello: h, Volume: p.volume, Nonce: p.nonce}, true
}
