// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"bufio"
	"crypto/sha1"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
	"krping/bridge/sysfs"
)

// system is where a device's identity is read.
type system struct {
	sys  string // sysfs
	udev string // udev's database
}

var host = system{"/sys", "/run/udev/data"}

// Identity returns a string that stays the same as long as a path leads to the same disk, partition
// or file, also over a restart of the host, and that another one under the same path does not have.
// It is "" if nothing is known that identifies it: a disk without WWID and serial number, or a file
// system without times of birth.
func Identity(path string) string { return host.identity(path) }

func (h system) identity(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return fileIdentity(path)
	case mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0:
		return h.diskIdentity(info.Sys().(*syscall.Stat_t).Rdev)
	}
	return ""
}

// fileIdentity returns the inode number and time of birth of a file: a new file may get the inode
// number of a removed one.
func fileIdentity(path string) string {
	var s unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO|unix.STATX_BTIME, &s); err != nil || s.Mask&unix.STATX_BTIME == 0 {
		return ""
	}
	return fmt.Sprintf("inode %d, born %d.%09d", s.Ino, s.Btime.Sec, s.Btime.Nsec)
}

func (h system) diskIdentity(dev uint64) string {
	dir, disk, err := sysfs.Block(h.sys, dev)
	if err != nil {
		return ""
	}
	identity := wholeIdentity(disk)
	switch {
	case dir == disk:
		return identity
	case identity != "":
		return fmt.Sprintf("%s, sectors %s from %s", identity, sysfs.Text(dir, "size"), sysfs.Text(dir, "start"))
	}
	return h.partUUID(dir, fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev)))
}

// wholeIdentity returns the identity of a disk by its directory in sysfs.
func wholeIdentity(dir string) string {
	for _, name := range []string{"wwid", "device/wwid", "dm/uuid", "md/uuid", "serial", "device/serial"} {
		if value := sysfs.Text(dir, name); value != "" {
			return name + " " + value
		}
	}
	if file := sysfs.Text(dir, "loop/backing_file"); file != "" {
		if id := fileIdentity(file); id != "" {
			return "loop of " + id + ", offset " + sysfs.Text(dir, "loop/offset")
		}
	}
	return ""
}

// partUUID returns the UUID of a partition as the kernel or udev tells it, or "".
func (h system) partUUID(dir, number string) string {
	for _, place := range []struct{ file, key string }{
		{filepath.Join(dir, "uevent"), "PARTUUID="},
		{filepath.Join(h.udev, "b"+number), "E:ID_PART_ENTRY_UUID="},
	} {
		f, err := os.Open(place.file)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			if uuid, found := strings.CutPrefix(lines.Text(), place.key); found && uuid != "" {
				_ = f.Close()
				return "partition " + strings.ToLower(uuid)
			}
		}
		_ = f.Close()
	}
	return ""
}

// StableUUID returns a UUID of version 5 (RFC 9562) that depends only on the NQN and on the
// identity of the disk or file at a path, or "" if it has none. A host that reconnects drops a
// namespace whose UUID has changed, so it must not change when the target is set up again, but must
// when the data is another's.
func StableUUID(nqn, path string) string {
	identity := Identity(path)
	if identity == "" {
		return ""
	}
	sum := sha1.Sum([]byte("krping nvmet 2\x00" + nqn + "\x00" + identity))
	sum[6], sum[8] = sum[6]&0x0f|0x50, sum[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// Identified returns the configuration with the identities of its disks and files, for a save file.
func (c Config) Identified() Config {
	subsystems := make([]Subsystem, len(c.Subsystems))
	for i, s := range c.Subsystems {
		s.Namespaces = append([]Namespace{}, s.Namespaces...)
		for j := range s.Namespaces {
			n := &s.Namespaces[j]
			n.Identity = Identity(n.Device["path"])
		}
		subsystems[i] = s
	}
	c.Subsystems = subsystems
	return c
}

// checkIdentity returns an error if a saved namespace is not of the disk or file that is at its path
// now: hosts that know its UUID would go on over other data.
func (n Namespace) checkIdentity() error {
	if n.Identity == "" {
		return nil
	}
	path := n.Device["path"]
	if now := Identity(path); now != n.Identity {
		return &kernel.Failure{
			What: "cannot serve " + path, Err: errOther,
			Cause: fmt.Sprintf("it is another disk or file than the one that was saved, which had %s; this one has %s", n.Identity, orNothing(now)),
			Fix:   `find the saved one (ls -l /dev/disk/by-id); or, to serve this one, remove the lines "identity" and "uuid" of the namespace from the file`,
		}
	}
	return nil
}

var errOther = errors.New("another disk or file")

func orNothing(identity string) string {
	if identity == "" {
		return "nothing that identifies it"
	}
	return identity
}
