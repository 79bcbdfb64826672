// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// helpWidth is the width of the help in columns, unless the terminal has less.
const helpWidth = 100

// groupAnnotation is the title below which the help lists a flag.
const groupAnnotation = "krping_group"

// GroupFlags puts flags that exist below a title of their own in the command's help.
func GroupFlags(cmd *cobra.Command, title string, names ...string) {
	for _, name := range names {
		if err := cmd.Flags().SetAnnotation(name, groupAnnotation, []string{title}); err != nil {
			panic(err) // a name that is no flag: a test finds it
		}
	}
}

// UseFlagGroups makes the help of cmd and of all commands below it list flags in their groups, in this order,
// and no line longer than the terminal. Flags without a group come first.
func UseFlagGroups(cmd *cobra.Command, groups ...string) {
	order := append([]string{"Flags"}, groups...)
	cobra.AddTemplateFunc("flagGroups", func(cmd *cobra.Command) string { return flagGroups(cmd, order) })
	cmd.SetUsageTemplate(strings.NewReplacer(
		"\n\nFlags:\n{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}", "\n\n{{flagGroups .}}",
		"{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}", "{{.InheritedFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}",
	).Replace(cmd.UsageTemplate()))
}

// flagGroups returns the help of a command's own flags.
func flagGroups(cmd *cobra.Command, order []string) string {
	sets := map[string]*pflag.FlagSet{}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		title := order[0]
		if group := f.Annotations[groupAnnotation]; len(group) == 1 {
			title = group[0]
		}
		if sets[title] == nil {
			sets[title] = pflag.NewFlagSet(title, pflag.ContinueOnError)
		}
		sets[title].AddFlag(f)
	})
	var parts []string
	for _, title := range order {
		if sets[title] != nil {
			parts = append(parts, title+":\n"+strings.TrimRight(sets[title].FlagUsagesWrapped(columns()), "\n"))
		}
	}
	return strings.Join(parts, "\n\n")
}

// columns returns the width that the help may use.
func columns() int {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || width < 40 {
		return helpWidth
	}
	return min(width, helpWidth)
}
