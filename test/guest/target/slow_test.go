// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"strconv"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"krping/test/guest/internal/guest"
)

// slowDisk takes one command at a time, and as long as it is told for each.
func slowDisk(t *testing.T, each time.Duration) string {
	t.Helper()
	return guest.NullDisk(t, "slow", map[string]string{
		"irqmode": "2", "hw_queue_depth": "1", "completion_nsec": strconv.FormatInt(each.Nanoseconds(), 10),
	})
}

// Commands that wait for a disk's only request do not keep the target from giving a sign of life.
func TestSlowDisk(t *testing.T) {
	guest.Serve(t, "vol0", port, "backing="+slowDisk(t, 1500*time.Millisecond))
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
