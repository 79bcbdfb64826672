// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"krping/agent/measure"
	"krping/agent/measure/sweep"
	"krping/proc"
)

func sweepCommand(p *program) *cobra.Command {
	var (
		addr, test, out string
		sizes           []string
		allSizes, lat   bool
		plan            = sweep.Plan{Command: proc.Command{Role: proc.Client}}
	)
	cmd := &cobra.Command{
		Use:   "sweep --addr ADDR",
		Short: "Measure over sizes, threads and connections, and draw charts",
		Long: `Measure every combination of size, number of threads, and connections per thread, against
"krping-bridge --ping" on the peer. Prints a table and writes sweep.csv, sweep.svg and sweep.html, a
page that needs no network.`,
		Example: `  krpingctl sweep --addr 192.168.77.1 --threads 1,2,4,8 --connections 1,16
  krpingctl sweep --addr 192.168.77.1 --test rlat --sizes 64,4096,64KiB
  krpingctl sweep --addr 192.168.77.1 --verb send --qp ud --all-sizes --threads 1`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if addr == "" {
				return usagef("--addr is needed: the address of the peer's RDMA device")
			}
			if plan.Command.Addr, plan.Command.Port, err = parseEndpoint(cmd, "addr", addr, "port", plan.Command.Port); err != nil {
				return err
			}
			if allSizes && cmd.Flags().Changed("sizes") {
				return usagef("--all-sizes and --sizes: give one of them")
			}
			for _, text := range sizes {
				var size sizeFlag
				if err := size.Set(text); err != nil || size < 1 || size > 1<<30 {
					return usagef("--sizes %s: must be sizes of 1 byte to 1 GiB, such as 64,4k,64k", text)
				}
				plan.Sizes = append(plan.Sizes, uint32(size))
			}
			if plan.Command.Verb == "" && (lat || plan.Command.Validate) {
				return usagef("--lat and --validate need --verb")
			}
			if plan.Command.Verb != "" {
				if cmd.Flags().Changed("test") {
					return usagef("--test and --verb: give one of them")
				}
				test, plan.Command.Measure = string(proc.Verbs), "bw"
				if lat {
					plan.Command.Measure = "lat"
				}
			}
			if allSizes {
				plan.Sizes = sweep.AllSizes(plan.Command)
			}
			if test != string(proc.Verbs) && test != string(proc.Bandwidth) && test != string(proc.ReadLatency) && test != string(proc.Ping) {
				return usagef("--test %s: must be bw, rlat or ping", test)
			}
			plan.Command.Test = proc.Test(test)
			if plan.Command, err = plan.Command.WithSourceAddress(); err != nil {
				return usageError{err}
			}
			return p.sweep(cmd, plan, out)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&addr, "addr", "a", "", "`address` of the peer's RDMA device, or a host name; perhaps with a port")
	portVar(f, &plan.Command.Port, "port", "p", 9999, "port of krping-bridge --ping")
	f.StringVar(&plan.Command.Source, "source", "", "connect from this `address` of this host, or from that of this network interface or RDMA device")
	f.StringVar(&test, "test", "bw", "what to measure: bw, rlat or ping")
	verbFlags(cmd, &plan.Command)
	f.BoolVar(&lat, "lat", false, "measure the latency of --verb instead of its bandwidth")
	f.BoolVarP(&plan.Command.Validate, "validate", "V", false, "check the data of each message of --verb")
	f.BoolVarP(&allSizes, "all-sizes", "A", false, "every power of two from 2 bytes to 1 MiB, or to --mtu (default 1 KiB) with --qp ud")
	f.StringSliceVarP(&sizes, "sizes", "S", []string{"4KiB"}, "bytes per operation")
	f.IntSliceVar(&plan.Threads, "threads", []int{1, 2, 4}, "numbers of kernel threads")
	f.IntSliceVar(&plan.Connections, "connections", []int{1}, "bw: connections per thread")
	plan.Duration = 2 * time.Second
	timeVar(f, &plan.Duration, "duration", "d", "time to measure each combination")
	moduleNumber(f, &plan.Command.TxDepth, "txdepth", "bw: RDMA WRITEs in flight on each connection (default 64, fewer with more than 16 connections)")
	f.BoolVar(&plan.Command.Poll, "poll", false, "busy-poll for completions instead of sleeping")
	f.StringVarP(&out, "out", "o", ".", "`directory` for the files")
	return cmd
}

func (p *program) sweep(cmd *cobra.Command, plan sweep.Plan, dir string) error {
	if !plan.HasQueues() {
		plan.Command.TxDepth = 0
	}
	points, err := plan.Points()
	if err != nil {
		return usageError{err}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	bar := newProgress(fmt.Sprintf("%d points", len(points)), 1000)
	reports, err := plan.Run(cmd.Context(), p.proc, bar.Fraction())
	bar.End()
	if len(reports) == 0 {
		return err
	}
	// If a point failed, the points before it are still saved.
	if saved := p.saveSweep(dir, plan, reports); err == nil {
		err = saved
	}
	return err
}

func (p *program) saveSweep(dir string, plan sweep.Plan, reports []measure.Report) error {
	if err := measure.Write(p.out, "table", reports...); err != nil {
		return err
	}
	title := fmt.Sprintf("krping %s, %s on %s", reports[0].Title(), plan.Command.Addr, reports[0].Device)
	for name, write := range map[string]func(io.Writer) error{
		"sweep.csv":  func(w io.Writer) error { return measure.Write(w, "csv", reports...) },
		"sweep.svg":  func(w io.Writer) error { return sweep.WriteSVG(w, reports) },
		"sweep.html": func(w io.Writer) error { return sweep.WriteHTML(w, title, reports) },
	} {
		if err := writeFile(filepath.Join(dir, name), write); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(p.out, "wrote sweep.csv, sweep.svg and sweep.html to %s\n", dir)
	return err
}

func writeFile(path string, write func(io.Writer) error) error {
	if err := checkNewFile(namedFile{"--out", path}); err != nil {
		return err
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(file); err != nil {
		_ = file.Close()
		return fmt.Errorf("write %s: %w", path, err)
	}
	return file.Close()
}
