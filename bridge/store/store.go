// SPDX-License-Identifier: Apache-2.0

// Package store keeps the bytes of a volume in a file, a block device or memory.
package store

import (
	"errors"
	"fmt"
	"strings"
)

// Store holds a volume. Offsets and sizes are in bytes. The caller has checked that ranges lie
// inside the volume. Calls may run concurrently.
type Store interface {
	ReadAt(p []byte, off int64) (int, error)
	// WriteAt returns when the data is on stable storage, unless the store was opened with writeback.
	WriteAt(p []byte, off int64) (int, error)
	// Discard drops the contents of a range. It returns ErrUnsupported if the store cannot.
	Discard(off, n int64) error
	// Zero makes a range read as zeros. It returns when that is stable, like WriteAt.
	Zero(off, n int64) error
	// Flush puts every write that has returned on stable storage.
	Flush() error
	// Volatile reports whether the store is empty each time it is opened.
	Volatile() bool
	Size() int64
	// Refresh updates Size, in case the store has grown.
	Refresh() error
	Close() error
}

// ErrUnsupported is returned for operations that a store does not support.
var ErrUnsupported = errors.New("the store does not support this")

// whole returns the offset of the first whole block in a range, and the length of all in bytes.
func whole(block, off, n int64) (first, length int64) {
	first = (off + block - 1) / block * block
	return first, max(0, (off+n)/block*block-first)
}

// Open opens "mem:" or "file:PATH" (a regular file or a block device) with the given size in
// bytes. It creates a file that does not exist. A size of 0 means that of the existing file.
func Open(spec string, size int64, writeback bool) (Store, error) {
	kind, path, found := strings.Cut(spec, ":")
	switch {
	case found && kind == "mem" && path == "":
		return newMemory(size)
	case found && kind == "file" && path != "":
		return openFile(path, size, writeback)
	}
	return nil, fmt.Errorf("store %q: must be mem: or file:PATH", spec)
}
