// SPDX-License-Identifier: Apache-2.0

// Package halt stops processes, for tests with peers that do not answer.
package halt

import (
	"fmt"
	"os"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Stop sends SIGSTOP and returns once every thread of the process has stopped. kill(2) returns
// earlier: a running thread continues until it sees the signal, on a busy machine long enough to answer a request.
func Stop(process *os.Process, limit time.Duration) error {
	if err := process.Signal(unix.SIGSTOP); err != nil {
		return err
	}
	for end := time.Now().Add(limit); ; time.Sleep(time.Millisecond) {
		thread, state, err := notStopped(process.Pid)
		if err != nil || thread == 0 {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("process %d got SIGSTOP, but after %v its thread %d is still in state %s", process.Pid, limit, thread, state)
		}
	}
}

// notStopped returns a thread of the process that is not stopped, and its state; 0 if there is none.
func notStopped(pid int) (int, string, error) {
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		return 0, "", err
	}
	for _, thread := range threads {
		stat, err := thread.Stat()
		if err != nil {
			return 0, "", err
		}
		if stat.State != "T" {
			return thread.PID, stat.State, nil
		}
	}
	return 0, "", nil
}
