// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"krping/bridge/uuid"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// identities serves a disk twice without uuid=, and returns the volume's UUIDs.
func identities(t *testing.T, disk string) (first, second string) {
	t.Helper()
	var uuids [2]string
	for i := range uuids {
		guest.Serve(t, "vol0", guest.NextPort(), "backing="+disk)
		uuids[i] = guest.Volume(t, "vol0")["uuid"]
		guest.StopServing(t, "vol0")
	}
	return uuids[0], uuids[1]
}

// padded returns bytes as a UUID.
func padded(b []byte) string {
	var id uuid.UUID
	copy(id[:], b)
	return id.String()
}

// partition makes a disk with a partition table, and returns its first partition.
func partition(t *testing.T, script string) string {
	t.Helper()
	file := guest.StorePath(t)
	guest.Run(t, "truncate", "--size", "8M", file)
	guest.Run(t, "sh", "-c", fmt.Sprintf("printf '%s' | sfdisk --quiet %s", script, file))
	part := targets.LoopOf(t, file, "--partscan") + "p1"
	guest.Eventually(t, 10*time.Second, "the partition is there", func() bool {
		_, err := os.Stat(part)
		return err == nil
	})
	return part
}

// scsiDisk makes a disk that has a name (NAA), until the end of the test, and returns both.
func scsiDisk(t *testing.T) (disk string, name []byte) {
	t.Helper()
	guest.Run(t, "modprobe", "sd_mod")
	guest.Run(t, "modprobe", "scsi_debug", "dev_size_mb=8")
	t.Cleanup(func() { guest.Run(t, "rmmod", "scsi_debug") })
	var dirs []string
	guest.Eventually(t, 20*time.Second, "the disk is there", func() bool {
		dirs, _ = filepath.Glob("/sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block/sd*") // fails for bad patterns only
		if len(dirs) == 0 {
			return false
		}
		disk = "/dev/" + filepath.Base(dirs[0])
		_, err := os.Stat(disk)
		return err == nil
	})
	wwid, err := os.ReadFile(dirs[0] + "/device/wwid")
	if err != nil {
		t.Fatal(err)
	}
	naa, found := strings.CutPrefix(strings.TrimSpace(string(wwid)), "naa.")
	if name, err = hex.DecodeString(naa); err != nil || !found {
		t.Fatalf("the disk has the name %q", wwid)
	}
	return disk, name
}

// Without uuid= a volume has the identity of its disk or partition, which is the same each time it is served.
func TestIdentityOfDisk(t *testing.T) {
	needs.Test(t, needs.Once)
	needs.Test(t, needs.StockKernel) // scsi_debug
	for name, made := range map[string]func(t *testing.T) (disk, want string){
		"GPT": func(t *testing.T) (string, string) {
			const want = "123e4567-e89b-12d3-a456-426614174000"
			return partition(t, `label: gpt\nstart=2048, size=4096, uuid=`+strings.ToUpper(want)+`\n`), want
		},
		"MS-DOS": func(t *testing.T) (string, string) {
			return partition(t, `label: dos\nlabel-id: 0x1234abcd\nstart=2048, size=4096\n`), padded([]byte("1234abcd-01"))
		},
		"NAA": func(t *testing.T) (string, string) {
			disk, name := scsiDisk(t)
			return disk, padded(name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk, want := made(t)
			if first, second := identities(t, disk); first != want || second != want {
				t.Errorf("served twice, the volume has the UUIDs %s and %s, want %s", first, second, want)
			}
			if log := guest.Run(t, "dmesg"); strings.Contains(log, disk+" has no unique ID") {
				t.Error("the log says that the disk has no unique ID")
			}
		})
	}
}

// A disk without an identity gets one each time it is served, and the log says so and how to keep it.
func TestDiskWithoutIdentity(t *testing.T) {
	needs.Test(t, needs.Once)
	disk := guest.NullDisk(t, "nameless", nil)
	first, second := identities(t, disk)
	if first == second {
		t.Errorf("served twice, the volume has the UUID %s", first)
	}
	log := guest.Run(t, "dmesg")
	for _, id := range []string{first, second} {
		if want := disk + " has no unique ID: clients fail when the volume is started again; uuid=" + id + " keeps it"; !strings.Contains(log, want) {
			t.Errorf("the log does not say %q", want)
		}
	}
}

// A welcome says whether a power loss may tear a block, as those of the disk are smaller, and whether several sessions may
// write.
func TestCapabilities(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		for _, tc := range []struct {
			disk   string // bytes of its blocks
			volume int
			shared bool
			want   uint32
		}{
			{"512", 512, false, 0},
			{"512", 4096, false, wire.CapTornBlocks},
			{"4096", 4096, false, 0},
			{"4096", 4096, true, wire.CapShared},
			{"512", 4096, true, wire.CapShared | wire.CapTornBlocks},
		} {
			t.Run(fmt.Sprintf("blocks of %d on %s, shared=%v", tc.volume, tc.disk, tc.shared), func(t *testing.T) {
				disk := guest.NullDisk(t, "capable", map[string]string{"blocksize": tc.disk})
				served := g.Serve(t, targets.Config{Store: disk, BlockSize: tc.volume, Shared: tc.shared})
				caps := fakeclient.Connect(t, served.Port, fakeclient.Hello(1)).Welcome.Caps
				if got := caps & (wire.CapShared | wire.CapTornBlocks); got != tc.want {
					t.Errorf("capabilities %#x, want %#x of these two", caps, tc.want)
				}
			})
		}
	})
}
