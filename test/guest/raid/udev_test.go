// SPDX-License-Identifier: Apache-2.0

//go:build lab

package raid

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
	"krping/test/internal/needs"
)

const rules = "60-krping.rules"

// startUdev starts udevd with the rules of the host and ours.
func startUdev(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(guest.Binary(t, ".."), "scripts/system", rules))
	if err != nil {
		t.Fatal(err)
	}
	dir := "/etc/udev/rules.d"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, rules), text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(filepath.Join(dir, rules)) })
	guest.Start(t, "/lib/systemd/systemd-udevd")
	guest.Eventually(t, 20*time.Second, "udevd answers", func() bool {
		_, err := guest.TryRun("udevadm", "control", "--ping")
		return err == nil
	})
}

// volume serves a volume in memory, attaches it, and returns its disk.
func volume(t *testing.T, name string) string {
	t.Helper()
	port := guest.NextPort()
	guest.Serve(t, name, port, "backing=ram:16M")
	if err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,block=%s", guest.Addr(t), port, name), guest.Limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if guest.Session(t, name) != nil {
			detach(t, name)
		}
	})
	return "/dev/" + guest.Session(t, name)["dev"]
}

func detach(t *testing.T, name string) {
	t.Helper()
	// A worker of udev may have the disk open.
	guest.Eventually(t, 20*time.Second, name+" is detached", func() bool {
		return guest.Command("stop,block="+name, guest.Limit) == nil
	})
}

// names waits until a link leads to a disk.
func names(t *testing.T, link, disk string) {
	t.Helper()
	for deadline := time.Now().Add(guest.Slow(late.Limit(20 * time.Second))); time.Now().Before(deadline); {
		if got, err := filepath.EvalSymlinks(link); err == nil && got == disk {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	out, _ := guest.TryRun("udevadm", "info", "--query=all", "--name="+disk)
	late.Errorf(t, "%s does not lead to %s:\n%s", link, disk, out)
}

// Names do not depend on the order of attaching, and follow what is on the disk: a file system, partitions.
func TestUdevNames(t *testing.T) {
	needs.Test(t, needs.Once)
	startUdev(t)
	second, first := volume(t, "pool/vol1"), volume(t, "vol0")
	names(t, "/dev/krping/by-name/vol0", first)
	names(t, "/dev/krping/by-name/pool/vol1", second)
	names(t, "/dev/disk/by-id/krping-uuid."+guest.Session(t, "vol0")["uuid"], first)

	const uuid = "5f6a7c1e-6d0c-4d6e-9a53-4f1c7b0f3a11"
	guest.Run(t, "mkfs.ext4", "-q", "-U", uuid, "-L", "data", first)
	names(t, "/dev/disk/by-uuid/"+uuid, first)
	names(t, "/dev/disk/by-label/data", first)

	partitions := filepath.Join(t.TempDir(), "partitions")
	if err := os.WriteFile(partitions, []byte("label: gpt\nsize=4M, uuid=0C8C1D6A-9F2B-4C53-8A57-0A1B5E1F7C11, name=part\nsize=4M\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	guest.Run(t, "sh", "-c", "sfdisk --quiet "+second+" < "+partitions)
	names(t, "/dev/disk/by-partuuid/0c8c1d6a-9f2b-4c53-8a57-0a1b5e1f7c11", second+"p1")
	names(t, "/dev/disk/by-partlabel/part", second+"p1")
	names(t, "/dev/krping/by-name/pool/vol1-part2", second+"p2")
	names(t, "/dev/disk/by-id/krping-uuid."+guest.Session(t, "pool/vol1")["uuid"]+"-part1", second+"p1")

	detach(t, "vol0")
	guest.Eventually(t, 20*time.Second, "the names of a detached disk are gone", func() bool {
		_, err := os.Lstat("/dev/disk/by-uuid/" + uuid)
		_, err2 := os.Lstat("/dev/krping/by-name/vol0")
		return os.IsNotExist(err) && os.IsNotExist(err2)
	})
}

// udev leaves a member of an array to the agent, and does not run mdadm --incremental for it.
func TestUdevLeavesArraysToTheAgent(t *testing.T) {
	needs.Test(t, needs.Once)
	startUdev(t)
	guest.Run(t, "modprobe", "raid1")
	disk := volume(t, "vol0")
	guest.Run(t, "mdadm", "--create", array, "--run", "--level=1", "--raid-devices=2", disk, "missing")
	guest.Run(t, "mdadm", "--stop", array) // closes the disk, at which udev looks at it again
	for deadline := time.Now().Add(guest.Slow(late.Limit(20 * time.Second))); ; {
		out := guest.Run(t, "udevadm", "info", "--query=property", "--name="+disk)
		if strings.Contains(out, "ID_FS_TYPE=linux_raid_member\n") {
			if !strings.Contains(out, "SYSTEMD_READY=0\n") {
				t.Errorf("md's rules would use the disk:\n%s", out)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%sudev does not see the array's superblock:\n%s", late.Mark, out)
		}
		time.Sleep(100 * time.Millisecond)
	}
	guest.Run(t, "udevadm", "settle")
	if arrays, err := os.ReadFile("/proc/mdstat"); err != nil || strings.Contains(string(arrays), filepath.Base(disk)) {
		t.Errorf("the array was assembled: %v\n%s", err, arrays)
	}
}
