// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"krping/bridge/inuse"
)

// lock locks a regular file against other bridges, and against a second volume of this one: for
// reading if readOnly, else alone. The lock belongs to the open file description. It is kept while any
// thread of the process lives, even a killed one whose write has not returned from the kernel.
func lock(f *os.File, readOnly bool) error {
	request := unix.Flock_t{Type: unix.F_WRLCK}
	if readOnly {
		request.Type = unix.F_RDLCK
	}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &request)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("store %s: is in use%s", f.Name(), holder(f))
	}
	if err != nil {
		return fmt.Errorf("cannot lock the store %s: %w", f.Name(), err)
	}
	return nil
}

// holder names the process that has locked a file, or returns "" if it cannot be found.
func holder(f *os.File) string {
	by := inuse.LockedBy(f.Name())
	switch {
	case len(by) == 0:
		return ""
	case by[0].PID == os.Getpid():
		return " by another volume of this bridge"
	}
	return " by " + by[0].String()
}
