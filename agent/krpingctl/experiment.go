// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"krping/agent/measure/sweep"
)

func experimentCommand(p *program) *cobra.Command {
	var f sweepFlags
	cmd := &cobra.Command{
		Use:   "experiment [NAME --addr ADDR]",
		Short: "Measure what an option costs or saves, and draw it",
		Long: `Run an experiment against "krping-bridge --ping" on the peer: a sweep over the options that it is
about. Prints a table and what it shows, and writes NAME.csv, NAME.svg and NAME.html, a page that
needs no network. Without NAME, lists the experiments.

Flags that take a list replace the experiment's values of that option, or add the option to it:
a point is measured for each combination. The points that need most are tried before the first is
measured; the error names the option that raises a limit.`,
		Example: `  krpingctl experiment
  krpingctl experiment threads --addr 192.168.77.1
  krpingctl experiment types --addr 192.168.77.1 --duration 10s
  krpingctl experiment srq --addr 192.168.77.1 --connections 1,250,1000 --qp uc
  krpingctl experiment mtu --addr 192.168.77.1 --mtu 1024,2048,4096 --out /tmp/mtu`,
		Args: arguments("[NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return p.listExperiments()
			}
			i := slices.Index(experimentNames(), args[0])
			if i < 0 {
				return usagef("experiment %q: must be %s", args[0], strings.Join(experimentNames(), ", "))
			}
			if err := f.check(cmd); err != nil {
				return err
			}
			experiment := sweep.Experiments[i]
			if err := p.sweep(cmd, experiment.Plan(f.command, f.values(), f.duration), experiment.View, experiment.Name, f.out); err != nil {
				return err
			}
			_, err := fmt.Fprintln(p.out, experiment.Text)
			return err
		},
	}
	f.axis(cmd, "size", "sizes", "S", "bytes per operation")
	f.axis(cmd, "threads", "threads", "", "numbers of kernel threads")
	f.axis(cmd, "connections", "connections", "", "bw: connections or queue pairs per thread")
	f.register(cmd)
	return cmd
}

func experimentNames() []string {
	var names []string
	for _, e := range sweep.Experiments {
		names = append(names, e.Name)
	}
	return names
}

func (p *program) listExperiments() error {
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	for _, e := range sweep.Experiments {
		fmt.Fprintf(w, "%s\t%s\n", e.Name, e.Title)
	}
	return w.Flush()
}
