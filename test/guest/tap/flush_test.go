// SPDX-License-Identifier: Apache-2.0

//go:build lab

package tap

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// After a failed flush on either side, nobody knows which writes were kept: everything is dirty.
func TestFlushFails(t *testing.T) {
	needs.Test(t, needs.Once)
	for _, side := range []string{"backing", "target"} {
		t.Run(side, func(t *testing.T) {
			disk, fail := guest.Flaky(t, guest.NullDisk(t, "nullb1", map[string]string{"cache_size": "1"}), size)
			backing, options := disk, "backing=ram:16M"
			if side == "target" {
				backing, options = "ram:16M", "backing="+disk+",writeback"
			}
			guest.Serve(t, "vol0", 9839, options)
			dev := guest.OpenDirect(t, guest.Attach(t, 9839, ",mode=tap,backing="+backing+patient))
			guest.WriteAndSync(t, dev)
			forwarded(t)
			check(t, map[string]int64{"dirty_bytes": 0})

			fail(true)
			switch err := dev.Sync(); {
			case side == "backing" && !errors.Is(err, unix.EIO):
				t.Errorf("flush that the backing fails: %v, want EIO", err)
			case side == "target" && err != nil:
				t.Errorf("flush that only the target fails: %v, want success", err)
			}
			guest.Eventually(t, 5*time.Second, "everything is dirty", func() bool { return number(t, "dirty_bytes") == size })
			fail(false)
			_ = dev.Close()
			stop(t, "")
			guest.StopServing(t, "vol0")
		})
	}
}
