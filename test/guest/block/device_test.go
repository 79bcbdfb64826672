// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"fmt"
	"os"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

// The RDMA device cannot be removed while a process uses it, so no test of this suite connects from user space itself.

// The RDMA device is removed under load and added again.
func TestDeviceRemovedUnderLoad(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, dev := attach(t, target, 16*mib, targets.Config{}, "")
		load := guest.StartWriting(t, dev)
		writing(t)
		time.Sleep(500 * time.Millisecond)
		served.RemoveDevice(t)
		guest.AddDevice(t)
		served.Return(t)
		guest.SessionBecomes(t, "live")
		load.Stop()
		guest.WantSame(t, dev, served.Store)
	})
}

// uverbsLast reloads the modules so that ib_uverbs registers after the connection manager, as on a host where the
// kernel uses RDMA before programs do. ib_uverbs is then the first to be told that a device is removed.
func uverbsLast(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/sys/module/ib_uverbs/refcnt"); err != nil {
		return // built in: it is last already
	}
	guest.RemoveDevice(t)
	for _, module := range []string{"rdma_ucm", "rdma_rxe", "ib_uverbs"} {
		guest.Run(t, "rmmod", module)
	}
	guest.Run(t, "modprobe", "-a", "rdma_rxe", "rdma_ucm")
	guest.AddDevice(t)
}

// The bridge releases its device although no event tells it of the removal.
func TestDeviceRemovedWithoutAnEvent(t *testing.T) {
	uverbsLast(t)
	served, path := attach(t, targets.Bridge, 16*mib, targets.Config{}, "")
	dev := guest.OpenDirect(t, path)
	guest.WriteAndSync(t, dev)
	start := time.Now()
	served.RemoveDevice(t)
	t.Logf("the removal took %v", time.Since(start).Round(time.Millisecond))
	guest.AddDevice(t)
	served.Return(t)
	guest.SessionBecomes(t, "live")
	guest.WriteAndSync(t, dev)
}

// A volume on a link-local address comes back with its interface, whose index is another one then.
func TestNICRemovedLinkLocal(t *testing.T) {
	at := fmt.Sprintf("addr6=%s%%eth0,port=%d,block=vol0", guest.LinkLocal(t), guest.NextPort())
	if err := guest.Command("server,"+at+",backing="+targets.Loop(t, 16*mib), guest.Limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { guest.StopServing(t, "vol0") })
	if err := guest.Command("client,"+at, guest.Limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
			t.Error(err)
		}
	})
	dev := guest.OpenDirect(t, "/dev/"+guest.Session(t, "vol0")["dev"])
	guest.WriteAndSync(t, dev)
	plugIn := guest.RemoveNIC(t)
	guest.SessionBecomes(t, "reconnecting")
	plugIn()
	guest.VolumeBecomes(t, "live")
	guest.SessionBecomes(t, "live")
	guest.WriteAndSync(t, dev)
}

// A volume without an RDMA device can be stopped.
func TestStopWithoutDevice(t *testing.T) {
	served := targets.Module.Serve(t, targets.Config{Store: "ram:8M"})
	guest.RemoveDevice(t)
	defer guest.AddDevice(t)
	guest.VolumeBecomes(t, "no_device")
	served.Stop()
}
