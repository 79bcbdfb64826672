// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"krping/test/internal/nic"
)

type mount struct{ kind, dir string }

var mounts = []mount{
	{"devpts", "/dev/pts"}, {"tmpfs", "/dev/shm"}, {"debugfs", "/sys/kernel/debug"},
	{"tracefs", "/sys/kernel/tracing"}, {"bpf", "/sys/fs/bpf"}, {"cgroup2", "/sys/fs/cgroup"},
	{"configfs", "/sys/kernel/config"},
}

// devLinks are what udev makes elsewhere; shells and other projects' test suites use them.
var devLinks = map[string]string{
	"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0", "/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2",
}

// hungTask is the hung-task time-out in seconds, on a kernel that is not slow.
const hungTask = 30

var sysctls = map[string]string{
	"kernel/hung_task_warnings": "1000",
	"kernel/panic_on_oops":      "0",
	"kernel/printk":             "8 4 1 7", // full reports, after a quiet boot
}

// setUp prepares what tests rely on: file systems, limits, the network and the RDMA device.
func setUp() error {
	_ = os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	_ = os.Setenv("HOME", "/root")
	for link, target := range devLinks {
		if err := os.Symlink(target, link); err != nil && !os.IsExist(err) {
			return err
		}
	}
	_ = exec.Command("modprobe", "configfs").Run() // built into some kernels: the mount below tells
	for _, m := range mounts {
		_ = os.MkdirAll(m.dir, 0o755) // in virtual file systems it exists or cannot be made
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil && err != unix.ENOENT && err != unix.ENODEV && err != unix.EBUSY {
			return fmt.Errorf("mount %s on %s: %w", m.kind, m.dir, err)
		}
	}
	slow, err := strconv.Atoi(parameter("lab.slow"))
	if err != nil {
		return fmt.Errorf("lab.slow on the command line: %w", err)
	}
	sysctls["kernel/hung_task_timeout_secs"] = strconv.Itoa(hungTask * slow)
	for name, value := range sysctls {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	unlimited := &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, unlimited); err != nil {
		return fmt.Errorf("lift the limit of locked memory: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 65536, Max: 65536}); err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	return network(parameter("lab.index"))
}

// parameter returns a parameter of the kernel's command line, or "".
func parameter(name string) string {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return ""
	}
	for _, field := range strings.Fields(string(line)) {
		if value, ok := strings.CutPrefix(field, name+"="); ok {
			return value
		}
	}
	return ""
}

// network gives the guest its host name, its addresses on eth0 (nic.Up), and rxe0 or siw0 on top.
func network(index string) error {
	if err := unix.Sethostname([]byte("vm" + index)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	kind, module := "rxe", "rdma_rxe"
	if parameter("lab.iwarp") != "" {
		kind, module = "siw", "siw"
	}
	if err := nic.Up(index); err != nil {
		return err
	}
	for _, line := range []string{
		"ip link set lo up",
		"modprobe " + module, "modprobe rdma_ucm", "modprobe ib_uverbs",
		"rdma link add " + kind + "0 type " + kind + " netdev eth0",
	} {
		if parameter("lab.norxe") != "" && strings.HasPrefix(line, "rdma link") || isLoaded(strings.TrimPrefix(line, "modprobe ")) {
			continue
		}
		argv := strings.Fields(line)
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
	}
	return nil
}

// isLoaded reports whether a module is loaded. The initramfs has loaded those that the kernel does not have built in.
func isLoaded(module string) bool {
	_, err := os.Stat("/sys/module/" + module)
	return err == nil
}
