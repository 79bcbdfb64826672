// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/rs/zerolog"

	"krping/agent/service/raid"
	"krping/proc"
)

// Arrays is what a session needs of md arrays; raid.MD is one.
type Arrays interface {
	State(array, disk string) (raid.State, error)
	Fail(ctx context.Context, array, disk string) error
	Remove(ctx context.Context, array, disk string) error
	ReAdd(ctx context.Context, array, disk string) error
}

// settled is how long a disk must be in its array, and its target connected, until a failure of the
// disk no longer counts as a consequence of the last loss of the target.
const settled = 30 * time.Second

// member puts the disk of a session back into an md array after the target was lost. A disk that
// failed or was removed while its target was connected is left alone: it would fail again, or an
// operator wants it out. Only the session's goroutine uses it.
type member struct {
	array string // the declared one
	state raid.State
	life  life
	lost  bool      // the target was lost, and the disk has not settled since
	since time.Time // when the disk was first seen in the array since the loss; zero: not yet
	next  time.Time // no attempt to put it back before this
	delay time.Duration
	said  string // the last report
}

// life changes when a session loses its target, or is attached anew.
type life struct {
	id         int
	reconnects uint64
}

// keepInArray looks after the disk of a session that has not failed.
func (s *session) keepInArray(ctx context.Context, array string, is proc.Session) {
	m := &s.member
	if array != m.array {
		*m = member{array: array, lost: true} // it may have been lost before
	}
	if array == "" {
		s.setMember("")
		return
	}
	if now := (life{is.ID, is.Reconnects}); now != m.life || is.State != "live" {
		m.life, m.lost, m.since = now, true, time.Time{}
	}
	state, err := s.reconciler.arrays.State(array, is.Device())
	if err != nil {
		s.setMember("")
		s.reportMember(zerolog.WarnLevel, err.Error())
		return
	}
	s.memberIs(state, is.Device())
	if is.State != "live" {
		return
	}
	switch state {
	case raid.InSync, raid.Recovering:
		m.delay, m.said = 0, ""
		if m.since.IsZero() {
			m.since = time.Now()
		}
		if time.Since(m.since) >= settled {
			m.lost = false
		}
	case raid.Failed, raid.Missing:
		m.since = time.Time{}
		s.putBack(ctx, is)
	}
}

// putBack has md take the disk again, unless that would be wrong.
func (s *session) putBack(ctx context.Context, is proc.Session) {
	m, disk := &s.member, is.Device()
	switch {
	case !m.lost:
		s.reportMember(zerolog.WarnLevel, fmt.Sprintf("not put back: the disk failed or was removed while its target was connected; "+
			"to put it back, run mdadm --manage %s --re-add %s", m.array, disk))
		return
	case is.Writeback:
		s.reportMember(zerolog.ErrorLevel, fmt.Sprintf("not put back: the volume is writeback, and the array's bitmap does not know what the target may have lost; "+
			"for a full copy, run mdadm --zero-superblock %s and mdadm --manage %s --add --write-mostly %[1]s", disk, m.array))
		return
	case time.Now().Before(m.next):
		return
	}
	var err error
	if m.state == raid.Failed {
		err = s.reconciler.arrays.Remove(ctx, m.array, disk)
	}
	if err == nil {
		err = s.reconciler.arrays.ReAdd(ctx, m.array, disk)
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		s.update(func(status *Status) { status.ReAddFailures++ })
		s.reportMember(zerolog.WarnLevel, "cannot be put back: "+err.Error())
		m.delay = min(max(2*m.delay, backoffMin), backoffMax)
		m.next = time.Now().Add(m.delay/2 + rand.N(m.delay/2))
		return
	}
	m.lost, m.delay, m.said = false, 0, ""
	s.update(func(status *Status) { status.ReAdded++ })
	s.log.Info().Str("array", m.array).Str("disk", disk).Msg("put back into the array: md copies what changed meanwhile")
}

// releaseDisk takes the disk of a failed session out of its array, which would keep it open.
func (s *session) releaseDisk(ctx context.Context, array string, is proc.Session) {
	if array == "" {
		return
	}
	arrays, disk := s.reconciler.arrays, is.Device()
	state, err := arrays.State(array, disk)
	if err == nil && (state == raid.InSync || state == raid.Recovering) {
		err = arrays.Fail(ctx, array, disk)
		state = raid.Failed
	}
	if err == nil && (state == raid.Failed || state == raid.Spare) {
		err = arrays.Remove(ctx, array, disk)
	}
	if err != nil {
		s.reportMember(zerolog.WarnLevel, "cannot be taken out of the array: "+err.Error())
	}
}

// memberIs notes how the array uses the disk now, and logs a change.
func (s *session) memberIs(state raid.State, disk string) {
	before := s.member.state
	s.member.state = state
	s.setMember(state)
	if state == before {
		return
	}
	event := s.log.Info()
	if state == raid.Failed || state == raid.Missing {
		event = s.log.Warn()
	}
	event.Str("array", s.member.array).Str("disk", disk).Str("member", string(state)).Msg("disk in its array")
}

func (s *session) setMember(state raid.State) {
	s.update(func(status *Status) { status.Array, status.Member = s.member.array, state })
}

// reportMember logs a text, but not twice in a row.
func (s *session) reportMember(level zerolog.Level, text string) {
	if text == s.member.said {
		return
	}
	s.member.said = text
	s.log.WithLevel(level).Str("array", s.member.array).Msg(text)
}
