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
	said           map[string][]string // by each of the tests that run, since the last one of all ended
	speaker        string              // the test whose lines come
	wasLate        bool                // says one of them
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

// count takes a test that was skipped as failed: what cannot run here must say why and fail. The tests
// in a test end behind it: by then it is counted, and their lines are still known.
func (t *tally) count(line string) {
	fields := strings.Fields(line)
	switch {
	case len(fields) > 2 && fields[0] == "===":
		if fields[1] == "RUN" && !strings.Contains(fields[2], "/") {
			t.said, t.wasLate = nil, false
		}
		t.speaker = fields[2]
	case len(fields) > 2 && fields[0] == "---" && slices.Contains([]string{"PASS:", "FAIL:", "SKIP:"}, fields[1]):
		t.end(fields[1] == "PASS:", fields[2], line)
	case line == "FAIL", line == "PASS":
		t.complete = true
	default:
		t.wasLate = t.wasLate || strings.Contains(line, late.Mark)
		if t.said == nil {
			t.said = map[string][]string{}
		}
		t.said[t.speaker] = append(t.said[t.speaker], line)
	}
}

// end takes how a test ended.
func (t *tally) end(passed bool, name, line string) {
	whole := strings.HasPrefix(line, "--- ") // the line of a test in a test is indented
	if whole && passed {
		t.passed++
		t.said, t.wasLate = nil, false
	}
	if passed {
		return
	}
	if whole {
		t.failed++
		if t.wasLate && !t.neverAgain() {
			t.lateOnes = append(t.lateOnes, name)
		}
	}
	t.failures = append(append(t.failures, lastWords(t.said[name])...), line)
}

func (t *tally) neverAgain() bool {
	for _, said := range t.said {
		for _, words := range neverAgain {
			if strings.Contains(strings.Join(said, "\n"), words) {
				return true
			}
		}
	}
	return false
}

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
		t.failures = append(t.failures, lastWords(t.said[t.speaker])...)
		report := strings.Split(strings.TrimSpace(err.Error()), "\n")
		t.failures = append(t.failures, report[:min(len(report), reportLines)]...)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	text := fmt.Sprintf("%d %d %d\n%s\n", t.passed, t.failed, t.again, strings.Join(t.failures, "\n"))
	return os.WriteFile(path, []byte(text), 0o644)
}

// lastWords returns the end of what a test said: where it panicked, not the stacks of all goroutines
// after that.
func lastWords(said []string) []string {
	if i := slices.IndexFunc(said, func(line string) bool { return strings.HasPrefix(line, "panic: ") }); i >= 0 {
		said = said[:min(len(said), i+failureLines/2)]
	}
	return said[max(0, len(said)-failureLines):]
}
