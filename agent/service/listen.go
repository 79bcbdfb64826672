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

// errRunning is returned by lock if another agent is running on this host.
var errRunning = errors.New("another agent is running on this host")

// lock takes the lock of this host's agent. The kernel releases it when the process ends.
func lock(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the agent's directory: %w", err)
	}
	path := filepath.Join(dir, "agent.lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the agent's directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errRunning
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// listen listens at the address. A Unix socket has mode 0660. An existing one is left over from an
// agent that was killed, as the lock admits only one agent, and is removed.
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
		return nil, fmt.Errorf("create the socket's directory: %w", err)
	}
	before := unix.Umask(0o117) // with chmod, others could connect before it
	l, err := net.Listen(a.Network, a.Address)
	unix.Umask(before)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", a, err)
	}
	return l, nil
}

// overlap reports whether one program can listen only at one of two addresses.
func overlap(a, b config.Address) bool {
	_, x, err1 := net.SplitHostPort(a.Address)
	_, y, err2 := net.SplitHostPort(b.Address)
	return a.Network == "tcp" && b.Network == "tcp" && err1 == nil && err2 == nil && x == y
}

func removeSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("listen at %s: %w", path, err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("listen at %s: the file exists and is not a socket", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the socket of a killed agent: %w", err)
	}
	return nil
}
