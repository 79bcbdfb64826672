// SPDX-License-Identifier: Apache-2.0

// Bench-trace measures what tracing costs the I/O of a krping device, compared with a biosnoop of bpftrace,
// in the same two VMs in one run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"time"

	"krping/test/bench"
	"krping/test/lab"
)

func main() { bench.Main("bench-trace", run) }

func run(ctx context.Context, args []string) (err error) {
	b := bench.Trace{Log: os.Stderr, FIO: bench.FIO{Engine: "io_uring", Batch: 1}}
	flags := flag.NewFlagSet("bench-trace", flag.ContinueOnError)
	kernel := flags.String("kernel", "6.1", "`kernel`: 6.1, 6.12 or newest")
	cpus := flags.Int("cpus", max(1, runtime.NumCPU()/2), "CPUs of each VM")
	flags.IntVar(&b.Rounds, "rounds", 5, "pairs of measurements, with and without a tracer, of each tracer")
	flags.DurationVar(&b.FIO.Runtime, "runtime", 5*time.Second, "`time` of one measurement")
	flags.DurationVar(&b.FIO.Ramp, "ramp", time.Second, "`time` before each measurement that is not counted")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if b.Rounds < 1 || *cpus < 1 || b.FIO.Runtime < time.Second || b.FIO.Ramp < 0 || flags.NArg() > 0 {
		return errors.New("--rounds and --cpus must be 1 or more, --runtime 1s or more; there are no arguments")
	}
	for _, j := range bench.AllJobs() {
		if j.Name == "4k-randread-qd32" || j.Name == "4k-randwrite-qd32" {
			b.Jobs = append(b.Jobs, j)
		}
	}
	if b.Lab, err = lab.Start(ctx, lab.Config{Kernel: *kernel, VMs: 2, Memory: 2560, CPUs: *cpus, AtOnce: true}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Lab.Close()) }()
	if err := b.Lab.LoadModule(ctx); err != nil {
		return err
	}
	rows, err := b.Run(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("kernel %s, %d rounds, medians\n\n", *kernel, b.Rounds)
	if err := bench.WriteTraceTable(os.Stdout, rows); err != nil {
		return err
	}
	if complaints := b.Lab.Complaints(); complaints != "" {
		return errors.New(complaints)
	}
	for _, row := range rows {
		if row.Missed() {
			err = errors.Join(err, fmt.Errorf("%s, %s: %.2f of the IOPS without a tracer, want at least %.2f%s", row.Job, row.Tracer, row.Ratio, bench.LeastTraced, row.Failure))
		}
	}
	return err
}
