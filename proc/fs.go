// SPDX-License-Identifier: Apache-2.0

// Package proc is the interface to the rdma_krping module: commands, threads, sessions, results
// and kernel messages (kmod/INTERFACE.md). No other package opens /proc/krping.
// Functions that read files are kept apart from parsers, which are pure.
package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// DefaultMount is where the proc file system is mounted.
const DefaultMount = "/proc"

// ErrNotLoaded means that the module is not loaded.
var ErrNotLoaded = errors.New("the module rdma_krping is not loaded")

// FS is a mounted proc file system.
type FS struct{ mount string }

// NewFS returns the proc file system at mount.
func NewFS(mount string) (FS, error) {
	info, err := os.Stat(mount)
	if err != nil {
		return FS{}, fmt.Errorf("open the proc file system: %w", err)
	}
	if !info.IsDir() {
		return FS{}, fmt.Errorf("proc file system %s: not a directory", mount)
	}
	return FS{mount}, nil
}

func (f FS) path(name string) string { return filepath.Join(f.mount, name) }

func (f FS) read(name string) ([]byte, error) {
	data, err := os.ReadFile(f.path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, ErrNotLoaded
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: only root with CAP_SYS_ADMIN may read it", err)
	}
	return data, err
}
