// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"krping/agent/doctor"
	"krping/agent/service/config"
	"krping/agent/service/reconciler"
	"krping/bridge/systemd"
)

const (
	healthInterval = time.Second
	readyInterval  = 100 * time.Millisecond
	readyAfter     = 5 * time.Second  // at most; targets may come later
	explainAfter   = 30 * time.Second // that a session is away
)

// health tells systemd how the sessions are, and has doctor explain why one stays away.
type health struct {
	told      string               // the last status
	away      map[string]time.Time // since when a session is away
	explained map[string]bool      // while it is away
	examining atomic.Bool          // doctor runs
}

// checkHealth is called every healthInterval.
func (a *agent) checkHealth(ctx context.Context, c config.Config) {
	statuses := a.reconciler.Status()
	if text := statusText(statuses, c.Listen); text != a.health.told {
		a.health.told = text
		systemd.Notify(a.Log, "STATUS="+text)
	}
	for _, s := range statuses {
		if !isAway(s) {
			delete(a.health.away, s.Name)
			delete(a.health.explained, s.Name)
			continue
		}
		since, known := a.health.away[s.Name]
		if !known {
			since = time.Now()
			a.health.away[s.Name] = since
		}
		want := slices.IndexFunc(c.Sessions, func(want config.Session) bool { return want.Name() == s.Name })
		if time.Since(since) < explainAfter || a.health.explained[s.Name] || want < 0 || !a.health.examining.CompareAndSwap(false, true) {
			continue
		}
		a.health.explained[s.Name] = true
		a.running.Go(func() {
			defer a.health.examining.Store(false)
			a.explain(ctx, c.Sessions[want], time.Since(since))
		})
	}
}

// isAway reports whether a session does not find its target. One that is refused has its reason.
func isAway(s reconciler.Status) bool {
	return s.State == reconciler.Attaching || s.State == reconciler.Attached && s.Connection != "live"
}

// explain logs the problems that doctor finds.
func (a *agent) explain(ctx context.Context, want config.Session, away time.Duration) {
	command := want.Command
	port := cmp.Or(uint16(command.Port), 9999) // the module's default
	r := a.examine(ctx, doctor.Options{Peer: command.Addr, Port: port})
	if ctx.Err() != nil {
		return
	}
	log := a.Log.With().Str("session", want.Name()).Logger()
	found := false
	for _, f := range r.Findings {
		if f.Level == doctor.Problem {
			found = true
			log.Warn().Str("cause", f.Cause).Str("fix", f.Fix).Msgf("away for %v; doctor: %s: %s", away.Round(time.Second), f.Check, f.Found)
		}
	}
	if !found {
		log.Warn().Msgf("away for %v; doctor finds no problem on this host: run `krpingctl doctor` on the target, %s", away.Round(time.Second), command.Addr)
	}
}

// statusText describes the sessions in one line: "attached 2 of 3: vol7: ...".
func statusText(statuses []reconciler.Status, listen config.Address) string {
	statuses = slices.SortedFunc(slices.Values(statuses), func(a, b reconciler.Status) int { return strings.Compare(a.Name, b.Name) })
	attached := 0
	var others []string
	for _, s := range statuses {
		switch {
		case s.State != reconciler.Attached:
			others = append(others, s.Name+": "+cmp.Or(s.Reason, string(s.State)))
		case s.Connection != "live":
			attached++
			others = append(others, s.Name+": target lost, "+s.Connection)
		default:
			attached++
		}
	}
	text := fmt.Sprintf("attached %d of %d", attached, len(statuses))
	if len(others) > 0 {
		text += ": " + strings.Join(others, "; ")
	}
	return strings.ReplaceAll(text, "\n", " ") + ", metrics at " + listen.String()
}

// tried reports whether each session is attached or has failed to at least once.
func tried(statuses []reconciler.Status) bool {
	return !slices.ContainsFunc(statuses, func(s reconciler.Status) bool { return s.State == reconciler.Attaching && s.Failures == 0 })
}

// ready tells systemd that the agent is ready, with the sessions' status. It waits for the first attempt to
// attach each, but only a moment: their targets may come later.
func (a *agent) ready(ctx context.Context, c config.Config) {
	for end := time.Now().Add(readyAfter); !tried(a.reconciler.Status()) && time.Now().Before(end) && ctx.Err() == nil; {
		time.Sleep(readyInterval)
	}
	a.health.told = statusText(a.reconciler.Status(), c.Listen)
	systemd.Notify(a.Log, systemd.Ready+"\nSTATUS="+a.health.told)
}
