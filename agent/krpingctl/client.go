// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"krping/agent/measure"
	"krping/agent/measure/parallel"
	"krping/proc"
)

// commandFlags are the module's options as flags, and how results are shown.
type commandFlags struct {
	addr        string
	count       uint32
	tos         uint8
	size        sizeFlag
	heartbeat   uint32
	wlat, rlat  bool
	bw, fr      bool
	timeout     time.Duration
	duration    time.Duration
	threads     int
	onePort     bool
	asJSON, csv bool
	dryRun      bool
	allow       []string
	rest        proc.Command // as the module names it
}

func (f *commandFlags) register(cmd *cobra.Command) {
	flags, c := cmd.Flags(), &f.rest
	flags.StringVar(&f.addr, "addr", "", "IPv4 or IPv6 `address` of the server on an RDMA device (fe80::1%eth0 if it is link-local)")
	flags.StringVar(&f.addr, "addr6", "", "the same, as the module spells it for IPv6")
	portVar(flags, &c.Port, "port", "", 9999, "port; with --threads the first of them")
	flags.Var(&boundedSize{&f.size, 1, 1 << 30}, "size", "bytes of an operation; of a server: the most that it takes (default 64, server 64KiB)")
	moduleNumber(flags, &f.count, "count", "pings, or operations on each connection; 0: until interrupted")
	moduleTime(flags, &f.timeout, "timeout", "of set-up and of each step; with --block, how long I/O waits for the target (default 10s, 10m)")
	moduleNumber(flags, &f.tos, "tos", "type of service of the packets; of a server: the one that it demands")
	flags.BoolVar(&c.Verbose, "verbose", false, "log the first bytes of pings in the kernel log")
	flags.BoolVar(&c.Validate, "validate", false, "compare the data")
	flags.StringVar(&c.MemMode, "mem-mode", "", "dma: memory has one key for the connection, or reg: a new one for each use")
	flags.BoolVar(&c.ServerInv, "server-inv", false, "the server invalidates the client's keys; on both sides")
	flags.BoolVar(&c.ReadInv, "read-inv", false, "the server's reads invalidate its own key (iWARP)")
	flags.BoolVar(&c.LocalDMALkey, "local-dma-lkey", false, "write from memory that is not registered")
	flags.BoolVar(&f.wlat, "wlat", false, "test: latency of RDMA WRITEs, both sides in turn")
	flags.BoolVar(&f.rlat, "rlat", false, "test: latency of RDMA READs by the client")
	flags.BoolVar(&f.bw, "bw", false, "test: bandwidth of RDMA WRITEs by the client")
	flags.BoolVar(&f.fr, "fr", false, "test: time of a memory registration and its invalidation")
	flags.BoolVar(&c.Poll, "poll", false, "spin for completions instead of sleeping")
	flags.BoolVar(&c.Duplex, "duplex", false, "bw: the server writes as well")
	moduleNumber(flags, &c.TxDepth, "txdepth", "bw: RDMA WRITEs in flight on each connection (default 64)")
	moduleNumber(flags, &c.QPs, "qps", "bw: connections, driven by one thread; the same on both sides (default 1)")
	f.threads = 1
	flags.Var(&numberFlag[int]{&f.threads, 1, 4096}, "threads", "kernel threads, each with a connection of its own, on successive ports")
	flags.BoolVar(&f.asJSON, "json", false, "print results as one JSON object")
	flags.BoolVar(&f.csv, "csv", false, "print results as CSV")
	flags.BoolVar(&f.dryRun, "dry-run", false, "print what would be written to /proc/krping, and do nothing")
	// Both spellings, as the module takes them.
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		name = strings.ReplaceAll(name, "_", "-")
		if name == "tx-depth" {
			name = "txdepth"
		}
		return pflag.NormalizedName(name)
	})
}

func (f *commandFlags) registerKey(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.rest.KeyFile, "key-file", "", "`file` with the key of the volume, which both sides prove: 16 to 64 characters, mode 0600")
	flags.StringVar(&f.rest.Key, "key", "", "the same from a keyring: `krping:NAME`, the description of a key of type logon")
}

func clientCommand(p *program) *cobra.Command {
	var f commandFlags
	cmd := &cobra.Command{
		Use:   "client --addr ADDR [--block NAME]",
		Short: "Ping a server, measure the way to it, or make a block device of a target's volume",
		Long: `Ping a server (krpingctl server, krping-bridge --ping, krping or rping), measure with
--wlat, --rlat, --bw or --fr, or with --block connect to a volume of a target and print the
path of its device. What the options mean: krpingctl help options.`,
		Example: `  krpingctl client --addr 192.168.77.1 --count 100 --validate
  krpingctl client --addr 192.168.77.1 --rlat --size 4096 --count 10000
  krpingctl client --addr 192.168.77.1 --bw --size 64KiB --duration 5s --json
  krpingctl client --addr 192.168.77.1 --block vol0
  krpingctl client --addr 192.168.77.1 --block vol0 --key-file /etc/krping/vol0.key`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.runRole(cmd, proc.Client, &f) },
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.Var(&timeFlag{&f.duration}, "duration", "measure for this long, then end")
	flags.BoolVar(&f.onePort, "one-port", false, "all --threads to the same port (krping-bridge --ping)")
	flags.StringVar(&f.rest.Block, "block", "", "`name` of a volume: make a block device of it")
	moduleNumber(flags, &f.rest.Queues, "queues", "queue pairs of the block device (default: one per CPU, at most 16)")
	moduleNumber(flags, &f.rest.Depth, "depth", "requests in flight on each (default 128)")
	moduleTime(flags, &f.rest.FastFail, "fast-fail", "after the loss of the target for so long, I/O fails at once until it is back (default: as --timeout)")
	f.heartbeat = 5
	moduleNumber(flags, &f.heartbeat, "heartbeat", "`seconds` of silence after which the target counts as lost; 0: only unanswered I/O tells")
	flags.StringVar(&f.rest.Mode, "mode", "", "remote: the target is the disk; tap: --backing is, copies go to the target (default remote)")
	flags.StringVar(&f.rest.Backing, "backing", "", "local `disk` of --mode tap: /dev/NAME or ram:SIZE")
	flags.StringVar(&f.rest.Comm, "comm", "", "tap: forward I/O of processes of this `name` only")
	moduleNumber(flags, &f.rest.PID, "pid", "tap: forward I/O of this `process` only")
	flags.StringVar(&f.rest.Op, "op", "", "tap: forward these `operations` only: read, write, flush, discard, joined by '+'")
	f.registerKey(cmd)
	flags.StringVar(&f.rest.Sectors, "sectors", "", "tap: forward what touches these sectors only: `FIRST-LAST`, of 512 bytes")
	return cmd
}

func serverCommand(p *program) *cobra.Command {
	var f commandFlags
	cmd := &cobra.Command{
		Use:   "server --addr ADDR [--block NAME --backing DISK]",
		Short: "Answer the pings or the tests of one client, or serve a volume",
		Long: `With --block serve a volume from the kernel, until "krpingctl stop --target NAME".
Otherwise answer the pings of one client, or its test: give the same of --wlat, --rlat, --bw and --fr
on both sides. krping-bridge --ping answers any number of clients.
What the options mean: krpingctl help options.`,
		Example: `  krpingctl server --addr 192.168.77.1 --validate
  krpingctl server --addr 192.168.77.1 --rlat
  krpingctl server --addr 192.168.77.1 --block vol0 --backing /dev/vdb
  krpingctl server --addr 192.168.77.1 --block vol0 --backing /dev/vdb --key-file /etc/krping/vol0.key --allow 192.168.77.2`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.runRole(cmd, proc.Server, &f) },
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.rest.Block, "block", "", "`name` of the volume to serve")
	flags.StringVar(&f.rest.Backing, "backing", "", "the `disk` to serve: /dev/NAME or ram:SIZE")
	f.registerKey(cmd)
	flags.StringSliceVar(&f.allow, "allow", nil, "serve clients with these `addresses` only, like 192.168.77.2 or 10.0.0.0/8")
	flags.BoolVar(&f.rest.Writeback, "writeback", false, "a write is stable after a flush, not before")
	flags.BoolVar(&f.rest.ReadOnly, "read-only", false, "the volume cannot be written")
	flags.Var(&blockSizeFlag{numberFlag[uint32]{&f.rest.BlockSize, 512, 4096}}, "block-size", "logical block size in bytes, 512 or 4096 (default 512)")
	return cmd
}

// command checks the flags and returns the module's command.
func (f *commandFlags) command(role proc.Role, flags *pflag.FlagSet) (proc.Command, error) {
	c := f.rest
	c.Role, c.Timeout, c.Allow = role, f.timeout, strings.Join(f.allow, "+")
	if flags.Changed("addr") && flags.Changed("addr6") {
		return c, usagef("--addr and --addr6: give one of them")
	}
	if f.addr == "" {
		return c, usagef("--addr is needed: the address of the server's RDMA device")
	}
	addr, err := parseAddr("addr", f.addr)
	if err != nil {
		return c, err
	}
	c.Addr = addr
	c.Size = uint32(f.size)
	if flags.Changed("count") {
		c.Count = &f.count
	}
	if flags.Changed("tos") {
		c.TOS = &f.tos
	}
	if flags.Changed("heartbeat") {
		c.Heartbeat = &f.heartbeat
	}
	tests := 0
	for test, given := range map[proc.Test]bool{proc.WriteLatency: f.wlat, proc.ReadLatency: f.rlat, proc.Bandwidth: f.bw, proc.FastRegister: f.fr} {
		if given {
			c.Test = test
			tests++
		}
	}
	block := c.Block != ""
	switch {
	case tests > 1:
		return c, usagef("at most one of --wlat, --rlat, --bw and --fr can be given")
	case f.asJSON && f.csv:
		return c, usagef("--json and --csv exclude each other")
	case block && (f.threads > 1 || f.duration != 0 || f.asJSON || f.csv):
		return c, usagef("--threads, --duration, --json and --csv are for pings and tests, not for a volume")
	case f.duration != 0 && c.Count != nil:
		return c, usagef("--duration excludes --count")
	}
	if err := c.Check(); err != nil {
		return c, usageError{err}
	}
	return c, nil
}

func (p *program) runRole(cmd *cobra.Command, role proc.Role, f *commandFlags) error {
	c, err := f.command(role, cmd.Flags())
	if err != nil {
		return err
	}
	commands, err := parallel.Spread(c, f.threads, !f.onePort)
	if err != nil {
		return usageError{err}
	}
	if f.dryRun {
		for _, c := range commands {
			if _, err := fmt.Fprintln(p.out, c); err != nil {
				return err
			}
		}
		return nil
	}
	log.Debug().Stringer("command", c).Int("threads", f.threads).Msg("writing to /proc/krping")
	switch {
	case c.Block != "" && role == proc.Server:
		_, err := p.proc.Run(cmd.Context(), c)
		return err
	case c.Block != "":
		return p.attach(cmd.Context(), c)
	}
	return p.measure(cmd.Context(), commands, f)
}

// attach makes the block device and prints its path.
func (p *program) attach(ctx context.Context, c proc.Command) error {
	if _, err := p.proc.Run(ctx, c); err != nil {
		return err
	}
	s, err := p.proc.Session(c.Block)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(p.out, s.Device())
	return err
}

// measure runs ping/pong commands and prints what they measured, also when they were
// interrupted.
func (p *program) measure(ctx context.Context, commands []proc.Command, f *commandFlags) error {
	bar := newProgress(fmt.Sprintf("%s, %d threads", commands[0].Role, len(commands)), 1000)
	outcomes, err := parallel.Run(ctx, p.proc, commands, parallel.Options{
		Duration: f.duration,
		Progress: bar.fraction(),
	})
	bar.end()
	var results []proc.Result
	var ops uint64
	for _, o := range outcomes {
		if o.Result.ID != 0 {
			results = append(results, o.Result)
			ops += o.Result.Ops
		}
	}
	if ops == 0 {
		return err
	}
	if shown := p.show(results, commands[0].Validate && err == nil, f); err == nil {
		err = shown
	}
	return err
}

func (p *program) show(results []proc.Result, valid bool, f *commandFlags) error {
	format := "table"
	switch {
	case f.asJSON:
		format = "json"
	case f.csv:
		format = "csv"
	}
	report, err := measure.Of(results...)
	if err != nil {
		return err
	}
	if format == "table" && results[0].Test == proc.Ping {
		if _, err := fmt.Fprintln(p.out, pingSummary(report, valid)); err != nil {
			return err
		}
	}
	return measure.Write(p.out, format, report)
}

func pingSummary(r measure.Report, valid bool) string {
	text := fmt.Sprintf("%d pings of %d bytes", r.Operations, r.Size)
	if r.Role == string(proc.Server) {
		text = fmt.Sprintf("%d pings answered", r.Operations)
	}
	if valid {
		text += ", all data valid"
	}
	return text
}

func stopCommand(p *program) *cobra.Command {
	var force, target bool
	cmd := &cobra.Command{
		Use:     "stop NAME",
		Short:   "Remove the device of a volume and close its connections",
		Example: "  krpingctl stop vol0\n  krpingctl stop --target vol0",
		Args:    arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c := proc.Command{Role: proc.Stop, Block: args[0], Target: target, Force: force}
			if err := c.Check(); err != nil {
				return usageError{err}
			}
			_, err := p.proc.Run(cmd.Context(), c)
			return err
		},
	}
	cmd.Flags().BoolVar(&target, "target", false, "no longer serve the volume; its clients wait for its return")
	cmd.Flags().BoolVar(&force, "force", false, "even if the device is in use: its I/O fails")
	return cmd
}
