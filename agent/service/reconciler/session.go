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
	interval   = time.Second // between two looks at a session that is well
	backoffMin = time.Second
	backoffMax = 30 * time.Second
)

// session is one that is, or was, declared. Its goroutine alone calls the module for it.
type session struct {
	keeper *Keeper
	name   string
	log    zerolog.Logger
	wake   chan struct{} // what is wanted has changed

	// Under the keeper's lock.
	want      config.Session
	removed   bool
	status    Status
	interrupt context.CancelFunc // an attempt to attach

	// The goroutine's own.
	applied  string        // the command that it was attached with, as far as is known
	failed   *proc.Session // as it was when it failed, until it is well again
	delay    time.Duration
	reported string // the last trouble that was logged
}

func newSession(k *Keeper, want config.Session) *session {
	return &session{
		keeper: k, name: want.Name(), log: k.log.With().Str("session", want.Name()).Logger(), wake: make(chan struct{}, 1),
		want: want, status: Status{Name: want.Name(), State: Attaching}, interrupt: func() {},
	}
}

// declare is called with the keeper's lock held.
func (s *session) declare(want config.Session, removed bool) {
	if removed == s.removed && want.Reattach == s.want.Reattach && identity(want.Command) == identity(s.want.Command) {
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
		wait, over := s.step(ctx)
		if over {
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

// step looks at the session, does what is to be done, and says when to look again, or that
// there is nothing to keep any more.
func (s *session) step(ctx context.Context) (wait time.Duration, over bool) {
	s.keeper.mu.Lock()
	want, removed := s.want, s.removed
	s.keeper.mu.Unlock()

	is, err := s.keeper.module.Session(s.name)
	switch {
	case gone(err) && removed:
		return 0, s.forget()
	case errors.Is(err, proc.ErrNoSession):
		return s.attach(ctx, want.Command), false
	case err != nil:
		s.set(Attaching)
		return s.trouble(err), false
	case removed:
		return s.stop(ctx, Removing), false
	case is.State == "failed" && want.Reattach != config.ReattachAlways && loses(is):
		s.set(Lost)
		s.report(zerolog.ErrorLevel, string(Lost), "failed, and is left so, as data may be lost: `krpingctl stop "+s.name+"` lets it be attached anew")
		return interval, false
	case is.State == "failed":
		s.failed = &is
		return s.stop(ctx, Replacing), false
	case is.State == "connecting" || is.State == "stopping": // by somebody else's command
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
			Uint64("old_block_size", s.failed.BlockSize).Msg("the volume is not the one that it was before the session failed")
	}
	s.failed = nil
	s.well()
	return interval, false
}

// identity tells commands apart that attach a session in different ways.
func identity(c proc.Command) string { return c.String() + " " + c.KeyFile }

// adopt takes a session that was there before as one that was attached as it is declared: to
// make it so would take its device away.
func (s *session) adopt(is proc.Session, want proc.Command) {
	s.applied = identity(want)
	s.log.Info().Str("device", is.Device()).Str("state", is.State).Msg("is there already")
	if names := differs(is, want); len(names) > 0 {
		s.log.Warn().Str("options", strings.Join(names, ",")).Msg("was attached with other options than declared: `krpingctl stop " + s.name + "` lets it be attached anew")
	}
}

func (s *session) attach(ctx context.Context, c proc.Command) time.Duration {
	s.set(Attaching)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.keeper.mu.Lock()
	s.interrupt = cancel
	s.keeper.mu.Unlock()
	if _, err := s.keeper.module.Run(ctx, c); err != nil {
		if ctx.Err() != nil { // nobody wants it any more
			return 0
		}
		return s.trouble(err)
	}
	s.applied = identity(c)
	s.log.Info().Stringer("command", c).Msg("attached")
	s.count(func(status *Status) { status.Attached++ })
	s.well()
	return interval
}

// stop takes the session away if its device is not in use, and tries again later if it is.
func (s *session) stop(ctx context.Context, why State) time.Duration {
	s.set(why)
	_, err := s.keeper.module.Run(context.WithoutCancel(ctx), proc.Command{Role: proc.Stop, Block: s.name}) // it takes 2 s at most
	switch {
	case err == nil:
		s.log.Info().Str("why", string(why)).Msg("stopped")
	case !errors.Is(err, unix.ENOENT): // stopped by somebody else
		return s.trouble(err)
	}
	s.delay, s.reported, s.applied = 0, "", ""
	return 0
}

// forget ends the keeping of a session that is gone, unless it has been declared again.
func (s *session) forget() bool {
	s.keeper.mu.Lock()
	defer s.keeper.mu.Unlock()
	if s.removed {
		delete(s.keeper.kept, s.name)
	}
	return s.removed
}

func (s *session) set(state State) {
	s.count(func(status *Status) { status.State = state })
}

func (s *session) count(change func(*Status)) {
	s.keeper.mu.Lock()
	defer s.keeper.mu.Unlock()
	change(&s.status)
}

func (s *session) well() {
	s.set(Attached)
	s.delay, s.reported = 0, ""
}

// trouble reports an error and says when to try again.
func (s *session) trouble(err error) time.Duration {
	s.count(func(status *Status) { status.Failures++ })
	what := err.Error()
	var failed *proc.CommandError
	if errors.As(err, &failed) {
		what = failed.Errno.Error() // its reasons come from a log with a rate limit
	}
	s.report(zerolog.WarnLevel, what, err.Error())
	s.delay = min(max(2*s.delay, backoffMin), backoffMax)
	return s.delay/2 + rand.N(s.delay/2)
}

// report logs a text, but at debug level if the last one was about the same.
func (s *session) report(level zerolog.Level, what, text string) {
	if what == s.reported {
		level = zerolog.DebugLevel
	}
	s.reported = what
	s.log.WithLevel(level).Msg(text)
}
