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

	"github.com/dustin/go-humanize"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"krping/bridge/target"
	"krping/bridge/verbs"
	"krping/bridge/wire"
)

// options of the command line.
type options struct {
	listen    string
	name      string
	store     string
	size      string
	blockSize uint32
	readOnly  bool
	writeback bool
	volumes   []string
	verbose   bool
	json      bool
}

func run(ctx context.Context, args []string) error {
	var o options
	cmd := &cobra.Command{
		Use:   "krping-bridge --listen ADDR:PORT --store file:PATH --size SIZE",
		Short: "Serve volumes to krping block clients over RDMA",
		Long: `Serve volumes to krping block clients over RDMA.

A write is stable on the store when it is answered, unless --writeback is given.
Sizes take KiB, MiB, GiB (powers of 1024) and KB, MB, GB (powers of 1000).`,
		Example: `  krping-bridge --listen 192.168.77.1:9999 --store file:/var/lib/krping/vol0.img --size 1GiB
  krping-bridge --listen 192.168.77.1:9999 --volume a=mem:,size=1GiB --volume b=file:/srv/b.img,readonly`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", "", "`address` of an RDMA device, and port (default port 9999)")
	f.StringVar(&o.store, "store", "", "where the volume rests: file:`PATH` or mem:")
	f.StringVar(&o.size, "size", "", "`size` of the volume; a file that exists has its own")
	f.StringVar(&o.name, "name", "vol0", "`name` of the volume")
	f.Uint32Var(&o.blockSize, "block-size", 512, "logical block size, 512 or 4096")
	f.BoolVar(&o.readOnly, "read-only", false, "refuse writes")
	f.BoolVar(&o.writeback, "writeback", false, "answer writes before they are stable; FLUSH and FUA make them so")
	f.StringArrayVar(&o.volumes, "volume", nil, "one more volume: `NAME=STORE[,size=SIZE][,block-size=N][,readonly][,writeback]`")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log each connection's details")
	f.BoolVar(&o.json, "log-json", false, "log in JSON")
	cmd.SetArgs(args)
	return cmd.ExecuteContext(ctx)
}

func logger(o options) zerolog.Logger {
	level := zerolog.InfoLevel
	if o.verbose {
		level = zerolog.DebugLevel
	}
	if o.json {
		return zerolog.New(os.Stderr).Level(level).With().Timestamp().Logger()
	}
	return zerolog.New(zerolog.ConsoleWriter{Out: os.Stderr, NoColor: true, TimeFormat: "15:04:05.000"}).
		Level(level).With().Timestamp().Logger()
}

func listenAddr(s string) (netip.AddrPort, error) {
	if s == "" {
		return netip.AddrPort{}, errors.New("--listen ADDR:PORT is needed: the address of an RDMA device of this host")
	}
	if addr, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return netip.AddrPortFrom(addr, 9999), nil
	}
	addr, err := netip.ParseAddrPort(s)
	if err != nil {
		return addr, fmt.Errorf("--listen %s: must be an IP address and a port, like 192.168.77.1:9999 or [fd77::1]:9999", s)
	}
	return addr, nil
}

func serve(ctx context.Context, o options) error {
	addr, err := listenAddr(o.listen)
	if err != nil {
		return err
	}
	log := logger(o)
	volumes, err := openVolumes(o)
	if err != nil {
		return err
	}
	t, err := target.New(log, volumes...)
	if err != nil {
		closeVolumes(volumes)
		return err
	}
	l, err := verbs.Listen(addr)
	if err != nil {
		return errors.Join(explainListen(err), t.Close())
	}
	announce(addr, l.Device(), volumes)
	logCounters := func() {
		for _, v := range volumes {
			v.LogCounters(log)
		}
	}
	stop := onSignal(unix.SIGUSR1, logCounters)
	defer stop()
	err = accept(ctx, log, t, l)
	logCounters()
	return err
}

// onSignal calls f at each signal until the returned function is called.
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
		return fmt.Errorf("%w (`rdma link` lists them; a Soft-RoCE one is made by `krpingctl link add rxe0 --netdev eth0`)", err)
	}
	return err
}

func announce(addr netip.AddrPort, device string, volumes []*target.Volume) {
	names := make([]string, len(volumes))
	for i, v := range volumes {
		names[i] = fmt.Sprintf("%s %s", v.Name, humanize.IBytes(uint64(v.Store.Size())))
	}
	if device == "" {
		device = "all RDMA devices"
	}
	fmt.Printf("listening on %s (%s), volumes: %s\n", addr, device, strings.Join(names, ", "))
}

// accept serves clients until ctx ends, then closes all of them and the stores.
func accept(ctx context.Context, log zerolog.Logger, t *target.Target, l *verbs.Listener) error {
	var clients sync.WaitGroup
	stop := context.AfterFunc(ctx, l.StopAccepting)
	defer stop()
	var err error
	for {
		var request *verbs.Request
		if request, err = l.Accept(); err != nil {
			break
		}
		clients.Go(func() { connect(ctx, log, t, request) })
	}
	if errors.Is(err, verbs.ErrClosed) { // as asked
		err = nil
	}
	err = errors.Join(err, t.Close())
	clients.Wait()
	l.Close()
	return err
}

func connect(ctx context.Context, log zerolog.Logger, t *target.Target, request *verbs.Request) {
	peer := request.Peer()
	session, err := t.Admit(request.Private)
	var reject *wire.Reject
	if errors.As(err, &reject) {
		log.Warn().Str("peer", peer).Msg(reject.Error())
		request.Reject(reject.Append(nil))
		return
	}
	conn, err := request.Accept(session.Welcome.Append(nil), verbs.Config{
		Receives:   int(session.Welcome.Depth),
		MaxMessage: target.MaxMessage,
		Buffers:    dataBuffers,
		MaxData:    target.MaxData,
	})
	if err != nil {
		log.Error().Str("peer", peer).Err(err).Msg("connection not accepted")
		return
	}
	t.Serve(ctx, session, conn)
	conn.Release()
}

const dataBuffers = 16 // for RDMA, of one connection
