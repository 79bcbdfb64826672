// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// file is a volume in a regular file or on a block device.
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
	if err != nil {
		return nil, fmt.Errorf("look at the store: %w", err)
	}
	if kind := info.Mode().Type(); kind != 0 && kind != fs.ModeDevice {
		return nil, fmt.Errorf("store %s: not a regular file or block device", f.Name())
	}
	has, err := f.Seek(0, io.SeekEnd) // Stat knows no size of a device
	if err != nil {
		return nil, fmt.Errorf("look at the store: %w", err)
	}
	if size > 0 && has != size {
		return nil, fmt.Errorf("store %s: has %d bytes, but --size says %d", f.Name(), has, size)
	}
	return &file{f, has}, nil
}

func (f *file) Flush() error { return unix.Fdatasync(int(f.Fd())) }
func (f *file) Size() int64  { return f.size }
