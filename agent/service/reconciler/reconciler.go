// SPDX-License-Identifier: Apache-2.0

// Package reconciler makes a host's block sessions match the declared ones. The module itself
// reconnects a session whose target is lost. The reconciler attaches sessions that are missing,
// replaces failed ones if no data can be lost by that, and stops those no longer declared. It
// never removes a device that is in use, and leaves all sessions as they are when it ends.
package reconciler

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"krping/agent/service/config"
	"krping/agent/service/raid"
	"krping/proc"
)

// Module is the part of the kernel module that a Reconciler uses; proc.FS implements it.
type Module interface {
	Session(name string) (proc.Session, error)
	Run(ctx context.Context, c proc.Command) (proc.Outcome, error)
}

// State is the state of a declared session.
type State string

// States.
const (
	Attaching State = "attaching" // not attached; tried until it succeeds
	Refused   State = "refused"   // the target has another volume than the expected one; tried until it has that
	Busy      State = "busy"      // another client writes to the volume; tried until it does not
	Attached  State = "attached"  // attached; the module reconnects it when needed
	Lost      State = "lost"      // failed, and data may be lost: left alone until it is stopped
	Replacing State = "replacing" // failed, or its options changed: stopped once its device is closed
	Removing  State = "removing"  // no longer declared: stopped once its device is closed
)

// States lists all states.
var States = []State{Attaching, Refused, Busy, Attached, Lost, Replacing, Removing}

// Status is the state of a declared session, and counts since it was declared.
type Status struct {
	Name   string
	State  State
	Reason string // why it is in this state, "" if it is attached
	// If it is attached, the module's state of it: live, or reconnecting.
	Connection string
	Attached   uint64 // times that it was attached
	Failures   uint64 // failed attempts to attach or stop it

	// If the session's disk is declared to be in an md array.
	Array         string     // path of the array, "" if none is declared
	Member        raid.State // how the array uses the disk, "" if unknown
	ReAdded       uint64     // times that the disk was put back
	ReAddFailures uint64     // failed attempts to put it back
}

// Reconciler attaches and stops sessions as declared.
type Reconciler struct {
	module  Module
	arrays  Arrays
	known   Known
	log     zerolog.Logger
	running sync.WaitGroup

	mu       sync.Mutex // protects sessions, and the fields of session that say so
	sessions map[string]*session
}

// New returns a Reconciler without sessions.
func New(module Module, arrays Arrays, known Known, log zerolog.Logger) *Reconciler {
	return &Reconciler{module: module, arrays: arrays, known: known, log: log, sessions: map[string]*session{}}
}

// Declare sets the sessions to maintain until ctx ends. Sessions of an earlier call that are
// missing in this one are stopped. Sessions that were never declared are left alone.
func (r *Reconciler) Declare(ctx context.Context, sessions []config.Session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	declared := map[string]bool{}
	for _, want := range sessions {
		declared[want.Name()] = true
		s := r.sessions[want.Name()]
		if s == nil {
			s = newSession(r, want)
			r.sessions[want.Name()] = s
			r.running.Go(func() { s.run(ctx) })
			continue
		}
		s.declare(want, false)
	}
	for name, s := range r.sessions {
		if !declared[name] {
			s.declare(s.want, true)
		}
	}
}

// Retry makes the next attempt of each session now: the host's network has changed.
func (r *Reconciler) Retry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		signal(s.again)
	}
}

// Wait returns when the context passed to Declare has ended and no command is running.
func (r *Reconciler) Wait() { r.running.Wait() }

// Status returns the status of the declared sessions, in no particular order.
func (r *Reconciler) Status() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Status, 0, len(r.sessions))
	for _, s := range r.sessions {
		all = append(all, s.status)
	}
	return all
}

// loses reports whether a failed session may have lost acknowledged writes, or would lose what its
// local backing still serves, if it were attached again. On a write-through target each
// acknowledged write is on stable storage, unless it keeps the volume in memory only; the application
// saw the others fail.
func loses(s proc.Session) bool { return s.Writeback || s.Volatile || s.Backing != "" }

// differs names the options of an attached session that differ from those wanted. What the target
// grants (queues, depth) and the filters of a tap cannot be compared.
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
	add("poll_queues", (want.PollQueues == 0) != (s.PollQueues == 0)) // a host with few CPUs has fewer than it wants
	add("uuid", want.UUID != "" && s.UUID != "" && !strings.EqualFold(s.UUID, want.UUID))
	add("tos", (want.TOS == nil) != (s.TOS == nil) || want.TOS != nil && *s.TOS != *want.TOS)
	add("heartbeat", want.Heartbeat != nil && s.Heartbeat != uint64(*want.Heartbeat))
	return names
}

// gone reports whether the error means that a session, or the module, does not exist.
func gone(err error) bool {
	return errors.Is(err, proc.ErrNoSession) || errors.Is(err, proc.ErrNotLoaded)
}
