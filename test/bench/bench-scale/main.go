// SPDX-License-Identifier: Apache-2.0

// Bench-scale measures how throughput, latency and memory of krping and nvme-rdma change as their sessions grow in
// number, as they come and go, and as the queues of one grow in number, between two VMs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"krping/test/bench"
	"krping/test/lab"
)

func main() { bench.Main("bench-scale", run) }

type options struct {
	kernel, out string
	memory      int
	scale       bench.Scale
}

func parse(args []string) (options, error) {
	o := options{scale: bench.Scale{Log: os.Stderr, FIO: bench.FIO{Engine: "io_uring", Batch: 1}}}
	b := &o.scale
	flags := flag.NewFlagSet("bench-scale", flag.ContinueOnError)
	flags.StringVar(&o.kernel, "kernel", "6.1", "`kernel`: 6.1, 6.12 or newest")
	flags.StringVar(&o.out, "out", filepath.Join(lab.Build(), "bench"), "`directory` of the plots")
	flags.IntVar(&o.memory, "memory", 0, "MiB of memory of each VM (default: enough for --most)")
	contenders := flags.String("contenders", strings.Join(bench.ScaleContenders(), ","), "comma-separated `list` of contenders")
	flags.IntVar(&b.Most, "most", 64, "most sessions at a time, up to 256; they are doubled from 1 on; 0: not measured")
	flags.IntVar(&b.Cycles, "cycles", 100, "times that a session is attached and detached; 0: not measured")
	queues := flags.String("queues", "1,2,4,8,16", "comma-separated `list` of numbers of queues of one session; none: not measured")
	flags.DurationVar(&b.FIO.Runtime, "runtime", 5*time.Second, "`time` of one measurement")
	flags.DurationVar(&b.FIO.Ramp, "ramp", time.Second, "`time` before each measurement that is not counted")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	var err error
	if b.Contenders, err = bench.ParseContenders(*contenders, bench.ScaleContenders()); err != nil {
		return o, fmt.Errorf("--contenders: %w", err)
	}
	if b.Queues, err = parseQueues(*queues); err != nil {
		return o, fmt.Errorf("--queues: %w", err)
	}
	if o.memory == 0 {
		o.memory = 2304 + 16*b.Most
	}
	if b.Most < 0 || b.Most > 256 || b.Cycles < 0 || o.memory < 1024 || b.FIO.Runtime < time.Second || b.FIO.Ramp < 0 || flags.NArg() > 0 {
		return o, errors.New("--most must be 0 to 256, --cycles 0 or more, --memory 1024 or more, --runtime 1s or more; there are no arguments")
	}
	return o, nil
}

// parseQueues returns the numbers in a list, ascending.
func parseQueues(list string) (numbers []int, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if list == "" {
			break
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 64 {
			return nil, fmt.Errorf("%q: must be 1 to 64", text)
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers), nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	b := &o.scale
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	if b.Most > 0 || b.Cycles > 0 {
		err = o.inLab(ctx, lab.Config{CPUs: 1}, func() error {
			rows, churns, err := b.Sessions(ctx)
			if len(rows) > 0 {
				err = errors.Join(err, o.write("sessions", "scale.svg", rows))
			}
			if len(churns) > 0 {
				err = errors.Join(err, bench.WriteChurnTable(os.Stdout, churns))
			}
			return err
		})
	}
	if len(b.Queues) > 0 && ctx.Err() == nil {
		// Both contenders have at most one queue per CPU. The CPUs run in turn: with 16 at once on a busy host a VM
		// waited more than half a minute for an RCU grace period.
		err = errors.Join(err, o.inLab(ctx, lab.Config{CPUs: slices.Max(b.Queues)}, func() error {
			rows, err := b.OneSession(ctx)
			if len(rows) > 0 {
				err = errors.Join(err, o.write("queues", "scale-queues.svg", rows))
			}
			return err
		}))
	}
	return err
}

// inLab measures in new VMs.
func (o *options) inLab(ctx context.Context, config lab.Config, measure func() error) (err error) {
	config.Kernel, config.VMs, config.Memory = o.kernel, 2, o.memory
	l, err := lab.Start(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := l.LoadModule(ctx); err != nil {
		return err
	}
	o.scale.Lab = l
	err = measure()
	if complaints := l.Complaints(); complaints != "" {
		err = errors.Join(err, errors.New(complaints))
	}
	return err
}

// write prints a table and draws a plot.
func (o *options) write(what, name string, rows []bench.Scaled) error {
	if err := bench.WriteScaleTable(os.Stdout, what, rows); err != nil {
		return err
	}
	plot := filepath.Join(o.out, name)
	f, err := os.Create(plot)
	if err != nil {
		return err
	}
	draw := func(out io.Writer) error { return bench.WriteScaleSVG(out, o.scale.Lab.Kernel.Release, what, rows) }
	if err := errors.Join(draw(f), f.Close()); err != nil {
		return err
	}
	fmt.Printf("\nplot: %s\n\n", plot)
	return nil
}
