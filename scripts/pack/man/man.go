// SPDX-License-Identifier: Apache-2.0

// Package man writes the manual pages of a program. Only builds with the tag man use it, so that the
// programs do not contain the generator.
package man

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Main writes a page for each command of root into the directory os.Args[1], which must exist. Their
// date is $SOURCE_DATE_EPOCH (seconds) if it is set.
func Main(root *cobra.Command, version string) {
	if err := write(root, version, os.Args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(root *cobra.Command, version string, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: %s DIRECTORY", root.Name())
	}
	date := time.Now()
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		date = time.Unix(seconds, 0).UTC()
	}
	root.InitDefaultCompletionCmd()
	prepare(root)
	return doc.GenManTree(root, &doc.GenManHeader{
		Section: "8", Source: "krping " + version, Manual: "krping", Date: &date,
	}, args[1])
}

// prepare makes the texts of a command and those below it into what the generator takes: Markdown.
func prepare(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	cmd.Long = markdown(cmd.Long)
	for _, c := range cmd.Commands() {
		prepare(c)
	}
}

// markdown keeps the lines of indented blocks apart, and escapes what Markdown would take as markup.
func markdown(text string) string {
	var out strings.Builder
	indented := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  ") {
			if !indented {
				out.WriteString("\n")
			}
			line = "    " + line
		} else {
			line = strings.NewReplacer("*", `\*`, "_", `\_`, "<", `\<`).Replace(line)
		}
		indented = strings.HasPrefix(line, " ")
		out.WriteString(line)
	}
	return out.String()
}
