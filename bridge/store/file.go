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
	direct    bool  // uses direct I/O
	block     int64 // alignment of ranges that are discarded or zeroed without a write
	writeback bool
	own       *descriptions // for writes through the page cache without writeback, else nil
	size      atomic.Int64

	sizing   sync.Mutex // one Refresh at a time, so that an older size does not replace a newer one
	flushing sync.Mutex // one Flush at a time; protects lost
	lost     error      // with writeback: why a Flush failed
}

func openFile(path string, size int64, writeback bool) (Store, error) {
	flags := os.O_RDWR
	if !writeback {
		flags |= unix.O_DSYNC
	}
	if info, err := os.Stat(path); err == nil && info.Mode()&fs.ModeDevice != 0 {
		flags |= os.O_EXCL // fails for a block device that is mounted or otherwise in use
	}
	f, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, fs.ErrNotExist) && size > 0 {
		f, err = os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			err = f.Truncate(size)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the store: %w", err)
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
		return nil, fmt.Errorf("cannot stat the store: %w", err)
	}
	s := &file{File: f, device: info.Mode()&fs.ModeDevice != 0 && info.Mode()&fs.ModeCharDevice == 0, writeback: writeback, block: 1}
	if !info.Mode().IsRegular() && !s.device {
		return nil, fmt.Errorf("store %s: must be a regular file or a block device", f.Name())
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
		return nil, fmt.Errorf("store %s: has %d bytes, not the %d of --size; leave --size out", f.Name(), s.Size(), size)
	}
	return s, nil
}

func (f *file) Volatile() bool { return false }

func (f *file) Size() int64 { return f.size.Load() }

// Refresh does not seek to the end: that would wait for a range that is being zeroed.
func (f *file) Refresh() error {
	f.sizing.Lock()
	defer f.sizing.Unlock()
	size, err := f.length()
	if err != nil {
		return fmt.Errorf("cannot read the size of the store: %w", err)
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

// Flush of a writeback store keeps failing once it has failed: the kernel reports a write-back
// error once and drops the data. A restart has a new epoch, by which clients learn of the loss.
func (f *file) Flush() error {
	f.flushing.Lock()
	defer f.flushing.Unlock()
	if f.lost != nil {
		return f.lost
	}
	err := unix.Fdatasync(int(f.Fd()))
	if err != nil && f.writeback {
		f.lost = fmt.Errorf("unflushed writes may be lost, so every later flush fails: %w", err)
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

// Discard does not change partial blocks.
func (f *file) Discard(off, n int64) error {
	if off, n = whole(f.block, off, n); n == 0 {
		return nil
	}
	return f.allocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
}

// Zero makes a hole in a regular file, which reads as zeros. It writes zeros to partial blocks.
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

// allocate calls fallocate. Without writeback it syncs, because O_DSYNC does not cover fallocate.
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
