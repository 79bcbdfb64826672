// SPDX-License-Identifier: Apache-2.0

//go:build lab

package injected

import (
	"testing"

	"krping/test/guest/internal/guest"
)

var bridgePoints = []point{
	{setting: setting{name: "reject", rate: 3}, with: []setting{{name: "disconnect", rate: 50}}, lost: true},
	{setting: setting{name: "recv_drop", rate: 20, gapMS: 5000}, lost: true},
	{setting: setting{name: "recv_delay", rate: 5, ms: 20}},
	{setting: setting{name: "recv_corrupt", rate: 1, gapMS: 1000}},
	{setting: setting{name: "send_drop", rate: 20, gapMS: 5000}, lost: true},
	{setting: setting{name: "send_duplicate", rate: 10}, lost: true},
	{setting: setting{name: "send_corrupt", rate: 1, gapMS: 1000}},
	{setting: setting{name: "post_fail", rate: 20}, lost: true},
	{setting: setting{name: "reg_refuse", rate: 20}, lost: true},
	{setting: setting{name: "keepalive_lost", rate: 1}, idle: true, lost: true},
	{setting: setting{name: "disconnect", rate: 20}, lost: true},
	{setting: setting{name: "store_stall", rate: 10, ms: 300}},
	{setting: setting{name: "store_refresh", rate: 1}, idle: true},
}

// bridge starts a bridge with fault injection that serves vol0, and attaches a client.
func bridge(t *testing.T) path {
	t.Helper()
	faults, store := t.TempDir(), guest.StorePath(t)
	guest.StartFaultyBridge(t, port, faults, store, "64MiB")
	return path{knobs(faults), guest.Attach(t, port, ",queues=2,depth=32"), store}
}
