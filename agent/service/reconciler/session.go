// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"krping/agent/service/config"
	"krping/proc"
)

const (
	interval   = time.Second // between checks of an attached session
	backoffMin = time.Second
	backoffMax = 30 * time.Second
)

// session is a session that is or was declared. Only its goroutine calls the module for it.
type session struct {
	reconciler *Reconciler
	name       string
	log        zerolog.Logger
	wake       chan struct{} // want or removed has changed

	// Protected by reconciler.mu.
	want      config.Session
	removed   bool // no longer declared
	status    Status
	interrupt context.CancelFunc // cancels a running attempt to attach

	// Used by the session's goroutine only.
	applied  string        // the command it was attached with, "" if unknown
	failed   *proc.Session // its state when it failed; nil once it is attached again
	delay    time.Duration // before the next attempt
	reported string        // the error logged last
	member   member
}

func newSession(r *Reconciler, want config.Session) *session {
	return &session{
		reconciler: r, name: want.Name(), log: r.log.With().Str("session", want.Name()).Logger(), wake: make(chan struct{}, 1),
		want: want, status: Status{Name: want.Name(), State: Attaching}, interrupt: func() {},
	}
}

// declare sets what is wanted. The caller holds reconciler.mu.
func (s *session) declare(want config.Session, removed bool) {
	if removed == s.removed && want.Reattach == s.want.Reattach && want.Raid == s.want.Raid && identity(want.Command) == identity(s.want.Command) {
		return
	}
	s.want, s.removed = want, removed
	s.interrupt()
	select {
	case s.wake <- struct{}{}:
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
		return s.attach(ctx, want.Command), false
	case err != nil:
		s.set(Attaching)
		return s.retry(err), false
	case removed:
		return s.stop(ctx, Removing), false
	case is.State == "failed" && want.Reattach != config.ReattachAlways && loses(is):
		s.set(Lost)
		s.report(zerolog.ErrorLevel, string(Lost), "failed, and data may be lost: not attached again until `krpingctl stop "+s.name+"`")
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
	if s.applied != identity(want.Command) {
		return s.stop(ctx, Replacing), false
	}
	if s.failed != nil && (s.failed.Size != is.Size || s.failed.BlockSize != is.BlockSize) {
		s.log.Warn().Uint64("size", is.Size).Uint64("block_size", is.BlockSize).Uint64("old_size", s.failed.Size).
			Uint64("old_block_size", s.failed.BlockSize).Msg("the volume's size changed since the session failed: it may be another volume")
	}
	s.failed = nil
	s.attached()
	s.keepInArray(ctx, want.Raid, is)
	return interval, false
}

// identity returns a string that is equal for commands that attach a session in the same way.
func identity(c proc.Command) string { return c.String() + " " + c.KeyFile }

// adopt accepts an existing session as the declared one, even if its options differ: to replace it
// would remove its device.
func (s *session) adopt(is proc.Session, want proc.Command) {
	s.applied = identity(want)
	s.log.Info().Str("device", is.Device()).Str("state", is.State).Msg("already attached")
	if names := differs(is, want); len(names) > 0 {
		s.log.Warn().Str("options", strings.Join(names, ",")).Msg("attached with options other than declared: to apply the declared ones, run `krpingctl stop " + s.name + "`")
	}
}

func (s *session) attach(ctx context.Context, c proc.Command) time.Duration {
	s.set(Attaching)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.reconciler.mu.Lock()
	s.interrupt = cancel
	s.reconciler.mu.Unlock()
	if _, err := s.reconciler.module.Run(ctx, c); err != nil {
		if ctx.Err() != nil { // the declaration changed, or the agent ends
			return 0
		}
		return s.retry(err)
	}
	s.applied, s.member.lost = identity(c), true
	s.log.Info().Stringer("command", c).Msg("attached")
	s.update(func(status *Status) { status.Attached++ })
	s.attached()
	return interval
}

// stop stops the session. If its device is in use that fails, and is tried again later.
func (s *session) stop(ctx context.Context, why State) time.Duration {
	s.set(why)
	_, err := s.reconciler.module.Run(context.WithoutCancel(ctx), proc.Command{Role: proc.Stop, Block: s.name}) // takes at most 2 s
	switch {
	case err == nil:
		s.log.Info().Str("why", string(why)).Msg("stopped")
	case !errors.Is(err, unix.ENOENT): // with ENOENT, another process stopped it
		return s.retry(err)
	}
	s.delay, s.reported, s.applied = 0, "", ""
	return 0
}

// forget removes a stopped session from the reconciler, unless it has been declared again.
func (s *session) forget() bool {
	s.reconciler.mu.Lock()
	defer s.reconciler.mu.Unlock()
	if s.removed {
		delete(s.reconciler.sessions, s.name)
	}
	return s.removed
}

func (s *session) set(state State) {
	s.update(func(status *Status) {
		if status.State = state; state != Attached {
			status.Member = ""
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

// retry reports an error and returns the time until the next attempt.
func (s *session) retry(err error) time.Duration {
	s.update(func(status *Status) { status.Failures++ })
	what := err.Error()
	var failed *proc.CommandError
	if errors.As(err, &failed) {
		what = failed.Errno.Error() // the reasons vary: they come from a rate-limited log
	}
	s.report(zerolog.WarnLevel, what, err.Error())
	s.delay = min(max(2*s.delay, backoffMin), backoffMax)
	return s.delay/2 + rand.N(s.delay/2)
}

// report logs a text, at debug level if the last report was about the same thing.
func (s *session) report(level zerolog.Level, what, text string) {
	if what == s.reported {
		level = zerolog.DebugLevel
	}
	s.reported = what
	s.log.WithLevel(level).Msg(text)
}
