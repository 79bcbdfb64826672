// SPDX-License-Identifier: Apache-2.0

//go:build lab

package guest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Aligned returns page-aligned memory for direct I/O, until the end of the test.
func Aligned(t testing.TB, n int) []byte {
	t.Helper()
	buf, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(buf) })
	return buf
}

// OpenDirect opens a device for direct I/O until the end of the test.
func OpenDirect(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// WriteAndSync writes the first 4 KiB of a device and flushes them.
func WriteAndSync(t testing.TB, dev *os.File) {
	t.Helper()
	if _, err := dev.WriteAt(Aligned(t, 4096), 0); err != nil {
		t.Fatal(err)
	}
	if err := dev.Sync(); err != nil {
		t.Fatal(err)
	}
}

// RAMDisk returns a RAM disk of that size in bytes. It is the same for all tests of a suite, and keeps its data.
func RAMDisk(t testing.TB, size int64) string {
	t.Helper()
	const disk = "/dev/ram0"
	Run(t, "modprobe", "brd", "rd_nr=1", fmt.Sprintf("rd_size=%d", size>>10))
	Eventually(t, 5*time.Second, "the RAM disk exists", func() bool {
		_, err := os.Stat(disk)
		return err == nil
	})
	return disk
}

// NullDisk makes a memory-backed disk of 16 MiB, until the end of the test. The attributes are those of null_blk in
// configfs.
func NullDisk(t testing.TB, name string, attributes map[string]string) string {
	t.Helper()
	Run(t, "sh", "-c", "modprobe null_blk nr_devices=0; mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config")
	dir := filepath.Join("/sys/kernel/config/nullb", name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Run(t, "rmdir", dir) })
	set := func(attribute, value string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, attribute), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	set("size", "16")
	set("memory_backed", "1")
	for attribute, value := range attributes {
		set(attribute, value)
	}
	set("power", "1")
	return "/dev/" + name
}

// HalfBad returns a disk on top of disk, whose second half fails, until the end of the test.
func HalfBad(t testing.TB, disk string, size int64) string {
	t.Helper()
	Run(t, "modprobe", "dm-mod")
	half := size / 2 / 512
	table := fmt.Sprintf("0 %d linear %s 0\n%d %d error\n", half, disk, half, half)
	Run(t, "sh", "-c", fmt.Sprintf("printf '%s' | dmsetup create --noudevsync half", table))
	t.Cleanup(func() { Run(t, "dmsetup", "remove", "--retry", "--noudevsync", "half") })
	return "/dev/dm-0"
}

// Flaky returns a disk on top of disk, until the end of the test, and a function that makes its writes and flushes fail
// or work again.
func Flaky(t testing.TB, disk string, size int64) (path string, fail func(yes bool)) {
	t.Helper()
	Run(t, "modprobe", "dm-flakey")
	table := func(rest string) string { return fmt.Sprintf("0 %d flakey %s 0 %s", size/512, disk, rest) }
	works, fails := table("1 0"), table("0 1 1 error_writes")
	Run(t, "dmsetup", "create", "--noudevsync", "flaky", "--table", works)
	t.Cleanup(func() { Run(t, "dmsetup", "remove", "--retry", "--noudevsync", "flaky") })
	return "/dev/dm-0", func(yes bool) {
		t.Helper()
		next := works
		if yes {
			next = fails
		}
		Run(t, "dmsetup", "load", "flaky", "--table", next)
		Run(t, "dmsetup", "suspend", "--noflush", "--nolockfs", "flaky")
		Run(t, "dmsetup", "resume", "--noudevsync", "flaky")
	}
}

// RAID1 makes an array of two disks, with a bitmap in them, until the end of the test.
func RAID1(t testing.TB, disks ...string) string {
	t.Helper()
	const array = "/dev/md0"
	Run(t, "modprobe", "raid1")
	Run(t, append([]string{"mdadm", "--create", array, "--run", "--level=1", "--raid-devices=2", "--assume-clean", "--bitmap=internal"}, disks...)...)
	t.Cleanup(func() { Run(t, "mdadm", "--stop", array) })
	return array
}

// Stalling returns a disk on top of disk, until the end of the test, and a function that makes it hold all requests or
// carry them out again.
func Stalling(t testing.TB, disk string, size int64) (path string, stall func(yes bool)) {
	t.Helper()
	Run(t, "modprobe", "dm-mod")
	Run(t, "dmsetup", "create", "--noudevsync", "stalling", "--table", fmt.Sprintf("0 %d linear %s 0", size/512, disk))
	stall = func(yes bool) {
		t.Helper()
		if yes {
			Run(t, "dmsetup", "suspend", "--noflush", "--nolockfs", "stalling")
		} else {
			Run(t, "dmsetup", "resume", "--noudevsync", "stalling")
		}
	}
	t.Cleanup(func() {
		stall(false)
		Run(t, "dmsetup", "remove", "--retry", "--noudevsync", "stalling")
	})
	return "/dev/dm-0", stall
}

// PartStalling is Stalling for the first part bytes of the disk and for flushes.
func PartStalling(t testing.TB, disk string, size, part int64) (path string, stall func(yes bool)) {
	t.Helper()
	lower, stall := Stalling(t, disk, part)
	table := fmt.Sprintf("0 %d linear %s 0\n%d %d linear %s %d\n", part/512, lower, part/512, (size-part)/512, disk, part/512)
	Run(t, "sh", "-c", fmt.Sprintf("printf '%s' | dmsetup create --noudevsync partly", table))
	t.Cleanup(func() {
		stall(false)
		Run(t, "dmsetup", "remove", "--retry", "--noudevsync", "partly")
	})
	return "/dev/dm-1", stall
}

// WantSame fails if two devices or files differ.
func WantSame(t testing.TB, a, b string) {
	t.Helper()
	if sumA, sumB := sha256Of(t, a), sha256Of(t, b); sumA != sumB {
		t.Errorf("%s has sha256 %s, %s has %s", a, sumA, b, sumB)
	}
}

// BecomeSame is WantSame of a disk and its store, once the store does not change any more: the kernel may yet begin I/O
// of a program that was killed.
func BecomeSame(t testing.TB, dev, store string) {
	t.Helper()
	var sum string
	Eventually(t, Limit, store+" does not change", func() bool {
		before := sha256Of(t, store)
		sum = sha256Of(t, dev)
		return sha256Of(t, store) == before
	})
	if want := sha256Of(t, store); sum != want {
		t.Errorf("%s has sha256 %s, %s has %s", dev, sum, store, want)
	}
}

// Content returns the first n bytes of a file, or of a device, bypassing the page cache.
func Content(t testing.TB, path string, n int) []byte { t.Helper(); return ContentAt(t, path, 0, n) }

// ContentAt is Content from an offset.
func ContentAt(t testing.TB, path string, at int64, n int) []byte {
	t.Helper()
	flags := os.O_RDONLY
	if strings.HasPrefix(path, "/dev/") {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := Aligned(t, n)
	if _, err := f.ReadAt(data, at); err != nil {
		t.Fatal(err)
	}
	return data
}

// sha256Of reads a device with direct I/O, and a file through the page cache: its file system may not support direct
// I/O.
func sha256Of(t testing.TB, path string) string {
	t.Helper()
	flags := os.O_RDONLY
	if strings.HasPrefix(path, "/dev/") {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	buf := Aligned(t, 1<<20)
	for {
		n, err := f.Read(buf)
		sum.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return fmt.Sprintf("%x", sum.Sum(nil))
		}
		if err != nil {
			t.Fatalf("read %s: %v", path, err)
		}
	}
}
