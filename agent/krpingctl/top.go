// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"krping/agent/stats/sampler"
	"krping/agent/stats/top"
	"krping/agent/trace/biotrace"
	"krping/bridge/cli"
)

func topCommand(p *program) *cobra.Command {
	var (
		interval     time.Duration
		once, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show live throughput, latencies by stage, queue depth and errors of sessions",
		Long: `Show what the sessions do now. Keys: q quits, arrows select a session, s sorts, p pauses, ? shows help.
With --once or --json, top needs no terminal.`,
		Example: "  krpingctl top --once --interval 5s",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < 100*time.Millisecond {
				return usagef("--interval %v: must be 100ms or more", interval)
			}
			onTerminal := !once && !asJSON
			if onTerminal && (!cli.IsTerminal(os.Stdin) || !cli.CanOverwrite(os.Stdout)) {
				return usagef("top needs a terminal; without one, use --once or --json")
			}
			host, err := os.Hostname()
			if err != nil {
				return fmt.Errorf("get this host's name: %w", err)
			}
			samples := sampler.New(p.proc)
			load := func() (sampler.Meter, error) { return biotrace.NewMeter() } // closed when the process ends
			if onTerminal {
				samples.Load(load)
				return top.Run(cmd.Context(), samples, interval, host)
			}
			samples.Use(load())
			wait := newWait("sampling")
			defer wait.end()
			err = samples.Run(cmd.Context(), interval, func(s sampler.Sample) error {
				wait.end()
				if err := writeSample(p.out, s, host, asJSON); err != nil || !once {
					return err
				}
				return io.EOF
			})
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		},
	}
	interval = time.Second
	timeVar(cmd.Flags(), &interval, "interval", "i", "time between two samples")
	cmd.Flags().BoolVar(&once, "once", false, "print one sample as text, after one interval")
	jsonFlagSays(cmd, &asJSON, "print each sample as a JSON object on one line")
	return cmd
}

func writeSample(out io.Writer, s sampler.Sample, host string, asJSON bool) error {
	if asJSON {
		return printJSON(out, s)
	}
	_, err := io.WriteString(out, top.Text(s, host))
	return err
}
