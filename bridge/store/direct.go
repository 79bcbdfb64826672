// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// directAlign is the alignment of memory, offsets and lengths for direct I/O, which is used for
// block devices: after a failed write the page cache would return data that the device does not
// have. It is the smallest block size of a volume; a device with larger blocks is used through
// the page cache.
const directAlign = 512

// makeDirect turns direct I/O on for a block device if its blocks are small enough.
func (f *file) makeDirect() error {
	block, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if err != nil {
		return fmt.Errorf("cannot read the block size of the store: %w", err)
	}
	f.block = int64(block)
	if block > directAlign {
		return nil
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETFL, flags|unix.O_DIRECT)
	}
	if err != nil {
		return fmt.Errorf("cannot use direct I/O on the store: %w", err)
	}
	f.direct = true
	return nil
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	if !f.direct || isAligned(p) {
		return f.File.ReadAt(p, off)
	}
	b, done := alignedBytes(len(p))
	defer done()
	n, err := f.File.ReadAt(b, off)
	copy(p, b[:n])
	return n, err
}

func (f *file) WriteAt(p []byte, off int64) (n int, err error) {
	err = f.change(func() (err error) {
		n, err = f.writeAt(p, off)
		return err
	})
	return n, err
}

// writeAt writes data that may not be stable when it returns.
func (f *file) writeAt(p []byte, off int64) (int, error) {
	if f.direct && !isAligned(p) {
		b, done := alignedBytes(len(p))
		defer done()
		copy(b, p)
		p = b
	}
	return f.File.WriteAt(p, off)
}

func misalignment(p []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(p))) % directAlign)
}

func isAligned(p []byte) bool { return misalignment(p) == 0 }

// pooledBytes is the size of aligned memory that is used again: that of data inside messages, which is
// nowhere aligned.
const pooledBytes = 4096

var aligned = sync.Pool{New: func() any { b := align(make([]byte, pooledBytes+directAlign)); return &b }}

// alignedBytes returns n bytes, and a function that gives them back.
func alignedBytes(n int) ([]byte, func()) {
	if n > pooledBytes {
		return align(make([]byte, n+directAlign))[:n], func() {}
	}
	b := aligned.Get().(*[]byte)
	return (*b)[:n], func() { aligned.Put(b) }
}

// align returns the aligned part of memory, without its last directAlign bytes or less.
func align(b []byte) []byte {
	skip := (directAlign - misalignment(b)) % directAlign
	return b[skip : len(b)-directAlign+skip]
}
