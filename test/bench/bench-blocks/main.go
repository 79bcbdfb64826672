// SPDX-License-Identifier: Apache-2.0

// Bench-blocks compares krping's block devices with NVMe over fabrics, nbd and raw verbs in the same two
// VMs in one run, and prints throughput, ratios and costs. It leaves the report, as Markdown, JSON and SVG,
// and the consoles of the VMs in build/bench.
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
	"slices"
	"strings"
	"time"

	"krping/test/bench"
	"krping/test/lab"
)

func main() { bench.Main("bench-blocks", run) }

// options of the command line.
type options struct {
	kernel, out string
	cpus        int
	list        bool
	blocks      bench.Blocks
}

func parse(args []string) (options, error) {
	var o options
	b := &o.blocks
	flags := flag.NewFlagSet("bench-blocks", flag.ContinueOnError)
	flags.StringVar(&o.kernel, "kernel", "6.1", "`kernel`: 6.1, 6.12 or newest")
	flags.StringVar(&o.out, "out", filepath.Join(lab.Build(), "bench"), "`directory` of the report")
	flags.IntVar(&o.cpus, "cpus", max(1, runtime.NumCPU()/2), "CPUs of each VM; if both have more than the host, they wait for each other's locks")
	flags.BoolVar(&o.list, "list", false, "print the names of the jobs and exit")
	jobs := flags.String("jobs", "", "measure only jobs whose name matches this `regexp`")
	contenders := flags.String("contenders", strings.Join(bench.ContenderNames(), ","), "comma-separated `list` of contenders")
	flags.IntVar(&b.Rounds, "rounds", 3, "measurements of each job; the median counts")
	flags.StringVar(&b.Backing, "backing", "brd", "`kind` of the disks: "+strings.Join(bench.Backings(), " or "))
	flags.IntVar(&b.DiskSize, "size", 64, "`MiB` of each disk")
	flags.BoolVar(&b.Verify, "verify", true, "first write checksummed data through each contender and read it back")
	flags.StringVar(&b.FIO.Engine, "ioengine", "io_uring", "fio's I/O `engine`")
	flags.DurationVar(&b.FIO.Runtime, "runtime", 5*time.Second, "`time` of one measurement")
	flags.DurationVar(&b.FIO.Ramp, "ramp", time.Second, "`time` before each measurement that is not counted")
	flags.IntVar(&b.FIO.Batch, "batch", 1, "I/Os that fio submits at once")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var err error
	if b.Jobs, err = bench.MatchingJobs(bench.AllJobs(), *jobs); err != nil {
		return o, fmt.Errorf("--jobs: %w", err)
	}
	if b.Contenders, err = bench.ParseContenders(*contenders, bench.ContenderNames()); err != nil {
		return o, fmt.Errorf("--contenders: %w", err)
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case len(b.Jobs) == 0:
		return o, fmt.Errorf("--jobs %s: matches no job (see --list)", *jobs)
	case b.Rounds < 1 || b.FIO.Runtime < time.Second || b.FIO.Ramp < 0 || b.FIO.Batch < 1:
		return o, errors.New("--rounds and --batch must be 1 or more, --runtime 1s or more")
	case o.cpus < 1:
		return o, errors.New("--cpus: must be 1 or more")
	case b.DiskSize < 32 || b.DiskSize > 128:
		return o, errors.New("--size: must be 32 to 128 MiB: all disks, and page caches, are in a VM's memory")
	case !slices.Contains(bench.Backings(), b.Backing):
		return o, fmt.Errorf("--backing %s: must be %s", b.Backing, strings.Join(bench.Backings(), " or "))
	}
	return o, nil
}

const vmMemory = 2560 // MiB

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	b := &o.blocks
	if o.list {
		for _, j := range b.Jobs {
			fmt.Println(j.Name)
		}
		return nil
	}
	turn := b.FIO.Ramp + b.FIO.Runtime + 3*time.Second
	turns := len(b.Jobs) * len(b.Contenders) * b.Rounds
	fmt.Fprintf(os.Stderr, "%d jobs, %d contenders, %d rounds: about %v\n", len(b.Jobs), len(b.Contenders), b.Rounds,
		(time.Minute + time.Duration(turns)*turn).Round(time.Minute))
	l, err := lab.Start(ctx, lab.Config{Kernel: o.kernel, VMs: 2, Memory: vmMemory, CPUs: o.cpus, AtOnce: true, Out: o.out})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := l.LoadModule(ctx); err != nil {
		return err
	}
	b.Lab, b.Log = l, os.Stderr
	report, err := b.Run(ctx)
	complaints := l.Complaints()
	if err == nil {
		err = write(o.out, &report)
	}
	if complaints != "" {
		err = errors.Join(err, errors.New(complaints))
	}
	if lines := report.Shortcomings(); len(lines) > 0 {
		err = errors.Join(err, errors.New("shortcomings:\n"+strings.Join(lines, "\n")))
	}
	return err
}

// write writes the report to files and prints it.
func write(dir string, report *bench.Report) error {
	for _, f := range []struct {
		name string
		to   func(io.Writer) error
	}{{"blocks.json", report.WriteJSON}, {"blocks.md", report.WriteMarkdown}, {"blocks.svg", report.WriteSVG}} {
		if err := writeFile(filepath.Join(dir, f.name), f.to); err != nil {
			return err
		}
	}
	return report.WriteMarkdown(os.Stdout)
}

func writeFile(path string, to func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(to(f), f.Close())
}
