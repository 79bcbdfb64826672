// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// file is a volume in a regular file.
type file struct {
	*os.File
	size int64
}

func openFile(path string, size int64, writeback bool) (Store, error) {
	flags := os.O_RDWR
	if !writeback {
		flags |= unix.O_DSYNC
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
	s, err := checkFile(f, size)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return s, nil
}

func checkFile(f *os.File, size int64) (Store, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("look at the store: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("store %s: not a regular file", f.Name())
	case size > 0 && info.Size() != size:
		return nil, fmt.Errorf("store %s: has %d bytes, but --size says %d", f.Name(), info.Size(), size)
	}
	return &file{f, info.Size()}, nil
}

func (f *file) Flush() error { return unix.Fdatasync(int(f.Fd())) }
func (f *file) Size() int64  { return f.size }
