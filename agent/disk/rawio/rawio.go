// SPDX-License-Identifier: Apache-2.0

// Package rawio opens block devices and files for direct I/O, and allocates buffers for it.
package rawio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"krping/bridge/sysfs"
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

// FileBlock is the block size of a regular file, in bytes.
const FileBlock = 512

// Device is an open block device or regular file.
type Device struct {
	*os.File
	Size    int64 // bytes
	Block   int64 // logical block size in bytes; FileBlock for a file
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
		return &Device{File: f, Size: info.Size(), Block: FileBlock}, nil
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

// Whole returns the path of the disk that a partition is on, and the partition's first byte there. For
// any other device or file it returns its own name and 0.
func (d *Device) Whole() (path string, start int64, err error) {
	info, err := d.Stat()
	if err != nil || !d.IsBlock {
		return d.Name(), 0, err
	}
	disk, start, err := whole("/sys", info.Sys().(*syscall.Stat_t).Rdev)
	if err != nil || disk == "" {
		return d.Name(), 0, err
	}
	return "/dev/" + strings.ReplaceAll(disk, "!", "/"), start, nil // as the kernel names cciss/c0d0
}

// whole returns the name of the disk that a partition is on, or "" for a disk.
func whole(sys string, number uint64) (disk string, start int64, err error) {
	dir, diskDir, err := sysfs.Block(sys, number)
	if err != nil || dir == diskDir {
		return "", 0, err
	}
	sectors, err := strconv.ParseInt(sysfs.Text(dir, "start"), 10, 64)
	if err != nil {
		return "", 0, fmt.Errorf("%s/start: %w", dir, err)
	}
	return filepath.Base(diskDir), sectors * 512, nil // sectors of 512 bytes, whatever the block size
}
