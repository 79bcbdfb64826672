// SPDX-License-Identifier: Apache-2.0

// Package store keeps the bytes of a volume in a file, a block device or memory, and knows which
// volume they are.
package store

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"

	"krping/bridge/uuid"
)

// Store holds a volume. Offsets and sizes are in bytes. The caller has checked that ranges lie
// inside the volume. Calls may run concurrently.
type Store interface {
	ReadAt(p []byte, off int64) (int, error)
	// WriteAt returns when the data is on stable storage, unless the store was opened with writeback.
	WriteAt(p []byte, off int64) (int, error)
	// Discard drops the contents of a range. It returns ErrUnsupported if the store cannot.
	Discard(off, n int64) error
	// Zero makes a range read as zeros. It returns when that is stable, like WriteAt. With keep, the
	// space stays allocated, so that later writes need none.
	Zero(off, n int64, keep bool) error
	// Flush puts every write that has returned on stable storage.
	Flush() error
	// Volatile reports whether the store is empty each time it is opened.
	Volatile() bool
	Size() int64
	// Refresh updates Size, in case the store has grown.
	Refresh() error
	// Identity returns what is known of the volume in the store.
	Identity() Identity
	// SaveIdentity keeps the identity with the store, if it is new and the store can keep one.
	SaveIdentity() error
	// SaveWriter keeps the last writer with the store, if the store can keep it. When it returns nil,
	// that is on stable storage.
	SaveWriter(session [16]byte) error
	Features() Features
	Close() error
}

// Contents is where the bytes of a store are, for those who read and write them without its methods.
type Contents struct {
	Memory []byte         // nil: in a file
	File   *os.File       // a block device may need memory that is aligned to 512 bytes
	Size   *atomic.Int64  // in bytes; it may change at any time
	Stable *atomic.Uint32 // whether a write is on stable storage when it has ended: 0 or 1
}

// Opened is a store that tells where its bytes are.
type Opened interface {
	Contents() Contents
}

// Identity says which volume a store holds.
type Identity struct {
	UUID   uuid.UUID
	Writer [16]byte // the session that was last allowed to write; zero if unknown
}

// Features are what a store can do.
type Features struct {
	Discard bool
	// Block is how many bytes, aligned, a power loss leaves either old or new; 0 if unknown.
	Block uint32
}

// Options say how to open a store.
type Options struct {
	Size      int64     // in bytes that an existing store must have, 0 for any; mem: needs it
	Writeback bool      // WriteAt returns before the data is stable
	ReadOnly  bool      // nothing is changed
	UUID      uuid.UUID // that the store must have, or gets if it has none; zero for any
	Log       func(msg string)
}

func (o Options) log(format string, args ...any) {
	if o.Log != nil {
		o.Log(fmt.Sprintf(format, args...))
	}
}

// ErrUnsupported is returned for operations that a store does not support.
var ErrUnsupported = errors.New("the store does not support this")

// whole returns the offset of the first whole block in a range, and the length of all in bytes.
func whole(block, off, n int64) (first, length int64) {
	first = (off + block - 1) / block * block
	return first, max(0, (off+n)/block*block-first)
}

// Open opens "mem:" or "file:PATH", a regular file or a block device that exists.
func Open(spec string, o Options) (Store, error) {
	kind, path, found := strings.Cut(spec, ":")
	switch {
	case found && kind == "mem" && path == "":
		return newMemory(o)
	case found && kind == "file" && path != "":
		return openFile(path, o)
	}
	return nil, fmt.Errorf("store %q: must be mem: or file:PATH", spec)
}

// Path returns PATH of "file:PATH".
func Path(spec string) (string, error) {
	kind, path, found := strings.Cut(spec, ":")
	if !found || kind != "file" || path == "" {
		return "", fmt.Errorf("store %q: must be file:PATH", spec)
	}
	return path, nil
}
