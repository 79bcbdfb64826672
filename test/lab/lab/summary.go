// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// result is how a suite or a check ended.
type result struct {
	Passed, Failed int
	Again          int // of those that passed: too late at the first try
	NotApplicable  int
	Reasons        []string // why it or tests in it were not applicable
	Failures       []string // what the failed tests said
	Report         string   // what is wrong with the suite as a whole, in a line
	Seconds        float64
	Boot           float64 // of Seconds, until its VM ran
	CPU            float64 // seconds, of its VMs
}

func (r result) save(path string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// headlines returns a line for each test that failed, and one for the report on the suite as a whole.
func (r result) headlines() []string {
	lines := slices.DeleteFunc(slices.Clone(r.Failures), func(line string) bool { return !strings.HasPrefix(line, "--- FAIL: ") })
	if r.Report != "" {
		lines = append(lines, r.Report)
	}
	return lines
}

func summaryCommand() *cobra.Command {
	var timesOnly bool
	cmd := &cobra.Command{
		Use:   "summary",
		Short: "Add up the results of this build's suites and checks, and repeat what failed",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if timesOnly {
				return printTimes(cmd.OutOrStdout(), resultsDir())
			}
			return summarize(cmd.OutOrStdout(), resultsDir())
		},
	}
	cmd.Flags().BoolVar(&timesOnly, "times", false, "print only how long each suite took, as test/lab/lab/times.txt has it")
	return cmd
}

// named is a result with its name.
type named struct {
	name string
	result
}

// results reads those in dir, sorted by name.
func results(dir string) ([]named, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	var all []named
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			continue // pictures
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		r := named{name: filepath.Base(file)}
		if err := json.Unmarshal(data, &r.result); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// printTimes prints the lines that expected reads.
func printTimes(out io.Writer, dir string) error {
	all, err := results(dir)
	for _, r := range all {
		if r.Passed > 0 {
			fmt.Fprintf(out, "%s %.0fs\n", r.name, r.Seconds)
		}
	}
	return err
}

// summarize prints the results in dir: a table, what was not applicable, the failures of tests that passed
// when they ran again, the others, and last each of those in a line, where a log that was cut off still
// has them.
func summarize(out io.Writer, dir string) error {
	all, err := results(dir)
	if err != nil {
		return err
	}
	var sum result
	var again, failures, lines strings.Builder
	fmt.Fprintf(out, "%-34s %6s %6s %6s %8s %8s %8s\n", "", "passed", "failed", "n/a", "time", "boot", "CPU")
	for _, r := range all {
		if r.Passed+r.Failed > 0 {
			fmt.Fprintf(out, "%-34s %6d %6d %6d %6.0f s %6.0f s %6.0f s\n", r.name, r.Passed, r.Failed, r.NotApplicable, r.Seconds, r.Boot, r.CPU)
		}
		said := strings.TrimSpace(strings.Join(r.Failures, "\n"))
		switch {
		case r.Failed > 0:
			fmt.Fprintf(&failures, "FAILED  %s\n%s\n", r.name, said)
			for _, what := range r.headlines() {
				fmt.Fprintf(&lines, "%s: %s\n", r.name, what)
			}
		case r.Again > 0:
			fmt.Fprintf(&again, "PASSED THE SECOND TIME  %s\n%s\n", r.name, said)
		}
		sum.Passed, sum.Failed, sum.Again = sum.Passed+r.Passed, sum.Failed+r.Failed, sum.Again+r.Again
		sum.NotApplicable += r.NotApplicable
		sum.Reasons = append(sum.Reasons, r.Reasons...)
	}
	for _, reason := range sum.Reasons {
		fmt.Fprintf(out, "NOT APPLICABLE  %s\n", reason)
	}
	fmt.Fprint(out, again.String(), failures.String())
	if sum.NotApplicable > 0 {
		fmt.Fprintf(out, "%d not applicable\n", sum.NotApplicable)
	}
	if sum.Again > 0 {
		fmt.Fprintf(out, "%d of those that passed were too late the first time\n", sum.Again)
	}
	fmt.Fprint(out, lines.String())
	fmt.Fprintf(out, "%d passed, %d failed\n", sum.Passed, sum.Failed)
	if sum.Failed > 0 || sum.Passed == 0 {
		return errors.New("the tests failed")
	}
	return nil
}

//go:embed times.txt
var times string

// unknownTime is what a suite is expected to take that times.txt does not name.
const unknownTime = 2 * time.Minute

// expected returns how long a suite took in an earlier run of all: jobs are sorted by it.
func expected(name string) time.Duration {
	lines := strings.Split(times, "\n")
	i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, name+" ") })
	if i < 0 {
		return unknownTime
	}
	took, err := time.ParseDuration(strings.TrimPrefix(lines[i], name+" "))
	if err != nil {
		return unknownTime
	}
	return took
}
