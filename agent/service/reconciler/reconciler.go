// SPDX-License-Identifier: Apache-2.0

// Package reconciler keeps declared block sessions alive. The module does the hard part: a session
// whose target is lost connects again by itself. A keeper attaches what is not there, replaces
// what has failed if nothing is lost by that, and takes away what is no longer declared. It
// never forces a device away that is in use, and its own end changes nothing.
package reconciler

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/rs/zerolog"

	"krping/agent/service/config"
	"krping/proc"
)

// Module is what a keeper needs of the module; proc.FS is one.
type Module interface {
	Session(name string) (proc.Session, error)
	Run(ctx context.Context, c proc.Command) (proc.Outcome, error)
}

// A State says how a declared session is doing.
type State string

// States.
const (
	Attaching State = "attaching" // it is not there, and attached as soon as that succeeds
	Attached  State = "attached"  // it is there; the module connects it again if need be
	Lost      State = "lost"      // it failed and may have lost data: left as it is until it is stopped
	Replacing State = "replacing" // it failed or has other options now: stopped once its device is closed
	Removing  State = "removing"  // it is not declared any more: stopped once its device is closed
)

// States are all states.
var States = []State{Attaching, Attached, Lost, Replacing, Removing}

// Status is what a keeper has done for a session.
type Status struct {
	Name     string
	State    State
	Attached uint64 // times
	Failures uint64 // of attaching or stopping it
}

// Keeper keeps sessions.
type Keeper struct {
	module  Module
	log     zerolog.Logger
	running sync.WaitGroup

	mu   sync.Mutex // protects what follows, and what a session says it does
	kept map[string]*session
}

// New returns a keeper of no session.
func New(module Module, log zerolog.Logger) *Keeper {
	return &Keeper{module: module, log: log, kept: map[string]*session{}}
}

// Declare says which sessions there are to be, from now until ctx ends. Those that were
// declared before and are not any more are stopped; others are not known to it.
func (k *Keeper) Declare(ctx context.Context, sessions []config.Session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	declared := map[string]bool{}
	for _, want := range sessions {
		declared[want.Name()] = true
		s := k.kept[want.Name()]
		if s == nil {
			s = newSession(k, want)
			k.kept[want.Name()] = s
			k.running.Go(func() { s.run(ctx) })
			continue
		}
		s.declare(want, false)
	}
	for name, s := range k.kept {
		if !declared[name] {
			s.declare(s.want, true)
		}
	}
}

// Wait returns when the ctx of Declare has ended and no command is under way.
func (k *Keeper) Wait() { k.running.Wait() }

// Status returns what became of the declared sessions, in no order.
func (k *Keeper) Status() []Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := make([]Status, 0, len(k.kept))
	for _, s := range k.kept {
		all = append(all, s.status)
	}
	return all
}

// loses says whether a failed session may have lost what it had answered, or would lose what
// its local backing still serves, if it were attached anew. A write-through target has each
// answered write on stable storage, and the others failed before the application's eyes.
func loses(s proc.Session) bool { return s.Writeback || s.Backing != "" }

// differs names options that a session was attached with and that are not those wanted. What the
// target grants (queues, depth) and filters of a tap cannot be told.
func differs(s proc.Session, want proc.Command) []string {
	var names []string
	add := func(name string, other bool) {
		if other {
			names = append(names, name)
		}
	}
	target := netip.AddrPortFrom(want.Addr.Unmap().WithZone(""), cmp.Or(want.Port, 9999)) // the module's default
	add("addr", s.Peer != target.String())
	add("mode", s.Mode != cmp.Or(want.Mode, "remote"))
	add("timeout", want.Timeout != 0 && s.Timeout != uint64(want.Timeout.Seconds()))
	add("fast_fail", s.FastFail != uint64(want.FastFail.Seconds()))
	add("heartbeat", want.Heartbeat != nil && s.Heartbeat != uint64(*want.Heartbeat))
	return names
}

// gone says that a session is not there: it never was, or the module is not.
func gone(err error) bool {
	return errors.Is(err, proc.ErrNoSession) || errors.Is(err, proc.ErrNotLoaded)
}
