// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"krping/agent/disk/rawio"
	"krping/agent/host/kernel"
)

// checkDevice says why a disk or file should not be served, which the kernel may not: it serves
// a disk that is mounted. Buffered is whether a file can only be served through the page cache.
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
			What: what, Cause: "it is busy: subsystem " + user + " serves it already", Err: unix.EBUSY,
			Fix: "krpingctl nvme target remove " + user + "; or serve that at this address too: krpingctl nvme target add --nqn " + user + " without --device",
		}
	}
	switch mode := info.Mode(); {
	case mode.IsRegular() && info.Size() == 0:
		return false, &kernel.Failure{What: what, Cause: "the file is empty", Fix: "truncate -s 1G " + path, Err: unix.EINVAL}
	case mode.IsRegular():
		return needsBuffer(path)
	case mode&os.ModeDevice == 0 || mode&os.ModeCharDevice != 0:
		return false, &kernel.Failure{What: what, Cause: "it is neither a block device nor a regular file", Fix: "lsblk lists the disks", Err: unix.EINVAL}
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0) // fails where somebody has claimed it
	if errors.Is(err, unix.EBUSY) {
		return false, busy(path)
	}
	if err != nil {
		return false, fmt.Errorf("%s: open it: %w", what, err)
	}
	return false, unix.Close(fd)
}

// needsBuffer says whether a file's file system has no direct I/O: tmpfs before 6.6.
func needsBuffer(path string) (bool, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EINVAL) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot serve %s: open it: %w", path, err)
	}
	return false, unix.Close(fd)
}

func missing(path string) error {
	f := &kernel.Failure{What: "cannot serve " + path, Cause: "there is no such device or file", Fix: "lsblk lists the disks; or make a file: truncate -s 1G " + path, Err: unix.ENOENT}
	if strings.HasPrefix(path, "/dev/") {
		f.Fix = "lsblk lists the disks; or --null 1GiB makes one in memory"
	}
	return f
}

func busy(path string) error {
	f := &kernel.Failure{What: "cannot serve " + path, Cause: "it is busy: a program or the kernel has it for itself", Fix: "lsblk " + path + "; fuser -v " + path, Err: unix.EBUSY}
	if where, err := rawio.MountedAt(path); err == nil && where != "" {
		f.Cause, f.Fix = "it is busy: mounted at "+where+", and its file system would be destroyed", "umount "+where
		return f
	}
	holders, err := names(filepath.Join("/sys/class/block", filepath.Base(path), "holders"))
	if err == nil && len(holders) > 0 {
		f.Cause = "it is busy: " + strings.Join(holders, ", ") + " is made of it"
	}
	return f
}

// servedBy returns the subsystem that serves a device now, or "".
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

// same says whether two paths lead to one file, or to one device.
func same(a, b os.FileInfo) bool {
	x, y := a.Sys().(*syscall.Stat_t), b.Sys().(*syscall.Stat_t)
	return os.SameFile(a, b) || a.Mode()&os.ModeDevice != 0 && b.Mode()&os.ModeDevice != 0 && x.Rdev == y.Rdev
}
