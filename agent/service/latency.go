// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"krping/agent/service/metrics"
	"krping/agent/trace/biotrace"
	"krping/proc"
)

// watchInterval is the interval between looking for new and removed disks.
const watchInterval = time.Second

// Meter measures latencies of the disks it watches; *biotrace.Meter implements it.
type Meter interface {
	metrics.Meter
	WatchOnly(paths []string) error
	Close() error
}

// latencies measures the latencies of all krping disks of this host, whoever attached them.
type latencies struct {
	fs  proc.FS
	log zerolog.Logger

	mu    sync.Mutex // also serializes calls of meter
	meter Meter      // nil until loaded
}

// Read implements metrics.Meter.
func (l *latencies) Read() ([]biotrace.Histogram, biotrace.Lost, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.meter == nil {
		return nil, biotrace.Lost{}, metrics.ErrNotMeasured
	}
	return l.meter.Read()
}

// run loads the meter, which may take seconds or fail, then keeps the list of watched disks up to
// date until ctx ends.
func (l *latencies) run(ctx context.Context, load func() (Meter, error)) {
	start, loaded := time.Now(), make(chan error, 1)
	go func() { // loading cannot be interrupted: run does not wait for it
		meter, err := load()
		if err == nil {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.meter = meter
		}
		loaded <- err
	}()
	select {
	case <-ctx.Done():
		return
	case err := <-loaded:
		if err != nil {
			l.log.Warn().Err(err).Msg("cannot measure latencies")
			return
		}
		l.log.Info().Stringer("loaded_in", time.Since(start).Round(time.Millisecond)).Msg("measuring latencies")
	}
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	reported := ""
	for {
		text := ""
		if err := l.follow(); err != nil {
			text = err.Error()
		}
		if text != "" && text != reported {
			l.log.Warn().Msg(text)
		}
		reported = text
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (l *latencies) follow() error {
	sessions, err := l.fs.Sessions()
	if err != nil && !errors.Is(err, proc.ErrNotLoaded) {
		return fmt.Errorf("find the disks whose latencies to measure: %w", err)
	}
	var disks []string
	for _, s := range sessions {
		if s.Role == "client" && (s.State == "live" || s.State == "reconnecting" || s.State == "failed") {
			disks = append(disks, s.Device())
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.meter.WatchOnly(disks)
}

// close closes the meter, if it is loaded.
func (l *latencies) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.meter == nil {
		return nil
	}
	return l.meter.Close()
}
