// SPDX-License-Identifier: Apache-2.0

package interrupt

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const asProgram = "INTERRUPT_TEST"

// TestMain is a program that does not end when it is told to, if the environment says so.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := Context()
	defer stop()
	fmt.Println("begun")
	<-ctx.Done()
	time.Sleep(time.Second) // until the handler is gone
	fmt.Println("ending")
	time.Sleep(time.Minute)
}

// The first signal ends the context, the second one the process.
func TestSecondSignalKills(t *testing.T) {
	for _, signals := range [][2]syscall.Signal{{unix.SIGINT, unix.SIGINT}, {unix.SIGTERM, unix.SIGINT}, {unix.SIGINT, unix.SIGTERM}} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), asProgram+"=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
		lines := bufio.NewScanner(out)
		for i, want := range []string{"begun", "ending"} {
			if !lines.Scan() || lines.Text() != want {
				t.Errorf("%q, want %q", lines.Text(), want)
			}
			if err := cmd.Process.Signal(signals[i]); err != nil {
				t.Error(err)
			}
		}
		err = cmd.Wait()
		kill.Stop()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != signals[1] {
			t.Errorf("%v: ended with %v, want that of the second", signals, err)
		}
	}
}
