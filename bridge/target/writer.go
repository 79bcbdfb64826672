// SPDX-License-Identifier: Apache-2.0

package target

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"time"

	"krping/bridge/wire"
)

// holdTime is how long a writer that has lost its last connection keeps the volume.
const holdTime = 30 * time.Second

// writer is the session that may write to a volume, or was the last that might. Only connections of it
// write. Target.mu protects it. A volume that is shared or read-only has none.
type writer struct {
	session wire.SessionID
	number  uint32 // among the writers of this epoch, from 1; 0 if there was none
	last    uint32 // the highest number of a session of which a command has arrived
	addr    netip.Addr
	bye     bool                  // it has given up the volume
	members map[*Session]struct{} // its connections, from Admit until they have ended
	until   time.Time             // without connections, it keeps the volume until then
	before  *writer               // whom it has replaced, until a command of it has arrived
}

// writerBefore returns the writer of the epoch before, which the store has kept. It does not keep the
// volume any longer, but it alone may continue as if nobody had written since.
func writerBefore(session wire.SessionID) writer {
	if (session == wire.SessionID{}) {
		return writer{}
	}
	return writer{session: session, number: 1, last: 1}
}

// nobody returns the ID of no session. As the last writer, it keeps any session from continuing.
func nobody() wire.SessionID {
	var id wire.SessionID
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// enter makes a session the writer, or adds a connection to it. It returns false if another session is
// the writer. One that is replaced may still have connections: the caller fences them.
func (w *writer) enter(s *Session, now time.Time) bool {
	switch {
	case w.number > 0 && w.session == s.hello.Session:
		w.bye, w.addr = false, s.peer
	case w.isFree(s.peer, now) || s.hello.Flags&wire.HelloTakeOver != 0:
		w.replace(s, now)
	default:
		return false
	}
	if w.members == nil {
		w.members = map[*Session]struct{}{}
	}
	w.members[s] = struct{}{}
	s.number = w.number
	return true
}

// replace makes a session the writer.
func (w *writer) replace(s *Session, now time.Time) {
	before := *w
	if w.before != nil { // the one that is replaced has never written
		before = *w.before
	}
	if len(before.members) > 0 { // the caller fences them
		before.members, before.until = nil, now.Add(holdTime)
	}
	*w = writer{session: s.hello.Session, number: before.last + 1, last: before.last, addr: s.peer, before: &before}
}

// isFree reports whether a client from an address may become the writer. One from the writer's address
// may: a host has one session of a volume, so it was restarted.
func (w *writer) isFree(peer netip.Addr, now time.Time) bool {
	if w.bye || peer == w.addr {
		return true
	}
	for s := range w.members {
		if s.hasEnded() { // a connection whose peer hangs may not leave for long, or ever
			w.leave(s, now)
		}
	}
	return len(w.members) == 0 && !now.Before(w.until)
}

// serves says that a command of a session has arrived.
func (w *writer) serves(s *Session) {
	if w.isOf(s) {
		w.before, w.last = nil, w.number
	}
}

// leave removes a connection. One that was never served keeps the volume for nobody, and the writer
// before is the last one again.
func (w *writer) leave(s *Session, now time.Time) {
	if _, found := w.members[s]; !found {
		return
	}
	delete(w.members, s)
	switch {
	case s.served:
		w.until = now.Add(holdTime)
	case w.before != nil && len(w.members) == 0:
		*w = *w.before
	}
}

// giveUp is the writer's word that it stops.
func (w *writer) giveUp(s *Session) {
	if w.isOf(s) {
		w.bye = true
	}
}

// refusal tells a client who the writer is.
func (w *writer) refusal(v *Volume) error {
	return &wire.InUse{Holder: w.addr, UUID: v.uuid, Detail: fmt.Sprintf("volume %s is in use by a client at %s", v.Name, w.addr)}
}

// has reports whether no other session has replaced s as the writer. One that does not write is never replaced.
func (w *writer) has(s *Session) bool { return s.number == 0 || w.isOf(s) }

// isOf reports whether s is the writer's. A number does not tell: one that was never served leaves it to the next.
func (w *writer) isOf(s *Session) bool {
	return s.number > 0 && w.number > 0 && w.session == s.hello.Session
}

// kept returns the session that the store is to keep: until a command of the writer has arrived, the one before, which
// may still go on. If the target ended before the writer's client knew its number, that client could not tell that
// somebody else has written.
func (w *writer) kept() wire.SessionID {
	if w.before != nil {
		return w.before.session
	}
	return w.session
}

// keepWriter keeps the writer with the store. If it is kept already, the store is only written to as a test: a new writer
// learns at once that it could not be kept.
func (t *Target) keepWriter(v *Volume, test bool) error {
	v.saving.Lock()
	defer v.saving.Unlock()
	t.mu.Lock()
	session := v.writer.kept()
	t.mu.Unlock()
	if session == v.saved && !test {
		return nil
	}
	return t.save(v, session)
}

// keepBeginner keeps a session whose first command has arrived, before it is executed.
func (t *Target) keepBeginner(s *Session) error {
	v := s.volume
	v.saving.Lock()
	defer v.saving.Unlock()
	if s.hello.Session == v.saved {
		return nil
	}
	return t.save(v, s.hello.Session)
}

// save writes a session to the store. v.saving is locked.
func (t *Target) save(v *Volume, session wire.SessionID) error {
	if err := v.Store.SaveWriter(session); err != nil {
		t.log.Error().Err(err).Str("volume", v.Name).Msg("cannot keep the writer with the store")
		return &wire.Reject{Reason: wire.RejectResources, Detail: fmt.Sprintf("volume %s: cannot keep the writer with the store", v.Name)}
	}
	v.saved = session
	return nil
}
