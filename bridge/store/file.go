// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"krping/bridge/inuse"
)

// file is a volume in a regular file or on a block device.
type file struct {
	*os.File
	device    bool
	direct    bool  // uses direct I/O
	block     int64 // alignment of ranges that are discarded or zeroed without a write
	writeback bool
	commits   commits // all that syncs the file
	features  Features
	size      atomic.Int64
	stable    atomic.Uint32 // 1: a write is stable when it has ended

	sizing sync.Mutex // one Refresh at a time, so that an older size does not replace a newer one

	naming sync.Mutex // protects all below
	record record
	saved  bool // the record is kept with the file; always false for a device
	keeps  bool // the record can be kept
}

func openFile(path string, o Options) (Store, error) {
	if err := inuse.CheckPath(path); err != nil {
		return nil, fmt.Errorf("cannot open the store: %w", err)
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missing(path, o.Size)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open the store: %w", err)
	}
	device := info.Mode()&fs.ModeDevice != 0 && info.Mode()&fs.ModeCharDevice == 0
	if !info.Mode().IsRegular() && !device {
		return nil, fmt.Errorf("store %s: must be a regular file or a block device", path)
	}
	if err := checkUnused(path, device); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, openFlags(o, device), 0)
	if err != nil {
		return nil, explainOpen(path, err, o)
	}
	s := &file{File: f, device: device, writeback: o.Writeback, block: 1, commits: commits{sync: syncOf(f)}}
	if err := s.prepare(o); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// missing says how to make a file: nothing else does, as a store that was not mounted must not be
// served as an empty one.
func missing(path string, size int64) error {
	text := "SIZE"
	if size > 0 {
		text = fmt.Sprint(size)
	}
	return fmt.Errorf("store %s: no such file; if it is new, make it: krping-bridge create --store file:%s --size %s", path, path, text)
}

func openFlags(o Options, device bool) int {
	flags := os.O_RDWR
	if o.ReadOnly {
		flags = os.O_RDONLY
	}
	if device {
		flags |= os.O_EXCL // fails for a block device that is mounted or otherwise in use
	}
	return flags
}

// checkUnused returns an error if a device or file is in use, also by those that neither open a device
// exclusively nor lock a file.
func checkUnused(path string, device bool) error {
	if device {
		if err := inuse.Check(path); errors.As(err, new(*inuse.Error)) {
			return fmt.Errorf("cannot open the store: %w", err)
		}
		return nil // the open says what else is wrong
	}
	if uses, err := inuse.Find(path); err == nil && len(uses) > 0 { // other bridges are found by its lock
		return fmt.Errorf("cannot open the store: %w", &inuse.Error{Path: path, Uses: uses})
	}
	return nil
}

func explainOpen(path string, err error, o Options) error {
	switch {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("cannot open the store: %w", inuse.Explain(path))
	case errors.Is(err, unix.EROFS) && !o.ReadOnly:
		return fmt.Errorf("cannot open the store for writing (serve it read-only?): %w", err)
	}
	return fmt.Errorf("cannot open the store: %w", err)
}

// prepare checks and locks an opened store, and finds out what it can do.
func (f *file) prepare(o Options) error {
	if f.device {
		// The kernel opens a read-only disk for writing, and fails the writes.
		if readOnly, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKROGET); err == nil && readOnly != 0 && !o.ReadOnly {
			return explainOpen(f.Name(), unix.EROFS, o)
		}
		if err := f.makeDirect(); err != nil {
			return err
		}
	} else if err := lock(f.File, o.ReadOnly); err != nil {
		return err
	}
	if err := f.Refresh(); err != nil {
		return err
	}
	if o.Size > 0 && f.Size() != o.Size {
		return fmt.Errorf("store %s: has %d bytes, not the %d of --size; leave --size out", f.Name(), f.Size(), o.Size)
	}
	if f.Size() == 0 {
		return fmt.Errorf("store %s: is empty; krping-bridge create makes a new one", f.Name())
	}
	if !o.ReadOnly {
		f.forgetOldErrors(o)
	}
	if err := f.identify(o); err != nil {
		return err
	}
	f.warnOfSpace(o)
	f.features = f.findFeatures()
	return nil
}

// forgetOldErrors logs the error of a write-back that failed before this start and that nobody has seen. The first sync
// of a new open file reports it (errseq_sample()), but no change of this process caused it.
func (f *file) forgetOldErrors(o Options) {
	if err := f.commits.sync(false); err != nil {
		o.log("store %s: writes from before this start may be lost: %v", f.Name(), err)
	}
}

// warnOfSpace warns of a sparse file that cannot be filled.
func (f *file) warnOfSpace(o Options) {
	var in unix.Stat_t
	var fs unix.Statfs_t
	if f.device || o.ReadOnly || unix.Fstat(int(f.Fd()), &in) != nil || unix.Fstatfs(int(f.Fd()), &fs) != nil {
		return
	}
	needs, free := in.Size-512*in.Blocks, freeBytes(fs)
	if needs > free && free >= 0 {
		o.log("store %s: has %s still to allocate, but its file system has only %s left: writes may fail for want of space",
			f.Name(), humanize.IBytes(uint64(needs)), humanize.IBytes(uint64(free)))
	}
}

// freeBytes returns -1 for a file system that does not know, as ramfs. Tests change it.
var freeBytes = func(fs unix.Statfs_t) int64 {
	if fs.Blocks == 0 {
		return -1
	}
	return int64(fs.Bavail) * fs.Bsize
}

func (f *file) Volatile() bool { return false }

func (f *file) Size() int64 { return f.size.Load() }

func (f *file) Contents() Contents {
	return Contents{File: f.File, Size: &f.size, Stable: &f.stable}
}

func (f *file) Features() Features { return f.features }

// Refresh does not seek to the end: that would wait for a range that is being zeroed.
func (f *file) Refresh() error {
	f.sizing.Lock()
	defer f.sizing.Unlock()
	size, err := f.length()
	if err != nil {
		return fmt.Errorf("cannot read the size of the store: %w", err)
	}
	f.size.Store(size)
	if f.direct && !f.hasCache() {
		f.stable.Store(1)
	} else {
		f.stable.Store(0)
	}
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

// Flush of a writeback store keeps failing once a sync has failed: the writes whose pages were dropped
// have been answered. A restart has a new epoch, by which clients learn of the loss.
func (f *file) Flush() error { return f.commit(false, func() error { return nil }) }

// change carries out a change of the volume's data.
func (f *file) change(do func() error) error {
	if f.writeback {
		return do()
	}
	return f.commit(false, do)
}

// commit carries out a change, and makes it and all earlier ones stable.
func (f *file) commit(full bool, do func() error) error {
	if !f.writeback {
		return f.commits.change(full, do)
	}
	if err := do(); err != nil {
		return err
	}
	if err := f.commits.wait(full, 0); err != nil {
		return fmt.Errorf("unflushed writes may be lost, so every later flush fails: %w", err)
	}
	return nil
}

// syncOf returns a function that syncs a file.
func syncOf(f *os.File) func(full bool) error {
	return func(full bool) error {
		if full {
			return f.Sync()
		}
		// With some file systems the Go runtime's signals interrupt it.
		return uninterrupted(func() error { return sysFdatasync(int(f.Fd())) })
	}
}

var sysFdatasync, sysFallocate = unix.Fdatasync, unix.Fallocate // tests change them

// uninterrupted calls do until it returns something else than EINTR.
func uninterrupted(do func() error) error {
	for {
		if err := do(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
