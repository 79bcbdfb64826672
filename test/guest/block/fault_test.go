// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

// kill -9 of the bridge under verified I/O, several times: requests wait, the client
// reconnects, everything is sent again, nothing is lost.
func TestBridgeKilledUnderLoad(t *testing.T) {
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9810, store, "32MiB")
	dev := guest.Attach(t, 9810, ",queues=2,depth=32")
	load := guest.StartWriting(t, dev, "15")
	const kills = 5
	for i := range kills {
		time.Sleep(time.Duration(1000+300*i) * time.Millisecond)
		bridge.Kill()
		guest.SessionBecomes(t, "reconnecting")
		time.Sleep(200 * time.Millisecond)
		restarted := time.Now()
		bridge = guest.StartBridge(t, 9810, store, "32MiB")
		guest.SessionBecomes(t, "live")
		t.Logf("live again %v after the bridge began to start", time.Since(restarted).Round(time.Millisecond))
	}
	load.Succeeds()
	s := guest.Session(t, "vol0")
	if s["errors"] != "0" || s["crc_errors"] != "0" {
		t.Errorf("errors=%s crc_errors=%s", s["errors"], s["crc_errors"])
	}
	if n, err := strconv.Atoi(s["reconnects"]); err != nil || n < kills {
		t.Errorf("reconnects=%s, want %d or more", s["reconnects"], kills)
	}
	guest.WantSame(t, dev, store)
}

// A target that does not come back fails the device after its timeout: I/O ends with EIO.
func TestBridgeGoneForGood(t *testing.T) {
	bridge := guest.StartBridge(t, 9811, guest.StorePath(t), "16MiB")
	dev := guest.OpenDirect(t, guest.Attach(t, 9811, ",timeout=3"))
	start := time.Now()
	bridge.Kill()
	_, err := dev.WriteAt(guest.Aligned(t, 4096), 0)
	if !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("write: %v, want EIO or ETIMEDOUT", err)
	}
	if took := time.Since(start); took < 2*time.Second {
		t.Errorf("the write ended after %v, want about 3 s", took)
	} else if took > guest.Slow(20*time.Second) {
		late.Errorf(t, "the write ended after %v, want about 3 s", took)
	}
	if state := guest.Session(t, "vol0")["state"]; state != "failed" {
		t.Errorf("state %s, want failed", state)
	}
}

// Stop ends at once while the target is lost, and pending I/O with it.
func TestStopWhileReconnecting(t *testing.T) {
	bridge := guest.StartBridge(t, 9812, guest.StorePath(t), "16MiB")
	dev := guest.OpenDirect(t, guest.Attach(t, 9812, ""))
	bridge.Kill()
	wrote := guest.StartWrite(t, dev, guest.Aligned(t, 65536))
	guest.SessionBecomes(t, "reconnecting")
	time.Sleep(500 * time.Millisecond)
	start := time.Now()
	if err := guest.Command("stop,block=vol0", guest.Limit); !errors.Is(err, unix.EBUSY) {
		t.Errorf("stop of an open device: %v, want EBUSY", err)
	}
	if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
		t.Errorf("forced stop: %v", err)
	}
	if took := time.Since(start); took > guest.Slow(2*time.Second) {
		late.Errorf(t, "stop took %v, want less than 2 s", took)
	}
	wrote.Fails(5 * time.Second)
}

func TestStopUnderLoad(t *testing.T) {
	guest.StartBridge(t, 9813, guest.StorePath(t), "32MiB")
	dev := guest.Attach(t, 9813, "")
	load := guest.StartWriting(t, dev, "60")
	guest.Eventually(t, 20*time.Second, "fio writes", func() bool { return guest.Session(t, "vol0")["writes"] != "0" })
	if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
		t.Errorf("stop: %v", err)
	}
	load.Fails()
}

// A forced stop does not wait for a silent target longer than 2 s.
func TestForcedStopOfASilentTarget(t *testing.T) {
	bridge := guest.StartBridge(t, 9818, guest.StorePath(t), "16MiB")
	dev := guest.OpenDirect(t, guest.Attach(t, 9818, ""))
	guest.Signal(t, bridge.Cmd, unix.SIGSTOP)
	wrote := guest.StartWrite(t, dev, guest.Aligned(t, 65536))
	time.Sleep(500 * time.Millisecond)
	start := time.Now()
	if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
		t.Errorf("forced stop: %v", err)
	}
	if took := time.Since(start); took > guest.Slow(4*time.Second) {
		late.Errorf(t, "stop took %v, want about 2 s", took)
	}
	wrote.Fails(guest.Limit)
}

// A target that is stopped for a while is waited for.
func TestBridgeStoppedAndContinued(t *testing.T) {
	bridge := guest.StartBridge(t, 9814, guest.StorePath(t), "16MiB")
	dev := guest.OpenDirect(t, guest.Attach(t, 9814, ""))
	guest.Signal(t, bridge.Cmd, unix.SIGSTOP)
	wrote := guest.StartWrite(t, dev, guest.Aligned(t, 65536))
	wrote.Waits(2 * time.Second)
	guest.Signal(t, bridge.Cmd, unix.SIGCONT)
	wrote.Succeeds(10 * time.Second)
}

// A writeback target that dies with unflushed writes has lost them: EIO, not silence.
func TestWritebackTargetKilled(t *testing.T) {
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9815, store, "16MiB", "--writeback")
	dev := guest.OpenDirect(t, guest.Attach(t, 9815, ""))
	guest.WriteAndSync(t, dev)
	bridge.Kill()
	bridge = guest.StartBridge(t, 9815, store, "16MiB", "--writeback")
	if _, err := dev.WriteAt(guest.Aligned(t, 4096), 4096); err != nil { // flushed before: goes on
		t.Fatalf("write after a flush and a restart: %v", err)
	}
	bridge.Kill()
	guest.StartBridge(t, 9815, store, "16MiB", "--writeback")
	if _, err := dev.WriteAt(guest.Aligned(t, 4096), 8192); !errors.Is(err, unix.EIO) {
		t.Errorf("write after an unflushed write was lost: %v, want EIO", err)
	}
	if state := guest.Session(t, "vol0")["state"]; state != "failed" {
		t.Errorf("state %s, want failed", state)
	}
}

// uverbsLast has the device files of RDMA come after the connection manager, as on a host that uses
// RDMA in the kernel before programs do: they are told first that a device goes.
func uverbsLast(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/sys/module/ib_uverbs/refcnt"); err != nil {
		return // built in, and so they are anyway
	}
	guest.RemoveDevice(t)
	for _, module := range []string{"rdma_ucm", "rdma_rxe", "ib_uverbs"} {
		guest.Run(t, "rmmod", module)
	}
	guest.Run(t, "modprobe", "-a", "rdma_rxe", "rdma_ucm")
	guest.AddDevice(t)
}

// A bridge lets go of a device that nobody tells it the removal of.
func TestDeviceRemovedWithoutAnEvent(t *testing.T) {
	uverbsLast(t)
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9819, store, "16MiB")
	dev := guest.OpenDirect(t, guest.Attach(t, 9819, ""))
	guest.WriteAndSync(t, dev)
	start := time.Now()
	bridge.RemoveDevice(t)
	t.Logf("the removal took %v", time.Since(start).Round(time.Millisecond))
	guest.AddDevice(t)
	guest.StartBridge(t, 9819, store, "16MiB")
	guest.SessionBecomes(t, "live")
	guest.WriteAndSync(t, dev)
}

// The RDMA device goes away under load and comes back.
func TestDeviceRemovedUnderLoad(t *testing.T) {
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9816, store, "32MiB")
	dev := guest.Attach(t, 9816, "")
	load := guest.StartWriting(t, dev, "8")
	time.Sleep(2 * time.Second)
	bridge.RemoveDevice(t)
	guest.AddDevice(t)
	guest.StartBridge(t, 9816, store, "32MiB")
	guest.SessionBecomes(t, "live")
	load.Succeeds()
	guest.WantSame(t, dev, store)
}

// A connection attempt that gets a signal leaves nothing behind.
func TestAttachInterrupted(t *testing.T) {
	if err := guest.Command("client,addr="+guest.Addr(t)+",port=9817,block=vol0", 0); !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("attach: %v", err)
	}
	if guest.Session(t, "vol0") != nil {
		t.Error("a session is left")
	}
	if _, err := os.Stat("/dev/krping0"); err == nil {
		t.Error("a device is left")
	}
}
