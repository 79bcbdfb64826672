// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvme

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// add returns the arguments that serve a null disk.
func add(t *testing.T, more ...string) []string {
	return append([]string{"target", "add", "--nqn", nqn, "--null", "16MiB", "--addr", guest.Addr(t)}, more...)
}

// canServe checks that a null disk can be served and removed.
func canServe(t *testing.T, args []string) {
	t.Helper()
	nvme(t, args...)
	nvme(t, "target", "remove", nqn)
	clean(t)
}

// unload unloads modules, if they are loaded.
func unload(t *testing.T, modules ...string) {
	t.Helper()
	guest.Run(t, append([]string{"modprobe", "-r"}, modules...)...)
}

// hide moves a module's file away, and returns a function that moves it back.
func hide(t *testing.T, name string) (restore func()) {
	t.Helper()
	path := strings.TrimSpace(guest.Run(t, "modinfo", "-n", name))
	if err := os.Rename(path, path+".hidden"); err != nil {
		t.Fatal(err)
	}
	hidden := true
	restore = func() {
		if hidden {
			hidden = false
			if err := os.Rename(path+".hidden", path); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(restore)
	return restore
}

// Without nvmet, mkdir in configfs fails with "operation not permitted".
func TestNvmetCannotBeLoaded(t *testing.T) {
	needs.Test(t, needs.Once)
	unload(t, "nvmet_rdma", "nvmet_tcp", "nvmet")
	rule := "/etc/modprobe.d/no-nvmet.conf"
	if err := os.WriteFile(rule, []byte("install nvmet /bin/false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(rule) })
	f := fails(t, 4, []string{"cannot load the module nvmet", "install /bin/false", "/etc/modprobe.d"}, add(t)...)
	grep, _, _ := strings.Cut(f.fix, ", and")
	if out, _ := guest.TryRun("sh", "-c", grep); !strings.Contains(out, rule) { // grep fails for missing directories
		t.Errorf("%s does not find the rule: %s", grep, out)
	}
	if listed := nvme(t, "target", "list", "--json"); listed != `{"version":1,"targets":[]}`+"\n" {
		t.Errorf("listed without nvmet: %s", listed)
	}
	if err := os.Remove(rule); err != nil {
		t.Fatal(err)
	}
	canServe(t, add(t))
}

// Without nvmet-rdma, ln -s fails with "invalid argument", and the kernel logs "transport type 1 not supported".
func TestTargetTransportNotInstalled(t *testing.T) {
	needs.Test(t, needs.Once)
	unload(t, "nvmet_rdma")
	restore := hide(t, "nvmet-rdma")
	fails(t, 4, []string{"cannot load the module nvmet-rdma", "not installed", "depmod -a"}, add(t)...)
	restore()
	canServe(t, add(t))
}

func TestHostTransportNotInstalled(t *testing.T) {
	needs.Test(t, needs.Once)
	unload(t, "nvme_rdma")
	restore := hide(t, "nvme-rdma")
	connecting := []string{"connect", "--nqn", nqn, "--traddr", guest.Addr(t)}
	fails(t, 4, []string{"cannot load the module nvme-rdma", "not installed"}, connecting...)
	fails(t, 4, []string{"cannot load the module nvme-rdma"}, "discover", "--traddr", guest.Addr(t))
	restore()
	fails(t, 5, []string{"nothing listens"}, connecting...)
}

func TestAddressWithoutRDMA(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.Run(t, "sh", "-c", "ip link add dummy7 type dummy && ip addr add 10.7.0.1/24 dev dummy7 && ip link set dummy7 up")
	t.Cleanup(func() { guest.Run(t, "ip", "link", "del", "dummy7") })
	here := []string{"target", "add", "--nqn", nqn, "--null", "16MiB", "--addr", "10.7.0.1"}
	f := fails(t, 4, []string{"10.7.0.1 is on dummy7, which has no RDMA device", "krpingctl link add rxe1 --netdev dummy7"}, here...)
	fails(t, 4, []string{"10.7.0.2 is through dummy7, which has no RDMA device", "krpingctl link add rxe1 --netdev dummy7"}, "connect", "--nqn", nqn, "--traddr", "10.7.0.2")
	f.applyFix(t)
	t.Cleanup(func() { guest.Run(t, "rdma", "link", "del", "rxe1") })
	canServe(t, here)
}

func TestAddressOfAnotherHostOrWithoutRoute(t *testing.T) {
	needs.Test(t, needs.Once)
	for _, transport := range transports {
		fails(t, 4, []string{"192.168.77.66 is not an address of this host", "ip addr add 192.168.77.66/24 dev eth0"},
			"target", "add", "--nqn", nqn, "--null", "16MiB", "--addr", "192.168.77.66", "--transport", transport.name)
	}
	fails(t, 4, []string{"no route to 203.0.113.1", "ip route add"}, "connect", "--nqn", nqn, "--traddr", "203.0.113.1")
}

func TestNoRDMADevice(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.RemoveDevice(t)
	f := fails(t, 4, []string{"eth0, which has no RDMA device", "krpingctl link add rxe0 --netdev eth0"}, add(t)...)
	fails(t, 4, []string{"eth0, which has no RDMA device"}, "connect", "--nqn", nqn, "--traddr", guest.Addr(t))
	f.applyFix(t)
	canServe(t, add(t))
}

func TestPortInUse(t *testing.T) {
	needs.Test(t, needs.Once)
	rping := guest.StartRping(t, guest.Addr(t), 4420)
	fails(t, 1, []string{"the port is in use", "rping listens on " + guest.Addr(t) + ":4420", "--port"}, add(t)...)
	_ = rping.Process.Kill()
	_ = rping.Wait()
	l, err := net.Listen("tcp", guest.Addr(t)+":4421")
	if err != nil {
		t.Fatal(err)
	}
	over := add(t, "--transport", "tcp", "--port", "4421")
	fails(t, 1, []string{"the port is in use", "nvme.test (process "}, over...)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	serve(t, "--nqn", "nqn.2024-01.org.example:other", "--null", "16MiB")
	fails(t, 1, []string{"the port is in use", "the target's port 1 listens on " + guest.Addr(t) + ":4420"},
		"target", "add", "--nqn", nqn, "--null", "16MiB", "--addr", "0.0.0.0")
	nvme(t, "target", "remove", "nqn.2024-01.org.example:other")
	canServe(t, add(t))
	canServe(t, over)
}

func TestRefusedByTarget(t *testing.T) {
	needs.Test(t, needs.Once)
	for _, transport := range transports {
		t.Run(transport.name, func(t *testing.T) {
			at := []string{"connect", "--transport", transport.name, "--traddr", guest.Addr(t), "--trsvcid", transport.port, keepAlive}
			connecting := append(at, "--nqn", nqn, "--hostnqn", "nqn.2024-01.org.example:stranger")
			fails(t, 5, []string{"nothing listens on that port"}, connecting...)
			serve(t, "--nqn", nqn, "--null", "16MiB", "--transport", transport.name, "--port", transport.port, "--allow-host", "nqn.2024-01.org.example:friend")
			fails(t, 5, []string{"serves no such NQN"}, append(at, "--nqn", "nqn.2024-01.org.example:nothing")...).fixDiscovers(t)
			fails(t, 5, []string{"does not allow this host, nqn.2024-01.org.example:stranger"}, connecting...).applyFix(t)
			nvme(t, connecting...)
			fails(t, 1, []string{"already", "--duplicate-connect"}, connecting...)
			nvme(t, "disconnect", "--nqn", nqn)
			nvme(t, "target", "remove", nqn)
			clean(t)
		})
	}
}

// fixDiscovers runs the first command of a fix, which must list what the target serves.
func (f failure) fixDiscovers(t *testing.T) {
	t.Helper()
	command, _, _ := strings.Cut(f.fix, " lists ")
	out := nvme(t, strings.Fields(command)[2:]...)
	if !strings.Contains(out, "discovery") {
		t.Errorf("%s: %s", command, out)
	}
}

func TestDiskBusyMissingOrInvalid(t *testing.T) {
	needs.Test(t, needs.Once)
	disk := newDisk(t)
	at := func(nqn, device string) []string {
		return []string{"target", "add", "--addr", guest.Addr(t), "--nqn", nqn, "--device", device}
	}
	const two = "nqn.2024-01.org.example:two"
	guest.Run(t, "mkfs.ext4", "-q", disk)
	dir := t.TempDir()
	guest.Run(t, "mount", disk, dir)
	fails(t, 1, []string{"busy", "mounted at " + dir}, at(nqn, disk)...).applyFix(t)
	nvme(t, at(nqn, disk)...)
	t.Cleanup(func() { nvme(t, "target", "remove", "--all") })
	fails(t, 1, []string{"busy", "subsystem " + nqn + " serves it"}, at(two, disk)...)
	fails(t, 1, []string{nqn + " exists already", "target list"}, at(nqn, "/dev/null")...)
	fails(t, 1, []string{"no such device", "--null"}, at(two, "/dev/nothing")...)
	fails(t, 2, []string{"neither a block device nor a regular file"}, at(two, "/dev/null")...)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fails(t, 2, []string{"the file is empty"}, at(two, empty)...).applyFix(t)
	nvme(t, at(two, empty)...)
	fails(t, 1, []string{"no such subsystem", "target list"}, "target", "remove", "nqn.2024-01.org.example:three")
	nvme(t, "target", "remove", "--all")
	clean(t)
}
