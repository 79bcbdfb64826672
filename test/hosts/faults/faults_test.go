// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package faults breaks hosts and the network between them during writes. The log of acknowledged writes and
// the store are files of the machine that runs the test. The test boots two VMs; the second may die and reboot.
package faults

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"krping/test/hosts/internal/hosts"
	"krping/test/internal/acklog"
	"krping/test/internal/late"
	"krping/test/internal/needs"
	"krping/test/internal/soak"
	"krping/test/lab"
	"krping/test/output"
)

const (
	noticeLimit = 5 * time.Second // to detect a peer that does not answer
	resumeLimit = 3 * time.Second
	slow        = 2 * time.Second // added to limits, for two emulated machines on two CPUs
	patience    = 90 * time.Second
	remakeLimit = 12 * time.Second // to make a Soft-RoCE device anew that makes no connections any more
)

// rig is a target on the second VM and a client with a writer on the first. The volume and the writer's log are
// files of this host.
type rig struct {
	*hosts.Hosts
	rnd    *rand.Rand
	client *lab.VM
	out    output.Buffer // the writer's
	writer *lab.Process
	row    *soak.Row
}

func (r *rig) target() *lab.VM          { return r.Lab.VM(1) }
func (r *rig) store() string            { return filepath.Join(r.target().Out(), "vol0.img") }
func (r *rig) log() string              { return filepath.Join(r.client.Out(), "acked.log") }
func (r *rig) session() string          { return r.Sh(r.client, "cat /proc/krping_sessions") }
func (r *rig) sleep(d, e time.Duration) { time.Sleep(d + time.Duration(r.rnd.Int64N(int64(e-d)))) }

// create creates the file of a volume in a VM, unless it exists.
func create(h *hosts.Hosts, vm *lab.VM, path, size string) {
	h.T.Helper()
	h.Sh(vm, "[ -e "+path+" ] || krping-bridge create --store file:"+path+" --size "+size)
}

// bridge starts krping-bridge in a VM, with volumes in files of this host, and waits until it listens.
func bridge(h *hosts.Hosts, vm *lab.VM, volumes string) {
	h.T.Helper()
	h.Spawn(vm, "krping-bridge --listen "+vm.Addr()+" "+volumes+" >/lab/out/bridge.log 2>&1")
	h.Eventually(20*time.Second, "krping-bridge listens", func() bool {
		_, err := h.Try(vm, "grep -q listening /lab/out/bridge.log")
		return err == nil
	})
}

func (r *rig) startBridge() {
	r.T.Helper()
	create(r.Hosts, r.target(), "/lab/out/vol0.img", "24MiB")
	bridge(r.Hosts, r.target(), "--store file:/lab/out/vol0.img --size 24MiB")
}

// acked returns the number of acknowledged writes in the log so far.
func (r *rig) acked() int {
	r.T.Helper()
	data, err := os.ReadFile(r.log())
	if err != nil && !os.IsNotExist(err) {
		r.T.Fatal(err)
	}
	return bytes.Count(data, []byte("\nack "))
}

func (r *rig) ended() bool {
	select {
	case <-r.writer.Done():
		return true
	default:
		return false
	}
}

// await waits until the condition holds. It fails if the writer ends before.
func (r *rig) await(what string, condition func() bool) {
	r.T.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(50 * time.Millisecond) {
		if r.ended() {
			r.T.Fatalf("%s: the writer ended: %v\n%s%s", what, r.writer.Wait(r.T.Context()), r.out.String(), r.session())
		}
		if time.Now().After(deadline) {
			r.row.Hung++
			r.T.Fatalf("not within %v: %s\n%sbridge: %s\nclient: %s\ntarget: %s", patience, what, r.session(), r.bridgeLog(), r.state(r.client), r.state(r.target()))
		}
	}
}

// state returns information from a VM to find out why I/O is stalled.
func (r *rig) state(vm *lab.VM) string {
	out, err := r.Try(vm, "rdma resource show qp; grep -H . /sys/class/infiniband/*/ports/1/hw_counters/*; tc -s qdisc show dev eth0; dmesg | tail -n 30")
	return fmt.Sprintf("%s%s %v", vm.Blocked(), out, err)
}

// bridgeLog returns the last lines of the bridge's log.
func (r *rig) bridgeLog() string { return r.Sh(r.target(), "tail -n 20 /lab/out/bridge.log") }

// progress waits for n more acknowledged writes.
func (r *rig) progress(n int) {
	r.T.Helper()
	want := r.acked() + n
	r.await("I/O continues", func() bool { return r.acked() >= want })
}

// keepLink keeps the Soft-RoCE device of a VM. On 6.12 rxe moves a queue pair to the error state when the network
// device refuses its packet, e.g. when the cable is pulled, and nothing moves the GSI QP back: nobody can connect.
func keepLink(h *hosts.Hosts, vm *lab.VM) {
	h.T.Helper()
	h.Spawn(vm, "krpingctl link keep eth0 >>/lab/out/link.log 2>&1")
}

// hasDeadLink says whether the kernel shows that the device of a VM makes no connections any more. 6.1 does not show it.
func hasDeadLink(h *hosts.Hosts, vm *lab.VM) bool {
	h.T.Helper()
	_, err := h.Try(vm, "rdma resource show qp | grep 'type GSI state ERR'")
	return err == nil
}

// runFault causes a fault during writes, waits until I/O continues, and checks the store.
func (r *rig) runFault(f fault) {
	r.T.Helper()
	r.row.Times++
	before := r.acked()
	r.startWriter()
	r.sleep(0, 500*time.Millisecond)
	began := time.Now()
	f.cause(r)
	over, acked := time.Now(), r.acked()
	r.await("the session is live and I/O continues", func() bool { return r.acked() > acked && strings.Contains(r.session(), "state=live") })
	resumed := time.Since(over)
	r.row.Resumed = max(r.row.Resumed, resumed)
	r.T.Logf("%s: %v, I/O continued after %v", f.name, over.Sub(began).Round(time.Millisecond), resumed.Round(time.Millisecond))
	if resumed > f.limit+slow {
		late.Errorf(r.T, "%s: I/O continued after %v, want at most %v", f.name, resumed.Round(time.Millisecond), f.limit)
	}
	r.progress(10)
	r.endWriter(f.name)
	r.row.Acked += r.acked() - before
	r.check(acklog.Allow{})
}

func (r *rig) startWriter() {
	r.T.Helper()
	r.out = output.Buffer{}
	writer, err := r.client.Start(lab.Cmd{
		Argv:   []string{filepath.Join(lab.Build(), "acked"), "write", "--log", "/lab/out/acked.log", "--limit", patience.String(), "/dev/krping0"},
		Stdout: &r.out, Stderr: &r.out,
	})
	if err != nil {
		r.T.Fatal(err)
	}
	r.writer = writer
	r.progress(10)
}

// endWriter ends the writer, which must have seen no error.
func (r *rig) endWriter(what string) {
	r.T.Helper()
	if err := r.writer.Signal(syscall.SIGTERM); err != nil {
		r.T.Fatal(err)
	}
	select {
	case <-r.writer.Done():
	case <-time.After(patience):
		r.row.Hung++
		r.T.Fatalf("%s: the writer did not end%s", what, r.client.Blocked())
	}
	if err := r.writer.Wait(r.T.Context()); err != nil {
		r.T.Fatalf("%s: the writer: %v\n%s%s", what, err, r.out.String(), r.session())
	}
	r.T.Log(strings.TrimSpace(r.out.String()))
}

// check compares the store with the log.
func (r *rig) check(allow acklog.Allow) {
	r.T.Helper()
	report, err := acklog.CheckFile(r.store(), r.log(), allow)
	if err != nil {
		r.T.Fatal(err)
	}
	r.row.Lost += report.Lost
	r.row.Corrupt += report.Corrupt
	if err := report.Err(); err != nil {
		r.T.Fatal(err)
	}
}

// perfect is a netem discipline that does nothing.
const perfect = "delay 0ms loss 0% duplicate 0% corrupt 0%"

// impairable adds the queueing discipline whose parameters badNetwork changes. Adding one during the test would
// make the network device refuse packets, which is another fault.
func (r *rig) impairable(vm *lab.VM) {
	r.T.Helper()
	r.Sh(vm, "modprobe sch_netem && tc qdisc add dev eth0 root netem "+perfect)
}

// badNetwork impairs what both hosts send, for a while. I/O must continue meanwhile.
func badNetwork(netem string) func(r *rig) {
	return func(r *rig) {
		change := func(netem string) {
			for i := range 2 {
				r.Sh(r.Lab.VM(i), "tc qdisc change dev eth0 root netem "+netem)
			}
		}
		change(netem)
		r.progress(20)
		time.Sleep(time.Second)
		change(perfect)
	}
}

func cablePulled(vm int, d time.Duration) func(r *rig) {
	return func(r *rig) {
		for _, up := range []bool{false, true} {
			if err := r.Lab.VM(vm).SetLink(up); err != nil {
				r.T.Fatal(err)
			}
			if !up {
				time.Sleep(d)
			}
		}
	}
}

// suspended suspends a VM for longer than any time-out between the hosts.
func suspended(vm int, d time.Duration) func(r *rig) {
	return func(r *rig) {
		if err := r.Lab.VM(vm).Suspend(); err != nil {
			r.T.Fatal(err)
		}
		time.Sleep(d)
		if err := r.Lab.VM(vm).Resume(); err != nil {
			r.T.Fatal(err)
		}
	}
}

// clocksJump changes the time of day on both hosts.
func clocksJump(r *rig) {
	for _, by := range []string{"+1 day", "-2 days", "+1 day"} {
		for i := range 2 {
			r.Sh(r.Lab.VM(i), "date -s \"$(date -d '"+by+"')\"")
		}
		r.progress(5)
	}
}

// fault is a fault and the limit for the time from its end until I/O continues. A Soft-RoCE connection may hang
// in a bad network and not recover with it, so the limit includes the time to detect that.
type fault struct {
	name  string
	cause func(r *rig)
	limit time.Duration
}

var recoverable = []fault{
	{"1% loss, packets out of order", badNetwork("delay 2ms reorder 25% 50% loss 1%"), noticeLimit + resumeLimit},
	{"1% of packets corrupt", badNetwork("corrupt 1%"), noticeLimit + resumeLimit},
	{"20% of packets duplicated", badNetwork("duplicate 20%"), noticeLimit + resumeLimit},
	{"client's cable pulled for 6 s", cablePulled(0, 6*time.Second), resumeLimit + remakeLimit},
	{"target's cable pulled for 6 s", cablePulled(1, 6*time.Second), resumeLimit + remakeLimit},
	{"target's host killed", func(r *rig) {
		r.target().Kill()
		// Linux 6.12 splits a write to a file of this host at the pages of its source buffer.
		r.check(acklog.Allow{Torn: true})
		r.impairable(r.Restart())
		keepLink(r.Hosts, r.target())
		r.startBridge()
	}, resumeLimit},
}

// long are faults that take long. They run on one kernel only.
var long = []fault{
	{"client's host suspended for 15 s", suspended(0, 15*time.Second), noticeLimit + resumeLimit},
	{"target's host suspended for 15 s", suspended(1, 15*time.Second), resumeLimit},
	{"clocks of both jump by days", clocksJump, resumeLimit},
}

func newRig(h *hosts.Hosts) *rig {
	h.T.Helper()
	seed := uint64(time.Now().UnixNano())
	h.T.Logf("seed %d", seed)
	r := &rig{Hosts: h, rnd: rand.New(rand.NewPCG(seed, 0)), client: h.Lab.VM(0), row: &soak.Row{}}
	for _, old := range []string{r.store(), r.store() + ".krping", r.log(), filepath.Join(r.client.Out(), "link.log"), filepath.Join(r.target().Out(), "link.log")} {
		if err := os.RemoveAll(old); err != nil { // of an earlier run
			h.T.Fatal(err)
		}
	}
	return r
}

// After each fault the writer has seen no error, and the store holds all acknowledged writes.
func TestRecoveryFromHostAndNetworkFaults(t *testing.T) {
	needs.Test(t, needs.Once)
	// Soft-RoCE of 6.12 warns of unexpected responses, which loss and reordering cause (rxe_comp.c,
	// COMPST_ERROR without a status).
	h := hosts.Boot(t, "rxe_completer")
	r := newRig(h)
	var table soak.Table
	t.Cleanup(func() { fmt.Print(table.String()) })
	for _, vm := range []*lab.VM{r.client, r.target()} {
		r.impairable(vm)
		keepLink(h, vm)
	}
	r.startBridge()
	r.Sh(r.client, "krpingctl client --addr "+r.target().Addr()+" --block vol0")
	faults := recoverable
	if !testing.Short() {
		faults = slices.Concat(recoverable, long)
	}
	times := make([]int, len(faults))
	for i := range times {
		times[i] = 1
	}
	soak.Plan(t, r.rnd, times, func(i int) {
		f := faults[i]
		r.row = table.Row(f.name)
		r.runFault(f)
	})
	r.Sh(r.client, "krpingctl stop vol0")
}
