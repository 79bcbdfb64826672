// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"krping/test/lab"
)

// A failure is kept with the last lines that its test said: the summary repeats them.
const failureLines = 12

// tally counts the tests in the output of a suite and passes it on.
type tally struct {
	path           string
	out            io.Writer
	mu             sync.Mutex
	line           []byte
	said           []string // by the test that runs
	passed, failed int
	failures       []string // lines of the tests that failed
}

func newTally(name, kernel string, out io.Writer) *tally {
	return &tally{path: filepath.Join(lab.Build(), "results", name+"-"+kernel), out: out}
}

func (t *tally) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = append(t.line, p...)
	for {
		line, rest, found := bytes.Cut(t.line, []byte("\n"))
		if !found {
			break
		}
		t.count(string(line))
		t.line = rest
	}
	return t.out.Write(p)
}

// count takes a test that was skipped as failed: what cannot run here must say why and fail.
func (t *tally) count(line string) {
	switch {
	case strings.HasPrefix(line, "--- PASS: "):
		t.passed++
		t.said = nil
	case strings.HasPrefix(line, "--- FAIL: "), strings.HasPrefix(line, "--- SKIP: "):
		t.failed++
		t.failures = append(append(t.failures, t.said...), line)
		t.said = nil
	case strings.HasPrefix(line, "=== "), strings.HasPrefix(strings.TrimSpace(line), "--- PASS: "):
	default:
		if t.said = append(t.said, line); len(t.said) > failureLines {
			t.said = t.said[1:]
		}
	}
}

// finish keeps the numbers for the summary, and what the failed tests and err said.
func (t *tally) finish(err error) error {
	if err != nil && t.failed == 0 {
		t.failed = 1 // the suite as a whole
		t.failures = append(t.failures, t.said...)
	}
	if err != nil {
		t.failures = append(t.failures, lastLines(err.Error(), failureLines)...)
	}
	if err := os.MkdirAll(filepath.Dir(t.path), 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf("%d %d\n%s\n", t.passed, t.failed, strings.Join(t.failures, "\n"))
	if err := os.WriteFile(t.path, []byte(text), 0o644); err != nil {
		return err
	}
	switch {
	case t.failed > 0 && err == nil:
		return fmt.Errorf("%d tests failed or were skipped", t.failed)
	case t.passed == 0 && err == nil:
		return errors.New("no test ran")
	}
	return nil
}

func lastLines(text string, n int) []string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[max(0, len(lines)-n):]
}
