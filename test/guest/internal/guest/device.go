// SPDX-License-Identifier: Apache-2.0

//go:build lab

package guest

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/internal/nic"
)

// RemoveDevice takes the RDMA device away.
func RemoveDevice(t testing.TB) {
	t.Helper()
	Run(t, "rdma", "link", "delete", Device(t))
}

// AddDevice makes the RDMA device again.
func AddDevice(t testing.TB) {
	t.Helper()
	Run(t, "rdma", "link", "add", Device(t), "type", strings.TrimSuffix(Device(t), "0"), "netdev", "eth0")
}

// RemoveDevice takes the RDMA device away.
func (b *Bridge) RemoveDevice(t testing.TB) {
	t.Helper()
	b.LosesDevice(t, func() { RemoveDevice(t) })
}

// LosesDevice removes the device by a call, for which the kernel waits until the bridge, which ends by
// itself, has let go of it: one that does not says where it is, and is killed by that.
func (b *Bridge) LosesDevice(t testing.TB, remove func()) {
	t.Helper()
	limit := Slow(20 * time.Second)
	hangs := time.AfterFunc(limit, func() {
		t.Errorf("after %v the bridge has the device still%s", limit, BlockedTasks())
		_ = b.Cmd.Process.Signal(unix.SIGQUIT)
	})
	defer hangs.Stop()
	remove()
	if err := b.Cmd.Wait(); err == nil {
		t.Error("the bridge's exit status does not tell that its device is gone")
	}
}

// RemoveNIC unplugs the network device below the RDMA device, and with it that. It returns what plugs it
// in again and gives it back its addresses and the RDMA device.
func RemoveNIC(t testing.TB) (add func()) {
	t.Helper()
	path, err := filepath.EvalSymlinks("/sys/class/net/eth0/device")
	if err != nil {
		t.Fatal(err)
	}
	driver := func(file string) {
		t.Helper()
		if err := os.WriteFile("/sys/bus/virtio/drivers/virtio_net/"+file, []byte(filepath.Base(path)), 0); err != nil {
			t.Fatal(err)
		}
	}
	driver("unbind")
	return func() {
		driver("bind")
		if err := nic.Up(Addr(t)[strings.LastIndexByte(Addr(t), '.')+1:]); err != nil {
			t.Fatal(err)
		}
		AddDevice(t)
	}
}

// LinkLocal returns the IPv6 address of eth0 that needs its name.
func LinkLocal(t testing.TB) string {
	t.Helper()
	eth0, err := net.InterfaceByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := eth0.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range addrs {
		if ip := addr.(*net.IPNet).IP; ip.IsLinkLocalUnicast() && ip.To4() == nil {
			return ip.String()
		}
	}
	t.Fatalf("eth0 has no link-local address: %v", addrs)
	return ""
}

// SentPackets is how many the Soft-RoCE device has sent.
func SentPackets(t testing.TB) int {
	t.Helper()
	return Number(t, "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts")
}
