// SPDX-License-Identifier: Apache-2.0

//go:build lab

package krpingctl

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// attachAs is attach with a size and without a bridge to look into.
func attachAs(t *testing.T, port int, size string) string {
	t.Helper()
	guest.StartBridge(t, port, guest.StorePath(t), size)
	dev := strings.TrimSpace(guest.MustKrpingctl(t, "client", "--addr", guest.Addr(t), "--port", fmt.Sprint(port), "--block", "vol0"))
	t.Cleanup(func() { guest.MustKrpingctl(t, "stop", "vol0", "--force") })
	return dev
}

// sh runs a shell command line.
func sh(t *testing.T, line string) { t.Helper(); guest.Run(t, "sh", "-ec", line) }

// background starts a program until the end of the test, and waits for a line of its output.
func background(t *testing.T, argv ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// A disk is neither overwritten nor taken away while anybody uses it, by whatever way.
func TestDiskInUse(t *testing.T) {
	needs.Test(t, needs.StockKernel) // btrfs
	sh(t, "modprobe loop max_part=8; modprobe dm-mod; modprobe btrfs")
	dev := attachAs(t, 9921, "160MiB")
	part := dev + "p1"
	dir := t.TempDir()
	sectors := strings.TrimSpace(guest.Run(t, "blockdev", "--getsz", dev))
	sh(t, "echo ,64M | sfdisk -q "+dev)
	if _, err := os.Stat(part); err != nil {
		t.Fatal(err)
	}

	for _, tc := range []struct {
		name, use, end string
		want           []string // in the message of a write to the disk
	}{
		{name: "mounted partition", use: "mkfs.ext4 -q -F " + part + " && mount " + part + " " + dir, end: "umount " + dir,
			want: []string{part + " is mounted at " + dir + " (ext4)"}},
		{name: "loop on a partition", use: "losetup /dev/loop6 " + part, end: "losetup -d /dev/loop6", want: []string{part + " is used by /dev/loop6"}},
		{name: "swap on a partition", use: "mkswap -q " + part + " && swapon " + part, end: "swapoff " + part, want: []string{part + " is swap space"}},
		{name: "device mapper", use: "echo 0 " + sectors + " linear " + dev + " 0 | dmsetup create --noudevsync inuse", end: "dmsetup remove inuse",
			want: []string{dev + " is used by /dev/dm-0"}},
		{name: "mounted on device mapper",
			use: "echo 0 " + sectors + " linear " + dev + " 0 | dmsetup create --noudevsync inuse && mkfs.ext4 -q -F /dev/dm-0 && mount /dev/dm-0 " + dir,
			end: "umount " + dir + " && dmsetup remove inuse", want: []string{dev + " is used by /dev/dm-0", "/dev/dm-0 is mounted at " + dir}},
		{name: "btrfs", use: "mkfs.btrfs -q -f -m single -d single " + dev + " && mount " + dev + " " + dir, end: "umount " + dir,
			want: []string{dev + " is mounted at " + dir + " (btrfs)"}},
		{name: "ext4", use: "mkfs.ext4 -q -F " + dev + " && mount " + dev + " " + dir, end: "umount " + dir, want: []string{dev + " is mounted at " + dir + " (ext4)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sh(t, tc.use)
			defer sh(t, strings.ReplaceAll(tc.end, "dmsetup remove", "dmsetup remove --noudevsync"))
			refused(t, tc.want, "write", dev, "--size", "4KiB")
			r := refused(t, tc.want, "stop", "vol0")
			if !strings.Contains(r.Stderr, tc.end) || !strings.Contains(r.Stderr, "or add --force") {
				t.Errorf("no hint to %s:\n%s", tc.end, r.Stderr)
			}
		})
	}

	t.Run("another mount namespace", func(t *testing.T) {
		other := background(t, "unshare", "-m", "--propagation", "private", "sh", "-c", "mount "+dev+" "+dir+"; echo; exec sleep 1000")
		in := fmt.Sprintf(" in the mount namespace of process %d (sleep)", other.Process.Pid)
		refused(t, []string{dev + " is mounted at " + dir + " (ext4)" + in}, "write", dev, "--size", "4KiB")
		_ = other.Process.Kill()
		_ = other.Wait()
	})
	t.Run("a program that writes", func(t *testing.T) {
		writer := background(t, "sh", "-c", "exec 3<>"+dev+"; echo; exec sleep 1000")
		want := fmt.Sprintf("%s is open for writing by process %d (sleep)", dev, writer.Process.Pid)
		refused(t, []string{want}, "write", dev, "--size", "4KiB")
		refused(t, []string{want}, "stop", "vol0")
		refused(t, []string{want}, "server", "--addr", guest.Addr(t), "--port", "9922", "--block", "again", "--backing", dev)
		_ = writer.Process.Kill()
		_ = writer.Wait()
	})
	t.Run("a program that reads", func(t *testing.T) {
		reader := background(t, "sh", "-c", "exec 3<"+dev+"; echo; exec sleep 1000")
		refused(t, []string{fmt.Sprintf("%s is open by process %d (sleep)", dev, reader.Process.Pid)}, "stop", "vol0")
		_ = reader.Process.Kill()
		_ = reader.Wait()
	})
	t.Run("LIO", func(t *testing.T) {
		const store = "/sys/kernel/config/target/core/iblock_0/krping"
		sh(t, "modprobe target_core_iblock; mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config")
		sh(t, "mkdir -p "+store+" && cd "+store+" && echo "+dev+" >udev_path && echo udev_path="+dev+" >control && echo 1 >enable")
		defer sh(t, "rmdir "+store+" && rmdir "+filepath.Dir(store))
		refused(t, []string{dev + " is served by the SCSI target (LIO) as krping"}, "write", dev, "--size", "4KiB")
		refused(t, []string{dev + " is served by the SCSI target (LIO) as krping"}, "stop", "vol0")
	})
	t.Run("link del", func(t *testing.T) {
		sh(t, "mount "+dev+" "+dir)
		defer sh(t, "umount "+dir)
		refused(t, []string{"rxe0", dev + " is mounted at " + dir + " (ext4)"}, "link", "del", "rxe0")
	})
	free(t, dev)
	guest.MustKrpingctl(t, "write", dev, "--size", "4KiB")
	if r := guest.Krpingctl(t, "capture", "--read", "/nothing.pcap", "--write", dev); r.Code != 2 || !strings.Contains(r.Stderr, dev+": is a disk") {
		t.Errorf("capture --write: exit code %d\n%s", r.Code, r.Stderr)
	}
}

// refused runs a command that must fail with exit code 1 and this in its error.
func refused(t *testing.T, want []string, args ...string) guest.Result {
	t.Helper()
	r := guest.Krpingctl(t, args...)
	for _, text := range append(want, "in use") {
		if r.Code != 1 || !strings.Contains(r.Stderr, text) {
			t.Errorf("%q: exit code %d, want %q\n%s", args, r.Code, text, r.Stderr)
		}
	}
	return r
}

// free waits until nobody has claimed a disk: a killed process releases it late.
func free(t *testing.T, dev string) {
	t.Helper()
	for ends := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		f, err := os.OpenFile(dev, os.O_RDONLY|os.O_EXCL, 0)
		if err == nil {
			_ = f.Close()
			return
		}
		if time.Now().After(ends) {
			t.Fatal(err)
		}
	}
}

// While write writes, nobody can mount the disk.
func TestWriteClaimsTheDisk(t *testing.T) {
	dev, _ := attach(t, 9923)
	writer := exec.Command(guest.Binary(t, "krpingctl"), "write", dev, "--size", "64MiB", "--bs", "4KiB", "--direct")
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	defer writer.Wait()
	defer writer.Process.Kill()
	for ends := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		f, err := os.OpenFile(dev, os.O_RDONLY|os.O_EXCL, 0)
		if err != nil {
			return // claimed
		}
		_ = f.Close()
		if time.Now().After(ends) {
			t.Fatal("not claimed")
		}
	}
}

// A path under /dev that is no device is refused, not made a file.
func TestWriteToMissingDevice(t *testing.T) {
	for _, path := range []string{"/dev/krping77", "krping77"} {
		r := guest.Krpingctl(t, "write", path, "--size", "4KiB")
		if r.Code != 1 || !strings.Contains(r.Stderr, "/dev/krping77: there is no such device") {
			t.Errorf("write %s: exit code %d\n%s", path, r.Code, r.Stderr)
		}
		if _, err := os.Lstat("/dev/krping77"); err == nil {
			t.Fatalf("write %s made a file", path)
		}
	}
	file := filepath.Join(t.TempDir(), "new")
	if r := guest.Krpingctl(t, "write", file, "--size", "1000"); r.Code != 2 {
		t.Errorf("exit code %d\n%s", r.Code, r.Stderr)
	}
	if _, err := os.Lstat(file); err == nil {
		t.Error("a command line that is wrong made a file")
	}
}

// verify of a partition asks the target for the ranges of the disk.
func TestVerifyPartition(t *testing.T) {
	dev, _ := attach(t, 9924)
	sh(t, "echo 3M,8M | sfdisk -q "+dev)
	guest.MustKrpingctl(t, "write", dev+"p1", "--size", "4MiB", "--offset", "1MiB", "--direct")
	out := guest.MustKrpingctl(t, "verify", dev+"p1", "--size", "4MiB", "--offset", "1MiB", "--pattern", "random")
	if !strings.Contains(out, "device, target and what was written agree") {
		t.Error(out)
	}
	if out := guest.MustKrpingctl(t, "verify", dev+"p1"); !strings.Contains(out, "verified 8.0 MiB: device and target agree") {
		t.Error(out)
	}
}
