// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"krping/proc"
)

// module is a fake module.
type module struct {
	sessions []proc.Session
	err      error
	busy     string

	mu      sync.Mutex
	stopped []string
}

func (m *module) Sessions() ([]proc.Session, error) { return m.sessions, m.err }

func (m *module) Run(_ context.Context, c proc.Command) (proc.Outcome, error) {
	if c.Role != proc.Stop || c.Force || c.Target {
		return proc.Outcome{}, unix.EINVAL
	}
	if c.Block == m.busy {
		return proc.Outcome{}, &proc.CommandError{Errno: unix.EBUSY}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = append(m.stopped, c.Block)
	slices.Sort(m.stopped)
	return proc.Outcome{}, nil
}

func session(name, dev, state string, fastFail, failed uint64) proc.Session {
	return proc.Session{Name: name, Role: "client", Mode: "remote", Dev: dev, State: state, Peer: "10.0.0.1:9999", FastFail: fastFail, Errors: failed}
}

func newHost(t *testing.T, m *module) (Host, *bytes.Buffer) {
	t.Helper()
	dir, out := t.TempDir(), new(bytes.Buffer)
	for _, s := range m.sessions {
		if err := os.MkdirAll(filepath.Join(dir, "sys/block", s.Dev), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return Host{m, filepath.Join(dir, "sys"), filepath.Join(dir, "run/begun"), filepath.Join(dir, "lib/lost"), zerolog.New(zerolog.SyncWriter(out))}, out
}

func fastFail(t *testing.T, h Host, dev string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(h.Sys, "block", dev, "fast_fail"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

func TestShutdown(t *testing.T) {
	served := proc.Session{Name: "vol0", Role: "target", Dev: "-", State: "live"}
	tap := session("tap0", "krping3", "reconnecting", 0, 0)
	tap.Mode = "tap"
	m := &module{sessions: []proc.Session{
		session("away", "krping0", "reconnecting", 0, 7), session("quick", "krping1", "live", 3, 0), session("there", "krping2", "live", 60, 2), tap, served,
	}, busy: "there"}
	h, out := newHost(t, m)
	for _, dev := range []string{"krping0", "krping1", "krping2"} { // as in sysfs, the files exist
		if err := os.WriteFile(filepath.Join(h.Sys, "block", dev, "fast_fail"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Begin(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	for dev, want := range map[string]string{"krping0": "10", "krping1": "", "krping2": "10", "krping3": ""} {
		if got := fastFail(t, h, dev); got != want {
			t.Errorf("%s: fast_fail %q, want %q", dev, got, want)
		}
	}
	if !strings.Contains(out.String(), "away") || strings.Contains(out.String(), "there") && strings.Contains(out.String(), `"session":"there"`) {
		t.Errorf("log: %s", out)
	}
	m.sessions[0].Errors += 100
	out.Reset()
	if err := h.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := []string{"away", "quick"}; !slices.Equal(m.stopped, want) {
		t.Errorf("stopped %q, want %q", m.stopped, want)
	}
	for _, want := range []string{
		`"level":"error","session":"away","target":"10.0.0.1:9999","requests":100,"message":"data was not written to /dev/krping0 during this shutdown: `,
		"/dev/krping2 is still in use: not detached",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, out)
		}
	}
	out.Reset()
	for range 2 { // it is said once
		if err := h.Report(); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), `"requests":100,"message":"data was not written to /dev/krping0 during the shutdown at 20`) {
		t.Errorf("next boot: %s", out)
	}
}

// A shutdown without losses leaves nothing to say, nor does one without the module.
func TestShutdownWithoutLosses(t *testing.T) {
	for _, m := range []*module{{sessions: []proc.Session{session("vol0", "krping0", "live", 5, 3)}}, {err: proc.ErrNotLoaded}} {
		h, out := newHost(t, m)
		if err := h.Begin(10 * time.Second); err != nil {
			t.Error(err)
		}
		if err := h.End(t.Context()); err != nil {
			t.Error(err)
		}
		if err := h.Report(); err != nil || strings.Contains(out.String(), "not written") {
			t.Errorf("%v, log: %s", err, out)
		}
	}
}

// A host may lose power while it shuts down: a file is replaced as a whole, never cut short.
func TestFilesAreReplaced(t *testing.T) {
	m := &module{sessions: []proc.Session{session("vol0", "krping0", "live", 5, 3)}}
	h, _ := newHost(t, m)
	before := filepath.Join(t.TempDir(), "before")
	if err := errors.Join(h.Begin(10*time.Second), os.Link(h.Begun, before)); err != nil {
		t.Fatal(err)
	}
	m.sessions[0].Errors = 4
	if err := h.Begin(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{before: `{"vol0":3}`, h.Begun: `{"vol0":4}`} {
		if text, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(text)) != want {
			t.Errorf("%s: %q, %v, want %s", path, text, err, want)
		}
	}
}
