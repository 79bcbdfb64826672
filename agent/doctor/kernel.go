// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"strings"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"
)

// kernelFindings checks what user-space programs need from the kernel.
func kernelFindings(release string) []Finding {
	return []Finding{memlock(), btf(release)}
}

func memlock() Finding {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return unchecked("memlock", fmt.Errorf("read the limit on locked memory: %w", err))
	}
	capable, err := mayLock()
	if err != nil {
		return unchecked("memlock", err)
	}
	return memlockFinding(limit.Cur, capable)
}

// mayLock reports whether this process has CAP_IPC_LOCK, which lifts the limit.
func mayLock() (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("read this process's capabilities: %w", err)
	}
	return data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0, nil
}

// enoughMemlock suffices for a dozen connections to krping-bridge, which registers about 21 MiB
// for each: 128 receives and 32 sends of 32 KiB, and 16 MiB of data.
const enoughMemlock = 256 << 20

func memlockFinding(limit uint64, capable bool) Finding {
	size := "unlimited"
	if limit != unix.RLIM_INFINITY {
		size = humanize.IBytes(limit)
	}
	switch {
	case limit >= enoughMemlock:
		return ok("memlock", "locked memory: %s", size)
	case capable:
		return ok("memlock", "locked memory: %s, but CAP_IPC_LOCK lifts that limit", size)
	}
	return Finding{
		Check: "memlock", Level: Warning, Found: "locked memory: at most " + size,
		Cause: "user-space programs lock the memory they register: krping-bridge cannot register its buffers",
		Fix:   "ulimit -l unlimited; or permanently: LimitMEMLOCK=infinity in a systemd unit, or \"* - memlock unlimited\" in /etc/security/limits.conf",
	}
}

func btf(release string) Finding {
	config, err := os.ReadFile("/boot/config-" + release)
	if err != nil {
		config = nil // unknown
	}
	return btfFinding(exists("/sys/kernel/btf/vmlinux"), string(config))
}

// btfFinding checks whether the kernel has BTF; config is the kernel's configuration, "" if unknown.
func btfFinding(present bool, config string) Finding {
	if present {
		return ok("btf", "the kernel has BTF, for krpingctl trace")
	}
	f := Finding{Check: "btf", Level: Warning, Found: "the kernel has no BTF, so krpingctl trace does not work", Fix: "boot a kernel with CONFIG_DEBUG_INFO_BTF=y; distribution kernels have it"}
	switch {
	case strings.Contains(config, "\nCONFIG_DEBUG_INFO_BTF=y"):
		f.Cause, f.Fix = "CONFIG_DEBUG_INFO_BTF is set, but /sys/kernel/btf/vmlinux does not exist", "mount -t sysfs sys /sys"
	case config != "":
		f.Cause = "the kernel was built without CONFIG_DEBUG_INFO_BTF"
	default:
		f.Cause = "the kernel was probably built without CONFIG_DEBUG_INFO_BTF"
	}
	return f
}
