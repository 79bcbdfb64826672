// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"krping/bridge/access"
	"krping/bridge/journal"
	"krping/bridge/target"
	"krping/bridge/verbs"
	"krping/bridge/wire"
)

// options holds the command line's flags.
type options struct {
	listen    string
	ping      string
	pingSize  string
	name      string
	store     string
	size      string
	blockSize uint32
	readOnly  bool
	writeback bool
	shared    bool
	keyFile   string
	uuid      string
	volumes   []string
	allow     []string
	maxMemory string
	verbose   bool
	json      bool
}

func run(ctx context.Context, args []string) error {
	var o options
	cmd := &cobra.Command{
		Use:   "krping-bridge [--listen ADDR:PORT --store file:PATH] [--ping ADDR:PORT]",
		Short: "Serve volumes to krping block clients over RDMA, and answer ping/pong clients",
		Long: `Serve volumes to krping block clients over RDMA, and answer ping/pong clients.

A write is on stable storage when it is answered, unless --writeback is given.
A file is made by krping-bridge create; serving one that does not exist is refused.
--ping answers krpingctl client (pings, --rlat, --bw), krping and rping on a host without the
kernel module. It serves many clients at once.
With --key-file, the clients of the volume must prove that they have the same key
(krpingctl client --key-file), and so does the bridge. The key does not encrypt anything.
Sizes have the units KiB, MiB, GiB (powers of 1024) or KB, MB, GB (powers of 1000).
SIGUSR1 logs each volume's counters.`,
		Example: `  krping-bridge create --store file:/var/lib/krping/vol0.img --size 1GiB
  krping-bridge --listen 192.168.77.1:9999 --store file:/var/lib/krping/vol0.img
  krping-bridge --ping 192.168.77.1:9900
  krping-bridge --listen 192.168.77.1:9999 --volume a=mem:,size=1GiB --volume b=file:/srv/b.img,read-only`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "", "serve volumes at this `address` of an RDMA device (default port 9999)")
	f.StringVar(&o.ping, "ping", "", "answer ping/pong clients at this `address` (default port 9999)")
	f.StringVar(&o.pingSize, "ping-max-size", "2MiB", "largest `size` of a ping or test")
	f.StringVar(&o.store, "store", "", "where the volume is stored: file:`PATH` (a file or block device), or mem: (lost at exit; clients then fail)")
	f.StringVar(&o.size, "size", "", "`size` of mem:; a file or block device must have it, if it is given")
	f.StringVar(&o.name, "name", "vol0", "`name` of the volume")
	f.Uint32Var(&o.blockSize, "block-size", 512, "logical block size, 512 or 4096")
	f.BoolVar(&o.readOnly, "read-only", false, "open the store read-only, and refuse writes")
	f.BoolVar(&o.writeback, "writeback", false, "answer writes before they are on stable storage; FLUSH and FUA put them there")
	f.BoolVar(&o.shared, "shared", false, "let several clients write at the same time, as a cluster file system needs; otherwise one")
	f.StringVar(&o.keyFile, "key-file", "", "`file` with the clients' key: 16 to 64 characters, mode 0600")
	f.StringVar(&o.uuid, "uuid", "", "the volume's `UUID`: refuse another; for a block device or mem: without one of its own")
	f.StringArrayVar(&o.volumes, "volume", nil, "another volume, repeatable: `NAME=STORE[,size=SIZE][,block-size=N][,read-only][,writeback][,shared][,key-file=FILE][,uuid=UUID]`")
	f.StringSliceVar(&o.allow, "allow", nil, "serve only clients with these `addresses`, like 192.168.77.2 or 10.0.0.0/8")
	f.StringVar(&o.maxMemory, "max-memory", "", "most `memory` to register for connections (default half of the host's)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log each connection's details")
	f.BoolVar(&o.json, "log-json", false, "log in JSON")
	cmd.AddCommand(createCommand(), adoptCommand())
	cmd.SetArgs(args)
	return cmd.ExecuteContext(ctx)
}

func logger(o options) zerolog.Logger {
	level := zerolog.InfoLevel
	if o.verbose {
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

func listenAddr(flag, s string) (netip.AddrPort, error) {
	if addr, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return netip.AddrPortFrom(addr, 9999), nil
	}
	addr, err := netip.ParseAddrPort(s)
	if err != nil {
		return addr, fmt.Errorf("%s %s: must be an IP address and a port, like 192.168.77.1:9999 or [fd77::1]:9999", flag, s)
	}
	return addr, nil
}

// serve runs the services that the options select until ctx ends or one of them fails.
func serve(ctx context.Context, o options) error {
	if o.listen == "" && (o.store != "" || len(o.volumes) > 0) {
		return errors.New("--listen ADDR:PORT is needed to serve a volume: an address of an RDMA device of this host")
	}
	if o.listen == "" && o.ping == "" {
		return errors.New("--listen ADDR:PORT (for volumes), --ping ADDR:PORT or both are needed: an address of an RDMA device of this host")
	}
	allow, err := access.ParseList(o.allow)
	if err != nil {
		return fmt.Errorf("--allow: %w", err)
	}
	memory, err := memoryLimit(o.maxMemory)
	if err != nil {
		return fmt.Errorf("--max-memory: %w", err)
	}
	log := logger(o)
	manager := newManager(log, o)
	services, ctx := errgroup.WithContext(ctx)
	services.Go(func() error { manager.run(ctx); return nil })
	if o.ping != "" {
		services.Go(func() error { return servePings(ctx, log, o, allow, memory, manager) })
	}
	if o.listen != "" {
		services.Go(func() error { return serveVolumes(ctx, log, o, allow, memory, manager) })
	}
	return services.Wait()
}

// memoryLimit returns the budget of all connections.
func memoryLimit(text string) (*verbs.Budget, error) {
	limit, err := parseSize(text)
	if err != nil {
		return nil, err
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

func serveVolumes(ctx context.Context, log zerolog.Logger, o options, allow access.List, memory *verbs.Budget, manager *manager) error {
	addr, err := listenAddr("--listen", o.listen)
	if err != nil {
		return err
	}
	volumes, err := openVolumes(log, o)
	if err != nil {
		return err
	}
	t, err := target.New(log, allow, volumes...)
	if err != nil {
		closeVolumes(volumes)
		return err
	}
	l, err := verbs.Listen(addr, refuseForResources)
	if err != nil {
		return errors.Join(explainListen(err), t.Close())
	}
	if err := saveIdentities(volumes); err != nil {
		l.Close()
		return errors.Join(err, t.Close())
	}
	manager.listening(announce(addr, l.Device(), volumes))
	logCounters := func() {
		for _, v := range volumes {
			v.LogCounters(log)
		}
		log.Info().Uint64("rejected", t.Rejected.Load()).Msg("clients")
	}
	stop := onSignal(unix.SIGUSR1, logCounters)
	defer stop()
	refusals := limited(log)
	err = accept(ctx, l, func(r *verbs.Request) { connect(ctx, log, refusals, t, memory, r) }, t.Close)
	logCounters()
	return err
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

func explainListen(err error) error {
	if errors.Is(err, verbs.ErrNoDevice) {
		return fmt.Errorf("%w (`rdma link` lists RDMA devices; `krpingctl link add rxe0 --netdev eth0` creates a Soft-RoCE device)", err)
	}
	return err
}

// announce prints what is served, and returns it.
func announce(addr netip.AddrPort, device string, volumes []*target.Volume) string {
	names := make([]string, len(volumes))
	for i, v := range volumes {
		names[i] = fmt.Sprintf("%s %s", v.Name, humanize.IBytes(uint64(v.Store.Size())))
	}
	text := fmt.Sprintf("listening on %s (%s), volumes: %s", addr, deviceName(device), strings.Join(names, ", "))
	fmt.Println(text)
	return text
}

func deviceName(name string) string {
	if name == "" {
		return "all RDMA devices"
	}
	return name
}

// accept calls serve for each connect request, in a goroutine, until ctx ends or the device is
// removed. Then it calls end, which ends the connections, and waits for all calls of serve.
func accept(ctx context.Context, l *verbs.Listener, serve func(*verbs.Request), end func() error) error {
	var clients sync.WaitGroup
	stop := context.AfterFunc(ctx, l.StopAccepting)
	defer stop()
	var err error
	for {
		var request *verbs.Request
		if request, err = l.Accept(); err != nil {
			break
		}
		clients.Go(func() { serve(request) })
	}
	if errors.Is(err, verbs.ErrClosed) { // ctx has ended
		err = nil
	}
	err = errors.Join(err, end())
	clients.Wait()
	l.Close()
	return err
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

func connect(ctx context.Context, log, refusals zerolog.Logger, t *target.Target, memory *verbs.Budget, request *verbs.Request) {
	peer := request.Peer()
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
			log.Debug().Str("peer", peer).Msg(err.Error())
		} else {
			refusals.Warn().Str("peer", peer).Msg(err.Error())
		}
		request.Reject(refused.Append(nil))
		return
	}
	conn, err := request.Accept(session.Private, verbs.Config{
		Receives:   int(session.Welcome.Depth) + 1,
		MaxMessage: target.MaxMessage,
		Buffers:    dataBuffers,
		MaxData:    target.MaxData,
		Budget:     memory,
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
