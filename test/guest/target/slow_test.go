// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
)

// slowDisk takes one command at a time, and as long as it is told for each.
func slowDisk(t *testing.T, mib int, each time.Duration) string {
	t.Helper()
	return guest.NullDisk(t, "slow", map[string]string{
		"size":    strconv.Itoa(mib),
		"irqmode": "2", "hw_queue_depth": "1", "completion_nsec": strconv.FormatInt(each.Nanoseconds(), 10),
	})
}

// Commands that wait for a disk's only request do not keep the target from giving a sign of life.
func TestSlowDisk(t *testing.T) {
	guest.Serve(t, "vol0", port, "backing="+slowDisk(t, 16, 1500*time.Millisecond))
	dev := guest.OpenDirect(t, guest.Attach(t, port, ",queues=1,heartbeat=1"))
	data := guest.Aligned(t, 4096)
	var writes errgroup.Group
	for i := range int64(2) {
		writes.Go(func() error {
			_, err := dev.WriteAt(data, i*4096)
			return err
		})
	}
	if err := writes.Wait(); err != nil {
		t.Error(err)
	}
	wants(t, guest.Session(t, "vol0"), "reconnects", "0", "errors", "0")
}

// What a client that is gone has left undone of a long command does not keep others out.
func TestAbandonedZeroes(t *testing.T) {
	const volume = 192 // MiB, of which the disk zeroes 3 a second
	guest.Serve(t, "vol0", port, "backing="+slowDisk(t, volume, 40*time.Millisecond))
	gone := connect(t, honest)
	if err := gone.Send(request(wire.OpWriteZeroes, 0, volume<<20).Append(nil), 0); err != nil {
		t.Fatal(err)
	}
	guest.Eventually(t, 5*time.Second, "it is zeroed", func() bool { return guest.Volume(t, "vol0")["inflight"] == "1" })
	time.Sleep(time.Second)
	gone.Close()
	start := time.Now()
	connect(t, func(h *wire.Hello) { h.Session[0]++ })
	t.Logf("another client was let in after %v", time.Since(start).Round(time.Millisecond))
}

// A disk that is slow to close, since it has to write first what others left in the page cache, does not
// keep the list of volumes from being read, or other volumes from being served and stopped.
func TestVolumesWhileDiskCloses(t *testing.T) {
	disk, stall := guest.Stalling(t, guest.RAMDisk(t, 16<<20), 16<<20)
	guest.Serve(t, "slow", port, "backing="+disk)
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
	closing := func() bool { // since Linux 6.11 by a work of the kernel's own
		tasks := guest.BlockedTasks()
		return strings.Contains(tasks, "krping_backing_close") || strings.Contains(tasks, "bdev_release")
	}
	guest.Eventually(t, 10*time.Second, "the disk is being closed", closing)
	others := make(chan error, 1)
	go func() {
		_, err := os.ReadFile("/proc/krping_sessions")
		if err == nil {
			err = guest.Command(guest.ServeCommand(t, "other", port+1, "backing=ram:1M"), guest.Limit)
		}
		if err == nil {
			err = guest.Command("stop,target,block=other", guest.Limit)
		}
		others <- err
	}()
	if err := guest.Within(t, 5*time.Second, "others go on", others); err != nil {
		t.Error(err)
	}
	if !closing() {
		t.Error("the disk was closed before others went on")
	}
}
