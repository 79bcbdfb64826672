// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"krping/bridge/sysfs"
	"krping/bridge/uuid"
)

// host is where the kernel and udev describe block devices.
type host struct {
	root    string // "/sys"
	parts   string // "/dev/disk/by-partuuid": udev's links to partitions
	devices func(path string) (uint64, error)
}

var system = host{"/sys", "/dev/disk/by-partuuid", deviceNumber}

// deviceNumber returns the number of the device that a path names.
func deviceNumber(path string) (uint64, error) {
	var in unix.Stat_t
	if err := unix.Stat(path, &in); err != nil {
		return 0, err
	}
	return in.Rdev, nil
}

// DeviceUUID returns the UUID of a volume on a block device, zero if the device has no name of its own. It
// is the same whether the bridge or the module serves the device.
func DeviceUUID(path string) (uuid.UUID, error) {
	device, err := deviceNumber(path)
	if err != nil {
		return uuid.UUID{}, fmt.Errorf("cannot stat the store: %w", err)
	}
	name := system.name(device)
	if name == "" {
		return uuid.UUID{}, nil
	}
	return uuid.FromName(name), nil
}

// nameAttributes are the files in a disk's folder that name it, best first. The first that is not empty
// counts. A serial number is unique for one vendor and model only.
var nameAttributes = [][]string{
	{"wwid"}, {"device/wwid"}, {"dm/uuid"}, {"md/uuid"}, {"device/cid"},
	{"serial", "device/vendor", "device/model"}, {"device/serial", "device/vendor", "device/model"},
}

// deviceName returns a text that names a block device and stays the same when the host restarts, or ""
// if there is none.
func deviceName(f *os.File) (string, error) {
	var in unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &in); err != nil {
		return "", fmt.Errorf("cannot stat the store: %w", err)
	}
	return system.name(in.Rdev), nil
}

func (s host) name(device uint64) string {
	dir, part := s.disk(device)
	for _, attributes := range nameAttributes {
		var values []string
		for _, a := range attributes {
			values = append(values, sysfs.Text(dir, a))
		}
		if values[0] == "" || dir == "" {
			continue
		}
		name := attributes[0] + " " + strings.Join(values, " ")
		if part != "" {
			name += " partition " + part
		}
		return name
	}
	if part == "" {
		return ""
	}
	links, _ := os.ReadDir(s.parts)
	for _, link := range links {
		if number, err := s.devices(filepath.Join(s.parts, link.Name())); err == nil && number == device {
			return "partition " + strings.ToLower(link.Name())
		}
	}
	return ""
}

// disk returns the folder of a disk, or of the disk of a partition and that one's number. The folder is ""
// if there is none, as for the device numbers of btrfs.
func (s host) disk(device uint64) (dir, part string) {
	own, dir, err := sysfs.Block(s.root, device)
	if err != nil || own == dir {
		return dir, ""
	}
	return dir, sysfs.Text(own, "partition")
}

// limit returns a number that a disk's queue has, 0 if there is none.
func (s host) limit(device uint64, name string) uint64 {
	dir, _ := s.disk(device)
	if dir == "" {
		return 0
	}
	n, _ := strconv.ParseUint(sysfs.Text(dir, "queue", name), 10, 64)
	return n
}

// hasCache reports whether a device may keep writes in a cache that a power loss clears. The kernel sends flushes only
// to those (Documentation/block/writeback_cache_control.rst).
func (f *file) hasCache() bool {
	var in unix.Stat_t
	if unix.Fstat(int(f.Fd()), &in) != nil {
		return true
	}
	dir, _ := system.disk(in.Rdev)
	return dir == "" || sysfs.Text(dir, "queue", "write_cache") != "write through"
}

// findFeatures finds out what the store can do. It changes nothing.
func (f *file) findFeatures() Features {
	var in unix.Stat_t
	if unix.Fstat(int(f.Fd()), &in) != nil {
		return Features{}
	}
	if f.device { // a hole in a device is made by unmapping its blocks, which must read as zeros then
		return Features{Discard: system.limit(in.Rdev, "write_zeroes_max_bytes") > 0, Block: uint32(system.limit(in.Rdev, "physical_block_size"))}
	}
	beyond := (in.Size + 1<<20) >> 20 << 20 // a hole behind the end changes nothing
	hole := fallocate(f.File, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, beyond, 4096)
	return Features{Discard: hole == nil, Block: uint32(system.limit(in.Dev, "physical_block_size"))}
}
