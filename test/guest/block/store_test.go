// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"bytes"
	"strconv"
	"testing"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// The bridge stores on block devices. With blocks of 512 bytes it bypasses the page cache.
func TestBlockDeviceAsStore(t *testing.T) {
	needs.Test(t, needs.Once)
	for _, block := range []int{512, 4096} {
		size := strconv.Itoa(block)
		t.Run(size, func(t *testing.T) {
			disk := guest.NullDisk(t, "store"+size, map[string]string{"blocksize": size})
			served := targets.Bridge.Serve(t, targets.Config{Store: disk, BlockSize: block})
			dev := guest.Attach(t, served.Port, "")
			guest.Fio(t, dev, "--rw=randwrite", "--bsrange="+size+"-64k", "--blockalign="+size, "--iodepth=16", "--size=8M", "--io_size=2M")
			guest.WantSame(t, dev, disk)
		})
	}
}

// On a disk whose blocks are larger than the volume's, only whole blocks are zeroed; partial blocks are written.
// (null_blk does not discard as the bridge does it, so the volume does not either: the store's unit tests check the
// rounding.)
func TestPartialBlocksOfTheStore(t *testing.T) {
	needs.Test(t, needs.Once)
	disk := guest.NullDisk(t, "store4096", map[string]string{"blocksize": "4096"})
	served := targets.Bridge.Serve(t, targets.Config{Store: disk})
	path := guest.Attach(t, served.Port, "")
	ones := writeOnes(t, guest.OpenDirect(t, path))
	want := bytes.Clone(ones)
	for _, r := range [][2]int{{512, 1024}, {8704, 16384}, {65536, 512}} {
		guest.Run(t, "blkdiscard", "--force", "--zeroout", "--offset", strconv.Itoa(r[0]), "--length", strconv.Itoa(r[1]), path)
		clear(want[r[0]:][:r[1]])
	}
	if !bytes.Equal(guest.Content(t, disk, mib), want) {
		t.Error("the store does not hold what was written, and zeroed")
	}
	guest.WantFields(t, guest.Session(t, "vol0"), "errors", "0")
}
