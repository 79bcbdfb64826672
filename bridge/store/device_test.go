// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeSys makes a sysfs with the files, and links dev/block/8:0 and 1:3, the number of /dev/null, to sda, and 8:1
// to its first partition.
func fakeSys(t *testing.T, files map[string]string) host {
	t.Helper()
	s := host{root: t.TempDir(), parts: t.TempDir(), devices: func(path string) (uint64, error) {
		if filepath.Base(path) == "ABCD-01" {
			return unix.Mkdev(8, 1), nil
		}
		return 0, errors.New("no such device")
	}}
	files["block/sda/sda1/partition"] = "1\n"
	for name, text := range files {
		path := filepath.Join(s.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(s.root, "dev/block"), 0o755); err != nil {
		t.Fatal(err)
	}
	for number, dir := range map[string]string{"8:0": "block/sda", "1:3": "block/sda", "8:1": "block/sda/sda1"} {
		if err := os.Symlink("../../"+dir, filepath.Join(s.root, "dev/block", number)); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"other", "ABCD-01"} {
		if err := os.WriteFile(filepath.Join(s.parts, link), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestDeviceNames(t *testing.T) {
	for name, tc := range map[string]struct {
		files      map[string]string
		disk, part string
	}{
		"nothing": {map[string]string{"block/sda/wwid": "\n"}, "", "partition abcd-01"},
		"NVMe":    {map[string]string{"block/sda/wwid": "eui.1\n", "block/sda/device/serial": "s\n"}, "wwid eui.1", "wwid eui.1 partition 1"},
		"SCSI":    {map[string]string{"block/sda/device/wwid": "naa.5\n"}, "device/wwid naa.5", "device/wwid naa.5 partition 1"},
		"LVM":     {map[string]string{"block/sda/dm/uuid": "LVM-x\n"}, "dm/uuid LVM-x", "dm/uuid LVM-x partition 1"},
		"virtio":  {map[string]string{"block/sda/serial": "s1", "block/sda/device/vendor": "0x1af4\n"}, "serial s1 0x1af4 ", "serial s1 0x1af4  partition 1"},
	} {
		s := fakeSys(t, tc.files)
		if got := s.name(unix.Mkdev(8, 0)); got != tc.disk {
			t.Errorf("%s: disk %q, want %q", name, got, tc.disk)
		}
		if got := s.name(unix.Mkdev(8, 1)); got != tc.part {
			t.Errorf("%s: partition %q, want %q", name, got, tc.part)
		}
	}
	if got := fakeSys(t, map[string]string{"wwid": "x", "block/sda/wwid": "y"}).name(unix.Mkdev(0, 39)); got != "" {
		t.Errorf("a device that is not in sysfs: %q", got)
	}
}

func TestQueueLimits(t *testing.T) {
	s := fakeSys(t, map[string]string{"block/sda/queue/physical_block_size": "4096\n"})
	for device, want := range map[uint64]uint64{unix.Mkdev(8, 0): 4096, unix.Mkdev(8, 1): 4096, unix.Mkdev(8, 2): 0} {
		if got := s.limit(device, "physical_block_size"); got != want {
			t.Errorf("%#x: %d, want %d", device, got, want)
		}
	}
}

// A store can discard if a hole in the file, or zeros on the device, need no write.
func TestFeatures(t *testing.T) {
	if s := open(t, newFile(t, 4096), Options{}); !s.Features().Discard {
		t.Error("a file cannot discard")
	}
	fallocate := sysFallocate
	defer func() { sysFallocate = fallocate }()
	sysFallocate = func(int, uint32, int64, int64) error { return unix.EOPNOTSUPP }
	s := open(t, newFile(t, 4096), Options{})
	if err := s.Discard(0, 4096); s.Features().Discard || !errors.Is(err, ErrUnsupported) {
		t.Errorf("a file without holes: %+v, discard: %v", s.Features(), err)
	}

	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	before := system
	defer func() { system = before }()
	for most, want := range map[string]Features{"0\n": {Block: 4096}, "65536\n": {Discard: true, Block: 4096}} {
		system = fakeSys(t, map[string]string{"block/sda/queue/write_zeroes_max_bytes": most, "block/sda/queue/physical_block_size": "4096\n"})
		if got := (&file{File: null, device: true}).findFeatures(); got != want {
			t.Errorf("a device that zeroes at most %q: %+v, want %+v", most, got, want)
		}
	}
}
