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
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

// slowDisk makes a disk that carries out one command at a time and takes that long for each.
func slowDisk(t *testing.T, mib int, each time.Duration) string {
	t.Helper()
	return guest.NullDisk(t, "slow", map[string]string{
		"size":    strconv.Itoa(mib),
		"irqmode": "2", "hw_queue_depth": "1", "completion_nsec": strconv.FormatInt(each.Nanoseconds(), 10),
	})
}

// The target answers KEEP_ALIVE while commands wait for the disk's only request.
func TestKeepAliveOfSlowDisk(t *testing.T) {
	served := targets.Module.Serve(t, targets.Config{Store: slowDisk(t, 16, 1500*time.Millisecond), Shared: true})
	dev := guest.OpenDirect(t, guest.Attach(t, served.Port, ",queues=1,heartbeat=1"))
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
	guest.WantFields(t, guest.Session(t, "vol0"), "reconnects", "0", "errors", "0")
}

// The target abandons a long command when its client disconnects, and so admits another client at once.
func TestAbandonedWriteZeroes(t *testing.T) {
	const volume = 192 // MiB; the disk zeroes 3 MiB/s
	served := targets.Module.Serve(t, targets.Config{Store: slowDisk(t, volume, 40*time.Millisecond), Shared: true})
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
