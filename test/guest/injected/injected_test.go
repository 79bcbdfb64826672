// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package injected makes the faults of kmod/fault.h happen, in the client or in the module's own
// target, under writes that are accounted for: each acknowledged one has to be in the store.
package injected

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/rawio"
	"krping/test/guest/internal/guest"
	"krping/test/internal/acklog"
	"krping/test/internal/soak"
)

const (
	port     = 9970
	patience = 90 * time.Second
	knobs    = "/sys/kernel/debug/krping/faults"
)

// setting of a fault: what is not set stays 0.
type setting struct {
	name            string
	rate, gapMS, ms int
}

// A point is a fault as it is provoked. Corrupt data is sent once more, and has to be whole
// then: so that fault keeps its distance.
type point struct {
	setting
	with []setting // needed to get there
	idle bool      // happens only while nothing else does
	lost bool      // costs the connection
}

var points = []point{
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

// times that a fault happens at least.
const times = 3

// loadFaults loads the module that makes faults instead of the other one, which is back at the end.
func loadFaults(t *testing.T) {
	t.Helper()
	faulty := filepath.Join(filepath.Dir(guest.Module(t))+"-faults", filepath.Base(guest.Module(t)))
	guest.Run(t, "rmmod", "rdma_krping")
	t.Cleanup(func() {
		guest.Run(t, "rmmod", "rdma_krping")
		guest.Run(t, "insmod", guest.Module(t))
	})
	guest.Run(t, "insmod", faulty)
}

// serve serves a disk as vol0 by the module itself, and returns the device of its client.
func serve(t *testing.T, disk string) string {
	t.Helper()
	guest.Serve(t, "vol0", port, "backing="+disk)
	return guest.Attach(t, port, ",queues=2,depth=32")
}

func knob(t *testing.T, fault, name string) int {
	t.Helper()
	return guest.Number(t, filepath.Join(knobs, fault, name))
}

func (s setting) set(t *testing.T) {
	t.Helper()
	for name, value := range map[string]int{"ms": s.ms, "gap_ms": s.gapMS, "rate": s.rate} {
		if err := os.WriteFile(filepath.Join(knobs, s.name, name), []byte(strconv.Itoa(value)), 0); err != nil {
			t.Fatal(err)
		}
	}
}

func clear(t *testing.T, name string) { setting{name: name}.set(t) }

func session(t *testing.T, key string) string { return guest.Session(t, "vol0")[key] }

func number(t *testing.T, key string) int {
	t.Helper()
	n, err := strconv.Atoi(session(t, key))
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return n
}

// Every fault but one that the disk itself reports is hidden from the writer, and loses nothing.
func TestFaults(t *testing.T) {
	loadFaults(t)
	disk := guest.NullDisk(t, "injected", nil)
	dev := serve(t, disk)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	acked, err := acklog.NewLog(seed, nil)
	if err != nil {
		t.Fatal(err)
	}
	var table soak.Table
	t.Cleanup(func() { fmt.Print(table.String()) })
	for _, p := range points {
		t.Run(p.name, func(t *testing.T) { p.sweep(t, dev, disk, acked, table.Row(p.name)) })
	}
	if n := number(t, "errors"); n != 0 {
		t.Errorf("errors=%d: %v", n, guest.Session(t, "vol0"))
	}
}

// sweep writes while the fault happens, and looks at the store.
func (p point) sweep(t *testing.T, dev, disk string, acked *acklog.Log, row *soak.Row) {
	before, reconnects, fired := acked.Acked(), number(t, "reconnects"), knob(t, p.name, "fired")
	run, err := acklog.Load{Path: dev, Workers: 4, FsyncOne: 50, ReadOne: 3, MaxLength: 64 << 10, Limit: patience}.Start(acked)
	if err != nil {
		t.Fatal(err)
	}
	stop := func() error {
		_, err := run.Stop()
		return err
	}
	defer stop() //nolint:errcheck // a test that has failed
	for _, s := range append(p.with, p.setting) {
		s.set(t)
		defer clear(t, s.name)
	}
	if p.idle {
		if err := stop(); err != nil {
			t.Fatalf("the writer sees %v", err)
		}
	}
	enough := times
	if p.idle || testing.Short() {
		enough = 1
	}
	guest.Eventually(t, patience, fmt.Sprintf("%s happens %d times", p.name, enough), func() bool {
		return !p.idle && run.Ended() || knob(t, p.name, "fired")-fired >= enough
	})
	if p.lost {
		guest.Eventually(t, patience, "the connection is lost", func() bool { return number(t, "reconnects") > reconnects })
	}
	for _, s := range append(p.with, p.setting) {
		clear(t, s.name)
	}
	over, went := time.Now(), acked.Acked()
	guest.Eventually(t, patience, "the session is live", func() bool { return session(t, "state") == "live" })
	if !p.idle {
		guest.Eventually(t, patience, "I/O goes on", func() bool { return acked.Acked() > went+10 || run.Ended() })
		row.Resumed = max(row.Resumed, time.Since(over))
		if err := stop(); err != nil {
			row.Hung++
			t.Fatalf("the writer sees %v%s", err, guest.BlockedTasks())
		}
	}
	row.Times += knob(t, p.name, "fired") - fired
	row.Acked += acked.Acked() - before
	if got := number(t, "reconnects") - reconnects; p.lost != (got > 0) {
		t.Errorf("the connection was lost %d times", got)
	}
	guest.Run(t, "blockdev", "--flushbufs", disk)
	report, err := acked.CheckStore(disk, false)
	if err != nil {
		t.Fatal(err)
	}
	row.Lost, row.Corrupt = row.Lost+report.Lost, row.Corrupt+report.Corrupt
	if err := report.Err(); err != nil {
		t.Error(err)
	}
}

// A disk that returns less than was asked for is an error of the read, not other data; and no
// fault happens to the session of another name.
func TestShortReads(t *testing.T) {
	loadFaults(t)
	dev := serve(t, guest.NullDisk(t, "injected", nil))
	guest.Run(t, guest.Binary(t, "krpingctl"), "write", dev, "--direct", "--size", "1MiB", "--bs", "64KiB")
	device, err := rawio.Open(dev, os.O_RDONLY, true)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	buf, err := rawio.Buffer(16 << 10)
	if err != nil {
		t.Fatal(err)
	}
	read := func() (failed int) {
		t.Helper()
		for i := range 60 {
			n, err := unix.Pread(int(device.Fd()), buf, int64(i%60)<<14)
			switch {
			case err == unix.EIO:
				failed++
			case err != nil || n != len(buf):
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
		return failed
	}
	setting{name: "target_store_short", rate: 10}.set(t)
	for name, want := range map[string]bool{"other": false, "vol0": true, "": true} {
		if err := os.WriteFile(filepath.Join(knobs, "session"), []byte(name+"\n"), 0); err != nil {
			t.Fatal(err)
		}
		if got := read(); (got > 0) != want {
			t.Errorf("faults of %q: %d reads of 60 failed", name, got)
		}
	}
	clear(t, "target_store_short")
	if got := read(); got != 0 {
		t.Errorf("%d reads failed without a fault", got)
	}
}
