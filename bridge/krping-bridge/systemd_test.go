// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"testing"

	"github.com/rs/zerolog"
)

// The bridge is ready when all its endpoints listen or wait for a device, not before. Later it says what
// has changed.
func TestStateForSystemd(t *testing.T) {
	var sent []string
	m := newManager(zerolog.Nop())
	m.notify = func(states string) { sent = append(sent, states) }
	var volumes, pings endpoint
	m.set(&volumes, "listening on 10.0.0.1:9999 (rxe0)")
	m.set(&pings, "not listening on 10.0.0.2:9900: no device")
	m.started()
	m.set(&pings, "not listening on 10.0.0.2:9900: no device")
	m.set(&pings, "listening on 10.0.0.2:9900 (rxe1)")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m.run(ctx)
	want := []string{
		"READY=1\nSTATUS=listening on 10.0.0.1:9999 (rxe0); not listening on 10.0.0.2:9900: no device",
		"STATUS=listening on 10.0.0.1:9999 (rxe0); listening on 10.0.0.2:9900 (rxe1)",
		"STOPPING=1",
	}
	if !slices.Equal(sent, want) {
		t.Errorf("%q, want %q", sent, want)
	}
}
