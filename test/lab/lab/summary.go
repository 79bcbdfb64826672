// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"krping/test/lab"
)

func summaryCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "summary",
		Short: "Add up the results of this build's suites, and repeat what those that failed said",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return summarize(cmd.OutOrStdout(), filepath.Join(lab.Build(), "results"))
		},
	}
}

// summarize reads what save and scripts/unit-tests left in dir. Failures come last, where a log that
// was cut off still has them: of tests that passed when they ran again, too.
func summarize(out io.Writer, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	var passed, failed, again int
	var failures strings.Builder
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			continue // pictures
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var p, f, a int
		if _, err := fmt.Sscan(string(data), &p, &f, &a); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		fmt.Fprintf(out, "%-32s %4d passed, %d failed\n", filepath.Base(file), p, f)
		if f+a > 0 {
			_, text, _ := strings.Cut(string(data), "\n")
			what := "FAILED"
			if f == 0 {
				what = "PASSED THE SECOND TIME"
			}
			fmt.Fprintf(&failures, "%s  %s\n%s\n", what, filepath.Base(file), strings.TrimSpace(text))
		}
		passed, failed, again = passed+p, failed+f, again+a
	}
	fmt.Fprintf(out, "%s%d passed, %d failed", failures.String(), passed, failed)
	if again > 0 {
		fmt.Fprintf(out, "; %d of those that passed were too late the first time", again)
	}
	fmt.Fprintln(out)
	if failed > 0 || passed == 0 {
		return errors.New("the tests failed")
	}
	return nil
}
