// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"krping/proc"
)

// mount is a mounted file system, or a line of fstab.
type mount struct {
	source, dir, kind string
	options           []string
}

// A disk of krping, or a partition of one.
var krpingDisk = regexp.MustCompile(`^/dev/(krping[0-9]+)(?:p([0-9]+))?$`)

// bootMounts checks that the mounted file systems on krping's disks are in fstab, by a name that stays, and
// that those in fstab are unmounted while the network is up.
func bootMounts(r root, sessions []proc.Session) []Finding {
	var findings []Finding
	table := parseFstab(r.content("/etc/fstab"))
	for _, m := range r.mounted() {
		listed := slices.ContainsFunc(table, func(t mount) bool { return t.dir == m.dir })
		if listed || r.isManaged(m.dir) {
			continue
		}
		line := fmt.Sprintf("UUID=$(blkid -s UUID -o value %s) %s %s _netdev,nofail,x-systemd.device-timeout=infinity 0 2", m.source, escapeFstab(m.dir), m.kind)
		findings = append(findings, lost(fmt.Sprintf("%s on %s was mounted by hand: it is not there after a boot", m.source, m.dir), "it is not in /etc/fstab",
			fmt.Sprintf("echo \"%s\" >> /etc/fstab && systemctl daemon-reload", line)))
	}
	for _, t := range table {
		name := krpingDisk.FindStringSubmatch(t.source)
		if name == nil && !strings.HasPrefix(t.source, "/dev/krping/") && !strings.HasPrefix(t.source, "/dev/disk/by-id/krping-") {
			continue
		}
		if name != nil {
			stays := "/dev/krping/by-name/" + volumeOf(sessions, name[1])
			if name[2] != "" {
				stays += "-part" + name[2]
			}
			findings = append(findings, lost(fmt.Sprintf("/etc/fstab mounts %s on %s: after a boot that may be another disk", t.source, t.dir), "disks get numbers in the order in which they are attached",
				fmt.Sprintf("in /etc/fstab, instead of %s: %s", t.source, stays)))
		}
		if !slices.Contains(t.options, "_netdev") {
			findings = append(findings, lost(fmt.Sprintf("%s may lose the network before it is unmounted, when the host goes down", t.dir), "its line in /etc/fstab has no _netdev", "add the options _netdev,nofail to that line"))
		}
	}
	return findings
}

func volumeOf(sessions []proc.Session, disk string) string {
	i := slices.IndexFunc(sessions, func(s proc.Session) bool { return s.Role == "client" && s.Dev == disk })
	if i < 0 {
		return "VOLUME"
	}
	return sessions[i].Name
}

// isManaged reports whether somebody else mounts a directory: a unit, autofs, or what runs containers.
func (r root) isManaged(dir string) bool {
	for _, prefix := range []string{"/run/", "/media/", "/var/lib/kubelet/", "/var/lib/docker/", "/var/lib/containers/"} {
		if strings.HasPrefix(dir, prefix) {
			return true
		}
	}
	isAutofs := func(name string) bool { return r.contains(name, path.Base(dir)) }
	return r.unitFile(mountUnit(dir)) || r.starts(dir) || slices.ContainsFunc(r.glob("/etc/auto.*"), isAutofs)
}

// mounted returns the file systems that are on krping's disks, or on something that is on them.
func (r root) mounted() []mount {
	var mounts []mount
	for line := range strings.Lines(r.content("/proc/self/mountinfo")) {
		before, after, _ := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 2 || left[3] != "/" && right[0] != "btrfs" { // a bind mount
			continue
		}
		m := mount{source: unescape(right[1]), dir: unescape(left[4]), kind: right[0]}
		number := r.content("/sys/class/block/" + path.Base(m.source) + "/dev") // btrfs has a number of its own
		if krpingDisk.MatchString(m.source) || r.isOnKrping("/sys/dev/block/"+left[2], 0) || number != "" && r.isOnKrping("/sys/dev/block/"+number, 0) {
			mounts = append(mounts, m)
		}
	}
	return mounts
}

const maxStack = 8

// isOnKrping reports whether a block device, by its directory in sysfs, is on a disk of krping.
func (r root) isOnKrping(dir string, depth int) bool {
	for _, slave := range r.glob(dir + "/slaves/*") {
		name := path.Base(slave)
		if krpingDisk.MatchString("/dev/"+name) || depth < maxStack && r.isOnKrping("/sys/class/block/"+name, depth+1) {
			return true
		}
	}
	return false
}

func parseFstab(text string) []mount {
	var table []mount
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		m := mount{source: unescape(fields[0]), dir: path.Clean(unescape(fields[1])), kind: fields[2]}
		if len(fields) > 3 {
			m.options = strings.Split(fields[3], ",")
		}
		table = append(table, m)
	}
	return table
}

var octal = regexp.MustCompile(`\\[0-7]{3}`)

// unescape decodes the octal escapes of mountinfo and fstab.
func unescape(s string) string {
	return octal.ReplaceAllStringFunc(s, func(code string) string {
		n, err := strconv.ParseUint(code[1:], 8, 8)
		if err != nil {
			return code
		}
		return string([]byte{byte(n)})
	})
}

func escapeFstab(s string) string {
	return strings.NewReplacer(`\`, `\134`, " ", `\040`, "\t", `\011`, "\n", `\012`).Replace(s)
}
