// SPDX-License-Identifier: Apache-2.0

// Package sysfs reads small files as those of sysfs and procfs, and finds block devices in sysfs.
package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Text returns the content of a small file without white space at its ends, or "" if it cannot be read. The
// elements of its path are joined.
func Text(path ...string) string {
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// Block returns the directory of a block device by its number, and that of its disk, which is another one
// for a partition. Sys is where sysfs is mounted.
func Block(sys string, number uint64) (dir, disk string, err error) {
	dir, err = filepath.EvalSymlinks(Link(sys, number))
	if err != nil {
		return "", "", err
	}
	_, err = os.Stat(filepath.Join(dir, "partition"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return dir, dir, nil
	case err != nil:
		return "", "", err
	}
	return dir, filepath.Dir(dir), nil
}

// Link returns the path of the symbolic link to the directory of a block device.
func Link(sys string, number uint64) string {
	return fmt.Sprintf("%s/dev/block/%d:%d", sys, unix.Major(number), unix.Minor(number))
}

// Number returns the number of a block device by its directory.
func Number(dir string) (uint64, error) {
	var major, minor uint32
	if _, err := fmt.Sscanf(Text(dir, "dev"), "%d:%d", &major, &minor); err != nil {
		return 0, fmt.Errorf("%s/dev is not a device number: %w", dir, err)
	}
	return unix.Mkdev(major, minor), nil
}
