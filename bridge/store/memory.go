// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"krping/bridge/uuid"
)

// memory is a volume in anonymous memory outside the Go heap. It is lost when the process ends.
type memory struct {
	data   []byte
	size   atomic.Int64
	stable atomic.Uint32
	uuid   uuid.UUID
}

func newMemory(o Options) (Store, error) {
	if o.Size <= 0 {
		return nil, errors.New("store mem: a size is needed")
	}
	data, err := unix.Mmap(-1, 0, int(o.Size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of memory: %w", o.Size, err)
	}
	m := &memory{data: data, uuid: o.UUID}
	m.size.Store(o.Size)
	m.stable.Store(1) // as stable as it gets
	if m.uuid.IsZero() {
		m.uuid = uuid.New()
	}
	return m, nil
}

func (m *memory) ReadAt(p []byte, off int64) (int, error)  { return copy(p, m.data[off:]), nil }
func (m *memory) WriteAt(p []byte, off int64) (int, error) { return copy(m.data[off:], p), nil }
func (m *memory) Discard(off, n int64) error               { return m.Zero(off, n, false) }

// Zero returns whole pages to the kernel; they read as zeros afterwards. Clearing them could take
// a second in which no other goroutine may run, and would allocate pages that were never written. Pages
// cannot be kept.
func (m *memory) Zero(off, n int64, _ bool) error {
	first, length := whole(int64(os.Getpagesize()), off, n)
	if length == 0 {
		clear(m.data[off : off+n])
		return nil
	}
	clear(m.data[off:first])
	clear(m.data[first+length : off+n])
	if err := unix.Madvise(m.data[first:first+length], unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("return memory to the kernel: %w", err)
	}
	return nil
}

func (m *memory) Contents() Contents {
	return Contents{Memory: m.data, Size: &m.size, Stable: &m.stable}
}

func (m *memory) Refresh() error { return nil }
func (m *memory) Flush() error   { return nil }
func (m *memory) Volatile() bool { return true }
func (m *memory) Size() int64    { return int64(len(m.data)) }
func (m *memory) Close() error   { return unix.Munmap(m.data) }

func (m *memory) Identity() Identity        { return Identity{UUID: m.uuid} }
func (m *memory) SaveIdentity() error       { return nil }
func (m *memory) SaveWriter([16]byte) error { return nil }
func (m *memory) Features() Features        { return Features{Discard: true} }
