// SPDX-License-Identifier: Apache-2.0

//go:build lab

package faketarget

import (
	"sync"

	"krping/bridge/wire"
)

// Misbehaviour replaces the answers to commands, until it is done.
type Misbehaviour struct {
	Op      wire.Op
	N       int  // more than Small: commands whose data is in the client's memory; else the others
	AnySize bool // all commands of Op

	// Do is called for one command at a time instead of Conn.Answer.
	Do func(c *Conn, r wire.Request) (done bool)
}

// misbehaviour is one that is under way.
type misbehaviour struct {
	Misbehaviour
	mu   sync.Mutex
	over bool
	done chan *Conn
}

// Misbehave starts a misbehaviour. It delivers the connection on which that is done.
func (g *Target) Misbehave(m Misbehaviour) <-chan *Conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.misbehaviour = &misbehaviour{Misbehaviour: m, done: make(chan *Conn, 1)}
	return g.misbehaviour.done
}

// Behave ends a misbehaviour.
func (g *Target) Behave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.misbehaviour = nil
}

// misbehave says whether a misbehaviour has taken care of the command.
func (c *Conn) misbehave(r wire.Request) bool {
	c.Target.mu.Lock()
	m := c.Target.misbehaviour
	c.Target.mu.Unlock()
	if m == nil || m.Op != r.Op || !m.AnySize && (m.N > Small) != (r.Rkey != 0) {
		return false
	}
	m.mu.Lock() // the client may have reconnected before Do returns
	defer m.mu.Unlock()
	if m.over {
		return false
	}
	if m.Do(c, r) {
		m.over = true
		m.done <- c
	}
	return true
}
