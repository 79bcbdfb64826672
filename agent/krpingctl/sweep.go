// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"krping/agent/measure/sweep"
	"krping/bridge/cli"
	"krping/proc"
)

// sweepFlags are the flags of sweep and experiment.
type sweepFlags struct {
	addr     string
	command  proc.Command
	axes     []*axisFlag
	duration time.Duration
	out      string
}

// axisFlag is an option of a sweep with its values, separated by commas.
type axisFlag struct {
	sweep.Axis
	given bool
}

func (a *axisFlag) String() string { return strings.Join(a.Values, ",") }

func (a *axisFlag) Type() string { return "list" }

func (a *axisFlag) Set(text string) error {
	axis, err := sweep.NewAxis(a.Option, strings.Split(text, ",")...)
	if err != nil {
		return wantError(err.Error())
	}
	if a.given {
		axis.Values = append(a.Values, axis.Values...)
	}
	a.Axis, a.given = axis, true
	return nil
}

// axis adds a flag for an option, with default values. Of a switch, the flag without a value is on.
func (f *sweepFlags) axis(cmd *cobra.Command, option, name, letter, usage string, values ...string) {
	a := &axisFlag{Axis: sweep.Axis{Option: option, Values: values}}
	flag := cmd.Flags().VarPF(a, name, letter, usage)
	if slices.Contains([]string{"srq", "poll", "validate"}, option) {
		flag.NoOptDefVal = "on"
	}
	f.axes = append(f.axes, a)
}

func (f *sweepFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.addr, "addr", "a", "", "`address` of the peer's RDMA device, or a host name; perhaps with a port")
	portVar(flags, &f.command.Port, "port", "p", 9999, "port of krping-bridge --ping")
	flags.StringVar(&f.command.Source, "source", "", "connect from this `address` of this host, or from that of this network interface or RDMA device")
	f.axis(cmd, "txdepth", "txdepth", "", "bw: messages in flight on each connection (default 64, fewer with more than 16 connections)")
	f.axis(cmd, "poll", "poll", "", "busy-poll for completions instead of sleeping; --poll=off,on does both")
	f.axis(cmd, "verb", "verb", "", "`operations` to measure: send, write, write_imm, read, fetch_add or cmp_swap")
	f.axis(cmd, "qp", "qp", "", "`types` of queue pairs: rc, uc (send, write and write_imm) or ud (send)")
	f.axis(cmd, "rxdepth", "rxdepth", "", "send, write_imm: receives posted on each queue pair, or with --srq for all together (default 128)")
	f.axis(cmd, "srq", "srq", "", "send, write_imm: all queue pairs take their receives from one shared receive queue; --srq=off,on does both")
	f.axis(cmd, "signal", "signal", "", "one message in so many has a completion (default: --txdepth divided by 4, 1 to 64)")
	f.axis(cmd, "inline", "inline", "", "post messages of up to so many bytes inline, with their data in the work request")
	f.axis(cmd, "mtu", "mtu", "", "bytes of data in a packet, at most: 256, 512, 1024, 2048 or 4096 (default: that of the path)")
	f.axis(cmd, "reads", "reads", "", "read, fetch_add, cmp_swap: operations that a queue pair has outstanding (default 16, or the device's limit)")
	f.axis(cmd, "rate", "rate", "", "messages a second that each thread sends at most, on all queue pairs together")
	f.axis(cmd, "validate", "validate", "V", "check the data of each message of --verb")
	f.duration = 2 * time.Second
	timeVar(flags, &f.duration, "duration", "d", "time to measure each combination")
	flags.StringVarP(&f.out, "out", "o", ".", "`directory` for the files")
	cli.GroupFlags(cmd, groupVerbs, "verb", "qp", "rxdepth", "srq", "signal", "inline", "mtu", "reads", "rate", "validate")
}

// check resolves the peer's address.
func (f *sweepFlags) check(cmd *cobra.Command) error {
	if f.addr == "" {
		return usagef("--addr is needed: the address of the peer's RDMA device")
	}
	var err error
	f.command.Role = proc.Client
	if f.command.Addr, f.command.Port, err = parseEndpoint(cmd, "addr", f.addr, "port", f.command.Port); err != nil {
		return err
	}
	if f.command, err = f.command.WithSourceAddress(); err != nil {
		return usageError{err}
	}
	return nil
}

// values returns the axes that have values.
func (f *sweepFlags) values() []sweep.Axis {
	var axes []sweep.Axis
	for _, a := range f.axes {
		if len(a.Values) > 0 {
			axes = append(axes, a.Axis)
		}
	}
	return axes
}

func sweepCommand(p *program) *cobra.Command {
	var (
		f             sweepFlags
		test          string
		allSizes, lat bool
	)
	cmd := &cobra.Command{
		Use:   "sweep --addr ADDR",
		Short: "Measure over sizes, threads and connections, and draw charts",
		Long: `Measure every combination of the values given, such as sizes, numbers of threads and connections per
thread, against "krping-bridge --ping" on the peer. Prints a table and writes sweep.csv, sweep.svg
and sweep.html, a page that needs no network. Flags that take a list can have several values,
separated by commas. The points that need most are tried before the first is measured.`,
		Example: `  krpingctl sweep --addr 192.168.77.1 --threads 1,2,4,8 --connections 1,16
  krpingctl sweep --addr 192.168.77.1 --test rlat --sizes 64,4096,64KiB
  krpingctl sweep --addr 192.168.77.1 --verb send --qp ud --all-sizes --threads 1
  krpingctl sweep --addr 192.168.77.1 --verb send,write --threads 1 --signal 1,16 --mtu 256,1024`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(cmd); err != nil {
				return err
			}
			given := cmd.Flags().Changed
			switch {
			case allSizes && given("sizes"):
				return usagef("--all-sizes and --sizes: give one of them")
			case !given("verb") && (lat || given("validate")):
				return usagef("--lat and --validate need --verb")
			case given("verb") && given("test"):
				return usagef("--test and --verb: give one of them")
			case !given("verb") && !slices.Contains([]string{"bw", "rlat", "ping"}, test):
				return usagef("--test %s: must be bw, rlat or ping", test)
			}
			plan := sweep.Plan{Command: f.command, Duration: f.duration}
			plan.Command.Test = proc.Test(test)
			if given("verb") {
				plan.Command.Test, plan.Command.Measure = proc.Verbs, "bw"
				if lat {
					plan.Command.Measure = "lat"
				}
			}
			axes := f.values()
			if allSizes {
				i := slices.IndexFunc(axes, func(a sweep.Axis) bool { return a.Option == "size" })
				axes[i] = sweep.AllSizes(axes)
			}
			plan.Grids = []sweep.Grid{{Axes: axes}}
			return p.sweep(cmd, plan, sweep.DefaultView, "sweep", f.out)
		},
	}
	f.axis(cmd, "size", "sizes", "S", "bytes per operation", "4096")
	f.axis(cmd, "threads", "threads", "", "numbers of kernel threads", "1", "2", "4")
	f.axis(cmd, "connections", "connections", "", "bw: connections per thread", "1")
	f.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&test, "test", "bw", "what to measure: bw, rlat or ping")
	flags.BoolVar(&lat, "lat", false, "measure the latency of --verb instead of its bandwidth")
	flags.BoolVarP(&allSizes, "all-sizes", "A", false, "every power of two from 2 bytes to 1 MiB, or to --mtu (default 1 KiB) with --qp ud")
	cli.GroupFlags(cmd, groupVerbs, "lat")
	return cmd
}

func (p *program) sweep(cmd *cobra.Command, plan sweep.Plan, view sweep.View, name, dir string) error {
	points, err := plan.Points()
	if err != nil {
		return usageError{err}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	bar := newProgress(fmt.Sprintf("%d points", len(points)), 1000)
	rows, err := plan.Run(cmd.Context(), p.proc, bar.Fraction())
	bar.End()
	if len(rows) == 0 {
		return err
	}
	// If a point failed, the points before it are still saved.
	where := fmt.Sprintf("%s on %s", plan.Command.Addr, rows[0].Report.Device)
	if view.Title == "" {
		view.Title = "krping " + rows[0].Report.Title()
	}
	view.Title += ", " + where
	if saved := p.saveSweep(view, rows, filepath.Join(dir, name)); err == nil {
		err = saved
	}
	return err
}

// saveSweep prints the rows and writes the files, path with their suffixes.
func (p *program) saveSweep(view sweep.View, rows []sweep.Row, path string) error {
	if err := view.WriteTable(p.out, rows); err != nil {
		return err
	}
	for suffix, write := range map[string]func(io.Writer) error{
		".csv":  func(w io.Writer) error { return sweep.WriteCSV(w, rows) },
		".svg":  func(w io.Writer) error { return view.WriteSVG(w, rows) },
		".html": func(w io.Writer) error { return view.WriteHTML(w, rows) },
	} {
		if err := writeFile(path+suffix, write); err != nil {
			return err
		}
	}
	name := filepath.Base(path)
	_, err := fmt.Fprintf(p.out, "wrote %[1]s.csv, %[1]s.svg and %[1]s.html to %s\n", name, filepath.Dir(path))
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
