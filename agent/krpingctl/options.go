// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"krping/proc"
)

// optionsTopic is what `krpingctl help options` shows: the reference of /proc/krping.
func optionsTopic() *cobra.Command {
	return &cobra.Command{Use: "options", Short: "The options of /proc/krping, one by one", Long: optionsReference()}
}

func optionsReference() string {
	var b strings.Builder
	b.WriteString("Options of /proc/krping. krpingctl has them as flags, with '-' for '_'.\n\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, o := range proc.Options {
		name := o.Name
		if o.Value != "" {
			name += "=" + strings.ToUpper(strings.ReplaceAll(o.Value, " ", "-"))
		}
		goes := o.Contexts.String()
		if tests := o.Tests.String(); tests != "" && tests != "all" {
			goes += " (" + tests + ")"
		}
		text := strings.ReplaceAll(o.Text, "`", "")
		if o.Value == "number" {
			text += ". " + o.Range()
		}
		if o.Default != "" {
			text += ". Default " + o.Default
		}
		fmt.Fprintf(w, "%s\t%s\n\t  %s\n", name, goes, text)
	}
	_ = w.Flush() // to a string
	return b.String()
}
