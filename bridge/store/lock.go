// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
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
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		for _, files := range descriptorsOf(process) {
			if !isLockedIn(files, info) {
				continue
			}
			pid := filepath.Base(process)
			if pid == strconv.Itoa(os.Getpid()) {
				return " by another volume of this bridge"
			}
			comm, _ := os.ReadFile(process + "/comm")
			return fmt.Sprintf(" by process %s (%s)", pid, strings.TrimSpace(string(comm)))
		}
	}
	return ""
}

// descriptorsOf returns the directories in /proc with the open files of a process. Those of a process
// whose first thread has ended are found through the others.
func descriptorsOf(process string) []string {
	if files, err := os.ReadDir(process + "/fd"); err == nil && len(files) > 0 {
		return []string{process + "/fd"}
	}
	tasks, _ := filepath.Glob(process + "/task/[0-9]*/fd")
	return tasks
}

// isLockedIn reports whether one of the open files in a directory in /proc is the file, and locked.
func isLockedIn(files string, info fs.FileInfo) bool {
	entries, _ := os.ReadDir(files)
	for _, e := range entries {
		opened, err := os.Stat(filepath.Join(files, e.Name()))
		if err != nil || !os.SameFile(opened, info) {
			continue
		}
		text, _ := os.ReadFile(filepath.Join(filepath.Dir(files), "fdinfo", e.Name()))
		if strings.Contains(string(text), "\nlock:") {
			return true
		}
	}
	return false
}
