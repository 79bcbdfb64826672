// SPDX-License-Identifier: Apache-2.0

// Package service is the agent, a long-running service. It maintains the sessions of a
// configuration, exports metrics, serves a web page, logs the module's kernel messages, and reports
// its state to systemd.
package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"krping/agent/doctor"
	"krping/agent/host/rdmalink"
	"krping/agent/service/config"
	"krping/agent/service/metrics"
	"krping/agent/service/raid"
	"krping/agent/service/reconciler"
	"krping/agent/service/shutdown"
	"krping/agent/service/volumes"
	"krping/agent/service/web"
	"krping/agent/stats/sampler"
	"krping/bridge/systemd"
	"krping/proc"
)

// RunDir is the directory of the agent's lock and, by default, its socket.
const RunDir = "/run/krping"

// Options of an agent.
type Options struct {
	Version string // of the program
	Config  string // path of the configuration file
	RunDir  string
	Known   string // path of the file that remembers volumes
	Lost    string // path of the file that says what the last shutdown did not write
	FS      proc.FS
	Log     zerolog.Logger
	Debug   bool                  // log everything, whatever the configuration says
	Meter   func() (Meter, error) // loads the eBPF program that measures latencies
}

// agent is a running agent.
type agent struct {
	Options
	running    sync.WaitGroup
	broken     chan error // the error of a server that failed
	reconciler *reconciler.Reconciler
	latencies  *latencies
	messages   *prometheus.CounterVec
	registry   *prometheus.Registry
	page       *web.Page
	endpoint   *endpoint
	health     health
	examine    func(context.Context, doctor.Options) doctor.Report
}

// sampleInterval is the interval of the web page's samples.
const sampleInterval = time.Second

// Run runs the agent until ctx ends; sessions stay. On SIGHUP it reads its configuration again.
// Mistakes in the configuration are config.Errors: returned at the start, later only logged.
func Run(ctx context.Context, o Options) error {
	c, err := config.Load(o.Config)
	if err != nil {
		return err
	}
	held, err := lock(o.RunDir)
	if err != nil {
		return err
	}
	defer held.Close()
	a := newAgent(o)
	a.logAt(c.LogLevel)
	defer zerolog.SetGlobalLevel(zerolog.TraceLevel)
	if a.endpoint, err = a.serve(c.Listen); err != nil {
		return err
	}
	if err := (shutdown.Host{Lost: o.Lost, Log: o.Log}).Report(); err != nil {
		o.Log.Warn().Err(err).Msg("what the last shutdown did not write is not known")
	}
	return errors.Join(a.run(ctx, c), a.latencies.close())
}

func newAgent(o Options) *agent {
	a := &agent{
		Options: o, broken: make(chan error, 1), reconciler: reconciler.New(o.FS, raid.MD{Sys: "/sys"}, volumes.New(o.Known, o.Log), o.Log), messages: metrics.NewMessages(),
		latencies: &latencies{fs: o.FS, log: o.Log}, page: web.New(),
		health:  health{away: map[string]time.Time{}, explained: map[string]bool{}},
		examine: func(ctx context.Context, d doctor.Options) doctor.Report { return doctor.Examine(ctx, o.FS, d) },
	}
	a.registry = metrics.NewRegistry(metrics.Sources{
		Version: o.Version, Proc: o.FS, Sys: "/sys", Counters: rdmalink.Counters, Declared: a.reconciler.Status, Meter: a.latencies, Messages: a.messages, Log: o.Log,
	})
	return a
}

// run runs the agent until ctx ends or a server fails.
func (a *agent) run(ctx context.Context, c config.Config) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP)
	defer signal.Stop(hangup)
	ctx, cancel := context.WithCancel(ctx)
	defer a.reconciler.Wait()
	defer a.running.Wait()
	defer cancel()

	a.running.Go(func() { a.followKernel(ctx) })
	a.running.Go(func() { a.sample(ctx) })
	a.running.Go(func() {
		if err := followAddresses(ctx, a.reconciler.Retry); err != nil {
			a.Log.Warn().Err(err).Msg("sessions are no longer tried at once when the host gets an address")
		}
	})
	a.reconciler.Declare(ctx, c.Sessions)
	a.Log.Info().Str("config", a.Config).Int("sessions", len(c.Sessions)).Stringer("listen", c.Listen).Msg("started")
	a.ready(ctx, c)
	a.running.Go(func() { a.latencies.run(ctx, a.Meter) }) // takes a second of CPU time: after the disks
	tick := time.NewTicker(healthInterval)
	defer tick.Stop()
	watchdog := systemd.Watchdog() // checks that this loop runs
	for {
		select {
		case <-ctx.Done():
			systemd.Notify(a.Log, systemd.Stopping)
			a.page.Close()
			a.Log.Info().Msg("stopping; sessions stay attached")
			return a.endpointClosed()
		case err := <-a.broken:
			return fmt.Errorf("serve at %s: %w", a.endpoint.address, err)
		case <-watchdog:
			systemd.Notify(a.Log, systemd.Alive)
		case <-tick.C:
			a.checkHealth(ctx, c)
		case <-hangup:
			c = a.reload(ctx, c)
		}
	}
}

// sample feeds samples to the web page.
func (a *agent) sample(ctx context.Context) {
	samples := sampler.New(a.FS)
	samples.Use(a.latencies, nil)
	if err := samples.Run(ctx, sampleInterval, a.page.Publish); err != nil {
		a.Log.Error().Err(err).Msg("the web page is no longer updated")
	}
}

func (a *agent) endpointClosed() error {
	if err := a.endpoint.close(); err != nil {
		return fmt.Errorf("stop serving: %w", err)
	}
	return nil
}

// reload reads the configuration again and returns the one now in effect: the old one, if the new
// one has mistakes.
func (a *agent) reload(ctx context.Context, old config.Config) config.Config {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail
	systemd.Notify(a.Log, fmt.Sprintf("%s\nMONOTONIC_USEC=%d", systemd.Reloading, now.Nano()/1000))
	c, err := a.adopt(old)
	if err != nil {
		LogMistakes(a.Log, err)
		a.Log.Error().Str("config", a.Config).Msg("new configuration refused; the old one stays in effect")
		c = old
	} else {
		a.reconciler.Declare(ctx, c.Sessions)
		a.Log.Info().Str("config", a.Config).Int("sessions", len(c.Sessions)).Msg("reloaded")
	}
	a.ready(ctx, c)
	return c
}

// adopt loads the configuration and applies everything except the sessions.
func (a *agent) adopt(old config.Config) (config.Config, error) {
	c, err := config.Load(a.Config)
	if err != nil {
		return c, err
	}
	if c.Listen != old.Listen {
		if err := a.move(c.Listen); err != nil {
			return c, err
		}
	}
	a.logAt(c.LogLevel)
	return c, nil
}

// move serves at another address. The old address is given up only when the new one is served, unless
// they overlap, as 127.0.0.1:9450 and 0.0.0.0:9450 do: then the agent is not reachable for a moment, and
// returns to the old address if it cannot listen at the new one.
func (a *agent) move(to config.Address) error {
	old := a.endpoint
	stop := func() {
		if err := old.close(); err != nil {
			a.Log.Warn().Err(err).Stringer("listen", old.address).Msg("stop serving at the old address")
		}
	}
	next, err := a.serve(to)
	if err == nil {
		a.endpoint = next
		stop()
		return nil
	}
	if !errors.Is(err, unix.EADDRINUSE) || !overlap(old.address, to) {
		return err
	}
	stop()
	if next, err = a.serve(to); err == nil {
		a.endpoint = next
		return nil
	}
	next, again := a.serve(old.address)
	if again != nil { // another program has taken it: there is nothing left to serve at
		select {
		case a.broken <- again:
		default: // it ends already
		}
		return errors.Join(err, again)
	}
	a.endpoint = next
	return err
}

func (a *agent) logAt(level zerolog.Level) {
	if a.Debug {
		level = zerolog.DebugLevel
	}
	zerolog.SetGlobalLevel(level)
}

// LogMistakes logs an error; of config.Errors, each mistake in its own line.
func LogMistakes(log zerolog.Logger, err error) {
	var mistakes config.Errors
	if !errors.As(err, &mistakes) {
		log.Error().Msg(err.Error())
		return
	}
	for _, m := range mistakes {
		log.Error().Msg(m.Error())
	}
}
