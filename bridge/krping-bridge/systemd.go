// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
)

// manager tells systemd what the bridge does, if systemd has started it with Type=notify.
type manager struct {
	log  zerolog.Logger
	send func(state string) error

	mu     sync.Mutex // protects the fields below
	wait   int        // services that do not listen yet
	status []string   // of those that do
}

func newManager(log zerolog.Logger, o options) *manager {
	m := &manager{log: log, send: func(state string) error { _, err := daemon.SdNotify(false, state); return err }}
	for _, address := range []string{o.listen, o.ping} {
		if address != "" {
			m.wait++
		}
	}
	return m
}

// listening notes that one service listens now; the last one makes the bridge ready.
func (m *manager) listening(status string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status = append(m.status, status)
	state := "STATUS=" + strings.Join(m.status, "; ")
	if m.wait--; m.wait == 0 {
		state = daemon.SdNotifyReady + "\n" + state
	}
	m.notify(state)
}

// run answers systemd's watchdog until ctx ends. It waits for no store and no client: a disk that
// stalls must not restart the bridge, which would take the other volumes away.
func (m *manager) run(ctx context.Context) {
	var watchdog <-chan time.Time
	if limit, err := daemon.SdWatchdogEnabled(false); err == nil && limit > 0 {
		tick := time.NewTicker(limit / 3)
		defer tick.Stop()
		watchdog = tick.C
	}
	for {
		select {
		case <-ctx.Done():
			m.notify(daemon.SdNotifyStopping)
			return
		case <-watchdog:
			m.notify(daemon.SdNotifyWatchdog)
		}
	}
}

func (m *manager) notify(state string) {
	if err := m.send(state); err != nil {
		m.log.Warn().Err(err).Msg("cannot notify systemd")
	}
}
