// SPDX-License-Identifier: Apache-2.0

package target

import (
	"fmt"
	"net/netip"
	"time"

	"krping/bridge/wire"
)

// connKey identifies a connection. Sessions of different volumes never meet, even with the same UUID.
type connKey struct {
	volume  string
	session wire.SessionID
	index   uint16
}

// peerKey identifies the connections of one address to a volume.
type peerKey struct {
	volume string
	addr   netip.Addr
}

// enter counts a new connection, makes its session the writer if it writes, and waits until no operation
// of the store runs that must not run beside it. If it returns nil, Leave undoes it.
func (t *Target) enter(s *Session) error {
	before, err := t.reserve(s)
	if err != nil {
		return err
	}
	for _, c := range before {
		c.log.Info().Msg("closing this connection before a new one is admitted")
		c.operations.stop()
		go c.transport.Close() // may wait for the peer
		<-c.operations.done
		t.remove(c)
	}
	if s.writes && !s.volume.ReadOnly {
		err = t.keepWriter(s.volume, t.isNew(s))
	}
	if err != nil {
		t.Leave(s)
	}
	return err
}

// reserve counts a new connection and returns the connections to wait for: the old one of the same
// queue, and for a client that writes, each that may have written and has ended or lost the volume. A
// client that was restarted has a new session, and writes of its old one must not reach the store later.
func (t *Target) reserve(s *Session) (before []*conn, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, &wire.Reject{Reason: wire.RejectResources, Detail: "the target is shutting down"}
	}
	if err := t.checkPlaces(s); err != nil {
		return nil, err
	}
	v := s.volume
	if s.writes && !v.Shared && !v.writer.enter(s, time.Now()) {
		return nil, v.writer.refusal(v)
	}
	t.places[v.Name]++
	t.peers[s.peerKey()]++
	for key, c := range t.conns {
		lost := s.number > 0 && c.session.hello.Session != s.hello.Session
		if c.session.volume == v && (key == s.key() || s.writes && c.session.writes && (lost || c.hasEnded())) {
			before = append(before, c)
		}
	}
	return before, nil
}

// checkPlaces checks the limits of connections. A replacement needs no free place, but the number of
// those that wait is limited, too.
func (t *Target) checkPlaces(s *Session) error {
	limit := func(taken, most int) bool {
		return taken >= 2*most || t.conns[s.key()] == nil && taken >= most
	}
	taken, ofPeer := t.places[s.volume.Name], t.peers[s.peerKey()]
	switch {
	case limit(taken, MaxConnections):
		return &wire.Reject{Reason: wire.RejectBusy, Value: MaxConnections, Detail: fmt.Sprintf("volume %s has %d connections already", s.volume.Name, taken)}
	case limit(ofPeer, MaxPeerConnections):
		return &wire.Reject{Reason: wire.RejectBusy, Value: MaxPeerConnections, Detail: fmt.Sprintf("volume %s has %d connections of this address already", s.volume.Name, ofPeer)}
	}
	return nil
}

// Leave is the end of an admitted session. The caller has released the connection's resources before,
// which may take some time.
func (t *Target) Leave(s *Session) {
	t.left(s)
	if s.writes && !s.volume.ReadOnly && !t.wasServed(s) {
		_ = t.keepWriter(s.volume, false) // it may be the one before again; a failure is logged
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.places[s.volume.Name]--
	if t.peers[s.peerKey()]--; t.peers[s.peerKey()] == 0 {
		delete(t.peers, s.peerKey())
	}
}

func (t *Target) wasServed(s *Session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.served
}

// isNew reports whether a connection is the only one of a writer that has sent nothing yet.
func (t *Target) isNew(s *Session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := &s.volume.writer
	return s.number != 0 && w.before != nil && len(w.members) == 1
}

// begin says that the first command of a session's connection has arrived. It fails if the session has lost the volume,
// as its connection has ended, and if the store cannot keep it as the writer: then it is none.
func (t *Target) begin(s *Session) error {
	if t.mayWrite(s) && s.number != 0 {
		if err := t.keepBeginner(s); err != nil {
			return err
		}
	}
	if !t.serves(s) {
		_ = t.keepWriter(s.volume, false) // the one that has replaced it; a failure is logged
		return errLostVolume
	}
	return nil
}

// mayWrite reports whether a session still has the volume.
func (t *Target) mayWrite(s *Session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return s.volume.writer.has(s)
}

// serves is mayWrite, and if so, the session's client knows its number from here on.
func (t *Target) serves(s *Session) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !s.volume.writer.has(s) {
		return false
	}
	s.served = true
	s.volume.writer.serves(s)
	return true
}

// left says that a session's connection will write nothing more.
func (t *Target) left(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.volume.writer.leave(s, time.Now())
}

// bye says that a session gives up the volume.
func (t *Target) bye(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.volume.writer.giveUp(s)
}

// add refuses a connection whose key is in use: two were admitted at the same time, and a client
// has only one. It also refuses one that has ended, for which later clients did not wait, and one that
// has lost the volume since it was admitted.
func (t *Target) add(c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := c.session
	if t.closed || !s.volume.writer.has(s) || t.conns[s.key()] != nil || c.transport.Ended() {
		return false
	}
	t.conns[s.key()] = c
	s.conn = c
	return true
}

func (t *Target) remove(c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if key := c.session.key(); t.conns[key] == c {
		delete(t.conns, key)
	}
}
