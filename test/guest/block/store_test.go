// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"testing"

	"krping/test/guest/internal/guest"
)

// The bridge stores on block devices, past the page cache if their blocks are of 512 bytes.
func TestBlockDeviceAsStore(t *testing.T) {
	for _, block := range []string{"512", "4096"} {
		t.Run(block, func(t *testing.T) {
			disk := guest.NullDisk(t, "store"+block, map[string]string{"blocksize": block})
			guest.StartBridge(t, 9830, disk, "16MiB", "--block-size", block)
			dev := guest.Attach(t, 9830, "")
			guest.Fio(t, dev, "--rw=randwrite", "--bsrange="+block+"-64k", "--blockalign="+block, "--iodepth=16", "--size=8M")
			guest.WantSame(t, dev, disk)
		})
	}
}
