// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"krping/test/internal/late"
	"krping/test/internal/needs"
)

// The summary repeats the last lines of each failed test, and the first of a report on the suite.
const (
	failureLines = 12
	reportLines  = 40
)

// tally counts the tests in the output of go test -v, and passes the output on.
type tally struct {
	out     io.Writer
	mu      sync.Mutex
	line    []byte              // the last one, not yet complete
	speaker string              // the test whose lines come
	said    map[string][]string // lines by test
	over    []string            // tests whose lines can go when the next one starts

	passed, failed, again int
	complete              bool     // the suite ran to its end
	lateOnes              []string // tests that failed because they were too late
	failures              []string // lines of the tests that failed
	reasons               []string // of the tests that were not applicable
	boot, cpu             time.Duration
}

func newTally(out io.Writer) *tally { return &tally{out: out, said: map[string][]string{}} }

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

func (t *tally) count(line string) {
	fields := strings.Fields(line)
	switch {
	case len(fields) > 2 && fields[0] == "===":
		if fields[1] == "RUN" && !strings.Contains(fields[2], "/") {
			t.forget()
		}
		t.speaker = fields[2]
	case len(fields) > 2 && fields[0] == "---" && slices.Contains([]string{"PASS:", "FAIL:", "SKIP:"}, fields[1]):
		t.end(fields[1], fields[2], line)
	case line == "FAIL", line == "PASS":
		t.complete = true
	default:
		t.said[t.speaker] = append(t.said[t.speaker], line)
	}
}

// forget drops the lines of tests that have ended. Not earlier: the ends of subtests follow that of the
// test around them.
func (t *tally) forget() {
	for _, name := range t.over {
		maps.DeleteFunc(t.said, func(test string, _ []string) bool { return isPart(test, name) })
	}
	t.over = nil
}

// isPart says whether a test is the one of that name or a subtest of it.
func isPart(test, name string) bool { return test == name || strings.HasPrefix(test, name+"/") }

// end counts a test that has ended. One that was skipped without a declared need counts as failed.
func (t *tally) end(how, name, line string) {
	whole := strings.HasPrefix(line, "--- ") // the line of a subtest is indented
	if whole {
		t.over = append(t.over, name)
	}
	if how == "PASS:" {
		if whole {
			t.passed++
			t.speaker = ""
			delete(t.said, name) // not its subtests': they may have been skipped
		}
		return
	}
	if need := lacking(t.said[name]); how == "SKIP:" && need != "" {
		t.reasons = append(t.reasons, name+": needs "+need)
		return
	}
	if whole || how == "SKIP:" { // a test passes in which a subtest was skipped
		t.failed++
	}
	if whole && t.contains(name, late.Mark) && !slices.ContainsFunc(neverAgain, func(words string) bool { return t.contains(name, words) }) {
		t.lateOnes = append(t.lateOnes, name)
	}
	t.failures = append(append(t.failures, lastWords(t.said[name])...), line)
}

// lacking returns the need that a skipped test named, or "".
func lacking(said []string) string {
	for _, line := range said {
		if _, need, found := strings.Cut(line, needs.Mark); found {
			return need
		}
	}
	return ""
}

// neverAgain are words of failures that being late does not explain: lost data, and a load that hangs.
var neverAgain = []string{" blocks lost, ", "hung: "}

// contains says whether the test or one of its subtests has printed the words.
func (t *tally) contains(name, words string) bool {
	for test, said := range t.said {
		if isPart(test, name) && strings.Contains(strings.Join(said, "\n"), words) {
			return true
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
	case err == nil && t.passed+len(t.reasons) == 0:
		return errors.New("no test ran")
	}
	return err
}

// late returns the tests that failed, if all of them were too late and nothing else.
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
	t.reasons = append(first.reasons, t.reasons...)
	t.boot += first.boot
	t.cpu += first.cpu
}

// result returns what the summary needs to know. An error other than errTests counts as a failure of
// the suite as a whole.
func (t *tally) result(took time.Duration, err error) result {
	var headline string
	if err != nil && err != errTests {
		t.failed++
		t.failures = append(t.failures, lastWords(t.said[t.speaker])...)
		report := strings.Split(strings.TrimSpace(err.Error()), "\n")
		t.failures = append(t.failures, report[:min(len(report), reportLines)]...)
		headline = report[0]
	}
	return result{
		Passed: t.passed, Failed: t.failed, Again: t.again, NotApplicable: len(t.reasons), Reasons: t.reasons,
		Failures: t.failures, Report: headline, Seconds: took.Seconds(), Boot: t.boot.Seconds(), CPU: t.cpu.Seconds(),
	}
}

// lastWords returns the end of what a test said; if it panicked, from there on, without the stacks of
// all goroutines.
func lastWords(said []string) []string {
	if i := slices.IndexFunc(said, func(line string) bool { return strings.HasPrefix(line, "panic: ") }); i >= 0 {
		said = said[:min(len(said), i+failureLines/2)]
	}
	return said[max(0, len(said)-failureLines):]
}
