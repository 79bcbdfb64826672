// SPDX-License-Identifier: Apache-2.0

package inuse

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"krping/bridge/display"
	"krping/bridge/sysfs"
)

// mounts finds mounted file systems, in the mount namespaces of all processes.
func (q *search) mounts() {
	members := q.btrfs()
	here, _ := os.Readlink(filepath.Join(q.root, "/proc/self/ns/mnt"))
	seen := map[string]bool{here: true}
	mounted := map[string]bool{} // devices
	q.mountsOf("self", members, mounted)
	for _, pid := range q.processes() {
		space, err := os.Readlink(filepath.Join(q.root, "/proc", pid, "ns/mnt"))
		if err == nil && !seen[space] {
			seen[space] = true
			q.mountsOf(pid, members, mounted)
		}
	}
}

// mountsOf adds the mounts in the namespace of a process, of devices that are not known as mounted.
func (q *search) mountsOf(pid string, members map[uint64][]uint64, mounted map[string]bool) {
	data, err := os.ReadFile(filepath.Join(q.root, "/proc", pid, "mountinfo"))
	if err != nil {
		return // it has ended
	}
	var added []string
	for line := range strings.Lines(string(data)) {
		m, ok := parseMount(line)
		if !ok {
			continue
		}
		for _, path := range q.mountedFrom(m, pid, members) {
			if mounted[path] {
				continue
			}
			by, fix := "is mounted at "+display.Text(m.at)+" ("+display.Text(m.kind)+")", "umount "+display.Word(m.at)
			if pid != "self" {
				by += fmt.Sprintf(" in the mount namespace of process %s (%s)", pid, q.comm(pid))
				fix = "nsenter -t " + pid + " -m " + fix
			}
			q.found(path, by, fix)
			added = append(added, path)
		}
	}
	for _, path := range added { // after all mounts of this namespace
		mounted[path] = true
	}
}

// mountedFrom returns which of the devices a file system is on. That of btrfs has a device number of its
// own, and may be on several devices.
func (q *search) mountedFrom(m mount, pid string, members map[uint64][]uint64) []string {
	numbers := []uint64{m.number}
	for source := range strings.SplitSeq(m.source, ":") { // bcachefs joins its devices so
		if !strings.HasPrefix(source, "/") {
			continue
		}
		number, err := q.number(source)
		if err != nil && pid != "self" {
			number, err = q.number(filepath.Join(q.root, "/proc", pid, "root", source))
		}
		if err == nil {
			numbers = append(append(numbers, number), members[number]...)
		}
	}
	var paths []string
	known := map[string]bool{"": true}
	for _, number := range numbers {
		if path := q.pathOf(number, nil); !known[path] {
			known[path] = true
			paths = append(paths, path)
		}
	}
	return paths
}

type mount struct {
	number           uint64
	at, kind, source string
}

// parseMount parses a line of mountinfo (proc(5)): id, parent, major:minor, root, mount point, options,
// optional fields, "-", type, source, options.
func parseMount(line string) (m mount, ok bool) {
	before, after, found := strings.Cut(line, " - ")
	fields, rest := strings.Fields(before), strings.Fields(after)
	if !found || len(fields) < 5 || len(rest) < 2 {
		return m, false
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(fields[2], "%d:%d", &major, &minor); err != nil {
		return m, false
	}
	return mount{unix.Mkdev(major, minor), unescape(fields[4]), rest[0], unescape(rest[1])}, true
}

var octal = regexp.MustCompile(`\\[0-7]{3}`)

// unescape replaces the octal codes that the kernel writes for white space and backslashes.
func unescape(s string) string {
	return octal.ReplaceAllStringFunc(s, func(code string) string {
		n, _ := strconv.ParseUint(code[1:], 8, 16)
		return string([]byte{byte(n)})
	})
}

// btrfs returns for each device of a mounted btrfs the numbers of all.
func (q *search) btrfs() map[uint64][]uint64 {
	members := map[uint64][]uint64{}
	systems, _ := filepath.Glob(filepath.Join(q.root, "/sys/fs/btrfs/*/devices"))
	for _, dir := range systems {
		entries, _ := os.ReadDir(dir)
		var all []uint64
		for _, e := range entries {
			if number, err := sysfs.Number(filepath.Join(dir, e.Name())); err == nil {
				all = append(all, number)
			}
		}
		for _, number := range all {
			members[number] = all
		}
	}
	return members
}

func (q *search) swaps() {
	for _, swap := range q.swapPaths() {
		if path := q.pathOf(q.number(swap)); path != "" {
			q.found(path, "is swap space", "swapoff "+display.Word(swap))
		}
	}
}

// swapPaths returns the devices and files that are swap space.
func (s system) swapPaths() (paths []string) {
	for line := range strings.Lines(sysfs.Text(s.root, "/proc/swaps")) {
		if fields := strings.Fields(line); len(fields) > 0 && strings.HasPrefix(fields[0], "/") {
			paths = append(paths, unescape(fields[0]))
		}
	}
	return paths
}

// targets finds the kernel's NVMe and SCSI (LIO) targets that serve what of accepts: it returns the path
// by which to name it, or "".
func (q *search) targets(of func(served string) string) {
	namespaces, _ := filepath.Glob(filepath.Join(q.root, "/sys/kernel/config/nvmet/subsystems/*/namespaces/*"))
	for _, dir := range namespaces {
		nqn := filepath.Base(filepath.Dir(filepath.Dir(dir)))
		if path := of(sysfs.Text(dir, "device_path")); path != "" && sysfs.Text(dir, "enable") == "1" {
			q.found(path, "is served by the NVMe subsystem "+display.Text(nqn), "krpingctl nvme target remove "+display.Word(nqn))
		}
	}
	stores, _ := filepath.Glob(filepath.Join(q.root, "/sys/kernel/config/target/core/*/*"))
	for _, dir := range stores {
		path := of(sysfs.Text(dir, "udev_path"))
		if match := fileOfLIO.FindStringSubmatch(sysfs.Text(dir, "info")); match != nil && path == "" {
			path = of(match[1])
		}
		name := display.Text(filepath.Base(dir))
		if path != "" && sysfs.Text(dir, "enable") == "1" {
			q.found(path, "is served by the SCSI target (LIO) as "+name, "")
		}
	}
}

// fileOfLIO finds the path in what target_core_file.c prints.
var fileOfLIO = regexp.MustCompile(`File: (.+?)  Size: `)

// programs finds other processes that have a device open for writing.
func (q *search) programs() {
	q.open(opened{"is open for writing", q.openPath, func(fdinfo string) bool {
		flags := flagsOf(fdinfo)
		return flags&unix.O_ACCMODE != unix.O_RDONLY && flags&unix.O_PATH == 0
	}, os.Getpid()})
}

// holders returns the processes that have a device open in any way, if nothing else is known that could
// have claimed it.
func (s system) holders(path string, number uint64) []Use {
	q := &search{system: s}
	q.addDisk(number, path)
	q.open(opened{"is open", q.openPath, func(string) bool { return true }, 0})
	if len(q.uses) == 0 {
		q.found(path, "is held exclusively by the kernel or by a program", "")
	}
	return q.uses
}

// openPath returns the path of the device that an open file is, or "".
func (q *search) openPath(in unix.Statx_t) string {
	if in.Mode&unix.S_IFMT != unix.S_IFBLK {
		return ""
	}
	return q.pathOf(unix.Mkdev(in.Rdev_major, in.Rdev_minor), nil)
}

// opened describes open files that are uses.
type opened struct {
	how    string
	path   func(unix.Statx_t) string // of the file, or "" if it is another one
	counts func(fdinfo string) bool
	except int // a process, or 0
}

// Process is a process that has a file open.
type Process struct {
	PID  int
	Comm string // as package display shows it
}

func (p Process) String() string { return fmt.Sprintf("process %d (%s)", p.PID, p.Comm) }

// open adds a use for each process that has such a file open.
func (q *search) open(o opened) {
	q.openers(o, func(p Process, path string) { q.found(path, o.how+" by "+p.String(), "") })
}

// openers calls each for the processes that have such a file open, with its path.
func (s system) openers(o opened, each func(p Process, path string)) {
	for _, name := range s.processes() {
		pid, _ := strconv.Atoi(name)
		if pid == o.except {
			continue
		}
		if path := s.openBy(name, o); path != "" {
			each(Process{pid, s.comm(name)}, path)
		}
	}
}

// openBy looks through the open files of a process. If its first thread has ended, the others tell.
func (s system) openBy(pid string, o opened) string {
	dir := filepath.Join(s.root, "/proc", pid)
	if path, found := openIn(dir, o); found {
		return path
	}
	tasks, _ := filepath.Glob(dir + "/task/[0-9]*")
	for _, task := range tasks {
		if path, found := openIn(task, o); found {
			return path
		}
	}
	return ""
}

// openIn looks through the open files in a directory of /proc. found is false if it has none.
func openIn(dir string, o opened) (path string, found bool) {
	entries, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil || len(entries) == 0 {
		return "", false
	}
	for _, e := range entries {
		var in unix.Statx_t // not synchronized: a file on a server that is gone must not block
		if unix.Statx(unix.AT_FDCWD, filepath.Join(dir, "fd", e.Name()), unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE|unix.STATX_INO, &in) != nil {
			continue
		}
		if path := o.path(in); path != "" && o.counts(sysfs.Text(dir, filepath.Join("fdinfo", e.Name()))) {
			return path, true
		}
	}
	return "", true
}

// flagsOf returns the flags with which a file was opened.
func flagsOf(fdinfo string) uint64 {
	for line := range strings.Lines(fdinfo) {
		if value, found := strings.CutPrefix(line, "flags:"); found {
			flags, _ := strconv.ParseUint(strings.TrimSpace(value), 8, 64)
			return flags
		}
	}
	return 0
}

// processes returns the numbers of the processes.
func (s system) processes() []string {
	entries, _ := os.ReadDir(filepath.Join(s.root, "/proc"))
	var pids []string
	for _, e := range entries {
		if _, err := strconv.ParseUint(e.Name(), 10, 32); err == nil {
			pids = append(pids, e.Name())
		}
	}
	return pids
}

func (s system) comm(pid string) string {
	return display.Text(sysfs.Text(filepath.Join(s.root, "/proc", pid), "comm"))
}

// usesOfFile returns the uses of a regular file by the kernel.
func (s system) usesOfFile(path string, info fs.FileInfo) []Use {
	q := &search{system: s}
	is := func(other string) bool {
		there, err := os.Stat(other)
		return err == nil && os.SameFile(info, there)
	}
	loops, _ := filepath.Glob(filepath.Join(s.root, "/sys/block/loop*/loop"))
	for _, loop := range loops {
		if is(sysfs.Text(loop, "backing_file")) {
			name := "/dev/" + filepath.Base(filepath.Dir(loop))
			q.found(path, "is used by "+name, "losetup -d "+name)
			if number, err := sysfs.Number(filepath.Dir(loop)); err == nil {
				q.uses = append(q.uses, s.uses(number, name)...)
			}
		}
	}
	for _, swap := range s.swapPaths() {
		if is(swap) {
			q.found(path, "is swap space", "swapoff "+display.Word(swap))
		}
	}
	q.targets(func(served string) string {
		if served == "" || !is(served) {
			return ""
		}
		return path
	})
	return q.uses
}

// LockedBy returns the processes that have locked a regular file.
func LockedBy(path string) (by []Process) {
	var want unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_INO, &want) != nil {
		return nil
	}
	is := func(in unix.Statx_t) string {
		if in.Ino != want.Ino || in.Dev_major != want.Dev_major || in.Dev_minor != want.Dev_minor {
			return ""
		}
		return path
	}
	locks := func(fdinfo string) bool { return strings.Contains(fdinfo, "\nlock:") }
	this.openers(opened{path: is, counts: locks}, func(p Process, _ string) { by = append(by, p) })
	return by
}

// lockers returns the processes that have locked a regular file, as uses.
func lockers(path string) (uses []Use) {
	for _, p := range LockedBy(path) {
		uses = append(uses, Use{path, "is locked by " + p.String(), ""})
	}
	if len(uses) == 0 {
		uses = append(uses, Use{path, "is locked by a program", ""})
	}
	return uses
}
