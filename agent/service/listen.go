// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"krping/agent/service/config"
)

// errRuns is returned by lock if another agent runs on this host.
var errRuns = errors.New("an agent runs already")

// lock makes this process the host's agent until its end, however that comes.
func lock(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the agent's directory: %w", err)
	}
	path := filepath.Join(dir, "agent.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the agent's directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errRuns
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// listen listens at the address. A socket belongs to root and its group. One that is there
// already is of an agent that was killed: there is only one, as lock says.
func listen(a config.Address) (net.Listener, error) {
	if a.Network != "unix" {
		l, err := net.Listen(a.Network, a.Address)
		if err != nil {
			return nil, fmt.Errorf("listen at %s: %w", a, err)
		}
		return l, nil
	}
	if err := removeSocket(a.Address); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(a.Address), 0o755); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	before := unix.Umask(0o117) // nobody else can connect before a chmod
	l, err := net.Listen(a.Network, a.Address)
	unix.Umask(before)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", a, err)
	}
	return l, nil
}

func removeSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("listen at %s: %w", path, err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("listen at %s: it exists and is no socket", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the socket of an agent that was killed: %w", err)
	}
	return nil
}
