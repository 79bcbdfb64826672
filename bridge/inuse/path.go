// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// CheckPath returns an error if a path is one of a device that is not there, which a program that
// writes would create as a file in memory, or if it leads to such a file.
func CheckPath(path string) error { return checkPath("/dev", path) }

func checkPath(dev, path string) error {
	info, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	missing := err != nil
	if !missing && info.Mode()&os.ModeDevice != 0 {
		return nil
	}
	full, err := Resolve(path)
	if err != nil {
		return err
	}
	switch {
	case !within(dev, full):
		return nil
	case missing:
		return fmt.Errorf("%s: there is no such device: %w", path, unix.ENODEV)
	case info.Mode().IsRegular():
		return fmt.Errorf("%s: is a regular file, not a device; an earlier command may have made it by mistake, then remove it: %w", path, unix.ENODEV)
	}
	return nil
}

// within reports whether a path is in the file system of /dev, or would be there if created. Other file
// systems below it, such as /dev/shm, have files.
func within(dev, path string) bool {
	if !strings.HasPrefix(path, dev+"/") || strings.HasPrefix(path, dev+"/shm/") {
		return false
	}
	top, err := os.Stat(dev)
	if err != nil {
		return false
	}
	for dir := filepath.Dir(path); dir != dev; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil {
			return info.Sys().(*syscall.Stat_t).Dev == top.Sys().(*syscall.Stat_t).Dev
		}
	}
	return true
}

// Resolve returns the path that an open with O_CREAT would create or open: all symbolic links
// followed, also a last one that leads nowhere.
func Resolve(path string) (string, error) {
	full, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	for range 40 { // MAXSYMLINKS
		if dir, err := filepath.EvalSymlinks(filepath.Dir(full)); err == nil {
			full = filepath.Join(dir, filepath.Base(full))
		}
		to, err := os.Readlink(full)
		if err != nil {
			return full, nil
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(full), to)
		}
		full = filepath.Clean(to)
	}
	return "", &os.PathError{Op: "open", Path: path, Err: unix.ELOOP}
}
