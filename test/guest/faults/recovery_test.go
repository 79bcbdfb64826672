// SPDX-License-Identifier: Apache-2.0

//go:build lab

package faults

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/acklog"
	"krping/test/internal/late"
	"krping/test/internal/needs"
	"krping/test/internal/soak"
)

// recoverable are faults that an application must not see, except for a delay.
var recoverable = []struct {
	name  string
	times int // per round
	make  func(r *rig)
}{
	{"target killed", 5, func(r *rig) {
		r.kill()
		r.start()
	}},
	{"target killed, away for a while", 2, func(r *rig) {
		r.kill()
		r.sleep(time.Second, 4*time.Second)
		r.start()
	}},
	{"target killed again while clients reconnect", 2, func(r *rig) {
		r.kill()
		for range 2 {
			r.start()
			r.sleep(0, 300*time.Millisecond)
			r.kill()
		}
		r.start()
	}},
	{"target terminated", 1, func(r *rig) {
		r.signal(unix.SIGTERM)
		_ = r.bridge.Cmd.Wait()
		r.check(false)
		r.start()
	}},
	{"target suspended for 1 s", 1, func(r *rig) {
		r.signal(unix.SIGSTOP)
		time.Sleep(time.Second)
		r.signal(unix.SIGCONT)
	}},
	{"target suspended for 7 s", 1, func(r *rig) {
		r.signal(unix.SIGSTOP)
		time.Sleep(7 * time.Second)
		r.signal(unix.SIGCONT)
	}},
	{"target suspended, then killed", 1, func(r *rig) {
		r.signal(unix.SIGSTOP)
		r.sleep(0, 2*time.Second)
		r.kill()
		r.start()
	}},
	{"target without the volume", 1, func(r *rig) {
		r.kill()
		other := guest.StartBridge(r.t, port, filepath.Join(r.t.TempDir(), "other.img"), "16MiB", "--name", "other")
		r.sleep(500*time.Millisecond, 1500*time.Millisecond)
		other.Kill()
		r.start()
	}},
	{"RDMA device removed", 2, func(r *rig) {
		r.bridge.RemoveDevice(r.t)
		r.check(false)
		guest.AddDevice(r.t)
		r.bridge.Returns(r.t)
	}},
	{"network device unplugged", 1, func(r *rig) {
		var plugIn func()
		r.bridge.LosesDevice(r.t, func() { plugIn = guest.RemoveNIC(r.t) })
		r.check(false)
		plugIn()
		r.bridge.Returns(r.t)
	}},
}

func (r *rig) signal(sig unix.Signal) {
	r.t.Helper()
	guest.Signal(r.t, r.bridge.Cmd, sig)
}

// kill kills the target with writes in flight: then the store is checked.
func (r *rig) kill() {
	r.t.Helper()
	r.bridge.Kill()
	r.check(false)
}

// Whatever fault hits the target or the network, the writer sees no error, and the store holds all acknowledged writes,
// during the fault and afterwards.
func TestRecovery(t *testing.T) {
	r := newRig(t, "24MiB", ",queues=2,depth=32")
	var table soak.Table
	t.Cleanup(func() { fmt.Print(table.String()) })
	var times []int
	for _, f := range recoverable {
		times = append(times, f.times)
	}
	soak.Plan(t, r.rnd, times, func(i int) {
		f := recoverable[i]
		r.row = table.Row(f.name)
		r.suffer(f.name, f.make)
	})
	s := guest.Session(t, "vol0")
	t.Logf("session: %v", s)
	if s["errors"] != "0" {
		t.Errorf("errors=%s", s["errors"])
	}
}

// suffer causes a fault under writes and checks them.
func (r *rig) suffer(name string, fault func(r *rig)) {
	r.t.Helper()
	r.row.Times++
	acked := r.log.Acked()
	r.write(acklog.Load{FsyncOne: 50, ReadOne: 4})
	r.sleep(0, 700*time.Millisecond)
	began := time.Now()
	fault(r)
	took := time.Since(began)
	r.t.Logf("%s: %v, I/O resumed after %v", name, took.Round(time.Millisecond), r.resumed().Round(time.Millisecond))
	r.progress(10)
	if err := r.stopped(); err != nil {
		r.fail("%s: the writer sees %v", name, err)
	}
	r.row.Acked += r.log.Acked() - acked
	r.check(false)
}

// A suspended target is detected by keep-alive under load: its queue pairs still acknowledge, so the fabric does not time
// out.
func TestSuspendedTargetUnderLoad(t *testing.T) {
	needs.Test(t, needs.Once)
	r := newRig(t, "16MiB", ",queues=2,depth=32")
	r.suffer("suspended target", func(r *rig) {
		r.signal(unix.SIGSTOP)
		defer r.signal(unix.SIGCONT)
		start := time.Now()
		guest.Eventually(t, patience, "the suspended target is detected", func() bool { return r.state() != "live" })
		took := time.Since(start)
		t.Logf("detected after %v", took.Round(time.Millisecond))
		if took > noticeLimit+slow {
			late.Errorf(t, "detected after %v, want at most %v", took.Round(time.Millisecond), noticeLimit)
		}
	})
}

// The same without requests in flight.
func TestSuspendedTargetWhenIdle(t *testing.T) {
	needs.Test(t, needs.Once)
	r := newRig(t, "16MiB", "")
	r.signal(unix.SIGSTOP)
	start := time.Now()
	guest.Eventually(t, patience, "the suspended target is detected", func() bool { return r.state() != "live" })
	if took := time.Since(start); took > noticeLimit+slow {
		late.Errorf(t, "detected after %v, want at most %v", took.Round(time.Millisecond), noticeLimit)
	}
	r.signal(unix.SIGCONT)
	guest.Eventually(t, patience, "the session is live", func() bool { return r.state() == "live" })
}

// The network device goes down, which removes its routes, and up again. Nothing is lost and nothing fails. If the
// connection manager sends without a route, Soft-RoCE leaves its GSI queue pair in the error state, and nobody can connect:
// krpingctl link keep makes the RDMA device anew.
func TestLinkDownAndUp(t *testing.T) {
	downs := []time.Duration{7 * time.Second}
	if soak.Duration(t) > 0 {
		downs = append(downs, 500*time.Millisecond, 2*time.Second)
	}
	guest.Start(t, guest.Binary(t, "krpingctl"), "link", "keep", "eth0")
	for _, d := range downs {
		t.Run(d.String(), func(t *testing.T) {
			r := newRig(t, "16MiB", ",queues=2,depth=32")
			r.suffer("link down for "+d.String(), func(r *rig) {
				guest.Run(t, "ip", "link", "set", "eth0", "down")
				time.Sleep(d)
				r.check(false)
				acked := r.log.Acked()
				guest.Run(t, "ip", "link", "set", "eth0", "up")
				guest.Run(t, "ip", "-6", "addr", "replace", "fd77::1/64", "dev", "eth0", "nodad")
				start := time.Now()
				guest.Eventually(t, patience, "I/O makes progress", func() bool { return r.run.Ended() || r.log.Acked() > acked })
				if took := time.Since(start); took > resumeLimit+remakeLimit+slow {
					late.Errorf(t, "I/O resumed after %v, want at most %v", took.Round(time.Millisecond), resumeLimit+remakeLimit)
				}
			})
		})
	}
}
