// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

// Stopped and served again ten times under verified I/O: nothing is lost.
func TestStoppedUnderLoad(t *testing.T) {
	leavesNothing(t)
	disk := loop(t, "32M")
	guest.Serve(t, "vol0", port, "backing="+disk)
	dev := guest.Attach(t, port, ",queues=2,depth=32")
	load := guest.StartWriting(t, dev, "15")
	for range 10 {
		time.Sleep(200 * time.Millisecond)
		guest.StopServing(t, "vol0")
		guest.Serve(t, "vol0", port, "backing="+disk)
		guest.SessionBecomes(t, "live")
	}
	load.Succeeds()
	verify(t, dev)
	guest.WantSame(t, dev, disk)
	wants(t, guest.Session(t, "vol0"), "errors", "0", "crc_errors", "0")
	wants(t, guest.Volume(t, "vol0"), "errors", "0", "crc_errors", "0", "violations", "0")
}

// The client waits for a volume that is away, and goes on when it is served again.
func TestClientWaits(t *testing.T) {
	disk := loop(t, "16M")
	guest.Serve(t, "vol0", port, "backing="+disk)
	dev := guest.OpenDirect(t, guest.Attach(t, port, ""))
	guest.StopServing(t, "vol0")
	data := guest.Aligned(t, 65536)
	copy(data, "waited")
	wrote := guest.StartWrite(t, dev, data)
	wrote.Waits(2 * time.Second)
	guest.Serve(t, "vol0", port, "backing="+disk)
	wrote.Succeeds(10 * time.Second)
	if out := guest.Run(t, "head", "-c", "6", disk); out != "waited" {
		t.Errorf("the disk begins with %q", out)
	}
}

// Each start has another epoch: unflushed writes of before count as lost, flushed ones do not.
func TestWritebackStopped(t *testing.T) {
	options := "writeback,backing=" + loop(t, "16M")
	guest.Serve(t, "vol0", port, options)
	dev := guest.OpenDirect(t, guest.Attach(t, port, ""))
	guest.WriteAndSync(t, dev)
	guest.StopServing(t, "vol0")
	guest.Serve(t, "vol0", port, options)
	if _, err := dev.WriteAt(guest.Aligned(t, 4096), 4096); err != nil {
		t.Fatalf("write after a flush and a restart: %v", err)
	}
	guest.StopServing(t, "vol0")
	guest.Serve(t, "vol0", port, options)
	if _, err := dev.WriteAt(guest.Aligned(t, 4096), 8192); !errors.Is(err, unix.EIO) {
		t.Errorf("write after an unflushed write was lost: %v, want EIO", err)
	}
	wants(t, guest.Session(t, "vol0"), "state", "failed")
}

// What was in memory is gone with the volume, flushed or not: its client gets EIO, not zeros.
func TestMemoryStopped(t *testing.T) {
	guest.Serve(t, "vol0", port, "backing=ram:8M")
	dev := guest.OpenDirect(t, guest.Attach(t, port, ""))
	guest.WriteAndSync(t, dev)
	guest.StopServing(t, "vol0")
	guest.Serve(t, "vol0", port, "backing=ram:8M")
	if _, err := dev.ReadAt(guest.Aligned(t, 4096), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("read after the memory was lost: %v, want EIO", err)
	}
	wants(t, guest.Session(t, "vol0"), "state", "failed")
}

// The RDMA device goes away under load and comes back: so do the volume and its client.
func TestDeviceRemovedUnderLoad(t *testing.T) {
	disk := loop(t, "32M")
	guest.Serve(t, "vol0", port, "backing="+disk)
	dev := guest.Attach(t, port, "")
	load := guest.StartWriting(t, dev, "6")
	time.Sleep(2 * time.Second)
	start := time.Now()
	guest.RemoveDevice(t)
	if took := time.Since(start); took > guest.Slow(5*time.Second) {
		late.Errorf(t, "the removal of the device took %v", took)
	}
	wants(t, guest.Volume(t, "vol0"), "state", "no_device", "queues", "0")
	guest.AddDevice(t)
	guest.Eventually(t, 10*time.Second, "the volume is served again", func() bool { return guest.Volume(t, "vol0")["state"] == "live" })
	guest.SessionBecomes(t, "live")
	load.Succeeds()
	guest.WantSame(t, dev, disk)
}

// A link-local address means something with an interface only, which has another index when it is back.
func TestNICRemovedLinkLocal(t *testing.T) {
	at := fmt.Sprintf("addr6=%s%%eth0,port=%d,block=vol0", guest.LinkLocal(t), port)
	if err := guest.Command("server,"+at+",backing="+loop(t, "16M"), guest.Limit); err != nil {
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
	guest.Eventually(t, 10*time.Second, "the volume is served again", func() bool { return guest.Volume(t, "vol0")["state"] == "live" })
	guest.SessionBecomes(t, "live")
	guest.WriteAndSync(t, dev)
}

// A volume whose RDMA device is gone can be stopped.
func TestStopWithoutDevice(t *testing.T) {
	guest.Serve(t, "vol0", port, "backing=ram:8M")
	guest.RemoveDevice(t)
	defer guest.AddDevice(t)
	guest.Eventually(t, 5*time.Second, "the volume says so", func() bool { return guest.Volume(t, "vol0")["state"] == "no_device" })
	guest.StopServing(t, "vol0")
}
