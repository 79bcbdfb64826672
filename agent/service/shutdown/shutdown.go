// SPDX-License-Identifier: Apache-2.0

// Package shutdown is what happens to this host's sessions when it shuts down. Begin runs before file
// systems are unmounted: I/O to a target that is away then fails soon, so that it does not hold the
// host up. End runs after they are unmounted: it detaches the disks, says whose data was not written,
// and notes it for Report, at the next boot.
package shutdown

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"krping/bridge/atomicfile"
	"krping/proc"
)

// Default paths.
const (
	DefaultBegun = "/run/krping/shutdown.json"             // from Begin to End
	DefaultLost  = "/var/lib/krping/lost-at-shutdown.json" // from End to Report
)

// Module is the part of the kernel module that is used; proc.FS implements it.
type Module interface {
	Sessions() ([]proc.Session, error)
	Run(ctx context.Context, c proc.Command) (proc.Outcome, error)
}

// Host is the host that shuts down.
type Host struct {
	Module Module
	Sys    string // where sysfs is mounted
	Begun  string // path of a file that keeps what Begin saw
	Lost   string // path of a file that keeps what was not written
	Log    zerolog.Logger
}

// Loss is a session whose requests failed during a shutdown.
type Loss struct {
	Session  string    `json:"session"`
	Device   string    `json:"device"`
	Peer     string    `json:"peer"`     // of the target
	Requests uint64    `json:"requests"` // that failed
	Time     time.Time `json:"time"`
}

// UnderWay reports whether systemd shuts the host down.
func UnderWay(ctx context.Context) bool {
	out, _ := exec.CommandContext(ctx, "systemctl", "is-system-running").Output() // its exit status says the same
	return strings.TrimSpace(string(out)) == "stopping"
}

// Begin makes I/O of every session fail once its target has been away for wait, in whole seconds. A
// session with a shorter limit keeps its own.
func (h Host) Begin(wait time.Duration) error {
	sessions, err := h.sessions()
	failed := map[string]uint64{}
	for _, s := range sessions {
		failed[s.Name] = s.Errors
		if s.State != "live" {
			h.Log.Warn().Str("session", s.Name).Str("target", s.Peer).Str("state", s.State).
				Msgf("the target is away: I/O to %s fails unless it is back in time", s.Device())
		}
		if s.FastFail == 0 || s.FastFail > uint64(wait.Seconds()) {
			err = errors.Join(err, h.setFastFail(s, wait))
		}
	}
	return errors.Join(err, writeFile(h.Begun, failed))
}

func (h Host) setFastFail(s proc.Session, wait time.Duration) error {
	path := filepath.Join(h.Sys, "block", s.Dev, "fast_fail")
	err := os.WriteFile(path, strconv.AppendInt(nil, int64(wait.Seconds()), 10), 0)
	if errors.Is(err, fs.ErrNotExist) { // it was stopped meanwhile
		return nil
	}
	if err != nil {
		return fmt.Errorf("session %s: %w", s.Name, err)
	}
	return nil
}

// sessions returns the sessions that wait for their target. A tap does not.
func (h Host) sessions() ([]proc.Session, error) {
	all, err := h.Module.Sessions()
	if errors.Is(err, proc.ErrNotLoaded) {
		return nil, nil
	}
	var found []proc.Session
	for _, s := range all {
		if s.Role == "client" && s.Mode != "tap" {
			found = append(found, s)
		}
	}
	return found, err
}

// End detaches all sessions whose disks are not in use, and notes those whose requests have failed since
// Begin.
func (h Host) End(ctx context.Context) error {
	before := map[string]uint64{}
	err := readFile(h.Begun, &before)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	sessions, listed := h.sessions()
	err = errors.Join(err, listed, h.detachAll(ctx, sessions))
	var lost []Loss
	for _, s := range sessions {
		if was, known := before[s.Name]; known && s.Errors > was {
			loss := Loss{s.Name, s.Device(), s.Peer, s.Errors - was, time.Now().UTC().Truncate(time.Second)}
			h.say(loss, "during this shutdown")
			lost = append(lost, loss)
		}
	}
	if len(lost) > 0 {
		err = errors.Join(err, writeFile(h.Lost, lost))
	}
	return err
}

// detachAll detaches sessions at the same time, as each may take 2 s.
func (h Host) detachAll(ctx context.Context, sessions []proc.Session) error {
	errs := make([]error, len(sessions))
	var all sync.WaitGroup
	for i, s := range sessions {
		all.Go(func() { errs[i] = h.detach(ctx, s) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// detach stops a session. The module waits at most 2 s for its target.
func (h Host) detach(ctx context.Context, s proc.Session) error {
	_, err := h.Module.Run(ctx, proc.Command{Role: proc.Stop, Block: s.Name})
	switch {
	case errors.Is(err, unix.EBUSY):
		h.Log.Warn().Str("session", s.Name).Msgf("%s is still in use: not detached", s.Device())
		return nil
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("detach %s: %w", s.Name, err)
	}
	h.Log.Info().Str("session", s.Name).Msgf("%s detached", s.Device())
	return nil
}

// Report logs what End noted, once.
func (h Host) Report() error {
	var lost []Loss
	err := readFile(h.Lost, &lost)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, loss := range lost {
		h.say(loss, "during the shutdown at "+loss.Time.Format(time.DateTime)+" UTC")
	}
	return errors.Join(err, os.Remove(h.Lost))
}

func (h Host) say(loss Loss, when string) {
	h.Log.Error().Str("session", loss.Session).Str("target", loss.Peer).Uint64("requests", loss.Requests).
		Msgf("data was not written to %s %s: its target was away, and requests failed; the kernel's log names the blocks", loss.Device, when)
}

func readFile(path string, content any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, content); err != nil {
		return fmt.Errorf("%s is broken: %w", path, err)
	}
	return nil
}

// writeFile replaces a file, and creates its directory if needed.
func writeFile(path string, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, append(data, '\n'))
}
