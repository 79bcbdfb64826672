// SPDX-License-Identifier: Apache-2.0

package halt

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	busy  = "KRPING_TEST_BUSY"
	limit = time.Minute
)

// TestMain is also the busy process that the tests stop.
func TestMain(m *testing.M) {
	if os.Getenv(busy) == "" {
		os.Exit(m.Run())
	}
	for range 8 {
		go func() {
			for {
				_, _ = unix.Getpriority(unix.PRIO_PROCESS, 0)
			}
		}()
	}
	time.Sleep(limit)
}

func start(t *testing.T) *os.Process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), busy+"=1", "GOMAXPROCS=8")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	time.Sleep(100 * time.Millisecond)
	return cmd.Process
}

// When Stop returns, no thread runs, however busy the process was.
func TestStopBusyProcess(t *testing.T) {
	process := start(t)
	for range 50 {
		if err := Stop(process, limit); err != nil {
			t.Fatal(err)
		}
		if thread, state, err := notStopped(process.Pid); thread != 0 || err != nil {
			t.Fatalf("thread %d is in state %q (%v)", thread, state, err)
		}
		if err := process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestStopEndedProcess(t *testing.T) {
	process := start(t)
	_ = process.Kill()
	_, _ = process.Wait()
	if err := Stop(process, limit); err == nil {
		t.Error("no error for a process that has ended")
	}
}
