// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Scheduled is how long VMs have had a CPU of this host, and how long they wanted one that others had.
type Scheduled struct{ Ran, Waited time.Duration }

// Scheduled returns it of all VMs so far.
func (l *Lab) Scheduled() (Scheduled, error) {
	var sum Scheduled
	for _, vm := range l.vms {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", vm.qemu.Process.Pid))
		if err != nil {
			return sum, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if os.IsNotExist(err) {
				continue // a thread that has ended
			}
			if err != nil {
				return sum, err
			}
			if err := sum.add(string(text)); err != nil {
				return sum, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return sum, nil
}

// add adds a line of schedstat: nanoseconds on a CPU, nanoseconds of waiting for one, times on a CPU.
func (s *Scheduled) add(line string) error {
	var ran, waited, times int64
	if _, err := fmt.Sscan(line, &ran, &waited, &times); err != nil {
		return fmt.Errorf("%q: %w", line, err)
	}
	s.Ran += time.Duration(ran)
	s.Waited += time.Duration(waited)
	return nil
}

// Sub returns what came after an earlier moment.
func (s Scheduled) Sub(earlier Scheduled) Scheduled {
	return Scheduled{s.Ran - earlier.Ran, s.Waited - earlier.Waited}
}
