// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"krping/proc"
)

// optionsTopic is the help topic `krpingctl help options`, the reference of /proc/krping.
func optionsTopic() *cobra.Command {
	return &cobra.Command{Use: "options", Short: "Reference of the options of /proc/krping", Long: optionsReference()}
}

func optionsReference() string {
	var b strings.Builder
	b.WriteString("Options of /proc/krping, with the commands that take them. They are flags of krpingctl, too,\n" +
		"with '-' instead of '_'.\n\n")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, o := range proc.Options {
		name := o.Name
		if o.Value != "" {
			name += "=" + placeholder(o.Value)
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
			text += ". Default " + strings.ReplaceAll(o.Default, "`", "")
		}
		fmt.Fprintf(w, "%s\t%s\n\t  %s\n", name, goes, text)
	}
	_ = w.Flush() // cannot fail: b is a strings.Builder
	return b.String()
}

// placeholder returns how the reference writes a kind of value, such as NUMBER or dma|reg.
func placeholder(value string) string {
	value = strings.ReplaceAll(value, " or ", "|")
	if strings.ContainsAny(value, ":|") {
		return value
	}
	return strings.ToUpper(strings.ReplaceAll(value, " ", "-"))
}
