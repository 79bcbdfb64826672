// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fake is a directory with what /proc, /sys and /dev have. Its devices are files with their numbers.
type fake struct {
	t    *testing.T
	root string
}

func newFake(t *testing.T) (fake, system) {
	f := fake{t, t.TempDir()}
	f.put("proc/1/comm", "init")
	f.link("proc/1/ns/mnt", "mnt:[1]")
	f.link("proc/self/ns/mnt", "mnt:[1]")
	f.put("proc/self/mountinfo", "")
	return f, system{f.root, func(path string) (uint64, error) {
		text, err := os.ReadFile(filepath.Join(f.root, strings.TrimPrefix(path, f.root)))
		var major, minor uint32
		if _, err := fmt.Sscanf(string(text), "%d:%d", &major, &minor); err != nil {
			return 0, err
		}
		return unix.Mkdev(major, minor), err
	}}
}

func (f fake) put(path, content string) {
	f.t.Helper()
	path = filepath.Join(f.root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content+"\n"), 0o600)); err != nil {
		f.t.Fatal(err)
	}
}

func (f fake) link(path, to string) {
	f.t.Helper()
	path = filepath.Join(f.root, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(to, path)); err != nil {
		f.t.Fatal(err)
	}
}

// disk makes a disk, or a partition of a disk: dir is sda or sda/sda1.
func (f fake) disk(dir, number string) {
	name := filepath.Base(dir)
	f.put("dev/"+name, number)
	f.put("sys/devices/"+dir+"/dev", number)
	f.put("sys/devices/"+dir+"/uevent", "DEVNAME="+name)
	if dir != name {
		f.put("sys/devices/"+dir+"/partition", "1")
	}
	f.link("sys/dev/block/"+number, f.root+"/sys/devices/"+dir)
	f.link("sys/class/block/"+name, f.root+"/sys/devices/"+dir)
	f.link("sys/block/"+name, f.root+"/sys/devices/"+dir)
}

// A disk is in use if it is, or a partition, or what is stacked on them; a partition is if its disk is, but
// not if another partition is.
func TestUses(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(fake)
		of   string // "" for sda
		want []string
		fix  string
	}{
		"unused": {make: func(fake) {}},
		"mounted, another disk": {make: func(f fake) {
			f.put("proc/self/mountinfo", "9 1 8:16 / /mnt rw - ext4 /dev/sdb rw")
		}},
		"mounted": {make: func(f fake) {
			f.put("proc/self/mountinfo", "8 1 0:5 / /proc rw - proc proc rw\n9 1 8:0 / /mnt/a\\040b rw shared:1 - ext4 /dev/root rw")
		}, want: []string{"/dev/sda is mounted at /mnt/a b (ext4)"}, fix: "umount '/mnt/a b'"},
		"a line of 100 KiB before": {make: func(f fake) {
			f.put("proc/self/mountinfo", "8 1 0:5 / / rw - overlay none lowerdir="+strings.Repeat("x", 100<<10)+"\n9 1 8:0 / /mnt rw - ext4 /dev/sda rw")
		}, want: []string{"/dev/sda is mounted at /mnt (ext4)"}},
		"btrfs has another number": {make: func(f fake) {
			f.put("proc/self/mountinfo", "9 1 0:39 / /mnt rw - btrfs /dev/sda rw")
		}, want: []string{"/dev/sda is mounted at /mnt (btrfs)"}},
		"btrfs on two disks": {make: func(f fake) {
			f.put("proc/self/mountinfo", "9 1 0:39 / /mnt rw - btrfs /dev/sdb rw")
			f.link("sys/fs/btrfs/u/devices/sda", f.root+"/sys/devices/sda")
			f.link("sys/fs/btrfs/u/devices/sdb", f.root+"/sys/devices/sdb")
		}, want: []string{"/dev/sda is mounted at /mnt (btrfs)"}},
		"another mount namespace": {make: func(f fake) {
			f.link("proc/7/ns/mnt", "mnt:[2]")
			f.put("proc/7/comm", "podman\x1b[2K\x9b2K")
			f.put("proc/7/mountinfo", "9 1 8:1 / /data rw - xfs /dev/sda1 rw")
		}, want: []string{`/dev/sda1 is mounted at /data (xfs) in the mount namespace of process 7 (podman\x1b[2K\x9b2K)`}, fix: "nsenter -t 7 -m umount /data"},
		"mounted partition": {make: func(f fake) {
			f.put("proc/self/mountinfo", "9 1 8:1 / /mnt rw - ext4 /dev/sda1 rw")
		}, want: []string{"/dev/sda1 is mounted at /mnt (ext4)"}},
		"another partition": {of: "sda2", make: func(f fake) {
			f.put("proc/self/mountinfo", "9 1 8:1 / /mnt rw - ext4 /dev/sda1 rw")
		}},
		"the disk of a partition": {of: "sda2", make: func(f fake) {
			f.put("proc/self/mountinfo", "9 1 8:0 / /mnt rw - ext4 /dev/sda rw")
		}, want: []string{"/dev/sda is mounted at /mnt (ext4)"}},
		"swap": {make: func(f fake) {
			f.put("proc/swaps", "Filename Type Size Used Priority\n/dev/sda1 partition 1 0 -2")
		}, want: []string{"/dev/sda1 is swap space"}, fix: "swapoff /dev/sda1"},
		"LVM on a partition": {make: func(f fake) {
			f.disk("dm-0", "253:0")
			f.put("sys/devices/dm-0/dm/name", "vg-root")
			f.put("dev/mapper/vg-root", "253:0")
			f.put("sys/devices/dm-0/dm/uuid", "LVM-abc")
			f.put("sys/devices/sda/sda1/holders/dm-0/x", "")
			f.put("proc/self/mountinfo", "9 1 253:0 / / rw - ext4 /dev/mapper/vg-root rw")
		}, want: []string{"/dev/sda1 is used by /dev/mapper/vg-root", "/dev/mapper/vg-root is mounted at / (ext4)"},
			fix: "umount / && lvchange -an /dev/mapper/vg-root"},
		"md, idle": {make: func(f fake) {
			f.disk("md0", "9:0")
			f.put("sys/devices/md0/md/level", "raid1")
			f.put("sys/devices/sda/holders/md0/x", "")
		}, want: []string{"/dev/sda is used by /dev/md0"}, fix: "mdadm --stop /dev/md0"},
		"loop": {make: func(f fake) {
			f.disk("loop0", "7:0")
			f.disk("loop0/loop0p1", "259:0")
			f.put("sys/devices/loop0/loop/backing_file", "/dev/sda")
			f.put("proc/self/mountinfo", "9 1 259:0 / /mnt rw - ext4 /dev/loop0p1 rw")
		}, want: []string{"/dev/sda is used by /dev/loop0", "/dev/loop0p1 is mounted at /mnt (ext4)"}, fix: "umount /mnt && losetup -d /dev/loop0"},
		"NVMe target": {make: func(f fake) {
			f.put("sys/kernel/config/nvmet/subsystems/nqn.a/namespaces/1/device_path", "/dev/sda")
			f.put("sys/kernel/config/nvmet/subsystems/nqn.a/namespaces/1/enable", "1")
		}, want: []string{"/dev/sda is served by the NVMe subsystem nqn.a"}, fix: "krpingctl nvme target remove nqn.a"},
		"NVMe target, off": {make: func(f fake) {
			f.put("sys/kernel/config/nvmet/subsystems/nqn.a/namespaces/1/device_path", "/dev/sda")
			f.put("sys/kernel/config/nvmet/subsystems/nqn.a/namespaces/1/enable", "0")
		}},
		"LIO fileio": {make: func(f fake) {
			f.put("sys/kernel/config/target/core/fileio_0/disk1/info", "Status: ACTIVATED\n        TCM FILEIO ID: 0        File: /dev/sda  Size: 100")
			f.put("sys/kernel/config/target/core/fileio_0/disk1/enable", "1")
		}, want: []string{"/dev/sda is served by the SCSI target (LIO) as disk1"}},
		"LIO iblock": {make: func(f fake) {
			f.put("sys/kernel/config/target/core/iblock_0/disk1/udev_path", "/dev/sda1")
			f.put("sys/kernel/config/target/core/iblock_0/disk1/enable", "1")
		}, want: []string{"/dev/sda1 is served by the SCSI target (LIO) as disk1"}},
		"krping serves it": {make: func(f fake) {
			f.put("proc/krping_sessions", "id=3 name=vol0 role=target backing=/dev/sda")
		}, want: []string{"/dev/sda is served by the kernel as volume vol0"}, fix: "krpingctl stop --target vol0"},
		"krping taps it": {make: func(f fake) {
			f.disk("krping3", "252:3")
			f.put("proc/krping_sessions", "id=3 name=vol0 role=client mode=tap dev=krping3 backing=/dev/sda")
			f.put("proc/swaps", "Filename\n/dev/krping3 partition 1 0 -2")
		}, want: []string{"/dev/sda is used by /dev/krping3", "/dev/krping3 is swap space"}, fix: "swapoff /dev/krping3 && krpingctl stop vol0"},
	} {
		t.Run(name, func(t *testing.T) {
			f, s := newFake(t)
			f.disk("sda", "8:0")
			f.disk("sda/sda1", "8:1")
			f.disk("sda/sda2", "8:2")
			f.disk("sdb", "8:16")
			tc.make(f)
			path := "/dev/sda"
			if tc.of != "" {
				path = "/dev/" + tc.of
			}
			number, err := s.number(path)
			if err != nil {
				t.Fatal(err)
			}
			uses := s.uses(number, path)
			var got []string
			for _, u := range uses {
				got = append(got, u.String())
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("%q, want %q", got, tc.want)
			}
			if fix := (&Error{path, uses}).Fix(); tc.fix != "" && fix != tc.fix {
				t.Errorf("fix %q, want %q", fix, tc.fix)
			}
		})
	}
}

// A path under /dev that is no device is no new file; other paths are.
func TestCheckPath(t *testing.T) {
	dev := t.TempDir()
	other := t.TempDir()
	t.Chdir(dev)
	for _, path := range []string{filepath.Join(dev, "file"), filepath.Join(other, "file")} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"out": other + "/new", "self": "self", other + "/in": dev + "/krping0", other + "/to": "file", "null": "/dev/null"} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		dev + "/krping0": "no such device", "krping0": "no such device", dev + "/disk/by-id/x": "no such device", other + "/in": "no such device",
		dev + "/file": "regular file, not a device", other + "/../" + filepath.Base(dev) + "/file": "regular file, not a device",
		"self": "too many", dev + "/out": "", dev + "/null": "", other + "/new": "", other + "/to": "", other + "/file": "",
		dev + "/shm/new": "", dev + "-2/new": "", "/": "",
	} {
		err := checkPath(dev, path)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// A file that another program has locked is not claimed, and a claimed one is locked.
func TestLockedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, make([]byte, 512), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := Claim(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Claim(path)
	want := fmt.Sprintf("%s is locked by process %d (inuse.test)", path, os.Getpid())
	if used := new(Error); !errors.As(err, &used) || !errors.Is(err, unix.EBUSY) || used.Reasons() != want {
		t.Errorf("%v, want %q", err, want)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Check(path); err != nil {
		t.Errorf("after it was unlocked: %v", err)
	}
	if err := Check("/dev/null"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("/dev/null: %v", err)
	}
}

// Those who write to a device without having claimed it use it.
func TestFlagsOf(t *testing.T) {
	if got := flagsOf("pos:\t0\nflags:\t0100002\nmnt_id:\t9\n"); got != unix.O_RDWR|0o100000 {
		t.Errorf("%o", got)
	}
}

// A path may have spaces.
func TestFileOfLIO(t *testing.T) {
	const info = "Status: ACTIVATED  Max Queue Depth: 0  SectorSize: 512  HwMaxSectors: 16384\n        TCM FILEIO ID: 0        File: /srv/vm disk.img  Size: 1048576  Mode: O_DSYNC Async: 0\n"
	if m := fileOfLIO.FindStringSubmatch(info); m == nil || m[1] != "/srv/vm disk.img" {
		t.Errorf("%q", m)
	}
}
