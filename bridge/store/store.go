// SPDX-License-Identifier: Apache-2.0

// Package store is where a volume's bytes rest: one file a backend.
package store

import (
	"errors"
	"fmt"
	"strings"
)

// Store holds a volume. Offsets and sizes are bytes; ranges lie inside the volume: the
// caller has checked that. Calls may run concurrently.
type Store interface {
	ReadAt(p []byte, off int64) (int, error)
	// WriteAt returns when the data is stable, unless the store was opened for writeback.
	WriteAt(p []byte, off int64) (int, error)
	// Discard gives up the contents of a range; ErrUnsupported if the store has no use for it.
	Discard(off, n int64) error
	// Zero makes a range read as zeros; it returns when that is stable, as WriteAt.
	Zero(off, n int64) error
	// Flush makes every write that has returned stable.
	Flush() error
	// Volatile stores are empty when they are opened.
	Volatile() bool
	Size() int64
	// Refresh looks whether the store has grown, for Size.
	Refresh() error
	Close() error
}

// ErrUnsupported is returned for what a store cannot do.
var ErrUnsupported = errors.New("the store cannot do this")

// whole returns the whole blocks in a range: where the first begins, and the bytes of all.
func whole(block, off, n int64) (first, length int64) {
	first = (off + block - 1) / block * block
	return first, max(0, (off+n)/block*block-first)
}

// Open opens "mem:" or "file:PATH" (a regular file or a block device) with the given size in bytes, which makes a file
// that does not exist; 0 takes the size of an existing one.
func Open(spec string, size int64, writeback bool) (Store, error) {
	kind, path, found := strings.Cut(spec, ":")
	switch {
	case found && kind == "mem" && path == "":
		return newMemory(size)
	case found && kind == "file" && path != "":
		return openFile(path, size, writeback)
	}
	return nil, fmt.Errorf("store %q: neither mem: nor file:PATH", spec)
}
