// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// When a post fails, the number of posted work requests is right: see testdata/post.c.
func TestPostThatFails(t *testing.T) { runC(t, "testdata/post.c") }

// A completion queue that fails is an error, not one without completions: see testdata/next.c.
func TestCompletionQueueThatFails(t *testing.T) { runC(t, "testdata/next.c") }

// Turns of queue pairs post where they should, in order, and end when they should: see testdata/pairs.c.
func TestTurns(t *testing.T) { runC(t, "testdata/pairs.c") }

// Exchanges run what they expect, and leave the rest to their caller: see testdata/exchange.c.
func TestExchanges(t *testing.T) { runC(t, "testdata/exchange.c") }

// The executor's loop answers, and leaves to Go what it should: see testdata/executor.c.
func TestExecutor(t *testing.T) { runC(t, "testdata/executor.c") }

// compileC compiles a program with the C files of this package, and returns its path.
func compileC(t testing.TB, source string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	files, err := filepath.Glob("*.c")
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-g", "-Wall", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-o", program, source}, files...)
	compile := exec.Command("cc", append(args, "-lrdmacm", "-libverbs", "-l:liburing.a", "-pthread")...)
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", compile, err, out)
	}
	return program
}

// runC compiles a program with the C files of this package and runs it.
func runC(t *testing.T, source string) {
	t.Helper()
	program := compileC(t, source)
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
