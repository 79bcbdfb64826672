// SPDX-License-Identifier: Apache-2.0

//go:build lab

package injected

import (
	"path/filepath"
	"testing"

	"krping/test/guest/internal/guest"
)

var modulePoints = []point{
	{setting: setting{name: "send_drop", rate: 20, gapMS: 5000}, lost: true},
	{setting: setting{name: "send_delay", rate: 5, ms: 20}},
	{setting: setting{name: "send_duplicate", rate: 10}, lost: true},
	{setting: setting{name: "send_corrupt", rate: 1, gapMS: 1000}},
	{setting: setting{name: "recv_drop", rate: 20, gapMS: 5000}, lost: true},
	{setting: setting{name: "recv_duplicate", rate: 10}, lost: true},
	{setting: setting{name: "recv_corrupt", rate: 1, gapMS: 1000}},
	{setting: setting{name: "post_fail", rate: 20}, lost: true},
	{setting: setting{name: "reg_refuse", rate: 3}},
	{setting: setting{name: "alloc_fail", rate: 3}, with: []setting{{name: "disconnect", rate: 50}}, lost: true},
	{setting: setting{name: "alive_lost", rate: 1}, idle: true, lost: true},
	{setting: setting{name: "disconnect", rate: 20}, lost: true},
	{setting: setting{name: "target_reject", rate: 3}, with: []setting{{name: "disconnect", rate: 50}}, lost: true},
	{setting: setting{name: "target_recv_drop", rate: 20, gapMS: 5000}, lost: true},
	{setting: setting{name: "target_recv_corrupt", rate: 1, gapMS: 1000}},
	{setting: setting{name: "target_send_corrupt", rate: 1, gapMS: 1000}},
	{setting: setting{name: "target_post_fail", rate: 20}, lost: true},
	{setting: setting{name: "target_alloc_fail", rate: 3}},
	{setting: setting{name: "target_alive_lost", rate: 1}, idle: true, lost: true},
	{setting: setting{name: "target_store_stall", rate: 10, ms: 300}},
	{setting: setting{name: "target_disconnect", rate: 20}, lost: true},
}

const faults knobs = "/sys/kernel/debug/krping/faults" // of the module

// load loads the module that makes faults instead of the other one, which is back at the end.
func load(t *testing.T) {
	t.Helper()
	faulty := filepath.Join(filepath.Dir(guest.Module(t))+"-faults", filepath.Base(guest.Module(t)))
	guest.Run(t, "rmmod", "rdma_krping")
	t.Cleanup(func() {
		guest.Run(t, "rmmod", "rdma_krping")
		guest.Run(t, "insmod", guest.Module(t))
	})
	guest.Run(t, "insmod", faulty)
}

// serve has the module serve a disk as vol0 and be its client.
func serve(t *testing.T, options string) path {
	t.Helper()
	disk := guest.NullDisk(t, "injected", nil)
	guest.Serve(t, "vol0", port, "backing="+disk)
	return path{faults, guest.Attach(t, port, options), disk}
}

func module(t *testing.T) path {
	t.Helper()
	load(t)
	return serve(t, ",queues=2,depth=32")
}

func TestFaults(t *testing.T) { module(t).sweepAll(t, modulePoints) }

// A device that has room for less in a work request and in a queue is used with less.
func TestSmallDevice(t *testing.T) {
	load(t)
	faults.set(t, setting{name: "small_device", rate: 1})
	defer faults.clear(t, "small_device")
	p := serve(t, "")
	guest.Fio(t, p.dev, "--rw=randwrite", "--bs=1m", "--iodepth=4", "--io_size=32m")
}

func TestShortReads(t *testing.T) { module(t).shortReads(t, "target_store_short") }

func TestNewSession(t *testing.T) { module(t).newSession(t, "target_store_stall") }

// A disk may take longer for a range than for a read or write; the connection is not lost for that. This
// build waits for 3 s only.
func TestLongCommands(t *testing.T) {
	p := module(t)
	p.set(t, setting{name: "target_store_stall", rate: 1, ms: 7000})
	defer p.clear(t, "target_store_stall")
	guest.Run(t, "timeout", "60", "blkdiscard", "--force", "--zeroout", "--length", "1MiB", p.dev) // --force: reads nothing
	if n, stalls := number(t, "reconnects"), p.fired(t, "target_store_stall"); n != 0 || stalls != 1 {
		t.Errorf("%d reconnects, %d stalls: want 0, 1", n, stalls)
	}
}
