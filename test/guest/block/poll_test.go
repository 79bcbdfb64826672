// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// polled are fio's options for polled I/O of all sizes.
var polled = []string{"--ioengine=io_uring", "--hipri=1", "--rw=randrw", "--bsrange=512-256k", "--blockalign=512", "--iodepth=16", "--size=8M", "--verify_backlog=64"}

// Polled I/O has queues of its own, whose completions nothing but the poller takes; other I/O goes on beside it.
func TestPolledIO(t *testing.T) {
	needs.Test(t, needs.Ends)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, dev := attach(t, target, 16*mib, targets.Config{}, ",queues=2,poll_queues=1,heartbeat=15") // the poller leaves a slow host little time for the rest
		guest.WantFields(t, guest.Session(t, "vol0"), "queues", "2", "poll_queues", "1")
		served.WantVolume(t, "queues", "3")
		wantOwnCPUs(t, "/sys/block/"+guest.Session(t, "vol0")["dev"]+"/mq")
		if n := guest.Number(t, "/sys/block/"+guest.Session(t, "vol0")["dev"]+"/queue/io_poll"); n != 1 {
			t.Errorf("the disk's io_poll is %d, want 1", n)
		}
		other := guest.StartFio(t, dev, "--rw=randwrite", "--bs=4k", "--offset=8M", "--size=8M", "--iodepth=4", "--time_based", "--runtime=1h", "--verify_backlog=64")
		began := time.Now()
		guest.Fio(t, dev, polled...)
		t.Logf("16 MiB of polled I/O in %v", time.Since(began).Round(time.Millisecond))
		other.Stop()
		guest.WantSame(t, dev, served.Store)
		guest.WantFields(t, guest.Session(t, "vol0"), "errors", "0", "crc_errors", "0", "inflight", "0")
		guest.NoReconnects(t, "vol0")
	})
}

// wantOwnCPUs checks that each CPU has one of the first two hardware queues, for reads as for writes.
func wantOwnCPUs(t *testing.T, dir string) {
	t.Helper()
	var cpus []string
	for _, queue := range []string{"0", "1"} {
		list, err := os.ReadFile(filepath.Join(dir, queue, "cpu_list"))
		if err != nil {
			t.Fatal(err)
		}
		cpus = append(cpus, strings.Split(strings.TrimSpace(string(list)), ", ")...)
	}
	slices.Sort(cpus)
	if len(cpus) != runtime.NumCPU() || len(slices.Compact(cpus)) != runtime.NumCPU() {
		t.Errorf("the CPUs %q have the queues without polling, want each of %d CPUs once", cpus, runtime.NumCPU())
	}
}

// A poll queue is connected again after a loss as the others are. If the poller is killed, its I/O ends all the same.
func TestPolledIOIsRecovered(t *testing.T) {
	needs.Test(t, needs.Ends)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, dev := attach(t, target, 16*mib, targets.Config{}, ",queues=1,poll_queues=1")
		load := guest.StartFio(t, dev, append(polled, "--time_based", "--runtime=1h", "--thread")...) // one process, to be killed
		for range 3 {
			time.Sleep(time.Second)
			served.Stop()
			guest.SessionBecomes(t, "reconnecting")
			served = served.Again(t)
			guest.SessionBecomes(t, "live")
		}
		time.Sleep(time.Second)
		load.Kill()
		guest.Eventually(t, guest.Limit, "nothing is in flight", func() bool { return guest.Session(t, "vol0")["inflight"] == "0" })
		guest.BecomeSame(t, dev, served.Store) // after a loss requests are sent again, and inflight may be 0 in between
		guest.WantFields(t, guest.Session(t, "vol0"), "errors", "0", "crc_errors", "0")
		if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
			t.Error(err)
		}
	})
}
