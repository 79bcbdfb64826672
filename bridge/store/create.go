// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"krping/bridge/atomicfile"
	"krping/bridge/inuse"
	"krping/bridge/uuid"
)

// New describes a file to make.
type New struct {
	Path        string
	Size        int64 // in bytes, a multiple of 512
	Preallocate bool  // allocate all space now
	UUID        uuid.UUID
	Log         func(msg string)
	Allocated   func(n int64) // if not nil, is told of each step of --preallocate how many bytes are allocated
}

// allocateStep is how many bytes are allocated at a time: some file systems write zeros, which takes long.
// Tests change it.
var allocateStep int64 = 256 << 20

var syncFile, syncDir = (*os.File).Sync, atomicfile.SyncDir // tests change them

// Create makes the file of a new volume, of zeros, and returns its UUID. It checks all it can first. If
// it fails, or ctx ends before, it leaves nothing.
func Create(ctx context.Context, n New) (uuid.UUID, error) {
	if n.UUID.IsZero() {
		n.UUID = uuid.New()
	}
	if err := n.check(); err != nil {
		return uuid.UUID{}, err
	}
	f, err := os.OpenFile(n.Path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return uuid.UUID{}, fmt.Errorf("cannot create the store: %w", err)
	}
	if err := n.fill(ctx, f); err != nil {
		_ = f.Close()
		_ = os.Remove(n.Path)
		_ = os.Remove(n.Path + recordSuffix)
		return uuid.UUID{}, err
	}
	return n.UUID, nil
}

func (n New) check() error {
	if n.Size <= 0 || n.Size%512 != 0 {
		return fmt.Errorf("size %d: must be a multiple of the block size, 512 or 4096", n.Size)
	}
	if err := inuse.CheckPath(n.Path); err != nil {
		return fmt.Errorf("cannot create the store: %w", err)
	}
	for _, path := range []string{n.Path, n.Path + recordSuffix} {
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s exists: choose another name, or remove it first", path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot create the store: %w", err)
		}
	}
	dir := filepath.Dir(n.Path)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("cannot create the store: there is no directory %s (is its file system mounted?)", dir)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("cannot stat the file system of %s: %w", dir, err)
	}
	free := freeBytes(fs)
	if free < 0 || n.Size <= free {
		return nil
	}
	text := fmt.Sprintf("size %s: %s has only %s left", humanize.IBytes(uint64(n.Size)), dir, humanize.IBytes(uint64(free)))
	if n.Preallocate {
		return errors.New(text)
	}
	Options{Log: n.Log}.log("%s; writes fail when that is used up", text)
	return nil
}

// fill gives the new file its size and its record, and puts all on stable storage.
func (n New) fill(ctx context.Context, f *os.File) error {
	if err := f.Truncate(n.Size); err != nil {
		return fmt.Errorf("cannot set the size of the store: %w", err)
	}
	if n.Preallocate {
		if err := n.allocate(ctx, f); err != nil {
			return err
		}
	}
	id, err := fileID(f)
	if err != nil {
		return err
	}
	if err := setRecord(f, record{uuid: n.UUID, file: id}); err != nil {
		return err
	}
	if err := errors.Join(syncFile(f), f.Close(), syncDir(filepath.Dir(n.Path))); err != nil {
		return fmt.Errorf("cannot put the store on stable storage: %w", err)
	}
	return nil
}

// allocate allocates the file's space, unless ctx ends before.
func (n New) allocate(ctx context.Context, f *os.File) error {
	for done := int64(0); done < n.Size; {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("interrupted, nothing is created: %w", err)
		}
		step := min(allocateStep, n.Size-done)
		err := fallocate(f, 0, done, step)
		if errors.Is(err, ErrUnsupported) {
			return fmt.Errorf("the file system of %s cannot preallocate: leave --preallocate out", n.Path)
		}
		if err != nil {
			return fmt.Errorf("cannot allocate %s: %w", humanize.IBytes(uint64(n.Size)), err)
		}
		done += step
		if n.Allocated != nil {
			n.Allocated(done)
		}
	}
	return nil
}
