// SPDX-License-Identifier: Apache-2.0

//go:build lab

package faults

import (
	"strings"
	"testing"
	"time"

	"krping/test/hosts/internal/hosts"
	"krping/test/internal/acklog"
	"krping/test/internal/late"
	"krping/test/internal/needs"
	"krping/test/lab"
)

// The network device of a host goes down under load, and up again. Soft-RoCE's devices on both hosts may be dead then, and
// stay so. krpingctl link keep makes them anew, and all that the hosts serve and use goes on by itself: the bridge and
// the kernel's target with the disks on them, and pings.
func TestLinkDownAndUp(t *testing.T) {
	needs.Test(t, needs.Kernel("6.4")) // test/guest/faults has it for older ones, which do not show that a device is dead
	h := hosts.Boot(t)
	r := newRig(h)
	addr := r.target().Addr()
	r.startBridge()
	h.Spawn(r.target(), "krping-bridge --ping "+addr+":9900 >/run/pings.log 2>&1")
	h.Sh(r.target(), "krpingctl server --addr "+addr+" --port 9998 --block vol1 --backing ram:8M")
	h.Sh(r.client, "krpingctl client --addr "+addr+" --block vol0 && krpingctl client --addr "+addr+" --port 9998 --block vol1")
	r.startWriter()
	h.Sh(r.client, "touch /run/written")
	h.Spawn(r.client, `sh -c 'while dd if=/dev/zero of=/dev/krping1 bs=64k count=16 oflag=direct 2>/run/dd.log; do echo >>/run/written; done'`)
	written := func() int { return strings.Count(h.Sh(r.client, "cat /run/written"), "\n") }
	r.await("the disk of the kernel's target is written to", func() bool { return written() > 1 })

	takeDown := func(vm *lab.VM) { h.Sh(vm, "ip link set eth0 down; sleep 7; ip link set eth0 up") }
	goesOn := func(what string) {
		t.Helper()
		start, acked, before := time.Now(), r.acked(), written()
		r.await(what+": the writer goes on", func() bool { return r.acked() > acked })
		r.await(what+": the disk of the kernel's target goes on", func() bool { return written() > before+1 })
		r.await(what+": pings are answered", func() bool {
			_, err := h.Try(r.client, "krpingctl client --addr "+addr+" --port 9900 --count 5 --timeout 3s")
			return err == nil
		})
		took := time.Since(start)
		t.Logf("%s: all goes on after %v", what, took.Round(time.Millisecond))
		if took > remakeLimit+resumeLimit+slow {
			late.Errorf(t, "%s: all goes on after %v, want at most %v", what, took.Round(time.Millisecond), remakeLimit+resumeLimit)
		}
	}

	if strings.HasPrefix(h.Sh(r.target(), "uname -r"), "6.12.") { // it always dies there
		takeDown(r.client)
		h.Eventually(20*time.Second, "a Soft-RoCE device is dead", func() bool { return hasDeadLink(h, r.client) || hasDeadLink(h, r.target()) })
		acked := r.acked()
		time.Sleep(10 * time.Second)
		if r.acked() != acked {
			t.Error("I/O goes on through a dead device: this test shows nothing")
		}
	}
	for _, vm := range []*lab.VM{r.client, r.target()} {
		keepLink(h, vm)
	}
	goesOn("after link keep has begun")
	takeDown(r.client)
	goesOn("client's link down for 7 s")
	takeDown(r.target())
	goesOn("target's link down for 7 s")
	r.endWriter("all")
	r.check(acklog.Allow{})
	for _, line := range strings.Split(strings.TrimSpace(r.session()), "\n") {
		if !strings.Contains(line, " errors=0 ") {
			t.Errorf("a disk had errors: %s", line)
		}
	}
	for _, vm := range []*lab.VM{r.client, r.target()} {
		t.Logf("%s:\n%s", vm.Addr(), h.Sh(vm, "cat /lab/out/link.log"))
	}
}
