// SPDX-License-Identifier: Apache-2.0

//go:build lab

package raid

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// useFileSystem makes a file system on a disk, copies files to it, and compares them after a remount.
func useFileSystem(t *testing.T, disk string) {
	t.Helper()
	const files = "/usr/include/infiniband"
	dir := t.TempDir()
	guest.Run(t, "mkfs.ext4", "-q", "-F", disk)
	guest.Run(t, "mount", disk, dir)
	guest.Run(t, "cp", "-r", files, dir)
	guest.Run(t, "umount", dir)
	guest.Run(t, "mount", disk, dir)
	guest.Run(t, "diff", "-r", files, dir+"/infiniband")
	guest.Run(t, "umount", dir)
	guest.Run(t, "fsck.ext4", "-fn", disk)
}

// finish stops the session, which nothing may hold open, and compares the disk with the volume's file.
func (r *rig) finish() {
	r.t.Helper()
	guest.WantSame(r.t, r.disk(), r.store)
	if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
		r.t.Errorf("stop: %v", err)
	}
}

// inUse tests that a disk that is used is neither overwritten nor taken away.
func inUse(t *testing.T, disk, by string) {
	t.Helper()
	for _, args := range [][]string{{"write", disk, "--size", "4KiB"}, {"stop", "vol0"}} {
		if r := guest.Krpingctl(t, args...); r.Code != 1 || !strings.Contains(r.Stderr, disk+" is used by "+by) {
			t.Errorf("%q: exit code %d, want %s is used by %s\n%s", args, r.Code, disk, by, r.Stderr)
		}
	}
}

func TestLVM(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.Run(t, "modprobe", "dm-mod")
	r := newRig(t)
	disk := guest.Attach(t, r.port, options)
	// The guest has no udev, and none of this host's disks are LVM's business.
	lvm := func(args ...string) {
		t.Helper()
		config := `activation { udev_sync=0 udev_rules=0 verify_udev_operations=0 } devices { obtain_device_list_from_udev=0 use_devicesfile=0 filter=["a|^` + disk + `$|","r|.*|"] } global { use_lvmpolld=0 } backup { backup=0 archive=0 }`
		guest.Run(t, append([]string{"lvm", args[0], "--config", config}, args[1:]...)...)
	}
	lvm("pvcreate", disk)
	lvm("vgcreate", "krping", disk)
	lvm("lvcreate", "--yes", "--wipesignatures", "n", "--zero", "n", "--extents", "100%FREE", "--name", "data", "krping")
	inUse(t, disk, "/dev/mapper/krping-data")
	useFileSystem(t, "/dev/mapper/krping-data")
	lvm("vgchange", "--activate", "n", "krping")
	r.finish()
}

func TestCrypt(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.Run(t, "modprobe", "dm-crypt")
	r := newRig(t)
	disk := guest.Attach(t, r.port, options)
	key := t.TempDir() + "/key"
	if err := os.WriteFile(key, []byte("a passphrase"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DM_DISABLE_UDEV", "1")
	guest.Run(t, "cryptsetup", "luksFormat", "--batch-mode", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--key-file", key, disk)
	guest.Run(t, "cryptsetup", "open", "--key-file", key, disk, "secret")
	inUse(t, disk, "/dev/mapper/secret")
	useFileSystem(t, "/dev/mapper/secret")
	guest.Run(t, "cryptsetup", "close", "secret")
	r.finish()
}

func TestPartition(t *testing.T) {
	needs.Test(t, needs.Once)
	r := newRig(t)
	disk := guest.Attach(t, r.port, options)
	guest.Run(t, "sh", "-c", "echo '2048,,L' | sfdisk --quiet --label gpt "+disk)
	part := disk + "p1"
	writeRandom(t, part, 1024, 512)
	if !bytes.Equal(read(t, part, 512<<10, 1<<20), read(t, r.store, (1+0.5)*(1<<20), 1<<20)) {
		t.Error("what was written to the partition is not at its offset in the volume")
	}
	useFileSystem(t, part)
	r.finish()
}
