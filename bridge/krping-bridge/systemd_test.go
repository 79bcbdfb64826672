// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"testing"

	"github.com/rs/zerolog"
)

// The bridge is ready when all its services listen, not before.
func TestReadyWhenAllListen(t *testing.T) {
	var sent []string
	m := newManager(zerolog.Nop(), options{listen: "10.0.0.1", ping: "10.0.0.1:9900"})
	m.send = func(state string) error { sent = append(sent, state); return nil }
	m.listening("listening on 10.0.0.1:9999")
	m.listening("answering pings on 10.0.0.1:9900")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m.run(ctx)
	want := []string{
		"STATUS=listening on 10.0.0.1:9999",
		"READY=1\nSTATUS=listening on 10.0.0.1:9999; answering pings on 10.0.0.1:9900",
		"STOPPING=1",
	}
	if !slices.Equal(sent, want) {
		t.Errorf("%q, want %q", sent, want)
	}
}
