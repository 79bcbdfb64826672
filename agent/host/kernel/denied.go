// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Denied says why the kernel does not permit this process something that the host's root may do, and what to do.
// Both are "" if this process has all rights of root: then EPERM has another reason.
func Denied() (why, fix string) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return "", ""
	}
	uids, _ := os.ReadFile("/proc/self/uid_map") // without it, this is taken for the host's user namespace
	return explainDenied(os.Geteuid(), uint64(data[1].Effective)<<32|uint64(data[0].Effective), string(uids))
}

// explainDenied is Denied for a user ID, a set of capabilities and the text of uid_map.
func explainDenied(uid int, capabilities uint64, uidMap string) (why, fix string) {
	var missing []string
	for _, c := range []struct {
		bit  int
		name string
	}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}} {
		if capabilities&(1<<c.bit) == 0 {
			missing = append(missing, c.name)
		}
	}
	whole := strings.Join(strings.Fields(uidMap), " ") == "0 0 4294967295"
	switch {
	case uidMap != "" && !whole:
		return "this process is root in a user namespace only, as in a rootless container", "run it as the host's root"
	case len(missing) == 0:
		return "", ""
	case uid != 0:
		return "this needs root", "run the same command with sudo"
	}
	return "this process is root without " + strings.Join(missing, " and ") + ", as in a container or a unit that limits it",
		"run it on the host; or start the container with --privileged"
}
