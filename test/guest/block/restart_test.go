// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/late"
	"krping/test/internal/needs"
)

// The target stops and starts again several times under verified I/O: requests wait, the client reconnects and
// sends them again, and nothing is lost.
func TestTargetRestartsUnderLoad(t *testing.T) {
	needs.Test(t, needs.Ends)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, dev := attach(t, target, 16*mib, targets.Config{}, ",queues=2,depth=32")
		restarts, pause := 10, 200*time.Millisecond
		if served.Bridge != nil { // it starts more slowly
			restarts, pause = 5, time.Second
		}
		if testing.Short() {
			restarts /= 2
		}
		load := guest.StartWriting(t, dev)
		for i := range restarts {
			time.Sleep(pause + time.Duration(i)*pause/4)
			served.Stop()
			guest.SessionBecomes(t, "reconnecting")
			restarted := time.Now()
			served = served.Again(t)
			guest.SessionBecomes(t, "live")
			t.Logf("live again %v after the target began to start", time.Since(restarted).Round(time.Millisecond))
		}
		load.Stop()
		krpingctl(t, "verify", dev)
		guest.WantSame(t, dev, served.Store)
		session := guest.Session(t, "vol0")
		guest.WantFields(t, session, "errors", "0", "crc_errors", "0")
		if n, err := strconv.Atoi(session["reconnects"]); err != nil || n < restarts {
			t.Errorf("reconnects=%s, want %d or more", session["reconnects"], restarts)
		}
		served.WantVolume(t, "errors", "0", "crc_errors", "0", "violations", "0")
	})
}

// A write waits while the target is away, and is done when it is back.
func TestWriteWaitsForTarget(t *testing.T) {
	needs.Test(t, needs.Ends)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, path := attach(t, target, 16*mib, targets.Config{}, "")
		dev := guest.OpenDirect(t, path)
		served.Stop()
		data := guest.Aligned(t, 65536)
		copy(data, "waited")
		write := guest.StartWrite(t, dev, data)
		write.Waits(2 * time.Second)
		served.Again(t)
		write.Succeeds(10 * time.Second)
		if out := guest.Run(t, "head", "-c", "6", served.Store); out != "waited" {
			t.Errorf("the store begins with %q, want %q", out, "waited")
		}
	})
}

// If the target does not come back within timeout=, the session fails and I/O ends with EIO.
func TestTargetStaysAway(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, path := attach(t, target, 16*mib, targets.Config{}, ",timeout=3")
		dev := guest.OpenDirect(t, path)
		start := time.Now()
		served.Stop()
		_, err := dev.WriteAt(guest.Aligned(t, 4096), 0)
		if !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ETIMEDOUT) {
			t.Errorf("write: %v, want EIO or ETIMEDOUT", err)
		}
		if took := time.Since(start); took < 2*time.Second {
			t.Errorf("the write failed after %v, want about 3 s", took)
		} else if took > guest.Slow(20*time.Second) {
			late.Errorf(t, "the write failed after %v, want about 3 s", took)
		}
		guest.WantFields(t, guest.Session(t, "vol0"), "state", "failed")
	})
}

// A forced stop while the target is away ends at once, and pending I/O with it.
func TestStopWhileReconnecting(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, path := attach(t, target, 16*mib, targets.Config{}, "")
		dev := guest.OpenDirect(t, path)
		served.Stop()
		write := guest.StartWrite(t, dev, guest.Aligned(t, 65536))
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
		write.Fails(5 * time.Second)
	})
}

func TestStopUnderLoad(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		_, dev := attach(t, target, 32*mib, targets.Config{}, "")
		load := guest.StartWriting(t, dev)
		writing(t)
		if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
			t.Errorf("stop: %v", err)
		}
		load.Fails()
	})
}

// writing waits until writes reach the target.
func writing(t *testing.T) {
	t.Helper()
	guest.Eventually(t, time.Minute, "fio writes", func() bool { return guest.Session(t, "vol0")["writes"] != "0" })
}

// A forced stop waits at most 2 s for a target that does not respond.
func TestForcedStopOfUnresponsiveTarget(t *testing.T) {
	needs.Test(t, needs.Ends)
	served, path := attach(t, targets.Bridge, 16*mib, targets.Config{}, "")
	dev := guest.OpenDirect(t, path)
	guest.Signal(t, served.Bridge.Cmd, unix.SIGSTOP)
	write := guest.StartWrite(t, dev, guest.Aligned(t, 65536))
	time.Sleep(500 * time.Millisecond)
	start := time.Now()
	if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
		t.Errorf("forced stop: %v", err)
	}
	if took := time.Since(start); took > guest.Slow(4*time.Second) {
		late.Errorf(t, "stop took %v, want about 2 s", took)
	}
	write.Fails(guest.Limit)
}

// A write waits for a target that is suspended for a while.
func TestBridgeSuspendedAndContinued(t *testing.T) {
	needs.Test(t, needs.Once)
	served, path := attach(t, targets.Bridge, 16*mib, targets.Config{}, "")
	dev := guest.OpenDirect(t, path)
	guest.Signal(t, served.Bridge.Cmd, unix.SIGSTOP)
	write := guest.StartWrite(t, dev, guest.Aligned(t, 65536))
	write.Waits(2 * time.Second)
	guest.Signal(t, served.Bridge.Cmd, unix.SIGCONT)
	write.Succeeds(10 * time.Second)
}

// Each start of a write-back target has a new epoch. After a restart the client fails if the old target had
// unflushed writes, and continues if all were flushed.
func TestWritebackTargetRestarts(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, path := attach(t, target, 16*mib, targets.Config{Writeback: true}, "")
		dev := guest.OpenDirect(t, path)
		guest.WriteAndSync(t, dev)
		served.Stop()
		served = served.Again(t)
		if _, err := dev.WriteAt(guest.Aligned(t, 4096), 4096); err != nil {
			t.Fatalf("write after a flush and a restart: %v", err)
		}
		served.Stop()
		served.Again(t)
		if _, err := dev.WriteAt(guest.Aligned(t, 4096), 8192); !errors.Is(err, unix.EIO) {
			t.Errorf("write after an unflushed write was lost: %v, want EIO", err)
		}
		guest.WantFields(t, guest.Session(t, "vol0"), "state", "failed")
	})
}

// A signal during the connection attempt leaves neither a session nor a device.
func TestAttachInterrupted(t *testing.T) {
	err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,block=vol0", guest.Addr(t), guest.NextPort()), 0)
	if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("attach: %v, want EINTR or ECONNREFUSED", err)
	}
	if guest.Session(t, "vol0") != nil {
		t.Error("a session is left")
	}
	if _, err := os.Stat("/dev/krping0"); err == nil {
		t.Error("a device is left")
	}
}
