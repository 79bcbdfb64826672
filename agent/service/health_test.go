// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"krping/agent/doctor"
	"krping/agent/service/config"
	"krping/agent/service/reconciler"
	"krping/agent/service/volumes"
	"krping/proc"
)

func TestStatusText(t *testing.T) {
	listen := config.Address{Network: "unix", Address: "/run/krping/agent.sock"}
	live := func(name string) reconciler.Status {
		return reconciler.Status{Name: name, State: reconciler.Attached, Connection: "live"}
	}
	lost := live("b")
	lost.Connection = "reconnecting"
	for _, tc := range []struct {
		statuses []reconciler.Status
		want     string
	}{
		{nil, "attached 0 of 0, metrics at /run/krping/agent.sock"},
		{[]reconciler.Status{live("a"), live("b")}, "attached 2 of 2, metrics at /run/krping/agent.sock"},
		{[]reconciler.Status{live("c"), lost, {Name: "a", State: reconciler.Attaching, Reason: "target\nrefused"}, {Name: "d", State: reconciler.Busy}},
			"attached 2 of 4: a: target refused; b: target lost, reconnecting; d: busy, metrics at /run/krping/agent.sock"},
	} {
		if got := statusText(tc.statuses, listen); got != tc.want {
			t.Errorf("%q, want %q", got, tc.want)
		}
	}
}

// absent is a module without sessions, whose targets do not answer.
type absent struct{}

func (absent) Session(name string) (proc.Session, error) { return proc.Session{}, proc.ErrNoSession }

func (absent) Run(context.Context, proc.Command) (proc.Outcome, error) {
	return proc.Outcome{}, errors.New("no route to host")
}

// Doctor is asked once about a session that stays away, and says which port it was.
func TestDoctorExplainsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		a := newAgent(Options{Log: zerolog.New(&out)})
		a.reconciler = reconciler.New(absent{}, nil, volumes.New(filepath.Join(t.TempDir(), "volumes.json"), zerolog.Nop()), zerolog.Nop())
		asked := 0
		a.examine = func(_ context.Context, o doctor.Options) doctor.Report {
			asked++
			if o.Port != 9999 || o.Peer.String() != "10.0.0.1" {
				t.Errorf("examines %+v", o)
			}
			return doctor.Report{Findings: []doctor.Finding{
				{Check: "module", Level: doctor.OK, Found: "it is loaded"},
				{Check: "neighbour", Level: doctor.Problem, Found: "10.0.0.1 does not answer", Cause: "no such host", Fix: "ip neigh"},
			}}
		}
		c := config.Config{Sessions: []config.Session{{Command: proc.Command{Role: proc.Client, Addr: netip.MustParseAddr("10.0.0.1"), Block: "vol0"}}}}
		ctx, cancel := context.WithCancel(t.Context())
		a.reconciler.Declare(ctx, c.Sessions)
		for passed := time.Duration(0); passed < 5*time.Minute; passed += healthInterval {
			a.checkHealth(ctx, c)
			if passed == explainAfter-healthInterval && asked > 0 {
				t.Errorf("asked already after %v", passed)
			}
			time.Sleep(healthInterval)
		}
		cancel()
		a.reconciler.Wait()
		a.running.Wait()
		want := `"session":"vol0","cause":"no such host","fix":"ip neigh","message":"away for 30s; doctor: neighbour: 10.0.0.1 does not answer"`
		if asked != 1 || strings.Count(out.String(), want) != 1 || strings.Contains(out.String(), "loaded") {
			t.Errorf("asked %d times, log: %s", asked, out.String())
		}
	})
}
