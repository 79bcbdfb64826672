// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"krping/agent/service/config"
	"krping/agent/service/volumes"
	"krping/proc"
)

const (
	interval   = time.Second // between checks of an attached session
	backoffMin = time.Second
	backoffMax = 30 * time.Second
	// Between attempts to attach: a target that is back is soon found.
	attachBackoffMax = 2 * time.Second
)

// session is a session that is or was declared. Only its goroutine calls the module for it.
type session struct {
	reconciler *Reconciler
	name       string
	log        zerolog.Logger
	wake       chan struct{} // want or removed has changed
	again      chan struct{} // the next attempt is to be made now

	// Protected by reconciler.mu.
	want      config.Session
	removed   bool // no longer declared
	status    Status
	interrupt context.CancelFunc // cancels a running attempt to attach

	// Used by the session's goroutine only.
	applied    string         // the command it was attached with, "" if unknown
	pin        string         // the UUID that was declared then
	failed     *proc.Session  // its state when it failed; nil once it is attached again
	delay      time.Duration  // before the next attempt
	reported   string         // the error logged last
	remembered volumes.Volume // the volume of the session that was looked at last
	complaints []string       // causes of failures to remember that were logged, until it succeeds
	unwanted   bool           // attached to another volume than the expected one: to be stopped
	held       bool           // no attempt to attach it before it is declared anew, or what is known was forgotten
	noted      bool           // that it was refused is in the memory of volumes
	member     member
}

func newSession(r *Reconciler, want config.Session) *session {
	return &session{
		reconciler: r, name: want.Name(), log: r.log.With().Str("session", want.Name()).Logger(), wake: make(chan struct{}, 1), again: make(chan struct{}, 1),
		want: want, status: Status{Name: want.Name(), State: Attaching}, interrupt: func() {},
	}
}

// declare sets what is wanted. The caller holds reconciler.mu.
func (s *session) declare(want config.Session, removed bool) {
	if removed == s.removed && want.Reattach == s.want.Reattach && want.Raid == s.want.Raid && identity(want.Command) == identity(s.want.Command) &&
		want.Command.UUID == s.want.Command.UUID && want.Command.TakeOver == s.want.Command.TakeOver {
		return
	}
	s.want, s.removed = want, removed
	s.interrupt()
	signal(s.wake)
}

// signal makes what waits for a channel of one element go on.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (s *session) run(ctx context.Context) {
	for ctx.Err() == nil {
		wait, done := s.step(ctx)
		if done {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
			s.delay, s.held = 0, false
		case <-s.again:
			s.delay = 0
		case <-time.After(wait):
		}
	}
}

// step compares the session with what is wanted and takes one action. It returns how long to wait
// before the next step, or done if the session is removed.
func (s *session) step(ctx context.Context) (wait time.Duration, done bool) {
	s.reconciler.mu.Lock()
	want, removed := s.want, s.removed
	s.reconciler.mu.Unlock()

	is, err := s.reconciler.module.Session(s.name)
	switch {
	case gone(err) && removed:
		return 0, s.forget()
	case errors.Is(err, proc.ErrNoSession):
		s.unwanted = false
		return s.attach(ctx, want), false
	case err != nil:
		s.set(Attaching)
		return s.retry(err, false), false
	case removed:
		return s.stop(ctx, Removing), false
	case s.unwanted:
		return s.stop(ctx, Refused), false
	case is.State == "failed" && want.Reattach != config.ReattachAlways && loses(is):
		s.failed = &is
		s.set(Lost)
		s.report(zerolog.ErrorLevel, string(Lost), lostText(s.name, is))
		return interval, false
	case is.State == "failed":
		s.failed = &is
		s.releaseDisk(ctx, want.Raid, is)
		return s.stop(ctx, Replacing), false
	case is.State == "connecting" || is.State == "stopping": // by another process's command
		s.set(Attaching)
		return interval, false
	}
	if s.applied == "" {
		s.adopt(is, want.Command)
	}
	pin := want.Command.UUID
	if s.applied != identity(want.Command) || pin != s.pin && pin != "" && !strings.EqualFold(pin, is.UUID) {
		return s.stop(ctx, Replacing), false
	}
	s.pin, s.failed = pin, nil
	s.update(func(status *Status) { status.Connection = is.State })
	s.attached()
	s.remember(want, is)
	s.keepInArray(ctx, want.Raid, is)
	return interval, false
}

func lostText(name string, is proc.Session) string {
	what := "data may be lost"
	if is.Volatile {
		what = "its target keeps the volume in memory only: all data may be lost"
	}
	return "failed, and " + what + ": not attached again until `krpingctl stop " + name + "`"
}

// identity returns a string that is equal for commands that make the same session of the same volume.
func identity(c proc.Command) string {
	c.UUID, c.TakeOver = "", false
	return c.String() + " " + c.KeyFile
}

// adopt accepts an existing session as the declared one, even if its options differ: to replace it
// would remove its device.
func (s *session) adopt(is proc.Session, want proc.Command) {
	s.applied, s.pin = identity(want), want.UUID
	s.log.Info().Str("device", is.Device()).Str("state", is.State).Msg("already attached")
	if names := differs(is, want); len(names) > 0 {
		s.log.Warn().Str("options", strings.Join(names, ",")).Msg("attached with options other than declared: to apply the declared ones, run `krpingctl stop " + s.name + "`")
	}
}

func (s *session) attach(ctx context.Context, want config.Session) time.Duration {
	if s.held && !s.forgotten() {
		return interval
	}
	s.held = false
	if f := s.failed; f != nil && f.Volatile && want.Reattach != config.ReattachAlways {
		// It was stopped by an operator, who knows that the data is gone.
		if _, err := s.reconciler.known.Forget(s.name); err != nil {
			s.complain(err)
		}
		s.failed = nil
	}
	s.attaching()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.reconciler.mu.Lock()
	s.interrupt = cancel
	s.reconciler.mu.Unlock()
	expected, err := s.expected(want)
	if err != nil {
		s.unknown(err)
		return interval
	}
	c := s.attachCommand(want, expected)
	if _, err := s.reconciler.module.Run(ctx, c); err != nil {
		if ctx.Err() != nil { // the declaration changed, or the agent ends
			return 0
		}
		wait := s.retry(err, isRefusal(c, err))
		switch {
		case isRefusal(c, err):
			s.refuse(want, expected, reason(err))
		case errors.Is(err, unix.EBUSY):
			s.set(Busy)
		default:
			s.set(Attaching)
		}
		return wait
	}
	is, err := s.reconciler.module.Session(s.name)
	if why := other(expected, is); err == nil && want.Reattach != config.ReattachAlways && why != "" {
		s.refuse(want, expected, why)
		s.unwanted, s.held = true, true
		return 0
	}
	s.applied, s.pin, s.member.lost, s.remembered = identity(want.Command), want.Command.UUID, true, volumes.Volume{}
	if err == nil {
		s.remember(want, is) // at once: the host may fail the next moment
	}
	s.log.Info().Stringer("command", c).Msg("attached")
	s.update(func(status *Status) { status.Attached, status.Connection = status.Attached+1, cmp.Or(is.State, "live") })
	s.attached()
	return interval
}

// forgotten reports whether an operator has the session's volume forgotten since another one was refused.
func (s *session) forgotten() bool {
	v, err := s.reconciler.known.Get(s.name)
	return s.noted && err == nil && v.Refused == ""
}

// attaching sets the state before an attempt, unless the last one has set a more exact one.
func (s *session) attaching() {
	s.update(func(status *Status) {
		if status.State != Refused && status.State != Busy {
			status.State, status.Member = Attaching, ""
		}
	})
}

// stop stops the session. If its device is in use that fails, and is tried again later.
func (s *session) stop(ctx context.Context, why State) time.Duration {
	s.set(why)
	_, err := s.reconciler.module.Run(context.WithoutCancel(ctx), proc.Command{Role: proc.Stop, Block: s.name}) // takes at most 2 s
	switch {
	case err == nil:
		s.log.Info().Str("why", string(why)).Msg("stopped")
	case !errors.Is(err, unix.ENOENT): // with ENOENT, another process stopped it
		return s.retry(err, false)
	}
	s.unwanted = false
	s.applied, s.pin = "", ""
	if why != Refused {
		s.delay, s.reported = 0, ""
	}
	return 0
}

// forget removes a stopped session from the reconciler, unless it has been declared again.
func (s *session) forget() bool {
	s.reconciler.mu.Lock()
	defer s.reconciler.mu.Unlock()
	if s.removed {
		delete(s.reconciler.sessions, s.name)
		if err := s.reconciler.known.Refuse(s.name, ""); err != nil {
			s.complain(err)
		}
	}
	return s.removed
}

func (s *session) set(state State) {
	s.update(func(status *Status) {
		if status.State = state; state != Attached {
			status.Member = ""
		} else {
			status.Reason = ""
		}
	})
}

func (s *session) update(change func(*Status)) {
	s.reconciler.mu.Lock()
	defer s.reconciler.mu.Unlock()
	change(&s.status)
}

func (s *session) attached() {
	s.set(Attached)
	s.delay, s.reported = 0, ""
}

// retry reports an error, unless the caller does, and returns the time until the next attempt.
func (s *session) retry(err error, reported bool) time.Duration {
	s.update(func(status *Status) { status.Failures++ })
	what := err.Error()
	var failed *proc.CommandError
	if errors.As(err, &failed) {
		what = failed.Errno.Error() // the reasons vary: they come from a rate-limited log
	}
	if !reported {
		s.report(zerolog.WarnLevel, what, err.Error())
	}
	s.delay = min(max(2*s.delay, backoffMin), attachBackoffMax)
	return s.delay/2 + rand.N(s.delay/2)
}

// report logs a text, at debug level if the last report was about the same thing.
func (s *session) report(level zerolog.Level, what, text string) {
	if what == s.reported {
		level = zerolog.DebugLevel
	}
	s.reported = what
	s.update(func(status *Status) { status.Reason = text })
	s.log.WithLevel(level).Msg(text)
}
