// SPDX-License-Identifier: Apache-2.0

// Bench-scale measures how throughput, latency and memory of krping and nvme-rdma change as their sessions grow in
// number, and as they come and go, between two VMs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"krping/test/bench"
	"krping/test/lab"
)

func main() { bench.Main("bench-scale", run) }

func run(ctx context.Context, args []string) (err error) {
	b := bench.Scale{Log: os.Stderr, FIO: bench.FIO{Engine: "io_uring", Batch: 1}}
	flags := flag.NewFlagSet("bench-scale", flag.ContinueOnError)
	kernel := flags.String("kernel", "6.1", "`kernel`: 6.1, 6.12 or newest")
	out := flags.String("out", filepath.Join(lab.Build(), "bench"), "`directory` of the plot")
	memory := flags.Int("memory", 3072, "MiB of memory of each VM")
	flags.IntVar(&b.Most, "most", 64, "most sessions at a time; they are doubled from 1 on")
	flags.IntVar(&b.Cycles, "cycles", 100, "times that a session is attached and detached")
	flags.DurationVar(&b.FIO.Runtime, "runtime", 5*time.Second, "`time` of one measurement")
	flags.DurationVar(&b.FIO.Ramp, "ramp", time.Second, "`time` before each measurement that is not counted")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if b.Most < 1 || b.Cycles < 0 || *memory < 1024 || b.FIO.Runtime < time.Second || b.FIO.Ramp < 0 || flags.NArg() > 0 {
		return errors.New("--most must be 1 or more, --cycles 0 or more, --memory 1024 or more, --runtime 1s or more; there are no arguments")
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	if b.Lab, err = lab.Start(ctx, lab.Config{Kernel: *kernel, VMs: 2, Memory: *memory, CPUs: 1}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Lab.Close()) }()
	if err := b.Lab.LoadModule(ctx); err != nil {
		return err
	}
	rows, churns, err := b.Run(ctx)
	if err != nil {
		return err
	}
	if err := bench.WriteScaleTables(os.Stdout, rows, churns); err != nil {
		return err
	}
	plot := filepath.Join(*out, "scale.svg")
	f, err := os.Create(plot)
	if err != nil {
		return err
	}
	if err := errors.Join(bench.WriteScaleSVG(f, b.Lab.Kernel.Release, rows), f.Close()); err != nil {
		return err
	}
	fmt.Printf("\nplot: %s\n", plot)
	if complaints := b.Lab.Complaints(); complaints != "" {
		return errors.New(complaints)
	}
	return nil
}
