// SPDX-License-Identifier: Apache-2.0

// Package rawio opens block devices and files for direct I/O, and allocates buffers for it.
package rawio

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Buffer returns page-aligned memory of n bytes outside the Go heap.
func Buffer(n int) ([]byte, error) {
	buf, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map a buffer of %d bytes: %w", n, err)
	}
	return buf, nil
}

// Free frees a buffer.
func Free(buf []byte) { _ = unix.Munmap(buf) }

// Device is an open block device or regular file.
type Device struct {
	*os.File
	Size    int64 // bytes
	Block   int64 // logical block size in bytes; 512 for a file
	IsBlock bool
}

// Open opens a block device or regular file. With direct it bypasses the page cache, except for a file
// on a file system without direct I/O (tmpfs before 6.6).
func Open(path string, flags int, direct bool) (*Device, error) {
	f, err := openFile(path, flags, direct)
	if err != nil {
		return nil, err
	}
	d, err := inspect(f)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return d, nil
}

func openFile(path string, flags int, direct bool) (*os.File, error) {
	if direct {
		f, err := os.OpenFile(path, flags|unix.O_DIRECT, 0o600)
		if info, statErr := os.Stat(path); !errors.Is(err, unix.EINVAL) || statErr != nil || !info.Mode().IsRegular() {
			return f, err
		}
	}
	return os.OpenFile(path, flags, 0o600)
}

func inspect(f *os.File) (*Device, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return &Device{File: f, Size: info.Size(), Block: 512}, nil
	case mode&os.ModeDevice == 0 || mode&os.ModeCharDevice != 0:
		return nil, fmt.Errorf("%s: must be a block device or a regular file", f.Name())
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("%s: size of the device: %w", f.Name(), err)
	}
	block, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if err != nil {
		return nil, fmt.Errorf("%s: block size of the device: %w", f.Name(), err)
	}
	return &Device{File: f, Size: size, Block: int64(block), IsBlock: true}, nil
}

// MountedAt returns the mount point of the device at a path, or "".
func MountedAt(path string) (string, error) {
	var want unix.Stat_t
	if err := unix.Stat(path, &want); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	number := fmt.Sprintf("%d:%d", unix.Major(want.Rdev), unix.Minor(want.Rdev))
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// Source: proc(5): id, parent, major:minor, root, mount point, ...
		if fields := strings.Fields(lines.Text()); len(fields) > 4 && fields[2] == number {
			return fields[4], nil
		}
	}
	return "", nil
}
