// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// file is a volume in a regular file or on a block device.
type file struct {
	*os.File
	device    bool
	direct    bool  // past the page cache
	block     int64 // ranges that are discarded or zeroed without a write are multiples of it
	writeback bool
	own       *descriptions // of writes through the page cache that are stable when they return, or nil
	size      atomic.Int64

	sizing   sync.Mutex // one Refresh at a time: an older size does not replace a newer one
	flushing sync.Mutex // one Flush at a time, protects lost
	lost     error      // of writeback: why written data is not on stable storage
}

func openFile(path string, size int64, writeback bool) (Store, error) {
	flags := os.O_RDWR
	if !writeback {
		flags |= unix.O_DSYNC
	}
	if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeDevice != 0 {
		flags |= os.O_EXCL // of a block device: nobody else has mounted or claimed it
	}
	f, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, fs.ErrNotExist) && size > 0 {
		f, err = os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			err = f.Truncate(size)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the store: %w", err)
	}
	s, err := checkFile(f, size, writeback)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return s, nil
}

func checkFile(f *os.File, size int64, writeback bool) (Store, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at the store: %w", err)
	}
	s := &file{File: f, device: info.Mode()&fs.ModeDevice != 0 && info.Mode()&fs.ModeCharDevice == 0, writeback: writeback, block: 1}
	if !info.Mode().IsRegular() && !s.device {
		return nil, fmt.Errorf("store %s: neither a regular file nor a block device", f.Name())
	}
	if s.device {
		if err := s.makeDirect(); err != nil {
			return nil, err
		}
	}
	if err := s.Refresh(); err != nil {
		return nil, err
	}
	if !writeback && !s.direct {
		s.own = &descriptions{of: f}
	}
	if size > 0 && s.Size() != size {
		return nil, fmt.Errorf("store %s: has %d bytes, but --size says %d", f.Name(), s.Size(), size)
	}
	return s, nil
}

func (f *file) Volatile() bool { return false }

func (f *file) Size() int64 { return f.size.Load() }

// Refresh does not wait for a range that is being zeroed, as a seek to the end would.
func (f *file) Refresh() error {
	f.sizing.Lock()
	defer f.sizing.Unlock()
	size, err := f.length()
	if err != nil {
		return fmt.Errorf("size of the store: %w", err)
	}
	f.size.Store(size)
	return nil
}

func (f *file) length() (int64, error) {
	if f.device {
		size, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKGETSIZE64)
		return int64(size), err
	}
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// Flush of a writeback store fails for ever once it has failed: the kernel tells an error of writing back
// once, and drops the data. Only an opening anew, which has a new epoch, makes the clients see what is lost.
func (f *file) Flush() error {
	f.flushing.Lock()
	defer f.flushing.Unlock()
	if f.lost != nil {
		return f.lost
	}
	err := unix.Fdatasync(int(f.Fd()))
	if err != nil && f.writeback {
		f.lost = fmt.Errorf("writes that were not flushed may be lost, nothing is flushed any more: %w", err)
		return f.lost
	}
	return err
}

// use calls do with the file description to write with.
func (f *file) use(do func(*os.File) error) error {
	if f.own == nil {
		return do(f.File)
	}
	return f.own.use(do)
}

func (f *file) Close() error {
	if f.own != nil {
		f.own.close()
	}
	return f.File.Close()
}

// Discard leaves parts of a block as they are.
func (f *file) Discard(off, n int64) error {
	if off, n = whole(f.block, off, n); n == 0 {
		return nil
	}
	return f.allocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// Zero makes a hole in a regular file: its blocks are then read as zeros, too. Parts of a block are written.
func (f *file) Zero(off, n int64) error {
	first, length := whole(f.block, off, n)
	if length == 0 {
		return f.writeZeros(off, n)
	}
	return errors.Join(f.writeZeros(off, first-off), f.zeroBlocks(first, length), f.writeZeros(first+length, off+n-first-length))
}

func (f *file) zeroBlocks(off, n int64) error {
	mode := uint32(unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE)
	if !f.device {
		mode = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	}
	err := f.allocate(mode, off, n)
	if errors.Is(err, ErrUnsupported) {
		return f.writeZeros(off, n)
	}
	return err
}

// allocate is stable when it returns, as a write is: O_DSYNC does not cover it.
func (f *file) allocate(mode uint32, off, n int64) error {
	return f.use(func(used *os.File) error {
		for {
			err := unix.Fallocate(int(used.Fd()), mode, off, n)
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EOPNOTSUPP):
				return ErrUnsupported
			case err != nil || f.writeback:
				return err
			}
			return unix.Fdatasync(int(used.Fd()))
		}
	})
}

func (f *file) writeZeros(off, n int64) error {
	zeros := make([]byte, min(n, 1<<20))
	for n > 0 {
		done, err := f.WriteAt(zeros[:min(n, int64(len(zeros)))], off)
		if err != nil {
			return err
		}
		off, n = off+int64(done), n-int64(done)
	}
	return nil
}
