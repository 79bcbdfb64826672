// SPDX-License-Identifier: Apache-2.0

//go:build lab

package modes

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
)

// What a flush that fails, on this side or on the target's, was to keep, nobody knows: the two sides may
// differ anywhere. A mirror copies all, a tap compares nothing.
func TestFlushFails(t *testing.T) {
	for _, mode := range []string{"tap", "mirror"} {
		for _, side := range []string{"backing", "target"} {
			t.Run(mode+"/"+side, func(t *testing.T) {
				disk, fail := guest.Flaky(t, guest.NullDisk(t, "nullb1", map[string]string{"cache_size": "1"}), size)
				backing, options := disk, "backing=ram:16M"
				if side == "target" {
					backing, options = "ram:16M", "backing="+disk+",writeback"
				}
				guest.Serve(t, "vol0", 9839, options)
				dev := guest.OpenDirect(t, guest.Attach(t, 9839, ",mode="+mode+",backing="+backing+patient))
				if mode == "mirror" {
					insync(t)
				}
				guest.WriteAndSync(t, dev)
				if mode == "tap" {
					forwarded(t)
				}
				check(t, map[string]int64{"dirty_bytes": 0})

				before := number(t, "write_bytes")
				fail(true)
				switch err := dev.Sync(); {
				case side == "backing" && !errors.Is(err, unix.EIO):
					t.Errorf("a flush that the backing fails: %v, want EIO", err)
				case side == "target" && err != nil:
					t.Errorf("a flush that the target fails: %v: the application has nothing to do with it", err)
				}
				guest.Eventually(t, 5*time.Second, "all is dirty", func() bool { return number(t, "dirty_bytes") == size })
				fail(false)
				if mode == "mirror" {
					insync(t)
					if copied := number(t, "write_bytes") - before; copied < size {
						t.Errorf("%d bytes were copied, want %d", copied, size)
					}
				}
				_ = dev.Close()
				stop(t, "")
				guest.StopServing(t, "vol0")
			})
		}
	}
}
