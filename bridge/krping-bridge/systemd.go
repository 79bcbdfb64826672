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

	mu    sync.Mutex // protects the fields below
	order []*endpoint
	texts map[*endpoint]string
	ready bool
}

func newManager(log zerolog.Logger) *manager {
	return &manager{
		log: log, texts: map[*endpoint]string{},
		send: func(state string) error { _, err := daemon.SdNotify(false, state); return err },
	}
}

// set notes where an endpoint listens, or why it does not.
func (m *manager) set(e *endpoint, text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, known := m.texts[e]
	if !known {
		m.order = append(m.order, e)
	}
	m.texts[e] = text
	if m.ready && text != before {
		m.notify(m.status())
	}
}

// started makes the bridge ready: each endpoint listens, or waits for its device.
func (m *manager) started() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ready = true
	m.notify(daemon.SdNotifyReady + "\n" + m.status())
}

// status returns what all endpoints do. mu is locked.
func (m *manager) status() string {
	texts := make([]string, len(m.order))
	for i, e := range m.order {
		texts[i] = m.texts[e]
	}
	return "STATUS=" + strings.Join(texts, "; ")
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
