// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"sync"

	"github.com/rs/zerolog"

	"krping/bridge/systemd"
)

// manager tells systemd what the bridge does.
type manager struct {
	notify func(states string)

	mu    sync.Mutex // protects the fields below
	order []*endpoint
	texts map[*endpoint]string
	ready bool
}

func newManager(log zerolog.Logger) *manager {
	return &manager{texts: map[*endpoint]string{}, notify: func(states string) { systemd.Notify(log, states) }}
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
	m.notify(systemd.Ready + "\n" + m.status())
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
	watchdog := systemd.Watchdog()
	for {
		select {
		case <-ctx.Done():
			m.notify(systemd.Stopping)
			return
		case <-watchdog:
			m.notify(systemd.Alive)
		}
	}
}
