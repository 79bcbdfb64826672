// SPDX-License-Identifier: Apache-2.0

//go:build lab

package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/internal/acklog"
	"krping/test/internal/needs"
)

// A volume in memory outlives the RDMA device, its driver and the modules for programs: all acknowledged writes are there, and the client, whose
// session would fail if data could have been lost, goes on.
func TestMemoryOutlivesTheDriver(t *testing.T) {
	needs.Test(t, needs.StockKernel) // in the debug kernel the driver is no module
	r := newRig(t, "16MiB", ",queues=2,depth=32", "--store", "mem:")
	r.store = r.dev // there is no other way to its data
	r.suffer("driver reloaded", func(r *rig) {
		r.bridge.RemoveDevice(t)
		for _, module := range []string{"rdma_rxe", "rdma_ucm", "ib_uverbs"} {
			guest.Eventually(t, 5*time.Second, module+" is unloaded", func() bool { // unless the bridge just looks for a device
				_, err := guest.TryRun("rmmod", module)
				return err == nil
			})
		}
		time.Sleep(time.Second)
		guest.Run(t, "modprobe", "-a", "rdma_rxe", "rdma_ucm")
		guest.AddDevice(t)
		r.bridge.Returns(t)
	})
	guest.WantFields(t, guest.Session(t, "vol0"), "errors", "0")
}

// otherAddr is the address of another RDMA device of the guest, rxe5.
const otherAddr = "10.5.0.1"

func addNetdev(t *testing.T) {
	t.Helper()
	guest.Run(t, "ip", "link", "add", "veth5", "mtu", "4300", "type", "veth", "peer", "name", "peer5")
	guest.Run(t, "ip", "addr", "add", otherAddr+"/24", "dev", "veth5")
	guest.Run(t, "ip", "link", "set", "peer5", "up")
	guest.Run(t, "ip", "link", "set", "veth5", "up")
}

func delNetdev(t *testing.T) {
	t.Helper()
	guest.Run(t, "ip", "link", "del", "veth5")
}

// otherDevice makes the other device, until the end of the test.
func otherDevice(t *testing.T) (remove, add func()) {
	t.Helper()
	remove = func() { guest.Run(t, "rdma", "link", "del", "rxe5") }
	add = func() { guest.Run(t, "rdma", "link", "add", "rxe5", "type", "rxe", "netdev", "veth5") }
	addNetdev(t)
	t.Cleanup(func() { delNetdev(t) })
	add()
	return remove, add
}

// attachOther attaches vol5 at the other address, and returns a check that it works within the documented limit.
func attachOther(t *testing.T) (works func()) {
	t.Helper()
	if err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,block=vol5", otherAddr, port), guest.Limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := guest.Command("stop,block=vol5,force", guest.Limit); err != nil {
			t.Error(err)
		}
	})
	dev := guest.OpenDirect(t, "/dev/"+guest.Session(t, "vol5")["dev"])
	return func() {
		t.Helper()
		guest.Eventually(t, 30*time.Second, "vol5 is live", func() bool { return guest.Session(t, "vol5")["state"] == "live" })
		guest.WriteAndSync(t, dev)
	}
}

// One of two devices is removed, and comes back. What is served through the other one goes on all the time.
func TestOneOfTwoDevicesRemoved(t *testing.T) {
	for name, listen := range map[string][]string{
		"two addresses": {"--listen", fmt.Sprintf("%s:%d", guest.Addr(t), port), "--listen", fmt.Sprintf("%s:%d", otherAddr, port)},
		"all addresses": {"--listen", fmt.Sprintf("0.0.0.0:%d", port)},
	} {
		t.Run(name, func(t *testing.T) {
			remove, add := otherDevice(t)
			r := newRig(t, "16MiB", ",queues=2,depth=32,heartbeat=0", append(listen, "--volume", "vol5=mem:,size=8MiB")...)
			works := attachOther(t)
			works()
			r.write(acklog.Load{FsyncOne: 50, ReadOne: 4})
			for range 2 { // the second time the device is one that the bridge has found later
				start := time.Now()
				remove()
				t.Logf("the removal took %v", time.Since(start).Round(time.Millisecond))
				guest.Eventually(t, 10*time.Second, "vol5 has lost its device", func() bool { return guest.Session(t, "vol5")["state"] == "reconnecting" })
				r.progress(20)
				add()
				works()
			}
			if err := r.stopped(); err != nil {
				r.fail("the writer sees %v", err)
			}
			r.check(false)
			guest.WantFields(t, guest.Session(t, "vol0"), "errors", "0", "reconnects", "0")
			guest.WantFields(t, guest.Session(t, "vol5"), "errors", "0")
		})
	}
}

// The address is removed for a while; then the network device, and with it the RDMA device, is. krpingctl link keep makes
// that anew.
func TestAddressRemoved(t *testing.T) {
	needs.Test(t, needs.Once)
	addNetdev(t)
	t.Cleanup(func() { delNetdev(t) })
	guest.Start(t, guest.Binary(t, "krpingctl"), "link", "keep", "veth5")
	guest.Eventually(t, 10*time.Second, "the RDMA device is there", func() bool { return strings.Contains(guest.Run(t, "rdma", "link"), "rxe_veth5") })
	newRig(t, "16MiB", "", "--listen", fmt.Sprintf("%s:%d", guest.Addr(t), port), "--listen", fmt.Sprintf("%s:%d", otherAddr, port), "--volume", "vol5=mem:,size=8MiB")
	works := attachOther(t)
	works()
	for _, away := range []time.Duration{500 * time.Millisecond, 8 * time.Second} {
		guest.Run(t, "ip", "addr", "del", otherAddr+"/24", "dev", "veth5")
		time.Sleep(away)
		guest.Run(t, "ip", "addr", "add", otherAddr+"/24", "dev", "veth5")
		works()
	}
	delNetdev(t)
	time.Sleep(time.Second)
	addNetdev(t)
	works()
	guest.WantFields(t, guest.Session(t, "vol5"), "errors", "0")
}
