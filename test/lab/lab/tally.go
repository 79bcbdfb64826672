// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"krping/test/internal/late"
)

// A failure is kept with the last lines that its test said, and with the first of a report on the suite:
// the summary repeats them.
const (
	failureLines = 12
	reportLines  = 40
)

// tally counts the tests in the output of a suite, and passes it on.
type tally struct {
	out            io.Writer
	mu             sync.Mutex
	line           []byte
	said           []string // by the test that runs
	wasLate        bool     // says the test that runs
	passed, failed int
	complete       bool     // the suite ran to its end
	lateOnes       []string // tests that failed for that
	failures       []string // lines of the tests that failed
	again          int      // tests that failed in an earlier trial, and not in this
}

func newTally(out io.Writer) *tally { return &tally{out: out} }

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

// neverAgain are words of failures that no lateness explains: of acklog's report, and of a load that hangs.
var neverAgain = []string{" blocks lost, ", "hung: "}

// count takes a test that was skipped as failed: what cannot run here must say why and fail.
func (t *tally) count(line string) {
	switch {
	case strings.HasPrefix(line, "--- PASS: "):
		t.passed++
		t.next()
	case strings.HasPrefix(line, "--- FAIL: "), strings.HasPrefix(line, "--- SKIP: "):
		t.failed++
		if t.wasLate && !slices.ContainsFunc(neverAgain, func(words string) bool { return strings.Contains(strings.Join(t.said, "\n"), words) }) {
			t.lateOnes = append(t.lateOnes, strings.Fields(line)[2])
		}
		t.failures = append(append(t.failures, t.lastWords()...), line)
		t.next()
	case line == "FAIL", line == "PASS":
		t.complete = true
	case strings.HasPrefix(line, "=== "), strings.HasPrefix(strings.TrimSpace(line), "--- PASS: "):
	default:
		t.wasLate = t.wasLate || strings.Contains(line, late.Mark)
		t.said = append(t.said, line)
	}
}

func (t *tally) next() { t.said, t.wasLate = nil, false }

// ended takes how the suite's program ended, and returns how the suite did.
func (t *tally) ended(err error) error {
	switch {
	case err != nil && !t.complete:
		return err
	case t.failed > 0:
		return errTests
	case err == nil && t.passed == 0:
		return errors.New("no test ran")
	}
	return err
}

// late returns the tests that failed, if none did for another reason than that it was too late.
func (t *tally) late() []string {
	if len(t.lateOnes) < t.failed {
		return nil
	}
	return t.lateOnes
}

// after adds an earlier trial, of which this one has repeated the tests that failed.
func (t *tally) after(first *tally) {
	t.again = max(0, first.failed-t.failed)
	t.passed += first.passed
	t.failures = append(first.failures, t.failures...)
}

// save keeps the numbers for the summary, and what the failed tests said and err says.
func (t *tally) save(path string, err error) error {
	if err != nil && err != errTests {
		t.failed++ // the suite as a whole
		t.failures = append(t.failures, t.lastWords()...)
		report := strings.Split(strings.TrimSpace(err.Error()), "\n")
		t.failures = append(t.failures, report[:min(len(report), reportLines)]...)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf("%d %d %d\n%s\n", t.passed, t.failed, t.again, strings.Join(t.failures, "\n"))
	return os.WriteFile(path, []byte(text), 0o644)
}

// lastWords returns the end of what a suite said that did not come to its own: where it panicked, not
// the stacks of all goroutines after that.
func (t *tally) lastWords() []string {
	said := t.said
	if i := slices.IndexFunc(said, func(line string) bool { return strings.HasPrefix(line, "panic: ") }); i >= 0 {
		said = said[:min(len(said), i+failureLines/2)]
	}
	return said[max(0, len(said)-failureLines):]
}
