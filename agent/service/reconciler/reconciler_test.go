// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"krping/agent/service/config"
	"krping/agent/service/volumes"
	"krping/proc"
)

// module is a fake Module that attaches at once, or fails with an errno.
type module struct {
	mu       sync.Mutex
	sessions map[string]proc.Session
	attach   unix.Errno // of each attach; 0: success
	hangs    bool       // an attach blocks until it is interrupted
	inUse    bool       // a stop fails with EBUSY
	unloaded bool
	volume   proc.Session // what the target has
	reasons  []string     // of failures
	commands []string
}

func (m *module) Session(name string) (proc.Session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unloaded {
		return proc.Session{}, proc.ErrNotLoaded
	}
	s, ok := m.sessions[name]
	if !ok {
		return s, fmt.Errorf("%s: %w", name, proc.ErrNoSession)
	}
	return s, nil
}

func (m *module) Run(ctx context.Context, c proc.Command) (proc.Outcome, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.commands = append(m.commands, c.String())
	var errno unix.Errno
	switch {
	case c.Role == proc.Stop && m.inUse:
		errno = unix.EBUSY
	case c.Role == proc.Stop:
		delete(m.sessions, c.Block)
	case m.hangs:
		m.mu.Unlock()
		<-ctx.Done()
		m.mu.Lock()
		errno = unix.EINTR
	case m.attach != 0:
		errno = m.attach
	case c.UUID != "" && m.volume.UUID == "":
		errno = unix.EPROTONOSUPPORT
	case c.UUID != "" && c.UUID != m.volume.UUID:
		errno = unix.ESTALE
	default:
		is := m.volume
		is.Name, is.Role, is.Mode, is.State, is.Peer, is.Timeout, is.Heartbeat = c.Block, "client", "remote", "live", "10.0.0.1:9999", 600, 5
		m.sessions[c.Block] = is
	}
	if errno != 0 {
		return proc.Outcome{}, &proc.CommandError{Command: c.String(), Errno: errno, Reasons: m.reasons}
	}
	return proc.Outcome{}, nil
}

// becomes changes the state of a session, as the module would.
func (m *module) becomes(name string, change func(*proc.Session)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[name]
	change(&s)
	m.sessions[name] = s
}

func (m *module) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// did returns the commands written since the last call.
func (m *module) did() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	commands := m.commands
	m.commands = nil
	return commands
}

func failed(s *proc.Session) { s.State = "failed" }

func declared(options ...func(*config.Session)) config.Session {
	s := config.Session{
		Command:  proc.Command{Role: proc.Client, Addr: netip.MustParseAddr("10.0.0.1"), Block: "vol0"},
		Reattach: config.ReattachSafe,
	}
	for _, o := range options {
		o(&s)
	}
	return s
}

func always(s *config.Session) { s.Reattach = config.ReattachAlways }
func deep(s *config.Session)   { s.Command.Depth = 64 }

const (
	attachCommand = "client,addr=10.0.0.1,block=vol0"
	deepCommand   = "client,addr=10.0.0.1,block=vol0,depth=64"
	stopCommand   = "stop,block=vol0"
)

// rig is a Reconciler of a fake module, in a synctest bubble: time passes as soon as all wait.
type rig struct {
	*testing.T
	*module
	*array
	*Reconciler
	ctx    context.Context
	cancel context.CancelFunc
	log    bytes.Buffer
	logger zerolog.Logger
	path   string // of known
	known  volumes.File
}

func inBubble(t *testing.T, test func(r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, module: &module{sessions: map[string]proc.Session{}}, array: &array{}}
		r.logger = zerolog.New(zerolog.SyncWriter(&r.log))
		r.path = filepath.Join(t.TempDir(), "volumes.json")
		r.known = volumes.New(r.path, r.logger)
		r.Reconciler = New(r.module, r.array, r.known, r.logger)
		r.ctx, r.cancel = context.WithCancel(t.Context())
		defer func() {
			r.cancel()
			r.Wait()
		}()
		test(r)
	})
}

func (r *rig) declare(sessions ...config.Session) {
	r.Helper()
	r.Declare(r.ctx, sessions)
}

// wants lets time pass, then compares the commands since the last call and the session's state.
func (r *rig) wants(after time.Duration, state State, commands ...string) {
	r.Helper()
	time.Sleep(after)
	synctest.Wait()
	if did := r.module.did(); !slices.Equal(did, commands) {
		r.Errorf("did %q, want %q\n%s", did, commands, r.log.String())
	}
	got := State("")
	if all := r.Status(); len(all) > 0 {
		got = all[0].State
	}
	if got != state {
		r.Errorf("state %q, want %q", got, state)
	}
}

func TestMissingSessionIsAttached(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.declare(declared())
		r.wants(0, Attached, attachCommand)
		r.wants(time.Hour, Attached)
		r.set(func() { delete(r.module.sessions, "vol0") }) // stopped by hand
		r.wants(2*time.Second, Attached, attachCommand)
		r.becomes("vol0", func(s *proc.Session) { s.State = "reconnecting" })
		r.wants(time.Hour, Attached)
	})
}

func TestAttachingBacksOff(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.attach = unix.ECONNREFUSED
		r.declare(declared())
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := len(r.module.did()); n < 280 || n > 620 { // every 1 to 2 s in the end
			r.Errorf("%d attempts in 10 minutes", n)
		}
		if n := strings.Count(r.log.String(), `"level":"warn"`); n != 1 {
			r.Errorf("%d warnings about one error:\n%s", n, r.log.String())
		}
		r.set(func() { r.attach = 0 })
		r.wants(3*time.Second, Attached, attachCommand)
		if s := r.Status()[0]; s.Attached != 1 || s.Failures < 280 || s.Connection != "live" {
			r.Errorf("%+v", s)
		}
	})
}

// A change of the network makes the next attempt at once, and the ones after it soon; but none of a session that
// waits for its user.
func TestRetry(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.attach = unix.ENETUNREACH
		r.declare(declared())
		time.Sleep(10*time.Minute + time.Millisecond)
		synctest.Wait()
		r.module.did()
		r.set(func() { r.attach = 0 })
		r.Retry()
		r.wants(0, Attached, attachCommand)
		r.Retry()
		r.wants(time.Second, Attached)

		r.becomes("vol0", func(s *proc.Session) { s.State, s.Writeback = "failed", true })
		r.wants(2*time.Second, Lost)
		r.Retry()
		r.wants(time.Second, Lost)
	})
}

func TestExistingSessionIsLeftAlone(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.module.sessions["vol0"] = proc.Session{Name: "vol0", Mode: "tap", Backing: "ram:64M", State: "live", Peer: "10.0.0.9:9999", Timeout: 5, Heartbeat: 5}
		r.module.sessions["other"] = proc.Session{Name: "other", State: "failed"}
		r.declare(declared(func(s *config.Session) { s.Command.Timeout = time.Minute }))
		r.wants(time.Hour, Attached)
		if want := `"options":"addr,mode,timeout"`; !strings.Contains(r.log.String(), want) {
			r.Errorf("the log has no %s:\n%s", want, r.log.String())
		}
	})
}

func TestFailedSession(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.declare(declared())
		r.wants(0, Attached, attachCommand)
		r.becomes("vol0", failed)
		r.wants(2*time.Second, Attached, stopCommand, attachCommand)

		for _, loss := range []func(*proc.Session){
			func(s *proc.Session) { s.Writeback = true },
			func(s *proc.Session) { s.Backing = "/dev/vdb" },
			func(s *proc.Session) { s.Volatile = true },
		} {
			r.becomes("vol0", failed)
			r.becomes("vol0", loss)
			r.wants(time.Hour, Lost)
			r.set(func() { delete(r.module.sessions, "vol0") })
			r.wants(2*time.Second, Attached, attachCommand)
		}

		r.becomes("vol0", func(s *proc.Session) { s.State, s.Writeback = "failed", true })
		r.wants(2*time.Second, Lost)
		r.declare(declared(always))
		r.wants(time.Second, Attached, stopCommand, attachCommand)
	})
}

func TestChangedSession(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.declare(declared())
		r.wants(0, Attached, attachCommand)
		r.declare(declared()) // unchanged
		r.declare(declared(always))
		r.wants(time.Hour, Attached)
		r.set(func() { r.inUse = true })
		r.declare(declared(deep))
		r.wants(0, Replacing, stopCommand)
		r.declare(declared()) // taken back
		r.wants(time.Minute, Attached)
		r.declare(declared(deep))
		r.wants(0, Replacing, stopCommand)
		r.set(func() { r.inUse = false })
		r.wants(2*time.Second, Attached, stopCommand, deepCommand)
	})
}

func TestRemovedSession(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.module.sessions["other"] = proc.Session{Name: "other", State: "live"}
		r.declare(declared())
		r.wants(0, Attached, attachCommand)
		r.set(func() { r.inUse = true })
		r.declare()
		r.wants(0, Removing, stopCommand)
		r.set(func() { r.inUse = false })
		r.wants(2*time.Second, "", stopCommand)
		r.wants(time.Hour, "")
		r.declare(declared())
		r.wants(0, Attached, attachCommand)
	})
}

func TestRemovedDuringAttach(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.hangs = true
		r.declare(declared())
		r.wants(time.Second, Attaching, attachCommand)
		r.declare()
		r.wants(0, "")
	})
}

func TestEndLeavesSessions(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx, cancel := context.WithCancel(r.ctx)
		r.Declare(ctx, []config.Session{declared()})
		r.wants(0, Attached, attachCommand)
		cancel()
		r.Wait()
		if did := r.module.did(); len(did) > 0 || r.module.sessions["vol0"].State != "live" {
			r.Errorf("did %q, session %+v", did, r.module.sessions["vol0"])
		}
	})
}

func TestModuleIsLoadedLater(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.unloaded = true
		r.declare(declared())
		r.wants(time.Minute, Attaching)
		r.set(func() { r.unloaded = false })
		r.wants(31*time.Second, Attached, attachCommand)
	})
}

// A type of service that was added to the configuration, changed or removed is noticed.
func TestTypeOfServiceDiffers(t *testing.T) {
	low, high := uint8(8), uint8(104)
	for name, tc := range map[string]struct {
		is, want *uint8
		differs  bool
	}{
		"none":    {nil, nil, false},
		"same":    {&low, &low, false},
		"changed": {&low, &high, true},
		"added":   {nil, &low, true},
		"removed": {&low, nil, true},
	} {
		names := differs(proc.Session{TOS: tc.is}, proc.Command{TOS: tc.want})
		if got := slices.Contains(names, "tos"); got != tc.differs {
			t.Errorf("%s: differs %v, want %v", name, got, tc.differs)
		}
	}
}
