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

// TestMain is the busy process of TestStop, too.
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

// A process has stopped when Stop returns, however busy its threads are, and however often.
func TestStop(t *testing.T) {
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

// A process that has ended is none that is silent.
func TestStopOfNone(t *testing.T) {
	process := start(t)
	_ = process.Kill()
	_, _ = process.Wait()
	if err := Stop(process, limit); err == nil {
		t.Error("a process that has ended was stopped")
	}
}
