// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// setAdmin gives this thread CAP_SYS_ADMIN, or takes it away temporarily.
func setAdmin(on bool) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return err
	}
	const bit = 1 << unix.CAP_SYS_ADMIN
	sets[0].Effective &^= bit
	if on {
		sets[0].Effective |= bit
	}
	return unix.Capset(&header, &sets[0])
}

// Root without CAP_SYS_ADMIN can open /proc/krping, but not write commands. A process with the capability cannot either, if
// the file was opened without it.
func TestCommandsNeedAdmin(t *testing.T) {
	for _, tc := range []struct {
		name          string
		opens, writes bool
		want          error
	}{
		{"neither", false, false, unix.EPERM},
		{"the writer", false, true, unix.EPERM},
		{"the opener", true, false, unix.EPERM},
		{"both", true, true, unix.ENOENT}, // no such session
	} {
		err := make(chan error)
		go func() {
			runtime.LockOSThread() // for good: the thread has lost capabilities
			err <- command(tc.opens, tc.writes)
		}()
		if got := <-err; !errors.Is(got, tc.want) {
			t.Errorf("%s has CAP_SYS_ADMIN: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func command(opens, writes bool) error {
	if err := setAdmin(opens); err != nil {
		return err
	}
	fd, err := unix.Open("/proc/krping", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := setAdmin(writes); err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte("stop,block=nobody"))
	return err
}
