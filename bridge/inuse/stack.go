// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"krping/bridge/display"
	"krping/bridge/sysfs"
	"krping/proc"
)

// system is where uses are looked for.
type system struct {
	root   string                            // of /proc and /sys: "", except in tests
	number func(path string) (uint64, error) // of the block device at a path
}

var this = system{"", deviceNumber}

// deviceNumber returns the number of the block device at a path.
func deviceNumber(path string) (uint64, error) {
	var in unix.Stat_t
	if err := unix.Stat(path, &in); err != nil {
		return 0, err
	}
	if in.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, unix.ENOTBLK
	}
	return in.Rdev, nil
}

// device is a block device of which a use counts.
type device struct {
	number uint64
	path   string
}

// search collects the uses of a device.
type search struct {
	system
	devices []device // in the order of the stack
	uses    []Use
}

// uses returns the uses of a device, its partitions, and what is stacked on them. Path names it.
func (s system) uses(number uint64, path string) []Use {
	q := &search{system: s}
	q.addDisk(number, path)
	for i := 0; i < len(q.devices); i++ { // stacked devices are added at the end
		q.stackedOn(q.devices[i])
	}
	q.mounts()
	q.swaps()
	q.targets(func(served string) string {
		number, err := q.number(served)
		return q.pathOf(number, err)
	})
	q.programs()
	return q.uses
}

// addDisk adds a disk and its partitions, or a partition and its disk: whoever uses the disk uses the
// partition, too.
func (q *search) addDisk(number uint64, path string) {
	q.add(number, path)
	dir, disk, err := sysfs.Block(q.root+"/sys", number)
	if err != nil {
		return
	}
	if dir == disk {
		q.addPartitions(dir)
	} else if whole, err := sysfs.Number(disk); err == nil {
		q.add(whole, "")
	}
}

// add adds a device once. Without a path, the kernel's name is used.
func (q *search) add(number uint64, path string) bool {
	for _, d := range q.devices {
		if d.number == number {
			return false
		}
	}
	if path == "" {
		path = q.name(number)
	}
	q.devices = append(q.devices, device{number, path})
	return true
}

func (q *search) addPartitions(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		part := filepath.Join(dir, e.Name())
		if number, err := sysfs.Number(part); err == nil && exists(filepath.Join(part, "partition")) {
			q.add(number, "")
		}
	}
}

// found adds a use.
func (q *search) found(device, by, fix string) { q.uses = append(q.uses, Use{device, by, fix}) }

// pathOf returns the path of one of the devices by its number, or "" if it is another one's.
func (q *search) pathOf(number uint64, err error) string {
	for _, d := range q.devices {
		if err == nil && d.number == number {
			return d.path
		}
	}
	return ""
}

// dir returns the directory of a device in sysfs.
func (s system) dir(number uint64) string {
	if dir, _, err := sysfs.Block(s.root+"/sys", number); err == nil {
		return dir
	}
	return sysfs.Link(s.root+"/sys", number)
}

// name returns the path of a device.
func (s system) name(number uint64) string {
	dir := s.dir(number)
	if mapped := sysfs.Text(dir, "dm/name"); mapped != "" && exists(filepath.Join(s.root, "/dev/mapper", mapped)) { // udev has made it
		return "/dev/mapper/" + display.Text(mapped)
	}
	for line := range strings.Lines(sysfs.Text(dir, "uevent")) {
		if name, found := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); found {
			return "/dev/" + name
		}
	}
	return "/dev/" + filepath.Base(dir)
}

// stackedOn adds the devices that use another one.
func (q *search) stackedOn(d device) {
	holders, _ := os.ReadDir(filepath.Join(q.dir(d.number), "holders"))
	for _, h := range holders {
		dir := filepath.Join(q.root, "/sys/class/block", h.Name())
		number, err := sysfs.Number(dir)
		if err != nil {
			q.found(d.path, "is used by "+display.Text(h.Name()), "")
			continue
		}
		q.stack(d, number, q.unstack(dir, q.name(number)))
	}
	loops, _ := filepath.Glob(filepath.Join(q.root, "/sys/block/loop*/loop"))
	for _, loop := range loops {
		backing, err := q.number(sysfs.Text(loop, "backing_file"))
		number, err2 := sysfs.Number(filepath.Dir(loop))
		if err == nil && err2 == nil && backing == d.number {
			q.stack(d, number, "losetup -d /dev/"+filepath.Base(filepath.Dir(loop)))
		}
	}
	sessions, _ := proc.ParseSessions(sysfs.Text(q.root, "/proc/krping_sessions")) // none without the module
	for _, v := range sessions {
		backing, err := q.number(v.Backing)
		if err != nil || backing != d.number {
			continue
		}
		if v.Role == "target" {
			q.found(d.path, "is served by the kernel as volume "+v.Name, "krpingctl stop --target "+v.Name)
		} else if number, err := q.number(v.Device()); err == nil {
			q.stack(d, number, "krpingctl stop "+v.Name)
		}
	}
}

func (q *search) stack(below device, number uint64, fix string) {
	q.found(below.path, "is used by "+q.name(number), fix)
	if q.add(number, "") {
		q.addPartitions(q.dir(number))
	}
}

// unstack returns the command that removes a stacked device.
func (q *search) unstack(dir, path string) string {
	kind, _, _ := strings.Cut(sysfs.Text(dir, "dm/uuid"), "-")
	mapped := display.Word(sysfs.Text(dir, "dm/name"))
	switch {
	case kind == "LVM":
		return "lvchange -an " + path
	case kind == "CRYPT":
		return "cryptsetup close " + mapped
	case kind == "mpath":
		return "multipath -f " + mapped
	case exists(filepath.Join(dir, "dm")):
		return "dmsetup remove " + mapped
	case exists(filepath.Join(dir, "md")):
		return "mdadm --stop " + path
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
