// SPDX-License-Identifier: Apache-2.0

package biotrace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"krping/bridge/sysfs"
)

// BlockDevice is a block device by its number: major << 20 | minor.
type BlockDevice struct {
	number uint32
	disk   uint32 // the disk of a partition, else number
	start  uint64 // of a partition on its disk, in sectors; else 0
	hidden string // name of its target's disk, which has no number; or ""
	stages []Stage
}

// Stages returns the stages that its bios have, one after the other, and StageTotal.
func (d *BlockDevice) Stages() []Stage { return d.stages }

// Start returns where a partition begins on its disk, in sectors of 512 bytes; 0 for a disk. The
// sectors of bios are those of the disk.
func (d *BlockDevice) Start() uint64 { return d.start }

// WithoutTarget returns the device without the disk of its target, whose bios are copies.
func (d *BlockDevice) WithoutTarget() *BlockDevice {
	alone := *d
	alone.hidden = ""
	return &alone
}

var (
	commandStages = []Stage{StageQueue, StageSend, StagePeer, StageFinish, StageTotal}
	requestStages = []Stage{StageQueue, StageDevice, StageTotal}
)

// AllStages returns the stages of all devices of this host.
func AllStages() []Stage {
	if krping, _ := filepath.Glob("/sys/block/krping*"); len(krping) == 0 {
		return requestStages
	}
	return []Stage{StageQueue, StageSend, StagePeer, StageFinish, StageDevice, StageTotal}
}

// stagesOf returns the stages of the disk with that directory in sysfs.
func stagesOf(disk string) []Stage {
	name := filepath.Base(disk)
	if strings.HasPrefix(name, "krping") {
		return commandStages
	}
	// A disk of NVMe multipath has no requests of its own, but those of its paths.
	if _, err := os.Stat(filepath.Join(disk, "mq")); err == nil || strings.HasPrefix(name, "nvme") {
		return requestStages
	}
	return []Stage{StageTotal}
}

const sysDev = "/sys/dev/block"

// NewBlockDevice returns the device at a path such as /dev/sda1.
func NewBlockDevice(path string) (*BlockDevice, error) {
	number, err := deviceNumber(path)
	if err != nil {
		return nil, err
	}
	d := &BlockDevice{number: number, disk: number}
	dir, disk, err := sysfs.Block("/sys", unix.Mkdev(number>>20, number&0xfffff))
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", path, err)
	}
	if dir != disk {
		if d.start, err = strconv.ParseUint(sysfs.Text(dir, "start"), 10, 64); err != nil {
			return nil, fmt.Errorf("start of partition %s: %w", path, err)
		}
		whole, err := sysfs.Number(disk)
		if err != nil {
			return nil, fmt.Errorf("disk of partition %s: %w", path, err)
		}
		d.disk = kernelNumber(whole)
	}
	d.stages = stagesOf(disk)
	// A krping disk with a backing is stacked on a hidden disk of this name, its target's.
	if name := filepath.Base(disk) + "target"; strings.HasPrefix(name, "krping") {
		if _, err := os.Stat(filepath.Join("/sys/block", name)); err == nil {
			d.hidden = name
		}
	}
	return d, nil
}

// deviceNumber returns the kernel's number of a block device.
func deviceNumber(path string) (uint32, error) {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, fmt.Errorf("device %s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, fmt.Errorf("device %s: not a block device", path)
	}
	return kernelNumber(stat.Rdev), nil
}

// kernelNumber returns a number of user space as the kernel has it.
func kernelNumber(dev uint64) uint32 { return unix.Major(dev)<<20 | unix.Minor(dev) }

func numberText(dev uint32) string { return fmt.Sprintf("%d:%d", dev>>20, dev&0xfffff) }

// deviceNames maps device numbers to names, with a cache.
type deviceNames struct {
	known  map[uint32]string
	hidden *ebpf.Map // names of hidden disks, which sysfs does not list by number
}

func newDeviceNames(hidden *ebpf.Map) *deviceNames {
	return &deviceNames{map[uint32]string{}, hidden}
}

func (d *deviceNames) name(dev uint32) string {
	if name, ok := d.known[dev]; ok {
		return name
	}
	name := numberText(dev)
	var hidden [32]int8
	if target, err := os.Readlink(filepath.Join(sysDev, name)); err == nil {
		name = filepath.Base(target)
	} else if d.hidden != nil && d.hidden.Lookup(dev, &hidden) == nil {
		name = text(hidden[:])
	}
	d.known[dev] = name
	return name
}

const cgroupMount = "/sys/fs/cgroup"

// cgroupNames maps inodes of cgroups to their paths, with a cache.
type cgroupNames struct {
	mount string
	known map[uint64]string
}

func newCGroupNames(mount string) *cgroupNames { return &cgroupNames{mount, map[uint64]string{}} }

var errFound = errors.New("found")

// name returns a path such as "/system.slice", or the inode number if the cgroup no longer exists.
func (c *cgroupNames) name(inode uint64) string {
	if name, ok := c.known[inode]; ok {
		return name
	}
	name := strconv.FormatUint(inode, 10)
	_ = filepath.WalkDir(c.mount, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // it has been removed: continue with the others
		}
		var stat unix.Stat_t
		if unix.Stat(path, &stat) != nil || stat.Ino != inode {
			return nil
		}
		name = "/" + strings.TrimPrefix(strings.TrimPrefix(path, c.mount), "/")
		return errFound
	})
	c.known[inode] = name
	return name
}
