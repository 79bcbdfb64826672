// SPDX-License-Identifier: Apache-2.0

//go:build lab

package guest

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// Result is the result of a command.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// Exec runs a command and returns its output and exit code.
func Exec(t testing.TB, argv ...string) Result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return Result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// Krpingctl runs krpingctl and returns its output and exit code.
func Krpingctl(t testing.TB, args ...string) Result {
	t.Helper()
	return Exec(t, append([]string{Binary(t, "krpingctl")}, args...)...)
}

// MustKrpingctl runs krpingctl, which must succeed, and returns its output.
func MustKrpingctl(t testing.TB, args ...string) string {
	t.Helper()
	r := Krpingctl(t, args...)
	if r.Code != 0 {
		t.Fatalf("krpingctl %s: exit code %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}
