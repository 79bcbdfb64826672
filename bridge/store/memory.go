// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// memory is a volume in anonymous memory outside the Go heap; stable as long as the
// process lives.
type memory struct {
	data []byte
}

func newMemory(size int64) (Store, error) {
	if size <= 0 {
		return nil, errors.New("store mem: needs a size")
	}
	data, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of memory: %w", size, err)
	}
	return &memory{data}, nil
}

func (m *memory) ReadAt(p []byte, off int64) (int, error)  { return copy(p, m.data[off:]), nil }
func (m *memory) WriteAt(p []byte, off int64) (int, error) { return copy(m.data[off:], p), nil }
func (m *memory) Discard(off, n int64) error               { return m.Zero(off, n) }

// Zero gives whole pages back to the kernel, which has zeros for who asks again. To clear them would take up to
// a second in which nothing else of the process might run, and memory for what was never written.
func (m *memory) Zero(off, n int64) error {
	first, length := whole(int64(os.Getpagesize()), off, n)
	if length == 0 {
		clear(m.data[off : off+n])
		return nil
	}
	clear(m.data[off:first])
	clear(m.data[first+length : off+n])
	if err := unix.Madvise(m.data[first:first+length], unix.MADV_DONTNEED); err != nil {
		return fmt.Errorf("give memory back: %w", err)
	}
	return nil
}

func (m *memory) Refresh() error { return nil }
func (m *memory) Flush() error   { return nil }
func (m *memory) Volatile() bool { return true }
func (m *memory) Size() int64    { return int64(len(m.data)) }
func (m *memory) Close() error   { return unix.Munmap(m.data) }
