// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

func TestSummaryRepeatsFailures(t *testing.T) {
	dir := t.TempDir()
	write := func(name, output string, err error) {
		tally := &tally{path: filepath.Join(dir, name), out: io.Discard}
		io.WriteString(tally, output)
		tally.finish(err)
	}
	write("guest-a-6.1", "=== RUN   TestOne\n    one_test.go:1: said by one\n--- PASS: TestOne (0.1s)\n"+
		"=== RUN   TestTwo\n    two_test.go:9: wrong answer\n--- FAIL: TestTwo (0.1s)\n", errors.New("exit status 1"))
	write("guest-b-6.1", "--- PASS: TestThree (0.1s)\n", nil)
	write("guest-c-6.1", "--- PASS: TestFour (0.1s)\nout of reach\n", errors.New("the VM is gone"))

	var out bytes.Buffer
	if err := summarize(&out, dir); err == nil {
		t.Error("no error for failed tests")
	}
	_, failures, _ := strings.Cut(out.String(), "FAILED")
	for _, want := range []string{"guest-a-6.1", "wrong answer", "--- FAIL: TestTwo", "guest-c-6.1", "out of reach", "the VM is gone", "3 passed, 2 failed"} {
		if !strings.Contains(failures, want) {
			t.Errorf("the summary ends without %q:\n%s", want, out.String())
		}
	}
	for _, not := range []string{"said by one", "guest-b"} {
		if strings.Contains(failures, not) {
			t.Errorf("the failures hold %q:\n%s", not, out.String())
		}
	}
}
