// SPDX-License-Identifier: Apache-2.0

// Package inuse tells by whom a block device or a file is used, and claims it, so that nobody else
// starts to use it. The kernel's own exclusive open (O_EXCL) decides, whatever the mount namespace. What
// is found in /proc, /sys and configfs names the user, and finds those that do not open exclusively:
// loop devices, NVMe targets before 6.9, LIO's fileio, and programs.
package inuse

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Use is one use of a device, or of a partition of it, or of what is stacked on it.
type Use struct {
	Device string // path of what is used
	By     string // such as "is mounted at /srv"
	Fix    string // command that ends the use, or ""
}

func (u Use) String() string { return u.Device + " " + u.By }

// Error is the reason not to overwrite or take away a device or file. It wraps EBUSY.
type Error struct {
	Path string
	Uses []Use // at least one
}

// shown limits how many uses a message has.
const shown = 4

func (e *Error) Error() string { return e.Path + " is in use: " + e.Reasons() }

// Reasons returns the uses as text.
func (e *Error) Reasons() string {
	var all []string
	for _, u := range e.Uses[:min(len(e.Uses), shown)] {
		all = append(all, u.String())
	}
	text := strings.Join(all, "; ")
	if more := len(e.Uses) - shown; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// Unwrap returns EBUSY.
func (e *Error) Unwrap() error { return unix.EBUSY }

// Fix returns commands that end the uses, the last that was stacked first.
func (e *Error) Fix() string {
	var all []string
	for i := len(e.Uses) - 1; i >= 0; i-- {
		fix := e.Uses[i].Fix
		if fix != "" && !strings.Contains(strings.Join(all, " && "), fix) {
			all = append(all, fix)
		}
	}
	if len(all) == 0 {
		return "fuser -v " + e.Path + " lists the programs that use it"
	}
	return strings.Join(all, " && ")
}

// Find returns the uses of a block device or regular file that can be named. Unlike Check it does not open
// it: an open may wait for a disk that does not respond. Locks of files are not found.
func Find(path string) ([]Use, error) {
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		return this.usesOfFile(path, info), nil
	}
	number, err := deviceNumber(path)
	if err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return this.uses(number, path), nil
}

// Explain returns by whom a block device is used that the kernel has found busy: if nothing else, the
// programs that have it open.
func Explain(path string) *Error {
	number, err := deviceNumber(path)
	if err != nil {
		return &Error{path, []Use{{Device: path, By: "is held by the kernel"}}}
	}
	uses := this.uses(number, path)
	if len(uses) == 0 {
		uses = this.holders(path, number)
	}
	return &Error{path, uses}
}

// Check returns an *Error if the block device or regular file at a path is in use. It does not claim it.
func Check(path string) error {
	claim, err := Claim(path)
	if err != nil {
		return err
	}
	return claim.Close()
}

// udevWait is how long Claim waits for a user that cannot be named: udev's programs may open a new disk
// exclusively for a moment.
const udevWait = time.Second

// Claim claims the block device or regular file at a path until the result is closed: no file system,
// swap, LVM, md or other exclusive user can begin to use it, and no other bridge or virtual machine that
// locks its files. It returns an *Error if the device, a partition of it, or what is stacked on it is
// in use, and an error of CheckPath.
func Claim(path string) (io.Closer, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.Mode().IsRegular():
		return claimFile(path, info)
	case info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0:
		return nil, fmt.Errorf("%s: must be a block device or a regular file: %w", path, unix.EINVAL)
	}
	for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		f, err := openExclusively(path)
		if err != nil && !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
		claimed := err == nil
		number, _ := deviceNumber(path)
		uses := this.uses(number, path)
		switch {
		case claimed && len(uses) == 0:
			return f, nil
		case claimed:
			_ = f.Close()
		case len(uses) == 0 && time.Since(began) < udevWait:
			continue
		case len(uses) == 0:
			uses = this.holders(path, number)
		}
		return nil, &Error{path, uses}
	}
}

func openExclusively(path string) (*os.File, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

// claimFile claims a regular file with a lock for writing, as krping-bridge and QEMU have.
func claimFile(path string, info os.FileInfo) (io.Closer, error) {
	if uses := this.usesOfFile(path, info); len(uses) > 0 {
		return nil, &Error{path, uses}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
	if err == nil || !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) { // or there are no locks
		return f, nil
	}
	_ = f.Close()
	return nil, &Error{path, lockers(path)}
}
