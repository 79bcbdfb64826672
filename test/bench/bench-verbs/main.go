// SPDX-License-Identifier: Apache-2.0

// Bench-verbs compares krping's bandwidth and latency tests with perftest's in the same two VMs in one run,
// and prints the ratios.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"krping/test/bench"
	"krping/test/lab"
)

func main() { bench.Main("bench-verbs", run) }

func run(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("bench-verbs", flag.ContinueOnError)
	kernel := flags.String("kernel", "6.1", "`kernel`: 6.1, 6.12 or newest")
	rounds := flags.Int("rounds", 5, "measurements of each; the median counts")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *rounds < 1 || flags.NArg() > 0 {
		return errors.New("--rounds must be 1 or more; there are no arguments")
	}
	l, err := lab.Start(ctx, lab.Config{Kernel: *kernel, VMs: 2})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := l.LoadModule(ctx); err != nil {
		return err
	}
	v := bench.Verbs{Lab: l, Log: os.Stderr, Rounds: *rounds, Sizes: []int{64, 4096, 65536}}
	rows, err := v.Run(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("kernel %s, %d rounds, medians\n\n", *kernel, *rounds)
	if err := bench.WriteTable(os.Stdout, rows); err != nil {
		return err
	}
	if report := l.Complaints(); report != "" {
		return errors.New(report)
	}
	for _, r := range rows {
		if !r.Met {
			return fmt.Errorf("%s at %d bytes: ratio %.2f, target %s", r.Test, r.Size, r.Ratio, r.Target)
		}
	}
	return nil
}
