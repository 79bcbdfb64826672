// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// fakeHost is a host with at most one network device, eth0.
type fakeHost struct {
	netdev Netdev
	device string
	dead   bool // and the kernel shows it
	hidden bool // dead, but only a try shows it
	addErr error
	did    []string
}

func (h *fakeHost) Netdev(string) (Netdev, error) { return h.netdev, nil }
func (h *fakeHost) Device(string) (string, error) { return h.device, nil }

func (h *fakeHost) Dead(_ context.Context, _ string, try bool) (string, error) {
	if try {
		h.did = append(h.did, "try")
	}
	if h.dead || try && h.hidden {
		return "dead", nil
	}
	return "", nil
}

func (h *fakeHost) Add(_ context.Context, device, netdev string) error {
	h.did = append(h.did, "add "+device+" "+netdev)
	if h.addErr == nil {
		h.device, h.dead, h.hidden = device, false, false
	}
	return h.addErr
}

func (h *fakeHost) Del(device string) error {
	h.did = append(h.did, "del "+device)
	h.device = ""
	return nil
}

var up = Netdev{Exists: true, Up: true, Changes: 1}

func TestKeep(t *testing.T) {
	h := &fakeHost{}
	var states []string
	k := &Keeper{Netdev: "eth0", Name: "rxe_eth0", Host: h, Log: zerolog.Nop(), State: func(s string) { states = append(states, s) }}
	now := time.Now()
	for _, step := range []struct {
		name   string
		change func()
		later  time.Duration
		did    []string
		state  string
	}{
		{"no network device", func() {}, time.Second, nil, "no network device eth0"},
		{"the driver is not loaded", func() { h.netdev, h.addErr = up, errors.New("no driver") }, time.Second, []string{"add rxe_eth0 eth0"}, "no driver"},
		{"it is", func() { h.addErr = nil }, time.Second, []string{"add rxe_eth0 eth0"}, "rxe_eth0 on eth0"},
		{"tried soon after the network device was down", func() {}, time.Second, []string{"try"}, "rxe_eth0 on eth0"},
		{"but not each time", func() {}, time.Second, nil, "rxe_eth0 on eth0"},
		{"nor later", func() {}, time.Minute, nil, "rxe_eth0 on eth0"},
		{"dead", func() { h.dead = true }, time.Second, []string{"del rxe_eth0", "add rxe_eth0 eth0"}, "rxe_eth0 on eth0"},
		{"dead, but down", func() { h.dead, h.netdev.Up = true, false }, time.Second, nil, "rxe_eth0 on eth0, which is down or has no carrier"},
		{"up again", func() { h.netdev = up }, time.Second, []string{"try", "del rxe_eth0", "add rxe_eth0 eth0"}, "rxe_eth0 on eth0"},
		{"up and down between two looks", func() { h.hidden, h.netdev.Changes = true, 3 }, time.Minute, []string{"try", "del rxe_eth0", "add rxe_eth0 eth0"}, "rxe_eth0 on eth0"},
		{"deleted by somebody", func() { h.device = "" }, time.Minute, []string{"add rxe_eth0 eth0"}, "rxe_eth0 on eth0"},
		{"another name", func() { h.device, h.dead = "rxe0", true }, time.Minute, []string{"del rxe0", "add rxe0 eth0"}, "rxe0 on eth0"},
		{"network device removed", func() { h.device, h.netdev = "", Netdev{} }, time.Second, nil, "no network device eth0"},
	} {
		step.change()
		h.did = nil
		now = now.Add(step.later)
		k.look(t.Context(), now)
		if !slices.Equal(h.did, step.did) || k.state != step.state {
			t.Errorf("%s: did %q, state %q; want %q, %q", step.name, h.did, k.state, step.did, step.state)
		}
	}
	if len(states) != 7 { // each change once
		t.Errorf("%d states: %q", len(states), states)
	}
}

func TestDeletesAtTheEnd(t *testing.T) {
	h := &fakeHost{netdev: up, device: "rxe0"}
	k := &Keeper{Netdev: "eth0", Host: h, Log: zerolog.Nop(), State: func(string) {}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := k.Run(ctx); err != nil || !slices.Contains(h.did, "del rxe0") {
		t.Errorf("%v, did %q", err, h.did)
	}
}
