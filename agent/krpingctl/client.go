// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"krping/agent/measure"
	"krping/agent/measure/parallel"
	"krping/bridge/cli"
	"krping/bridge/inuse"
	"krping/bridge/store"
	"krping/proc"
)

// commandFlags are the module's options as flags, and flags for the output.
type commandFlags struct {
	addr        string
	count       uint32
	tos         uint8
	size        sizeFlag
	heartbeat   uint32
	wlat, rlat  bool
	bw, lat, fr bool
	verbs       bool
	timeout     time.Duration
	duration    time.Duration
	threads     int
	onePort     bool
	asJSON, csv bool
	dryRun      bool
	allow       []string
	rest        proc.Command // options whose flags set its fields directly
}

func (f *commandFlags) register(cmd *cobra.Command) {
	flags, c := cmd.Flags(), &f.rest
	flags.StringVarP(&f.addr, "addr", "a", "", "`address` of the server's RDMA device: IPv4, IPv6 (fe80::1%eth0 if link-local), a host name, or with a port, as in 10.0.0.1:9999")
	flags.StringVar(&f.addr, "addr6", "", "same as --addr; the module's name for an IPv6 `address`")
	portVar(flags, &c.Port, "port", "p", 9999, "port of the server; with --threads, the first of successive ports")
	flags.VarP(&boundedSize{&f.size, 1, 1 << 30}, "size", "S", "bytes per operation, like 64 or 4k; server: the largest it accepts (default 64, server 64KiB)")
	moduleNumberP(flags, &f.count, "count", "C", "number of pings, or of operations per connection; 0: until interrupted")
	moduleTime(flags, &f.timeout, "timeout", "t", "time limit of connection set-up and of each step (default 10s); with --block, how long I/O waits for a lost target (default 10m)")
	moduleNumber(flags, &f.tos, "tos", "IP type of service of the packets; server: the one it requires of its client")
	flags.BoolVarP(&c.Verbose, "verbose", "v", false, "write the first 64 bytes of pings to the kernel log")
	flags.BoolVarP(&c.Validate, "validate", "V", false, "check the data of each ping, or message of a --verb")
	flags.StringVar(&c.MemMode, "mem-mode", "", "`mode` of memory keys: dma, one per connection, or reg, a new one per use (default dma, or reg with --server-inv or --read-inv)")
	flags.BoolVar(&c.ServerInv, "server-inv", false, "the server invalidates the client's keys; must be set on both sides")
	flags.BoolVar(&c.ReadInv, "read-inv", false, "the server's RDMA READs invalidate its own key (iWARP only)")
	flags.BoolVar(&c.LocalDMALkey, "local-dma-lkey", false, "RDMA WRITE from unregistered memory, with the device's local key")
	flags.BoolVar(&f.wlat, "wlat", false, "measure the latency of RDMA WRITEs, client and server in turn")
	flags.BoolVar(&f.rlat, "rlat", false, "measure the latency of RDMA READs by the client")
	flags.BoolVar(&f.bw, "bw", false, "measure the bandwidth of RDMA WRITEs by the client, or of --verb")
	flags.BoolVar(&f.fr, "fr", false, "measure the time of a memory registration and its invalidation")
	flags.BoolVar(&c.Poll, "poll", false, "busy-poll for completions instead of sleeping")
	flags.BoolVar(&c.Duplex, "duplex", false, "bw: the server sends, too; without --verb it must be set on both sides")
	moduleNumber(flags, &c.TxDepth, "txdepth", "bw: messages in flight on each connection (default 64)")
	moduleNumber(flags, &c.QPs, "qps", "bw: connections of one thread; without --verb they must be equal on both sides (default 1)")
	f.threads = 1
	flags.Var(&numberFlag[int]{&f.threads, 1, 4096}, "threads", "kernel threads, each with its own connection, on successive ports")
	jsonFlagSays(cmd, &f.asJSON, "print the result as one JSON object")
	flags.BoolVar(&f.csv, "csv", false, "print results as CSV")
	flags.BoolVarP(&f.dryRun, "dry-run", "n", false, "only print what would be written to /proc/krping")
	// Accept the module's spelling with '_', too.
	flags.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		name = strings.ReplaceAll(name, "_", "-")
		if name == "tx-depth" || name == "rx-depth" {
			name = strings.Replace(name, "-", "", 1)
		}
		return pflag.NormalizedName(name)
	})
	cli.GroupFlags(cmd, groupPing, "count", "size", "tos", "verbose", "validate", "mem-mode", "server-inv", "read-inv", "local-dma-lkey",
		"wlat", "rlat", "bw", "fr", "poll", "duplex", "txdepth", "qps", "threads", "csv")
}

// Groups of flags in the help.
const (
	groupPing  = "Pings and measurements"
	groupBlock = "Block device"
	groupServe = "Volume"
	groupTap   = "Tap: copy a local disk to the target"
)

func (f *commandFlags) registerKey(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.rest.KeyFile, "key-file", "", "`file` with the volume's secret key, the same on both sides: 16 to 64 characters, file mode 0600")
	flags.StringVar(&f.rest.Key, "key", "", "the volume's secret key from a keyring: `krping:NAME`, the description of a key of type logon")
}

func clientCommand(p *program) *cobra.Command {
	var f commandFlags
	cmd := &cobra.Command{
		Use:   "client --addr ADDR [--block NAME]",
		Short: "Ping a server, measure latency and bandwidth, or attach a target's volume",
		Long: `Ping a server: krpingctl server, krping-bridge --ping, krping or rping. Or measure with --wlat,
--rlat, --bw or --fr, given on the server, too; or with --verb and --bw or --lat, against a server
with --verbs. Or, with --block, attach a volume of a target and print the path of its block device.
"krpingctl help options" is the reference of all options.`,
		Example: `  krpingctl client --addr 192.168.77.1 --count 100 --validate
  krpingctl client --addr 192.168.77.1 --rlat --size 4096 --count 10000
  krpingctl client --addr 192.168.77.1 --bw --size 64KiB --duration 5s --json
  krpingctl client --addr 192.168.77.1 --verb send --bw --qp ud --size 1k --duration 5s --validate
  krpingctl client --addr 192.168.77.1 --block vol0
  krpingctl client --addr 192.168.77.1 --block vol0 --key-file /etc/krping/vol0.key`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.runRole(cmd, proc.Client, &f) },
	}
	f.register(cmd)
	verbFlags(cmd, &f.rest)
	flags := cmd.Flags()
	flags.BoolVar(&f.lat, "lat", false, "measure the latency of --verb")
	cli.GroupFlags(cmd, groupVerbs, "lat")
	timeVar(flags, &f.duration, "duration", "d", "stop measuring after this time")
	flags.BoolVar(&f.onePort, "one-port", false, "connect all --threads to the same port, as krping-bridge --ping allows")
	flags.StringVarP(&f.rest.Block, "block", "b", "", "`name` of the volume to attach as a block device")
	moduleNumber(flags, &f.rest.Queues, "queues", "queues (connections) of the block device (default: one per CPU, at most 16)")
	moduleNumber(flags, &f.rest.PollQueues, "poll-queues", "queues for polled I/O (io_uring with IOPOLL), in addition to --queues")
	moduleNumber(flags, &f.rest.Depth, "depth", "requests in flight on each queue (default 128)")
	moduleTime(flags, &f.rest.FastFail, "fast-fail", "", "how long I/O waits for a lost target before it fails, while reconnecting continues (default: as --timeout)")
	f.heartbeat = 5
	flags.Var(&heartbeatFlag{numberFlag[uint32]{&f.heartbeat, uint64(moduleOption("heartbeat").Min), uint64(moduleOption("heartbeat").Max)}}, "heartbeat", "`seconds` of silence after which the target is lost; 0: detect loss only by unanswered I/O")
	flags.StringVar(&f.rest.Mode, "mode", "", "`mode` of the block device: remote, the target stores the data; or tap, --backing does, and the target gets copies (default remote)")
	flags.StringVar(&f.rest.Backing, "backing", "", "tap: the local `disk`, /dev/NAME or ram:SIZE, like ram:64M")
	flags.StringVar(&f.rest.Comm, "comm", "", "tap: forward only I/O of processes with this `name`")
	moduleNumber(flags, &f.rest.PID, "pid", "tap: forward only I/O of this `process`")
	flags.StringVar(&f.rest.Op, "op", "", "tap: forward only these `operations`: read, write, flush, discard, joined by '+'")
	flags.StringVar(&f.rest.UUID, "uuid", "", "attach only the volume with this `UUID`")
	flags.BoolVar(&f.rest.ReadOnly, "read-only", false, "do not write: attaches beside the client that writes")
	flags.StringVar(&f.rest.Source, "source", "", "connect from this `address` of this host, or from that of this network interface or RDMA device")
	flags.BoolVar(&f.rest.TakeOver, "take-over", false, "if another client writes to the volume, fence and replace it")
	f.registerKey(cmd)
	flags.StringVar(&f.rest.Sectors, "sectors", "", "tap: forward only I/O that touches these sectors of 512 bytes: `FIRST-LAST`")
	cli.GroupFlags(cmd, groupPing, "duration", "one-port")
	cli.GroupFlags(cmd, groupBlock, "block", "queues", "poll-queues", "depth", "fast-fail", "heartbeat", "uuid", "read-only", "take-over", "key", "key-file")
	cli.GroupFlags(cmd, groupTap, "mode", "backing", "comm", "pid", "op", "sectors")
	return cmd
}

func serverCommand(p *program) *cobra.Command {
	var f commandFlags
	cmd := &cobra.Command{
		Use:   "server --addr ADDR [--block NAME --backing DISK]",
		Short: "Answer the pings or measurements of one client, or serve a volume",
		Long: `Answer the pings or measurements of one client, then end. Give --wlat, --rlat, --bw or --fr as on the
client, or --verbs for a client with --verb. "krping-bridge --ping" answers many clients at a time.

With --block, serve a volume from the kernel until "krpingctl stop --target NAME".
"krpingctl help options" is the reference of all options.`,
		Example: `  krpingctl server --addr 192.168.77.1 --validate
  krpingctl server --addr 192.168.77.1 --rlat
  krpingctl server --addr 192.168.77.1 --block vol0 --backing /dev/vdb
  krpingctl server --addr 192.168.77.1 --block vol0 --backing /dev/vdb --key-file /etc/krping/vol0.key --allow 192.168.77.2`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error { return p.runRole(cmd, proc.Server, &f) },
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&f.verbs, "verbs", false, "serve a client with --verb, whatever it measures")
	cli.GroupFlags(cmd, groupPing, "verbs")
	flags.StringVarP(&f.rest.Block, "block", "b", "", "`name` of the volume to serve")
	flags.StringVar(&f.rest.Backing, "backing", "", "`disk` to serve: /dev/NAME or ram:SIZE, like ram:64M")
	f.registerKey(cmd)
	flags.StringSliceVar(&f.allow, "allow", nil, "serve only clients with these `addresses`, such as 192.168.77.2 or 10.0.0.0/8")
	flags.BoolVar(&f.rest.Writeback, "writeback", false, "acknowledge writes before they are on stable storage; they are after a flush")
	flags.BoolVar(&f.rest.ReadOnly, "read-only", false, "refuse writes to the volume")
	flags.StringVar(&f.rest.UUID, "uuid", "", "`UUID` of the volume (default: that of the disk)")
	flags.BoolVar(&f.rest.Shared, "shared", false, "let any number of clients write, for cluster file systems")
	flags.Var(&blockSizeFlag{numberFlag[uint32]{&f.rest.BlockSize, 512, 4096}}, "block-size", "logical block size in bytes, 512 or 4096 (default 512)")
	cli.GroupFlags(cmd, groupServe, "block", "backing", "allow", "writeback", "read-only", "uuid", "shared", "block-size", "key", "key-file")
	return cmd
}

// command checks the flags and converts them to a command of the module.
func (f *commandFlags) command(cmd *cobra.Command, role proc.Role) (proc.Command, error) {
	flags := cmd.Flags()
	c := f.rest
	if err := cli.CheckEmpty(flags); err != nil {
		return c, err
	}
	c.Role, c.Timeout, c.Allow = role, f.timeout, strings.Join(f.allow, "+")
	if flags.Changed("addr") && flags.Changed("addr6") {
		return c, usagef("--addr and --addr6: give one of them")
	}
	if f.addr == "" {
		return c, usagef("--addr is needed: the address of the server's RDMA device")
	}
	var err error
	if c.Addr, c.Port, err = parseEndpoint(cmd, "addr", f.addr, "port", c.Port); err != nil {
		return c, err
	}
	c.Backing = proc.Backing(c.Backing)
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
	if err := f.setTest(&c); err != nil {
		return c, err
	}
	block := c.Block != ""
	switch {
	case f.asJSON && f.csv:
		return c, usagef("--json and --csv: give one of them")
	case block && (f.threads > 1 || f.duration != 0 || f.csv):
		return c, usagef("--threads, --duration and --csv cannot be used with --block")
	case block && role == proc.Server && f.asJSON:
		return c, usagef("--json: a server of a volume prints nothing; krpingctl stat --json shows the volume")
	case f.duration != 0 && c.Count != nil:
		return c, usagef("--duration and --count: give one of them")
	}
	if c.Verb != "" {
		c.Duration, f.duration = f.duration, 0 // the module ends the test on both sides
	}
	if err := c.Check(); err != nil {
		return c, usageError{err}
	}
	return c, nil
}

// setTest sets the test that the flags select.
func (f *commandFlags) setTest(c *proc.Command) error {
	tests := map[proc.Test]bool{
		proc.WriteLatency: f.wlat, proc.ReadLatency: f.rlat, proc.Bandwidth: f.bw && c.Verb == "", proc.FastRegister: f.fr,
		proc.Verbs: f.verbs || c.Verb != "",
	}
	maps.DeleteFunc(tests, func(_ proc.Test, given bool) bool { return !given })
	switch {
	case f.verbs && len(tests) > 1:
		return usagef("--verbs serves a client with --verb: it cannot be used with --wlat, --rlat, --bw and --fr")
	case c.Verb != "" && len(tests) > 1:
		return usagef("--verb is measured with --bw or --lat: it cannot be used with --wlat, --rlat and --fr")
	case c.Verb != "" && f.bw == f.lat:
		return usagef("--verb %s: give --bw or --lat, what to measure of it", c.Verb)
	case f.lat && c.Verb == "":
		return usagef("--lat needs --verb, such as --verb send (--wlat and --rlat need none)")
	case len(tests) > 1:
		return usagef("--wlat, --rlat, --bw and --fr: give one of them")
	}
	for test := range tests {
		c.Test = test
	}
	if c.Verb != "" {
		c.Measure = "bw"
		if f.lat {
			c.Measure = "lat"
		}
	}
	return nil
}

func (p *program) runRole(cmd *cobra.Command, role proc.Role, f *commandFlags) error {
	c, err := f.command(cmd, role)
	if err != nil {
		return err
	}
	if err := identify(&c); err != nil {
		return err
	}
	if c, err = c.WithSourceAddress(); err != nil {
		return usageError{err}
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
	if err := checkBacking(c.Backing); err != nil {
		return err
	}
	log.Debug().Stringer("command", c).Int("threads", f.threads).Msg("writing to /proc/krping")
	switch {
	case c.Block != "" && role == proc.Server:
		_, err := p.proc.Run(cmd.Context(), c)
		return err
	case c.Block != "":
		return p.attach(cmd.Context(), c, f.asJSON)
	}
	return p.measure(cmd.Context(), commands, f)
}

// checkBacking returns an error if a disk to be served or tapped is in use. The module refuses one that
// another opened exclusively; this finds others, too, and names them.
func checkBacking(path string) error {
	if !strings.HasPrefix(path, "/dev/") {
		return nil
	}
	err := inuse.Check(path)
	if errors.As(err, new(*inuse.Error)) {
		return fmt.Errorf("--backing: %w", err)
	}
	return nil // the module says what else is wrong
}

// identify sets the UUID of a disk to be served, if it has one: the same that krping-bridge finds. The
// module knows less about disks.
func identify(c *proc.Command) error {
	if c.Role != proc.Server || c.UUID != "" || !strings.HasPrefix(c.Backing, "/dev/") {
		return nil
	}
	id, err := store.DeviceUUID(c.Backing)
	if err != nil {
		return fmt.Errorf("--backing: %w", err)
	}
	if !id.IsZero() {
		c.UUID = id.String()
	}
	return nil
}

// attached is what client --block prints.
type attached struct {
	Device  string       `json:"device"` // path
	Session proc.Session `json:"session"`
}

// attach attaches a volume and prints the path of its block device.
func (p *program) attach(ctx context.Context, c proc.Command, asJSON bool) error {
	wait := newWait("attaching " + c.Block)
	_, err := p.proc.Run(ctx, c)
	wait.end()
	if err != nil {
		return err
	}
	s, err := p.proc.Session(c.Block)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(p.out, attached{s.Device(), s})
	}
	_, err = fmt.Fprintln(p.out, s.Device())
	return err
}

// measure runs ping/pong commands and prints their results, even if they were interrupted.
func (p *program) measure(ctx context.Context, commands []proc.Command, f *commandFlags) error {
	bar := newProgress(fmt.Sprintf("%s, %s", commands[0].Role, count(len(commands), "thread")), 1000)
	outcomes, err := parallel.Run(ctx, p.proc, commands, parallel.Options{
		Duration: f.duration,
		Progress: bar.Fraction(),
	})
	bar.End()
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
	text := fmt.Sprintf("%s of %s", count(int(r.Operations), "ping"), count(int(r.Size), "byte"))
	if r.Role == string(proc.Server) {
		text = count(int(r.Operations), "ping") + " answered"
	}
	if valid {
		text += ", all data valid"
	}
	return text
}

func stopCommand(p *program) *cobra.Command {
	var force, target, all bool
	cmd := &cobra.Command{
		Use:   "stop {NAME | --all}",
		Short: "Detach a volume, or stop serving one",
		Long: `Detach the volume NAME: remove its block device and close its connections. With --target, stop
serving the volume NAME from this host's kernel; its clients wait for it to return. With --all, do so
with all volumes.`,
		Example: "  krpingctl stop vol0\n  krpingctl stop --target vol0\n  krpingctl stop --all",
		Args:    arguments("[NAME]"),
		RunE: func(cmd *cobra.Command, names []string) error {
			switch {
			case all && len(names) > 0:
				return usagef("NAME and --all: give one of them")
			case !all && len(names) == 0:
				return usagef("stop needs the argument NAME, or --all")
			case all:
				var err error
				if names, err = p.volumeNames(target); err != nil {
					return err
				}
			}
			var failed []error
			for _, name := range names {
				failed = append(failed, p.stop(cmd.Context(), proc.Command{Role: proc.Stop, Block: name, Target: target, Force: force}))
			}
			return errors.Join(failed...)
		},
	}
	cmd.Flags().BoolVar(&target, "target", false, "stop serving the volume instead of detaching it")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "detach even if the device is in use; I/O not finished within 2 s fails")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "all volumes")
	return cmd
}

func (p *program) stop(ctx context.Context, c proc.Command) error {
	if err := c.Check(); err != nil {
		return usageError{err}
	}
	wait := newWait("stopping " + c.Block)
	defer wait.end()
	_, err := p.proc.Run(ctx, c)
	if session, unknown := p.proc.Session(c.Block); errors.Is(err, unix.EBUSY) && !c.Target && unknown == nil {
		return fmt.Errorf("%w: %w", err, inuse.Explain(session.Device()))
	}
	return err
}

// volumeNames returns the names of the volumes that this host has attached, or serves.
func (p *program) volumeNames(served bool) ([]string, error) {
	sessions, err := p.proc.Sessions()
	var names []string
	for _, s := range sessions {
		if (s.Role == "target") == served {
			names = append(names, s.Name)
		}
	}
	return names, err
}
