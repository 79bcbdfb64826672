// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	verifier "krping/agent/disk/verify"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/late"
	"krping/test/internal/needs"
)

// slowDisk makes a disk that carries out a number of commands at a time and takes that long for each.
func slowDisk(t *testing.T, mib, depth int, each time.Duration) string {
	t.Helper()
	return guest.NullDisk(t, "slow", map[string]string{
		"size":    strconv.Itoa(mib),
		"irqmode": "2", "hw_queue_depth": strconv.Itoa(depth), "completion_nsec": strconv.FormatInt(each.Nanoseconds(), 10),
	})
}

// writes are under way at the same time.
type writes struct {
	t   *testing.T
	dev *os.File
	all errgroup.Group
}

// startWrites starts n writes of 4 KiB to the disk of vol0, one at each multiple of step.
func startWrites(t *testing.T, dev *os.File, n, step int64) *writes {
	t.Helper()
	w, data := &writes{t: t, dev: dev}, guest.Aligned(t, 4096)
	for i := range n {
		w.all.Go(func() error {
			_, err := dev.WriteAt(data, i*step)
			return err
		})
	}
	return w
}

// succeed waits for the writes, which must not disturb the session, and stops it.
func (w *writes) succeed() {
	w.t.Helper()
	if err := w.all.Wait(); err != nil {
		w.t.Error(err)
	}
	guest.WantFields(w.t, guest.Session(w.t, "vol0"), "errors", "0")
	guest.NoReconnects(w.t, "vol0")
	_ = w.dev.Close()
	if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
		w.t.Error(err)
	}
}

// The target answers KEEP_ALIVE while commands wait for the disk's only request: if the disk can say that it is busy, and if
// whoever gives it a command has to wait.
func TestKeepAliveOfSlowDisk(t *testing.T) {
	needs.Test(t, needs.Ends)
	for name, disk := range map[string]func(disk string) string{
		"says busy": func(disk string) string { return disk },
		"blocks": func(disk string) string { // device-mapper's flakey cannot say it
			disk, _ = guest.Flaky(t, disk, 16*mib)
			return disk
		},
	} {
		t.Run(name, func(t *testing.T) {
			served := targets.Module.Serve(t, targets.Config{Store: disk(slowDisk(t, 16, 1, 1500*time.Millisecond)), Shared: true})
			dev := guest.OpenDirect(t, guest.Attach(t, served.Port, ",queues=1,heartbeat=1"))
			startWrites(t, dev, 4, 4096).succeed()
		})
	}
}

// The target answers KEEP_ALIVE while its disk, a RAID1, cannot write its bitmap because a member stalls.
func TestKeepAliveOfStalledArray(t *testing.T) {
	needs.Test(t, needs.Ends)
	needs.Test(t, needs.StockKernel) // raid1
	const stalled = 10 * time.Second // and more than a few heartbeats
	member, stall := guest.Stalling(t, guest.NullDisk(t, "member", nil), 16*mib)
	array := guest.RAID1(t, guest.NullDisk(t, "other", nil), member)
	served := targets.Module.Serve(t, targets.Config{Store: array, Shared: true})
	dev := guest.OpenDirect(t, guest.Attach(t, served.Port, ",queues=1,heartbeat=1"))
	stall(true)
	writes := startWrites(t, dev, 8, mib)
	time.Sleep(stalled)
	guest.WantFields(t, guest.Session(t, "vol0"), "inflight", "8")
	stall(false)
	writes.succeed()
}

// However many digests a client asks for, writes do not wait behind them.
func TestWriteBesideDigests(t *testing.T) {
	needs.Test(t, needs.Ends)
	const (
		queues, each = 2, 128
		within       = 2 * time.Second
	)
	served := targets.Module.Serve(t, targets.Config{Store: slowDisk(t, 16, 8, 20*time.Millisecond), Shared: true})
	connect := func(queue, depth int) *fakeclient.Client {
		t.Helper()
		return fakeclient.Connect(t, served.Port, fakeclient.Hello(1, func(h *wire.Hello) {
			h.QueueCount, h.QueueIndex, h.Depth = 1+queues, uint16(queue), uint16(depth)
		}))
	}
	for i := range queues {
		c := connect(1+i, each)
		requests := make([]wire.Request, each)
		for tag := range requests {
			requests[tag] = fakeclient.Command(wire.OpDigest, wire.FlagInline, 16*mib)
			requests[tag].Tag = uint16(tag)
		}
		c.Post(requests...)
	}
	guest.Eventually(t, 5*time.Second, "all digests are in flight", func() bool {
		return guest.Volume(t, "vol0")["inflight"] == strconv.Itoa(queues*each)
	})
	writer := connect(0, 1)
	start := time.Now()
	if a := writer.Call(fakeclient.Write(1, 0, make([]byte, 4096)))[0]; a.Status != wire.StatusOK {
		t.Errorf("%+v", a)
	}
	if took := time.Since(start); took > guest.Slow(within) {
		late.Errorf(t, "a write took %v, want %v", took, within)
	} else {
		t.Logf("a write took %v", took)
	}
}

// Readers of a disk who ask for many digests leave its tags to others: four of a session are in flight.
func TestDigestsLeaveTags(t *testing.T) {
	needs.Test(t, needs.Ends)
	const many = 200 // more than a queue has tags
	served := targets.Module.Serve(t, targets.Config{Store: slowDisk(t, 16, 8, 20*time.Millisecond), Shared: true})
	path := guest.Attach(t, served.Port, ",queues=1")
	readers, writer := openDisk(t, path, os.O_RDONLY), guest.OpenDirect(t, path)
	asker, err := verifier.NewTarget(readers)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	var running sync.WaitGroup
	for range many {
		running.Go(func() {
			asked.Add(1)
			_, _ = asker.SHA256(verifier.Range{Length: 16 * mib}) // until the session is stopped
		})
	}
	inFlight := func() string { return guest.Session(t, "vol0")["inflight"] }
	guest.Eventually(t, 20*time.Second, "digests are in flight", func() bool { return asked.Load() == many && inFlight() == "4" })
	start := time.Now()
	if _, err := writer.WriteAt(guest.Aligned(t, 4096), 0); err != nil {
		t.Error(err)
	}
	took := time.Since(start)
	guest.Eventually(t, 20*time.Second, "4 digests are in flight again", func() bool { // the next one follows some time after one has ended
		n, err := strconv.Atoi(inFlight())
		if err != nil || n > 4 {
			t.Errorf("%d commands are in flight, want at most 4: %v", n, err)
		}
		return n == 4
	})
	if took > guest.Slow(2*time.Second) {
		late.Errorf(t, "a write took %v", took)
	}
	if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
		t.Error(err)
	}
	running.Wait()
}

func openDisk(t *testing.T, path string, flags int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// The target abandons a long command when its client disconnects, and so admits another client at once.
func TestAbandonedWriteZeroes(t *testing.T) {
	needs.Test(t, needs.Ends)
	const volume = 192 // MiB; the disk zeroes 3 MiB/s
	served := targets.Module.Serve(t, targets.Config{Store: slowDisk(t, volume, 1, 40*time.Millisecond), Shared: true})
	gone := fakeclient.Connect(t, served.Port, fakeclient.Hello(1))
	gone.Post(fakeclient.Command(wire.OpWriteZeroes, 0, volume*mib))
	guest.Eventually(t, 5*time.Second, "the command runs", func() bool { return guest.Volume(t, "vol0")["inflight"] == "1" })
	time.Sleep(time.Second)
	gone.Close()
	start := time.Now()
	fakeclient.Connect(t, served.Port, fakeclient.Hello(2))
	t.Logf("another client was admitted after %v", time.Since(start).Round(time.Millisecond))
}

// A disk is slow to close, because dirty pages have to be written first. Meanwhile the list of volumes can be
// read, and other volumes can be served and stopped.
func TestOtherVolumesWhileDiskCloses(t *testing.T) {
	needs.Test(t, needs.Ends)
	disk, stall := guest.Stalling(t, guest.RAMDisk(t, 16<<20), 16<<20)
	guest.Serve(t, "slow", guest.NextPort(), "backing="+disk)
	if err := os.WriteFile(disk, make([]byte, 1<<20), 0); err != nil {
		t.Fatal(err)
	}
	stall(true)
	stopped := make(chan error, 1)
	go func() { stopped <- guest.Command("stop,target,block=slow", guest.Limit) }()
	defer func() {
		stall(false)
		if err := guest.Within(t, guest.Limit, "the volume is stopped", stopped); err != nil {
			t.Errorf("stop: %v", err)
		}
	}()
	closing := func() bool { // since Linux 6.11 in a work item of the kernel
		tasks := guest.BlockedTasks()
		return strings.Contains(tasks, "krping_backing_close") || strings.Contains(tasks, "bdev_release")
	}
	guest.Eventually(t, 10*time.Second, "the disk is being closed", closing)
	others := make(chan error, 1)
	go func() {
		_, err := os.ReadFile("/proc/krping_sessions")
		if err == nil {
			err = guest.Command(guest.ServeCommand(t, "other", guest.NextPort(), "backing=ram:1M"), guest.Limit)
		}
		if err == nil {
			err = guest.Command("stop,target,block=other", guest.Limit)
		}
		others <- err
	}()
	if err := guest.Within(t, 5*time.Second, "other volumes are served", others); err != nil {
		t.Error(err)
	}
	if !closing() {
		t.Error("the disk was closed before other volumes were served")
	}
}
