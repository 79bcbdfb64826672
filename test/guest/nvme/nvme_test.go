// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvme

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"krping/agent/nvme/nvmehost"
	"krping/agent/nvme/nvmet"
	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// A disk is served, discovered, connected, written, verified and traced. Removing it leaves nothing behind.
func TestServeConnectVerifyRemove(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport.name, func(t *testing.T) {
			quietly(t)
			disk := newDisk(t)
			at := []string{"--transport", transport.name, "--port", transport.port}
			target := serve(t, append(at, "--nqn", nqn, "--device", disk, "--inline-size", "8192")...)
			want := nvmet.Target{
				NQN: nqn, Serial: nvmet.StableSerial(nqn), AllowAnyHost: true, AllowedHosts: []string{},
				Disks:     []nvmet.Disk{{NSID: 1, Device: disk, Enabled: true}},
				Addresses: []nvmet.Address{{Port: 1, Transport: transport.name, Addr: guest.Addr(t), Service: transport.port, Inline: 8192}},
			}
			if len(target.Disks) == 1 {
				want.Disks[0].UUID = target.Disks[0].UUID // the kernel's: nothing identifies the disk
			}
			if listed := targets(t); !reflect.DeepEqual(target, want) || !reflect.DeepEqual(listed, []nvmet.Target{want}) {
				t.Errorf("added %+v, listed %+v, want %+v", target, listed, want)
			}
			sameDiscovery(t, transport.name, transport.port)
			c, dev := connect(t, "--transport", transport.name, "--trsvcid", transport.port, "--nqn", nqn,
				"--nr-io-queues", "1", "--queue-size", "32", "--ctrl-loss-tmo", "60", "--reconnect-delay", "1", "--hostnqn", "nqn.2024-01.org.example:host")
			if c.IOQueues != 1 || c.QueueSize != 32 || c.KeepAlive != 120 || c.CtrlLossTMO != "60" || c.ReconnectDelay != "1" || c.HostNQN != "nqn.2024-01.org.example:host" ||
				c.Transport != transport.name || c.State != "live" || c.Namespaces[0].Size != 16<<20 || c.Namespaces[0].UUID != want.Disks[0].UUID {
				t.Errorf("connected: %+v", c)
			}
			sameList(t)
			fioAndVerify(t, disk, dev)
			traced(t, dev)
			if out := nvme(t, "disconnect", "--nqn", nqn); out != "disconnected 1 controller\n" {
				t.Errorf("disconnect: %q", out)
			}
			nvme(t, "target", "remove", "--nqn", nqn)
			clean(t)
		})
	}
}

// sameDiscovery checks that krpingctl and nvme-cli agree on what they discover.
func sameDiscovery(t *testing.T, transport, port string) {
	t.Helper()
	ours := nvmeJSON[nvmehost.Discovery](t, "discover", "--transport", transport, "--traddr", guest.Addr(t), "--trsvcid", port)
	theirs := decode[nvmehost.Discovery](t, "nvme", "discover", "-o", "json", "-t", transport, "-a", guest.Addr(t), "-s", port)
	if !reflect.DeepEqual(ours, theirs) || !slices.ContainsFunc(ours.Records, func(r nvmehost.Record) bool { return r.NQN == nqn && r.IsSubsystem() }) {
		t.Errorf("krpingctl discovers %+v, nvme-cli %+v", ours, theirs)
	}
}

// sameList checks that krpingctl and nvme-cli agree on what they list.
func sameList(t *testing.T) {
	t.Helper()
	ours := controllers(t)
	type device struct {
		DevicePath, ModelNumber, SerialNumber, Firmware string
		NameSpace, SectorSize                           int
		PhysicalSize                                    int64
	}
	theirs := decode[struct{ Devices []device }](t, "nvme", "list", "-o", "json")
	type path struct{ Name, Transport, Address, State string }
	hosts := decode[[]struct {
		HostNQN    string
		Subsystems []struct {
			NQN   string
			Paths []path
		}
	}](t, "nvme", "list-subsys", "-o", "json")
	if len(ours) != 1 || len(theirs.Devices) != 1 || len(hosts) != 1 || len(hosts[0].Subsystems) != 1 || len(hosts[0].Subsystems[0].Paths) != 1 {
		t.Fatalf("krpingctl lists %+v, nvme-cli %+v and %+v", ours, theirs, hosts)
	}
	c, d := ours[0], ours[0].Namespaces[0]
	if want := (device{d.Device(), c.Model, c.Serial, c.Firmware, d.NSID, d.BlockSize, d.Size}); theirs.Devices[0] != want {
		t.Errorf("nvme-cli lists %+v, krpingctl %+v", theirs.Devices[0], want)
	}
	s := hosts[0].Subsystems[0]
	if want := (path{c.Name, c.Transport, c.Address, c.State}); s.NQN != c.NQN || s.Paths[0] != want || hosts[0].HostNQN != c.HostNQN {
		t.Errorf("nvme-cli lists %+v, krpingctl %+v", hosts, c)
	}
}

func fioAndVerify(t *testing.T, disk, dev string) {
	t.Helper()
	guest.Fio(t, dev, "--rw=randwrite", "--bsrange=512-256k", "--blockalign=512", "--iodepth=16", "--size=4M")
	guest.MustKrpingctl(t, "write", dev, "--size", "1MiB", "--bs", "64KiB", "--direct")
	if out := guest.MustKrpingctl(t, "verify", dev, "--pattern", "random", "--size", "1MiB"); !strings.Contains(out, "device, target and what was written agree") {
		t.Errorf("verify: %s", out)
	}
	if out := guest.MustKrpingctl(t, "verify", dev, "--size", "4MiB", "--json"); !strings.Contains(out, `"bytes":4194304,`) || !strings.Contains(out, `"target_asked":true,"data_expected":false`) {
		t.Errorf("verify: %s", out)
	}
	other := filepath.Join(t.TempDir(), "other")
	guest.Run(t, "dd", "if="+disk, "of="+other, "bs=1M", "count=1")
	guest.Run(t, "dd", "if=/dev/urandom", "of="+other, "bs=512", "seek=77", "count=1", "conv=notrunc")
	if ran := guest.Krpingctl(t, "verify", dev, "--backing", other, "--size", "1MiB"); ran.Code != 3 || !strings.Contains(ran.Stderr, "512 bytes at offset 39424") {
		t.Errorf("verify with another disk: exit code %d\n%s", ran.Code, ran.Stderr)
	}
}

// traced checks that each bio of a write is traced with the stages that disks of other drivers have.
func traced(t *testing.T, dev string) {
	t.Helper()
	trace := startTrace(t, dev)
	const bios = 16
	guest.MustKrpingctl(t, "write", dev, "--size", "1MiB", "--bs", "64KiB", "--direct", "--name", "traced")
	all := trace.bios(t, bios)
	for _, b := range all {
		if b.Comm != "traced" || "/dev/"+b.Device != dev || b.Op != "WRITE" || b.Bytes != 64<<10 || b.Queue <= 0 || b.Queue >= b.Total || b.Parts != 1 || b.Requeues != 0 {
			t.Errorf("traced: %+v", b)
		}
	}
	if len(all) != bios {
		t.Errorf("%d bios traced, want %d", len(all), bios)
	}
	if problems := trace.end(t); strings.Contains(problems, "incomplete") {
		t.Errorf("the trace reports: %s", problems)
	}
}

// Targets are removed and restored from a saved file under I/O, which waits and then continues.
func TestTargetRestoredUnderIO(t *testing.T) {
	var controllers []string
	var loads []*guest.Load
	for _, transport := range transports {
		name := nqn + "-" + transport.name
		serve(t, "--transport", transport.name, "--port", transport.port, "--nqn", name, "--device", guest.NullDisk(t, "nvmetest-"+transport.name, nil))
		c, dev := connect(t, "--transport", transport.name, "--trsvcid", transport.port, "--nqn", name, "--reconnect-delay", "1")
		controllers = append(controllers, c.Name)
		loads = append(loads, guest.StartFio(t, dev, "--rw=randwrite", "--bs=4k", "--iodepth=4", "--size=8M", "--io_size=1g", "--time_based", "--runtime=6", "--verify_backlog=64"))
	}
	become := func(state string) {
		for _, name := range controllers {
			guest.Eventually(t, 20*time.Second, name+" is "+state, func() bool { return stateOf(t, name) == state })
		}
	}
	file := filepath.Join(t.TempDir(), "saved.json")
	nvme(t, "target", "save", file)
	nvme(t, "target", "remove", "--all")
	become("connecting")
	if served := targets(t); len(served) != 0 {
		t.Errorf("after target remove --all: %+v", served)
	}
	nvme(t, "target", "restore", file)
	become("live")
	for _, load := range loads {
		load.Succeeds()
	}
	nvme(t, "disconnect", "--all")
	nvme(t, "target", "remove", "--all")
	clean(t)
}

func stateOf(t *testing.T, controller string) string {
	t.Helper()
	for _, c := range controllers(t) {
		if c.Name == controller {
			return c.State
		}
	}
	t.Fatalf("controller %s is gone", controller)
	return ""
}

// A subsystem at two addresses is one disk with two paths.
func TestTwoPathsToOneDisk(t *testing.T) {
	quietly(t)
	serve(t, "--nqn", nqn, "--null", "16MiB")
	serve(t, "--nqn", nqn, "--transport", "tcp", "--port", "4421")
	over, dev := connect(t, "--nqn", nqn)
	_, same := connect(t, "--nqn", nqn, "--transport", "tcp", "--trsvcid", "4421")
	if dev != same {
		t.Errorf("%s over rdma, %s over tcp", dev, same)
	}
	nvme(t, "disconnect", "--device", over.Name)
	guest.Fio(t, dev, "--rw=write", "--bs=64k", "--size=1M")
	if out := nvme(t, "disconnect", "--all"); out != "disconnected 1 controller\n" {
		t.Errorf("disconnect: %s", out)
	}
	nvme(t, "target", "remove", nqn)
	clean(t)
}

// A file on tmpfs, which has no direct I/O on 6.1, is served to a single host.
func TestServeFileToOneHost(t *testing.T) {
	needs.Test(t, needs.Once)
	quietly(t)
	file := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(file, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	const host = "nqn.2024-01.org.example:friend"
	serve(t, "--nqn", nqn, "--device", file, "--transport", "tcp", "--port", "4421", "--allow-host", host)
	_, dev := connect(t, "--nqn", nqn, "--transport", "tcp", "--trsvcid", "4421", "--hostnqn", host)
	guest.MustKrpingctl(t, "write", dev, "--size", "8MiB", "--direct", "--fsync")
	if out := guest.MustKrpingctl(t, "verify", dev, "--pattern", "random"); !strings.Contains(out, "8.0 MiB: device, target and what was written agree") {
		t.Errorf("verify: %s", out)
	}
	nvme(t, "disconnect", "--nqn", nqn)
	nvme(t, "target", "remove", nqn)
	clean(t)
}

// A mounted disk is not disconnected.
func TestMountedDiskIsNotDisconnected(t *testing.T) {
	needs.Test(t, needs.Once)
	serve(t, "--nqn", nqn, "--null", "16MiB", "--transport", "tcp")
	c, dev := connect(t, "--nqn", nqn, "--transport", "tcp")
	guest.Run(t, "mkfs.ext4", "-q", dev)
	dir := t.TempDir()
	guest.Run(t, "mount", dev, dir)
	fails(t, 1, []string{dev + " is mounted at " + dir}, "disconnect", "--device", c.Name).applyFix(t)
	nvme(t, "disconnect", "--device", c.Name)
	nvme(t, "target", "remove", nqn)
	clean(t)
}
