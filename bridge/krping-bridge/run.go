// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"krping/bridge/access"
	"krping/bridge/cli"
	"krping/bridge/input"
	"krping/bridge/journal"
	"krping/bridge/target"
	"krping/bridge/verbs"
	"krping/bridge/wire"
)

// options holds the command line's flags.
type options struct {
	listen          []string
	ping            []string
	wait            bool
	pingSize        string
	pingConnections int
	pingPoll        bool
	name            string
	store           string
	size            string
	blockSize       string
	readOnly        bool
	writeback       bool
	shared          bool
	keyFile         string
	uuid            string
	volumes         []string
	allow           []string
	maxMemory       string
	verbose         bool
	quiet           bool
	json            bool
}

// version is what scripts/version prints. The Makefile sets it.
var version = "devel"

func run(ctx context.Context, args []string) error {
	cmd := newRoot()
	if slices.Equal(args, []string{"-V"}) { // as of ip and rdma
		args = []string{"--version"}
	}
	cmd.SetArgs(args)
	if err := cli.MissingValues(cmd, args); err != nil {
		return err
	}
	return cmd.ExecuteContext(ctx)
}

// newRoot returns the program's command, with all others below it.
func newRoot() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "krping-bridge [--listen ADDR:PORT --store file:PATH] [--ping ADDR:PORT]",
		Short: "Serve volumes to krping block clients over RDMA, and answer ping/pong clients",
		Long: `Serve volumes to krping block clients over RDMA, and answer ping/pong clients.

A write is on stable storage when it is answered, unless --writeback is given.
A file is made by krping-bridge create; serving one that does not exist is refused.
--ping answers krpingctl client (pings, --rlat, --bw, --verb), krping and rping on a host without
the kernel module. It serves many clients at once. krping-bridge client is such a client.
With --key-file, the clients of the volume must prove that they have the same key
(krpingctl client --key-file), and so does the bridge. The key does not encrypt anything.
When its RDMA device is removed, the bridge keeps its volumes and listens again as soon as a device
has the address. At its start an address without a device is an error, unless --wait is given or
systemd has started it (NOTIFY_SOCKET is set).
Sizes are like 4096, 4k, 64M, 1GiB (powers of 1024) or 1MB, 1GB (powers of 1000).
SIGUSR1 logs each volume's counters.`,
		Example: `  krping-bridge create --store file:/var/lib/krping/vol0.img --size 1GiB
  krping-bridge --listen 192.168.77.1:9999 --store file:/var/lib/krping/vol0.img
  krping-bridge --ping 192.168.77.1:9900
  krping-bridge --listen 192.168.77.1:9999 --volume a=mem:,size=1GiB --volume b=file:/srv/b.img,read-only`,
		Args:              noArguments,
		Version:           version,
		SilenceErrors:     true,
		SilenceUsage:      true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return cli.CheckEmpty(cmd.Flags()) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFlags(cmd.Flags(), o); err != nil {
				return err
			}
			return serve(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.listen, "listen", "l", nil, "serve volumes at this `address` of an RDMA device, or host name of it (default port 9999), repeatable")
	f.StringArrayVarP(&o.ping, "ping", "p", nil, "answer ping/pong clients at this `address` (default port 9999), repeatable")
	f.BoolVar(&o.wait, "wait", false, "at the start, wait for an RDMA device instead of failing; always so under systemd")
	f.StringVar(&o.pingSize, "ping-max-size", "2MiB", "largest `size` of a ping or test")
	f.IntVar(&o.pingConnections, "ping-max-connections", 0, "most `connections` of ping/pong clients; a verbs test takes one and one for each queue pair (default one for each 512 KiB of --max-memory, 256 to 4096)")
	f.BoolVar(&o.pingPoll, "ping-poll", false, "busy-poll in verbs tests where this side gets completions, instead of sleeping: a CPU for each that runs")
	f.StringVarP(&o.store, "store", "s", "", "where the volume is stored: file:`PATH` (a file or block device), or mem: (lost at exit; clients then fail)")
	f.StringVarP(&o.size, "size", "S", "", "`size` of mem:; a file or block device must have it, if it is given")
	f.StringVarP(&o.name, "name", "n", "vol0", "`name` of the volume")
	f.StringVar(&o.blockSize, "block-size", "512", "logical block size in `bytes`, 512 or 4096")
	f.BoolVar(&o.readOnly, "read-only", false, "open the store read-only, and refuse writes")
	f.BoolVar(&o.writeback, "writeback", false, "answer writes before they are on stable storage; FLUSH and FUA put them there")
	f.BoolVar(&o.shared, "shared", false, "let several clients write at the same time, as a cluster file system needs; otherwise one")
	f.StringVar(&o.keyFile, "key-file", "", "`file` with the clients' key: 16 to 64 characters, mode 0600")
	f.StringVar(&o.uuid, "uuid", "", "the volume's `UUID`: refuse another; for a block device or mem: without one of its own")
	f.StringArrayVar(&o.volumes, "volume", nil, "another `volume`, repeatable: NAME=STORE, and separated by commas size=SIZE, block-size=N, read-only, writeback, shared, key-file=FILE, uuid=UUID")
	f.StringSliceVar(&o.allow, "allow", nil, "serve only clients with these `addresses`, like 192.168.77.2 or 10.0.0.0/8")
	f.StringVar(&o.maxMemory, "max-memory", "", "most `memory` to register for connections (default half of the host's)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log each connection's details")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "log only warnings and errors")
	f.BoolVar(&o.json, "log-json", false, "log in JSON")
	cmd.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	cmd.SetFlagErrorFunc(cli.UnknownFlag)
	const groupVolume, groupPing = "The volume of --store", "Pings"
	cli.GroupFlags(cmd, groupVolume, append([]string{"store"}, ofVolume...)...)
	cli.GroupFlags(cmd, groupPing, append([]string{"ping"}, ofPings...)...)
	cli.UseFlagGroups(cmd, groupVolume, groupPing)
	client, _ := clientCommand()
	cmd.AddCommand(client, createCommand(), adoptCommand(), versionCommand())
	_ = cmd.RegisterFlagCompletionFunc("block-size", cobra.FixedCompletions([]string{"512", "4096"}, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

// Flags that mean something only with --store, or with --ping.
var (
	ofVolume = []string{"name", "size", "block-size", "read-only", "writeback", "shared", "key-file", "uuid"}
	ofPings  = []string{"ping-max-size", "ping-max-connections", "ping-poll"}
)

// checkFlags refuses flags that would have no effect, so that no volume is served without what protects it.
func checkFlags(flags *pflag.FlagSet, o options) error {
	var err error
	flags.Visit(func(f *pflag.Flag) {
		switch {
		case err != nil:
		case o.store == "" && slices.Contains(ofVolume, f.Name):
			err = cli.Usagef("--%s is of the volume of --store, which is missing; options of a --volume follow it after commas", f.Name)
		case len(o.ping) == 0 && slices.Contains(ofPings, f.Name):
			err = cli.Usagef("--%s needs --ping", f.Name)
		}
	})
	return err
}

func logger(o options) zerolog.Logger {
	level := zerolog.InfoLevel
	switch {
	case o.quiet:
		level = zerolog.WarnLevel
	case o.verbose:
		level = zerolog.DebugLevel
	}
	zerolog.TimeFieldFormat = time.RFC3339Nano // else to the second
	switch {
	case o.json:
		return zerolog.New(os.Stderr).Level(level).With().Timestamp().Logger()
	case journal.Is(os.Stderr):
		return zerolog.New(journal.New(os.Stderr)).Level(level)
	}
	return zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr, NoColor: true, TimeFormat: "15:04:05.000"}).
		Level(level).With().Timestamp().Logger()
}

// noArguments refuses arguments.
func noArguments(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasSubCommands():
		return cli.UnknownCommand(cmd, args[0])
	}
	return cli.Usagef("unexpected argument %q", args[0])
}

// listenAddr returns the address and port that a flag gives. A host name must have one address.
func listenAddr(ctx context.Context, flag, text string) (netip.AddrPort, error) {
	host, port, err := input.HostPort(text)
	if err != nil {
		return netip.AddrPort{}, cli.Usagef("%s %s: %w", flag, text, err)
	}
	addrs, _, err := input.Resolve(ctx, host)
	if err != nil {
		return netip.AddrPort{}, cli.Usagef("%s %s: %w", flag, text, err)
	}
	if len(addrs) > 1 {
		return netip.AddrPort{}, cli.Usagef("%s %s: the host name has %d addresses, give one: %v", flag, text, len(addrs), addrs)
	}
	return netip.AddrPortFrom(addrs[0], cmp.Or(port, 9999)), nil
}

// serve runs the services that the options select until ctx ends or one of them fails.
func serve(ctx context.Context, o options) error {
	if len(o.listen) == 0 && (o.store != "" || len(o.volumes) > 0) {
		return cli.Usagef("--listen ADDR:PORT is needed to serve a volume: an address of an RDMA device of this host")
	}
	if len(o.listen) == 0 && len(o.ping) == 0 {
		return cli.Usagef("--listen ADDR:PORT (for volumes), --ping ADDR:PORT or both are needed: an address of an RDMA device of this host")
	}
	allow, err := access.ParseList(o.allow)
	if err != nil {
		return cli.Usagef("--allow: %w", err)
	}
	memory, err := memoryLimit(o.maxMemory)
	if err != nil {
		return fmt.Errorf("--max-memory: %w", err)
	}
	log := logger(o)
	b := &bridge{log: log, allow: allow, memory: memory, manager: newManager(log)}
	if err := b.addPings(ctx, o); err != nil {
		return err
	}
	if err := b.addVolumes(ctx, o); err != nil {
		return err
	}
	return b.run(ctx, o.wait || os.Getenv("NOTIFY_SOCKET") != "")
}

// bridge is what a running bridge consists of.
type bridge struct {
	log    zerolog.Logger
	allow  access.List
	memory *verbs.Budget // of all connections

	endpoints []*endpoint
	manager   *manager
	volumes   []*target.Volume
	target    *target.Target // nil if there are no volumes
}

// add adds an endpoint for the address of a flag.
func (b *bridge) add(ctx context.Context, flag, addr string, e endpoint) error {
	var err error
	if e.addr, err = listenAddr(ctx, flag, addr); err != nil {
		return err
	}
	for _, other := range b.endpoints {
		if other.addr == e.addr {
			return cli.Usagef("%s %s: the address and port are given twice", flag, e.addr)
		}
	}
	e.log = b.log.With().Stringer("address", e.addr).Logger()
	e.manager = b.manager
	b.endpoints = append(b.endpoints, &e)
	return nil
}

// run serves at all endpoints until ctx ends.
func (b *bridge) run(ctx context.Context, wait bool) error {
	if err := b.start(wait); err != nil {
		for _, e := range b.endpoints {
			e.close()
		}
		return errors.Join(err, b.closeTarget())
	}
	stop := onSignal(unix.SIGUSR1, b.logCounters)
	defer stop()
	services, ctx := errgroup.WithContext(ctx)
	for _, e := range b.endpoints {
		services.Go(func() error { return e.run(ctx) })
	}
	services.Go(func() error {
		b.manager.run(ctx)
		return b.closeTarget()
	})
	err := services.Wait()
	b.logCounters()
	return err
}

func (b *bridge) start(wait bool) error {
	for _, e := range b.endpoints {
		if err := e.start(wait); err != nil {
			return err
		}
	}
	if err := saveIdentities(b.volumes); err != nil {
		return err
	}
	b.manager.started()
	return nil
}

func (b *bridge) closeTarget() error {
	if b.target == nil {
		return nil
	}
	return b.target.Close()
}

func (b *bridge) logCounters() {
	for _, v := range b.volumes {
		v.LogCounters(b.log)
	}
	if b.target != nil {
		b.log.Info().Uint64("rejected", b.target.Rejected.Load()).Msg("clients")
	}
}

// memoryLimit returns the budget of all connections.
func memoryLimit(text string) (*verbs.Budget, error) {
	limit, err := parseSize(text)
	if err != nil {
		return nil, cli.Usage(err)
	}
	if limit == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return nil, fmt.Errorf("cannot read the size of the host's memory: %w", err)
		}
		limit = int64(info.Totalram) * int64(info.Unit) / 2
	}
	return verbs.NewBudget(limit), nil
}

// addVolumes opens the volumes and adds their endpoints.
func (b *bridge) addVolumes(ctx context.Context, o options) error {
	if len(o.listen) == 0 {
		return nil
	}
	refusals := limited(b.log)
	e := endpoint{
		refuse:   refuseForResources,
		serve:    func(ctx context.Context, r *verbs.Request) { b.connect(ctx, refusals, r) },
		announce: func(where string) { fmt.Printf("listening on %s, volumes: %s\n", where, b.names()) },
	}
	for _, addr := range o.listen {
		if err := b.add(ctx, "--listen", addr, e); err != nil {
			return err
		}
	}
	var err error
	if b.volumes, err = openVolumes(b.log, o); err != nil {
		return err
	}
	if b.target, err = target.New(b.log, b.allow, b.volumes...); err != nil {
		closeVolumes(b.volumes)
		return cli.Usage(err)
	}
	return nil
}

// onSignal calls f at each signal until stop is called.
func onSignal(sig os.Signal, f func()) (stop func()) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, sig)
	go func() {
		for range signals {
			f()
		}
	}()
	return func() {
		signal.Stop(signals)
		close(signals)
	}
}

// names returns the names and sizes of the volumes.
func (b *bridge) names() string {
	names := make([]string, len(b.volumes))
	for i, v := range b.volumes {
		names[i] = fmt.Sprintf("%s %s", v.Name, humanize.IBytes(uint64(v.Store.Size())))
	}
	return strings.Join(names, ", ")
}

// limited returns a logger with a rate limit, for messages that anybody on the network can cause.
func limited(log zerolog.Logger) zerolog.Logger {
	return log.Sample(&zerolog.BurstSampler{Burst: 10, Period: 5 * time.Second})
}

// refusal is a reason to refuse a client, and the private data that tells it.
type refusal interface {
	error
	Append(b []byte) []byte
}

// connect serves a client of a volume until the connection or ctx ends.
func (b *bridge) connect(ctx context.Context, refusals zerolog.Logger, request *verbs.Request) {
	t, peer := b.target, request.Peer()
	session, err := t.Admit(request.Private, request.Addr())
	if err == nil {
		defer t.Leave(session)
		err = faultyReject(session.Volume())
	}
	if reject := (*wire.Reject)(nil); errors.As(err, &reject) {
		reject.Version = wire.VersionOf(request.Private)
	}
	var refused refusal
	if errors.As(err, &refused) {
		if errors.As(err, new(*wire.Challenge)) { // happens once to each client of a volume with a key
			b.log.Debug().Str("peer", peer).Msg(err.Error())
		} else {
			refusals.Warn().Str("peer", peer).Msg(err.Error())
		}
		request.Reject(refused.Append(nil))
		return
	}
	conn, err := request.Accept(session.Private, verbs.Config{
		Receives:   session.Messages() + 1, // C may answer a message's last command before it has posted the receive again
		MaxMessage: target.MaxMessage,
		Head:       wire.CommandSize,
		Buffers:    dataBuffers,
		MaxData:    target.MaxData,
		Budget:     b.memory,
		Polls:      true,
	})
	if err != nil {
		refusals.Error().Str("peer", peer).Err(err).Msg("connection not accepted")
		return
	}
	t.Serve(ctx, session, withConnFaults(conn, session.Volume()))
	conn.Release()
}

// refuseForResources tells a client that the bridge has no room for it.
func refuseForResources(hello []byte) []byte {
	return (&wire.Reject{Version: wire.VersionOf(hello), Reason: wire.RejectResources}).Append(nil)
}

const dataBuffers = 16 // buffers for RDMA per connection
