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

	"krping/test/internal/late"
	"krping/test/internal/nic"
)

// RemoveDevice deletes the RDMA device.
func RemoveDevice(t testing.TB) {
	t.Helper()
	Run(t, "rdma", "link", "delete", Device(t))
}

// AddDevice creates the RDMA device again.
func AddDevice(t testing.TB) {
	t.Helper()
	Run(t, "rdma", "link", "add", Device(t), "type", strings.TrimSuffix(Device(t), "0"), "netdev", "eth0")
}

// RemoveDevice deletes the RDMA device, which the bridge releases.
func (b *Bridge) RemoveDevice(t testing.TB) {
	t.Helper()
	b.LosesDevice(t, func() { RemoveDevice(t) })
}

// LosesDevice calls remove, which removes the RDMA device. The kernel waits there until the bridge has
// released the device. If the bridge does not, SIGQUIT makes it print its stacks and die.
func (b *Bridge) LosesDevice(t testing.TB, remove func()) {
	t.Helper()
	limit := Slow(late.Limit(20 * time.Second))
	hangs := time.AfterFunc(limit, func() {
		late.Errorf(t, "the bridge still holds the device after %v%s", limit, BlockedTasks())
		_ = b.Cmd.Process.Signal(unix.SIGQUIT)
	})
	defer hangs.Stop()
	lost := b.lost()
	remove()
	Eventually(t, 10*time.Second, "the bridge says that its device is gone", func() bool { return b.lost() > lost })
}

// lost and returned count how often the bridge has lost its device, and listened again, at all addresses.
func (b *Bridge) lost() int {
	return strings.Count(b.Log.String(), "the RDMA device is being removed address=")
}
func (b *Bridge) returned() int { return strings.Count(b.Log.String(), "serving again address=") }

// Returns waits until the bridge listens again on all addresses that it has lost.
func (b *Bridge) Returns(t testing.TB) {
	t.Helper()
	Eventually(t, 10*time.Second, "the bridge is serving again", func() bool { return b.returned() == b.lost() })
}

// RemoveNIC unplugs the network device, and with it the RDMA device on it. The function that it returns plugs
// it in again and restores its addresses and the RDMA device.
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

// AddAddress gives eth0 one more address, until the end of the test. The RDMA device knows it a moment later.
func AddAddress(t testing.TB, prefix string, more ...string) {
	t.Helper()
	Run(t, append([]string{"ip", "addr", "add", prefix, "dev", "eth0"}, more...)...)
	t.Cleanup(func() { Run(t, "ip", "addr", "del", prefix, "dev", "eth0") })
}

// LinkLocal returns the link-local IPv6 address of eth0, without the scope.
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

// SentPackets returns how many packets the Soft-RoCE device has sent.
func SentPackets(t testing.TB) int {
	t.Helper()
	return Number(t, "/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts")
}

// CheckResources checks, when the test and its subtests have ended, that no thread of the module and no
// RDMA resource is left.
func CheckResources(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		NoThreads(t)
		NoResources(t)
	})
}
