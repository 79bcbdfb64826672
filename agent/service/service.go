// SPDX-License-Identifier: Apache-2.0

// Package service is the agent as a service: it keeps the sessions of a configuration alive,
// exports metrics, has a page that shows them live, makes events of the module's messages, and tells systemd how it is.
package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"krping/agent/host/rdmalink"
	"krping/agent/service/config"
	"krping/agent/service/metrics"
	"krping/agent/service/reconciler"
	"krping/agent/service/web"
	"krping/agent/stats/sampler"
	"krping/proc"
)

// RunDir is where the agent's lock is, and its socket by default.
const RunDir = "/run/krping"

// Options are what an agent is started with.
type Options struct {
	Config string // path of the configuration
	RunDir string
	FS     proc.FS
	Log    zerolog.Logger
	Debug  bool                  // log all, whatever the configuration says
	Meter  func() (Meter, error) // loads what measures latencies
}

// agent is a running one.
type agent struct {
	Options
	running   sync.WaitGroup
	broken    chan error // a server that cannot go on
	keeper    *reconciler.Keeper
	latencies *latencies
	messages  *prometheus.CounterVec
	registry  *prometheus.Registry
	page      *web.Page
	endpoint  *endpoint
}

// sampleInterval is that of the page.
const sampleInterval = time.Second

// Run runs the agent until ctx ends. SIGHUP makes it read its configuration again; what is wrong
// with that are config.Errors, at the start an error, later only in the log. No session is
// disturbed by its end.
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
	return errors.Join(a.run(ctx, c), a.latencies.close())
}

func newAgent(o Options) *agent {
	a := &agent{
		Options: o, broken: make(chan error, 1), keeper: reconciler.New(o.FS, o.Log), messages: metrics.NewMessages(),
		latencies: &latencies{fs: o.FS, log: o.Log}, page: web.New(),
	}
	a.registry = metrics.NewRegistry(metrics.Sources{
		Proc: o.FS, Sys: "/sys", Counters: rdmalink.Counters, Declared: a.keeper.Status, Meter: a.latencies, Messages: a.messages, Log: o.Log,
	})
	return a
}

// run does everything until ctx ends or a server is broken.
func (a *agent) run(ctx context.Context, c config.Config) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, unix.SIGHUP)
	defer signal.Stop(hangup)
	ctx, cancel := context.WithCancel(ctx)
	defer a.keeper.Wait()
	defer a.running.Wait()
	defer cancel()

	a.running.Go(func() { a.followKernel(ctx) })
	a.running.Go(func() { a.latencies.run(ctx, a.Meter) })
	a.running.Go(func() { a.sample(ctx) })
	a.keeper.Declare(ctx, c.Sessions)
	a.Log.Info().Str("config", a.Config).Int("sessions", len(c.Sessions)).Stringer("listen", c.Listen).Msg("started")
	a.tell(daemon.SdNotifyReady + status(c))
	// What systemd watches is that this loop goes on.
	var watchdog <-chan time.Time
	if limit, err := daemon.SdWatchdogEnabled(false); err == nil && limit > 0 {
		tick := time.NewTicker(limit / 3)
		defer tick.Stop()
		watchdog = tick.C
	}
	for {
		select {
		case <-ctx.Done():
			a.tell(daemon.SdNotifyStopping)
			a.page.Close()
			a.Log.Info().Msg("ends; sessions stay")
			return a.endpointClosed()
		case err := <-a.broken:
			return fmt.Errorf("serve at %s: %w", a.endpoint.address, err)
		case <-watchdog:
			a.tell(daemon.SdNotifyWatchdog)
		case <-hangup:
			c = a.reload(ctx, c)
		}
	}
}

// sample feeds the page.
func (a *agent) sample(ctx context.Context) {
	samples := sampler.New(a.FS)
	samples.Use(a.latencies, nil)
	if err := samples.Run(ctx, sampleInterval, a.page.Publish); err != nil {
		a.Log.Error().Err(err).Msg("the page stands still")
	}
}

func (a *agent) endpointClosed() error {
	if err := a.endpoint.close(); err != nil {
		return fmt.Errorf("stop to serve: %w", err)
	}
	return nil
}

// reload reads the configuration again and returns the one that holds from now on: the old one
// if there is anything wrong with the new one.
func (a *agent) reload(ctx context.Context, old config.Config) config.Config {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail
	a.tell(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000))
	c, err := a.adopt(old)
	if err != nil {
		LogMistakes(a.Log, err)
		a.Log.Error().Str("config", a.Config).Msg("the new configuration is refused, the old one stays")
		c = old
	} else {
		a.keeper.Declare(ctx, c.Sessions)
		a.Log.Info().Str("config", a.Config).Int("sessions", len(c.Sessions)).Msg("reloaded")
	}
	a.tell(daemon.SdNotifyReady + status(c))
	return c
}

// adopt loads the configuration and applies what is not about sessions.
func (a *agent) adopt(old config.Config) (config.Config, error) {
	c, err := config.Load(a.Config)
	if err != nil {
		return c, err
	}
	if c.Listen != old.Listen {
		next, err := a.serve(c.Listen)
		if err != nil {
			return c, err
		}
		if err := a.endpoint.close(); err != nil {
			a.Log.Warn().Err(err).Stringer("listen", old.Listen).Msg("stop to serve")
		}
		a.endpoint = next
	}
	a.logAt(c.LogLevel)
	return c, nil
}

func (a *agent) logAt(level zerolog.Level) {
	if a.Debug {
		level = zerolog.DebugLevel
	}
	zerolog.SetGlobalLevel(level)
}

// tell sends a state to systemd, if that started us.
func (a *agent) tell(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		a.Log.Warn().Err(err).Msg("systemd is not told")
	}
}

func status(c config.Config) string {
	return fmt.Sprintf("\nSTATUS=Sessions declared: %d, metrics at %s", len(c.Sessions), c.Listen)
}

// LogMistakes logs an error, or each mistake of a configuration in a line of its own.
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
