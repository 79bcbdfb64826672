// SPDX-License-Identifier: Apache-2.0

// Package pure runs the tests in C of those parts of the module that need no kernel.
package pure

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// run builds a test of kmod/fuzz with sources of kmod, and runs it.
func run(t *testing.T, test string, sources ...string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "test")
	args := []string{"-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I../../kmod", "-o", program, "../../kmod/fuzz/" + test}
	for _, s := range sources {
		args = append(args, "../../kmod/"+s)
	}
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", test, err, out)
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", test, err, out)
	}
}

// Words of messages, which messages have arrived, and rates of a verbs test.
func TestVerbs(t *testing.T) {
	run(t, "verbs_test.c", "verbs/message.c", "verbs/account.c")
}
