// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"bytes"
	"os"
	"strconv"
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

// A disk whose blocks are larger than the volume's discards and zeroes whole blocks only: the rest is written, or
// stays. (This one cannot discard as the bridge does it: what is rounded how, the store's own tests see.)
func TestPartsOfBlocksOfTheStore(t *testing.T) {
	disk := guest.NullDisk(t, "store4096", map[string]string{"blocksize": "4096"})
	guest.StartBridge(t, 9831, disk, "16MiB")
	path := guest.Attach(t, 9831, "")
	dev := guest.OpenDirect(t, path)
	ones := writeOnes(t, dev)
	want := bytes.Clone(ones)
	for _, r := range [][2]int{{512, 1024}, {8704, 16384}, {65536, 512}} {
		guest.Run(t, "blkdiscard", "--force", "--zeroout", "--offset", strconv.Itoa(r[0]), "--length", strconv.Itoa(r[1]), path)
		clear(want[r[0]:][:r[1]])
	}
	guest.Run(t, "blkdiscard", "--force", "--offset", "262656", "--length", "1024", path) // no whole block
	got, err := os.ReadFile(disk)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[:1<<20], want) {
		t.Error("the store does not hold what was written, zeroed and discarded")
	}
	if s := guest.Session(t, "vol0"); s["errors"] != "0" {
		t.Errorf("errors=%s", s["errors"])
	}
}
