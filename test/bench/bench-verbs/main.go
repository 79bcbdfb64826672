// SPDX-License-Identifier: Apache-2.0

// Bench-verbs compares krping's tests of a verb, by the module and by krping-bridge, with perftest's in the same two
// VMs. It leaves the report, as Markdown and JSON, in build/bench.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"krping/test/bench"
	"krping/test/lab"
)

func main() { bench.Main("bench-verbs", run) }

func run(ctx context.Context, args []string) (err error) {
	v := bench.Verbs{Log: os.Stderr}
	flags := flag.NewFlagSet("bench-verbs", flag.ContinueOnError)
	kernel := flags.String("kernel", "6.1", "`kernel`: 6.1, 6.12 or newest")
	out := flags.String("out", filepath.Join(lab.Build(), "bench"), "`directory` of the report")
	tests := flags.String("tests", "", "only tests whose name matches this `regexp`, such as 'ib_send_bw (rc|ud)' or fetch_add")
	sizes := flags.String("sizes", bench.VerbsSizes, "comma-separated `list` of sizes in bytes, or \"\": measure nothing; atomics have 8")
	countSizes := flags.String("count-sizes", "64,65536", "comma-separated `list` of sizes of which packets and instructions are counted, or \"\"")
	contenders := flags.String("contenders", strings.Join(bench.DefaultVerbsContenders(), ","), "comma-separated `list` of contenders, of "+strings.Join(bench.VerbsContenders(), ", "))
	flags.IntVar(&v.Rounds, "rounds", 5, "`number` of measurements of each; the report has the medians")
	cpus := flags.Int("cpus", max(1, runtime.NumCPU()/2), "CPUs of each VM; if both have more than the host, busy-polling programs wait for each other")
	flags.BoolVar(&v.Sleep, "sleep", false, "measure programs that sleep for completions, which a busy machine disturbs less; perftest's tests of WRITE busy-poll")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if v.Tests, err = bench.MatchingVerbsTests(*tests); err != nil {
		return fmt.Errorf("--tests: %w", err)
	}
	if v.Sizes, err = bench.ParseSizes(*sizes); err != nil {
		return fmt.Errorf("--sizes: %w", err)
	}
	counted := v
	if counted.Sizes, err = bench.ParseSizes(*countSizes); err != nil {
		return fmt.Errorf("--count-sizes: %w", err)
	}
	if v.Contenders, err = bench.ParseContenders(*contenders, bench.VerbsContenders()); err != nil {
		return fmt.Errorf("--contenders: %w", err)
	}
	counted.Contenders = v.Contenders
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case len(v.Tests) == 0:
		return fmt.Errorf("--tests %s: matches no test", *tests)
	case *cpus < 1:
		return errors.New("--cpus: must be 1 or more")
	case v.Rounds < 1:
		return errors.New("--rounds: must be 1 or more")
	case len(v.Sizes)+len(counted.Sizes) == 0:
		return errors.New("--sizes and --count-sizes: one of them must have a size")
	}
	config := lab.Config{Kernel: *kernel, VMs: 2, CPUs: *cpus, AtOnce: true, Out: *out}
	report := bench.VerbsReport{Kernel: *kernel, Rounds: v.Rounds, Sleep: v.Sleep, Contenders: v.Contenders}
	if len(v.Sizes) > 0 {
		err = inLab(ctx, config, func(l *lab.Lab) error {
			v.Lab, report.Kernel, report.CPUs = l, l.Kernel.Release, l.CPUs()
			before, err := l.Scheduled()
			if err != nil {
				return err
			}
			if report.Rows, err = v.Run(ctx); err != nil {
				return err
			}
			after, err := l.Scheduled()
			used := after.Sub(before)
			report.Waited = used.Waited.Seconds() / used.Ran.Seconds()
			return err
		})
	}
	if config.Count = true; err == nil && len(counted.Sizes) > 0 {
		err = inLab(ctx, config, func(l *lab.Lab) (err error) {
			counted.Lab, report.Kernel = l, l.Kernel.Release
			report.Counts, err = counted.Count(ctx)
			return err
		})
	}
	if err := errors.Join(err, write(&report, *out)); err != nil { // what there is, in any case
		return err
	}
	if missed, failed := report.Missed(); missed+failed > 0 {
		return fmt.Errorf("%d goals are missed, %d measurements failed", missed, failed)
	}
	return nil
}

// inLab boots a lab with the module, and fails if its kernels complain, but for a crash of perftest's client, which it
// has if it cannot connect.
func inLab(ctx context.Context, config lab.Config, do func(*lab.Lab) error) (err error) {
	l, err := lab.Start(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := l.LoadModule(ctx); err != nil {
		return err
	}
	if err := do(l); err != nil {
		return err
	}
	if complaints := l.Complaints("traps: ib_"); complaints != "" {
		return errors.New(complaints)
	}
	return nil
}

// write writes verbs.md and verbs.json, and prints the first.
func write(r *bench.VerbsReport, dir string) error {
	var text strings.Builder
	if err := r.WriteMarkdown(io.MultiWriter(os.Stdout, &text)); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(dir, "verbs.json"))
	if err != nil {
		return err
	}
	return errors.Join(r.WriteJSON(file), file.Close(), os.WriteFile(filepath.Join(dir, "verbs.md"), []byte(text.String()), 0o644))
}
