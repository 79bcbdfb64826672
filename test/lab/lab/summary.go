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

// summarize reads what finish and scripts/unit-tests left in dir. Failures come last, where a log that
// was cut off still has them.
func summarize(out io.Writer, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	var passed, failed int
	var failures strings.Builder
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.IsDir() {
			continue // pictures
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var p, f int
		if _, err := fmt.Sscan(string(data), &p, &f); err != nil {
			return fmt.Errorf("read %s: %w", file, err)
		}
		fmt.Fprintf(out, "%-32s %4d passed, %d failed\n", filepath.Base(file), p, f)
		if f > 0 {
			_, text, _ := strings.Cut(string(data), "\n")
			fmt.Fprintf(&failures, "FAILED  %s\n%s\n", filepath.Base(file), strings.TrimSpace(text))
		}
		passed, failed = passed+p, failed+f
	}
	fmt.Fprintf(out, "%s%d passed, %d failed\n", failures.String(), passed, failed)
	if failed > 0 || passed == 0 {
		return errors.New("the tests failed")
	}
	return nil
}
