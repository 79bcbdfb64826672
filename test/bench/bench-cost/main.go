// SPDX-License-Identifier: Apache-2.0

// Bench-cost counts the instructions that an I/O takes on both hosts, for krping, krping-bridge and nvme-rdma, in
// all and by layer. Other than times, they hardly depend on what else this machine does. It leaves the report, as
// Markdown and JSON, and the instructions by function in build/bench.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"krping/test/bench"
	"krping/test/lab"
)

func main() { bench.Main("bench-cost", run) }

func run(ctx context.Context, args []string) (err error) {
	c := bench.Costs{Log: os.Stderr, DiskSize: 64, FIO: bench.FIO{Engine: "io_uring"}}
	flags := flag.NewFlagSet("bench-cost", flag.ContinueOnError)
	kernel := flags.String("kernel", "6.1", "`kernel`: 6.1, 6.12 or newest")
	out := flags.String("out", filepath.Join(lab.Build(), "bench"), "`directory` of the report")
	jobs := flags.String("jobs", "", "count only jobs whose name matches this `regexp`")
	traced := flags.Bool("traced", false, "count what krpingctl's tracers add to krping's I/O, instead of the contenders")
	contenders := flags.String("contenders", strings.Join(bench.CostContenders(), ","), "comma-separated `list` of contenders")
	flags.IntVar(&c.Rounds, "rounds", 3, "`number` of counts of each job; the report has the medians")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.Jobs, err = bench.MatchingJobs(bench.CostJobs(), *jobs); err != nil {
		return fmt.Errorf("--jobs: %w", err)
	}
	if c.Contenders, err = bench.ParseContenders(*contenders, bench.CostContenders()); err != nil {
		return fmt.Errorf("--contenders: %w", err)
	}
	if *traced && *contenders != strings.Join(bench.CostContenders(), ",") {
		return errors.New("--traced has contenders of its own: leave --contenders out")
	}
	if *traced {
		c.Contenders = append(bench.CostContenders()[:1], bench.TracedContenders()...)
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case len(c.Jobs) == 0:
		return fmt.Errorf("--jobs %s: matches no job", *jobs)
	case c.Rounds < 1:
		return errors.New("--rounds: must be 1 or more")
	}
	l, err := lab.Start(ctx, lab.Config{Kernel: *kernel, VMs: 2, Memory: 2048, Count: true, Out: *out})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := l.LoadModule(ctx); err != nil {
		return err
	}
	c.Lab = l
	costs, err := c.Run(ctx)
	if err != nil {
		return err
	}
	if complaints := l.Complaints(); complaints != "" {
		return errors.New(complaints)
	}
	return bench.WriteCosts(*out, os.Stdout, l.Kernel.Release, costs)
}
