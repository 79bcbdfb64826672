// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"krping/test/internal/late"
	"krping/test/internal/needs"
)

const (
	passes = "=== RUN   TestOne\n    one_test.go:1: said by one\n--- console around it:\n    --- FAIL: TestOther (0.1s)\n--- PASS: TestOne (0.1s)\n"
	wrong  = "=== RUN   TestTwo\n    two_test.go:9: wrong answer\n--- FAIL: TestTwo (0.1s)\n"
	slow   = "=== RUN   TestThree\n    three_test.go:9: " + late.Mark + "it took a while\n--- FAIL: TestThree (0.1s)\n"
	parts  = "=== RUN   TestFive\n=== RUN   TestFive/a\n    f_test.go:1: a is wrong\n=== RUN   TestFive/b\n    f_test.go:1: b is right\n=== NAME  TestFive\n" +
		"a long table\n--- FAIL: TestFive (0.2s)\n    --- FAIL: TestFive/a (0.1s)\n    --- PASS: TestFive/b (0.1s)\n"
	loses = "=== RUN   TestFour\n    f_test.go:9: " + late.Mark + "it took a while\n    f_test.go:1: of 10 acknowledged writes: 1 blocks lost, 0 corrupt\n--- FAIL: TestFour (0.1s)\n"
)

func tallyOf(t *testing.T, output string) *tally {
	t.Helper()
	tally := newTally(io.Discard)
	if _, err := io.WriteString(tally, output); err != nil {
		t.Fatal(err)
	}
	return tally
}

// Tests run again only if all that failed were too late.
func TestLate(t *testing.T) {
	exit := errors.New("exit status 1")
	for name, test := range map[string]struct {
		output string
		late   []string
		err    error
	}{
		"passes":          {passes + "PASS\n", nil, nil},
		"too late":        {passes + slow + "FAIL\n", []string{"TestThree"}, errTests},
		"wrong, too":      {slow + wrong + "FAIL\n", nil, errTests},
		"lost data":       {loses + "FAIL\n", nil, errTests},
		"then it crashed": {slow + "panic: test timed out\n", []string{"TestThree"}, exit},
	} {
		tally := tallyOf(t, test.output)
		var err error
		if test.err != nil {
			err = exit
		}
		if err := tally.ended(err); err != test.err || !slices.Equal(tally.late(), test.late) {
			t.Errorf("%s: %v, late: %v; want %v, %v", name, err, tally.late(), test.err, test.late)
		}
	}
	if err := tallyOf(t, "PASS\n").ended(nil); err == nil {
		t.Error("no error where no test ran")
	}
}

const (
	lacks   = "=== RUN   TestSix\n    f_test.go:1: " + needs.Mark + "eBPF\n--- SKIP: TestSix (0.1s)\n"
	skips   = "=== RUN   TestSeven\n    f_test.go:1: not today\n--- SKIP: TestSeven (0.1s)\n"
	partial = "=== RUN   TestEight\n=== RUN   TestEight/a\n    f_test.go:1: " + needs.Mark + "RoCE\n=== RUN   TestEight/b\n    f_test.go:1: not today\n" +
		"--- PASS: TestEight (0.2s)\n    --- SKIP: TestEight/a (0.1s)\n    --- SKIP: TestEight/b (0.1s)\n"
)

// A test whose needs are not met is not applicable. One that skips itself otherwise fails, as a subtest, too.
func TestSkippedTests(t *testing.T) {
	for name, test := range map[string]struct {
		output         string
		passed, failed int
		reasons        []string
		err            error
	}{
		"declared":            {passes + lacks, 1, 0, []string{"TestSix: needs eBPF"}, nil},
		"nothing else":        {lacks, 0, 0, []string{"TestSix: needs eBPF"}, nil},
		"undeclared":          {passes + skips + lacks, 1, 1, []string{"TestSix: needs eBPF"}, errTests},
		"undeclared, subtest": {partial, 1, 1, []string{"TestEight/a: needs RoCE"}, errTests},
	} {
		tally := tallyOf(t, test.output+"PASS\n")
		if err := tally.ended(nil); err != test.err || tally.passed != test.passed || tally.failed != test.failed || !slices.Equal(tally.reasons, test.reasons) {
			t.Errorf("%s: %v, %d passed, %d failed, not applicable: %q; want %v, %d, %d, %q", name, err, tally.passed, tally.failed, tally.reasons,
				test.err, test.passed, test.failed, test.reasons)
		}
	}
}

func TestSummaryRepeatsFailures(t *testing.T) {
	dir := t.TempDir()
	save := func(name string, tally *tally, err error) {
		t.Helper()
		if err := tally.result(time.Minute, err).save(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	save("guest-a-6.1", tallyOf(t, passes+wrong), errTests)
	save("guest-b-6.1", tallyOf(t, passes), nil)
	save("guest-c-6.1", tallyOf(t, passes+"out of reach\n"), errors.New("the VM is gone"))
	again := tallyOf(t, "--- PASS: TestThree (0.1s)\n")
	again.after(tallyOf(t, passes+slow))
	save("guest-d-6.1", again, nil)
	save("guest-f-6.1", tallyOf(t, parts+passes), errTests)
	stacks := strings.Repeat("goroutine 1 [sleep]:\n", 20)
	save("guest-e-6.1", tallyOf(t, "waits\npanic: test timed out\n\tTestHangs\n"+stacks), errors.New("the kernel complains: first\n"+strings.Repeat("and more\n", 100)))

	save("guest-g-6.1", tallyOf(t, passes+lacks), nil)

	var out bytes.Buffer
	if err := printTimes(&out, dir); err != nil || !strings.Contains(out.String(), "guest-b-6.1 60s\n") {
		t.Errorf("times: %v\n%s", err, out.String())
	}
	out.Reset()
	if err := summarize(&out, dir); err == nil {
		t.Error("no error for failed tests")
	}
	_, failures, _ := strings.Cut(out.String(), "PASSED THE SECOND")
	for _, want := range []string{
		"guest-a-6.1", "wrong answer", "--- FAIL: TestTwo", "guest-c-6.1", "out of reach", "the VM is gone",
		" TIME  guest-d-6.1", "it took a while", "1 of those that passed were too late", "\n7 passed, 4 failed\n",
		"a long table\n--- FAIL: TestFive (0.2s)\n    f_test.go:1: a is wrong\n    --- FAIL: TestFive/a (0.1s)",
		"waits\npanic: test timed out\n\tTestHangs", "complains: first\nand more",
	} {
		if !strings.Contains(failures, want) {
			t.Errorf("the summary ends without %q:\n%s", want, out.String())
		}
	}
	for _, want := range []string{"NOT APPLICABLE  TestSix: needs eBPF\n", "guest-g-6.1                             1      0      1     60 s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the summary lacks %q:\n%s", want, out.String())
		}
	}
	for _, not := range []string{"said by one", "guest-b", "b is right"} {
		if strings.Contains(failures, not) {
			t.Errorf("the failures hold %q:\n%s", not, out.String())
		}
	}
	if last := "guest-e-6.1: the kernel complains: first\nguest-f-6.1: --- FAIL: TestFive (0.2s)\n7 passed, 4 failed\n"; !strings.HasSuffix(out.String(), last) {
		t.Errorf("the summary does not end with\n%s\n%s", last, out.String())
	}
	if err := summarize(io.Discard, filepath.Join(dir, "none")); err == nil {
		t.Error("no error where nothing was run")
	}
}
