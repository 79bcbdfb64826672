// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"strconv"
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
