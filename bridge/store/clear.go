// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Discard does not change partial blocks.
func (f *file) Discard(off, n int64) error {
	if off, n = whole(f.block, off, n); n == 0 {
		return nil
	}
	return f.change(func() error { return fallocate(f.File, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n) })
}

// Zero makes a hole in a regular file, which reads as zeros, unless the space must stay allocated. It
// writes zeros to partial blocks.
func (f *file) Zero(off, n int64, keep bool) error {
	return f.change(func() error {
		first, length := whole(f.block, off, n)
		if length == 0 {
			return f.writeZeros(off, n)
		}
		return errors.Join(f.writeZeros(off, first-off), f.zeroBlocks(first, length, keep), f.writeZeros(first+length, off+n-first-length))
	})
}

func (f *file) zeroBlocks(off, n int64, keep bool) error {
	mode := uint32(unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE)
	if !f.device && !keep {
		mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	}
	err := fallocate(f.File, mode, off, n)
	if errors.Is(err, ErrUnsupported) {
		return f.writeZeros(off, n)
	}
	return err
}

func fallocate(f *os.File, mode uint32, off, n int64) error {
	err := uninterrupted(func() error { return sysFallocate(int(f.Fd()), mode, off, n) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ErrUnsupported
	}
	return err
}

func (f *file) writeZeros(off, n int64) error {
	zeros := make([]byte, min(n, 1<<20))
	for n > 0 {
		done, err := f.writeAt(zeros[:min(n, int64(len(zeros)))], off)
		if err != nil {
			return err
		}
		off, n = off+int64(done), n-int64(done)
	}
	return nil
}
