// SPDX-License-Identifier: Apache-2.0

//go:build lab

package faults

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/acklog"
	"krping/test/internal/late"
	"krping/test/internal/needs"
	"krping/test/internal/soak"
)

// wantEIO waits for the end of the load: every worker must see an I/O error.
func (r *rig) wantEIO(limit time.Duration) {
	r.t.Helper()
	select {
	case <-r.run.Done():
	case <-time.After(limit):
		r.fail("the writer sees no error within %v%s", limit, guest.BlockedTasks())
	}
	err := r.stopped()
	all, _ := err.(interface{ Unwrap() []error })
	if all == nil {
		r.fail("the writer sees %v, want EIO", err)
	}
	for _, err := range all.Unwrap() {
		if !errors.Is(err, unix.EIO) {
			r.fail("a worker sees %v, want EIO", err)
		}
	}
}

// A killed write-back target loses unflushed writes, and the client gets EIO. Flushed writes are kept.
func TestWritebackTargetKilledUnderLoad(t *testing.T) {
	needs.Test(t, needs.Once)
	r := newRig(t, "16MiB", ",queues=2,depth=32", "--writeback")
	r.write(acklog.Load{FsyncOne: 5, ReadOne: 4})
	r.progress(100)
	if err := r.stopped(); err != nil {
		t.Fatal(err)
	}
	r.write(acklog.Load{})
	r.bridge.Kill()
	r.check(true)
	r.start()
	r.wantEIO(patience)
	if state := r.state(); state != "failed" {
		t.Errorf("state %s, want failed", state)
	}
	r.check(true)
}

// A write-back target that is killed after a flush loses nothing.
func TestWritebackTargetKilledAfterFlush(t *testing.T) {
	needs.Test(t, needs.Once)
	r := newRig(t, "16MiB", ",queues=2,depth=32", "--writeback")
	r.write(acklog.Load{FsyncOne: 5, ReadOne: 4})
	r.progress(50)
	if err := r.stopped(); err != nil {
		t.Fatal(err)
	}
	dev, err := os.OpenFile(r.dev, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := dev.Sync(); err != nil {
		t.Fatal(err)
	}
	r.bridge.Kill()
	r.check(false) // everything: no write was acknowledged after the flush
	r.start()
	r.write(acklog.Load{FsyncOne: 5, ReadOne: 4})
	if err := r.stopped(); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	r.check(false)
}

// A forced stop under load ends in time, whatever the target does, and ends all I/O.
func TestForcedStopUnderLoad(t *testing.T) {
	needs.Test(t, needs.Once)
	for name, fault := range map[string]func(r *rig){
		"target works":  func(*rig) {},
		"target killed": func(r *rig) { r.bridge.Kill() },
		"target killed and loss detected": func(r *rig) {
			r.bridge.Kill()
			guest.Eventually(r.t, patience, "the loss is detected", func() bool { return r.state() == "reconnecting" })
			r.sleep(0, time.Second)
		},
		"target suspended": func(r *rig) { r.signal(unix.SIGSTOP) },
		"target suspended for a while": func(r *rig) {
			r.signal(unix.SIGSTOP)
			time.Sleep(4 * time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "16MiB", ",queues=2,depth=32")
			r.write(acklog.Load{ReadOne: 4})
			fault(r)
			start := time.Now()
			if err := guest.Command("stop,block=vol0,force", patience); err != nil {
				r.fail("forced stop: %v", err)
			}
			took := time.Since(start)
			t.Logf("stop took %v", took.Round(time.Millisecond))
			if took > stopLimit+slow {
				late.Errorf(t, "stop took %v, want at most %v", took.Round(time.Millisecond), stopLimit)
			}
			r.wantEnd(10 * time.Second)
			r.check(false)
			r.left()
		})
	}
}

// wantEnd waits for the end of a load whose device was removed.
func (r *rig) wantEnd(limit time.Duration) {
	r.t.Helper()
	guest.Within(r.t, limit, "I/O ends after the stop", r.run.Done())
	if err := r.stopped(); err == nil || errors.As(err, new(*acklog.HungError)) {
		r.t.Errorf("the writer got %v, want an I/O error", err)
	}
}

// left fails if anything of the session is left.
func (r *rig) left() {
	r.t.Helper()
	if guest.Session(r.t, "vol0") != nil {
		r.t.Error("the session is left")
	}
	if _, err := os.Stat(r.dev); err == nil {
		r.t.Errorf("%s is left", r.dev)
	}
	guest.Eventually(r.t, 20*time.Second, "the module holds no RDMA resource", func() bool {
		return !strings.Contains(guest.Run(r.t, "rdma", "resource", "show", "qp"), "[rdma_krping]")
	})
}

// A device in use cannot be stopped, nor the module unloaded. After a forced stop it can.
func TestStopAndUnloadUnderLoad(t *testing.T) {
	r := newRig(t, "16MiB", ",queues=2,depth=32")
	r.write(acklog.Load{FsyncOne: 50, ReadOne: 4})
	if err := guest.Command("stop,block=vol0", patience); !errors.Is(err, unix.EBUSY) {
		t.Errorf("stop of a device in use: %v, want EBUSY", err)
	}
	if out, err := guest.TryRun("rmmod", "rdma_krping"); err == nil {
		t.Fatalf("the module was unloaded under load: %s", out)
	}
	r.progress(20)
	if err := r.stopped(); err != nil {
		t.Errorf("the writer got %v", err)
	}
	r.check(false)
	if err := guest.Command("stop,block=vol0", patience); err != nil {
		t.Errorf("stop: %v", err)
	}
	r.left()
	guest.Run(t, "rmmod", "rdma_krping")
	guest.Run(t, "insmod", guest.Module(t))
	r.dev = guest.Attach(t, port, "")
	r.write(acklog.Load{ReadOne: 4})
	if err := r.stopped(); err != nil {
		t.Errorf("after loading the module again: %v", err)
	}
	r.check(false)
}

// The RDMA device is removed for good under load: I/O fails after the timeout.
func TestDeviceRemovedForGood(t *testing.T) {
	r := newRig(t, "16MiB", ",queues=2,depth=32,timeout=3")
	r.write(acklog.Load{ReadOne: 4})
	defer guest.AddDevice(t)
	start := time.Now()
	r.bridge.RemoveDevice(t)
	r.wantEIO(patience)
	t.Logf("I/O failed %v after the removal began", time.Since(start).Round(time.Millisecond))
	r.check(false)
	if err := guest.Command("stop,block=vol0,force", patience); err != nil {
		t.Errorf("stop: %v", err)
	}
	r.left()
}

// Attaching and stopping sessions leaks neither memory nor RDMA resources.
func TestAttachAndStopCycles(t *testing.T) {
	needs.Test(t, needs.Once)
	cycles := 100
	if soak.Duration(t) > 0 {
		cycles = 1000
	}
	guest.StartBridge(t, port, guest.StorePath(t), "16MiB")
	resources := guest.Resources(t) // those of the bridge
	cycle := func() {
		if err := guest.Command("client,addr="+guest.Addr(t)+",port="+strconv.Itoa(port)+",block=vol0,depth=16", patience); err != nil {
			t.Fatalf("attach: %v", err)
		}
		if err := guest.Command("stop,block=vol0", patience); err != nil {
			t.Fatalf("stop: %v", err)
		}
	}
	for range 10 { // for what the kernel allocates once
		cycle()
	}
	before := guest.Slab(t)
	start := time.Now()
	for range cycles {
		cycle()
	}
	each := time.Since(start) / time.Duration(cycles)
	if data, err := os.ReadFile("/proc/krping_sessions"); err != nil || len(data) > 0 {
		t.Errorf("%v: sessions: %s", err, data)
	}
	guest.SameResources(t, resources)
	guest.NoSlabGrowth(t, before, cycles)
	t.Logf("%d cycles of %v", cycles, each.Round(time.Millisecond))
}

// A target that is killed and restarted many times loses nothing.
func TestTargetKilledAgainAndAgain(t *testing.T) {
	needs.Test(t, needs.Once)
	times := 3
	if soak.Duration(t) > 0 {
		times = 100
	}
	r := newRig(t, "16MiB", ",queues=2,depth=32")
	r.write(acklog.Load{FsyncOne: 50, ReadOne: 4})
	for range times {
		r.sleep(0, 300*time.Millisecond)
		r.kill()
		r.start()
		r.resumed()
	}
	if err := r.stopped(); err != nil {
		r.fail("the writer got %v", err)
	}
	r.check(false)
	s := guest.Session(t, "vol0")
	if s["errors"] != "0" {
		t.Errorf("errors=%s", s["errors"])
	}
	t.Logf("killed %d times during %d acknowledged writes; I/O resumed within %v; session: %v", times, r.log.Acked(), r.row.Resumed.Round(time.Millisecond), s)
}
