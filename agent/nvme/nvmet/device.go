// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
	"krping/bridge/inuse"
)

// checkDevice returns an error if a disk or file must not be served. The kernel does not check that: it
// would serve a mounted disk. buffered reports whether a file can only be served through the page cache.
func (t *Tree) checkDevice(path string) (buffered bool, err error) {
	what := "cannot serve " + path
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, missing(path)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	if user := t.servedBy(path); user != "" {
		return false, &kernel.Failure{
			What: what, Cause: "it is busy: subsystem " + user + " serves it", Err: unix.EBUSY,
			Fix: "krpingctl nvme target remove " + user + "; or serve that subsystem at this address, too: krpingctl nvme target add --nqn " + user + ", without --device",
		}
	}
	switch mode := info.Mode(); {
	case mode.IsRegular() && info.Size() == 0:
		return false, &kernel.Failure{What: what, Cause: "the file is empty", Fix: "truncate -s 1G " + path, Err: unix.EINVAL}
	case mode.IsRegular():
		if err := checkUnused(path); err != nil {
			return false, err
		}
		return needsBuffer(path)
	case mode&os.ModeDevice == 0 || mode&os.ModeCharDevice != 0:
		return false, &kernel.Failure{What: what, Cause: "it is neither a block device nor a regular file", Fix: "lsblk lists the disks", Err: unix.EINVAL}
	}
	return false, checkUnused(path)
}

// checkUnused returns an error if a disk or file is in use.
func checkUnused(path string) error {
	err := inuse.Check(path)
	if used := new(inuse.Error); errors.As(err, &used) {
		return &kernel.Failure{What: "cannot serve " + path, Cause: "it is busy: " + used.Reasons(), Fix: used.Fix(), Err: unix.EBUSY}
	}
	if err != nil {
		return fmt.Errorf("cannot serve %s: %w", path, err)
	}
	return nil
}

// checkController returns an error if a controller must not be passed through: hosts could write to its
// disks.
func (c *change) checkController(path string) error {
	if _, real := c.fs.(configfs); !real || c.again {
		return nil
	}
	what := "cannot pass through " + path
	info, err := os.Stat(path)
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return &kernel.Failure{What: what, Cause: "there is no such controller", Fix: "krpingctl nvme list", Err: unix.ENOENT}
	}
	disks, _ := filepath.Glob(filepath.Join("/sys/class/nvme", filepath.Base(path), "nvme*n*"))
	for _, disk := range disks {
		err := inuse.Check("/dev/" + hiddenPath.ReplaceAllString(filepath.Base(disk), "n"))
		if used := new(inuse.Error); errors.As(err, &used) {
			return &kernel.Failure{What: what, Cause: used.Error(), Fix: used.Fix(), Err: unix.EBUSY}
		}
	}
	return nil
}

// hiddenPath is in the names of disks with native multipath that have no device, such as nvme0c0n1.
var hiddenPath = regexp.MustCompile(`c[0-9]+n`)

// needsBuffer reports whether the file's file system does not support direct I/O, like tmpfs before 6.6.
func needsBuffer(path string) (bool, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EINVAL) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot serve %s: %w", path, err)
	}
	return false, unix.Close(fd)
}

func missing(path string) error {
	f := &kernel.Failure{What: "cannot serve " + path, Cause: "there is no such device or file", Fix: "lsblk lists the disks; or create a file: truncate -s 1G " + path, Err: unix.ENOENT}
	if strings.HasPrefix(path, "/dev/") {
		f.Fix = "lsblk lists the disks; or use --null 1GiB instead of --device, for a disk in memory"
	}
	return f
}

// busy explains why the kernel cannot open a disk exclusively.
func busy(path string) error {
	used := inuse.Explain(path)
	return &kernel.Failure{What: "cannot serve " + path, Cause: "it is busy: " + used.Reasons(), Fix: used.Fix(), Err: unix.EBUSY}
}

// servedBy returns the NQN of the subsystem that serves a device, or "".
func (t *Tree) servedBy(path string) string {
	config, err := t.Read()
	if err != nil {
		return ""
	}
	wanted, err := os.Stat(path)
	if err != nil {
		return ""
	}
	for _, s := range config.Subsystems {
		for _, n := range s.Namespaces {
			served, err := os.Stat(n.Device["path"])
			if err == nil && bool(n.Enable) && same(wanted, served) {
				return s.NQN
			}
		}
	}
	return ""
}

// same reports whether two paths are the same file, or the same device.
func same(a, b os.FileInfo) bool {
	x, y := a.Sys().(*syscall.Stat_t), b.Sys().(*syscall.Stat_t)
	return os.SameFile(a, b) || a.Mode()&os.ModeDevice != 0 && b.Mode()&os.ModeDevice != 0 && x.Rdev == y.Rdev
}
