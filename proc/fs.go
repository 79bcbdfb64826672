// SPDX-License-Identifier: Apache-2.0

// Package proc is the interface of the rdma_krping module: commands, threads, sessions
// and kernel messages (kmod/PROTOCOL.md sections 3 to 5). It is the only package that
// opens /proc/krping. Reading is apart from parsing, which is pure.
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

// ErrNotLoaded is wrapped by errors of calls that need the module.
var ErrNotLoaded = errors.New("the module rdma_krping is not loaded")

// FS is a mounted proc file system.
type FS struct{ mount string }

// NewFS returns the proc file system at mount.
func NewFS(mount string) (FS, error) {
	info, err := os.Stat(mount)
	if err != nil {
		return FS{}, fmt.Errorf("look at the proc file system: %w", err)
	}
	if !info.IsDir() {
		return FS{}, fmt.Errorf("proc file system %s: not a directory", mount)
	}
	return FS{mount}, nil
}

func (f FS) path(name string) string { return filepath.Join(f.mount, name) }

func (f FS) read(name string) ([]byte, error) {
	data, err := os.ReadFile(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotLoaded
	}
	return data, err
}
