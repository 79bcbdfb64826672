// SPDX-License-Identifier: Apache-2.0

//go:build lab

package raid

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
	"krping/test/internal/needs"
	"krping/test/output"
)

// The application waits no longer than fast_fail when the target is lost, and the disk returns by
// the bitmap.
func TestTargetLostAndReAdded(t *testing.T) {
	r := newRig(t)
	guest.Attach(t, r.port, options)
	r.create()
	r.write()
	r.bridge.Kill()
	r.becomes(r.disk(), "faulty")
	if state := member(r.local); state != "in_sync" {
		t.Errorf("the local disk is %q, want in_sync", state)
	}
	r.progress(20)
	slowest := r.stopWriting()
	if limit := fastFail + guest.Slow(2500*time.Millisecond); slowest > limit {
		late.Errorf(t, "an operation took %v, want %v at most", slowest, limit)
	}

	// All that was written meanwhile is copied.
	r.start()
	guest.SessionBecomes(t, "live")
	r.removeAndReAdd()
	r.becomes(r.disk(), "in_sync")

	// Of a loss with few writes, no more than those.
	r.bridge.Kill()
	writeRandom(t, array, 128, 4<<10)
	r.log = nil // it does not know that write
	r.becomes(r.disk(), "faulty")
	r.start()
	guest.SessionBecomes(t, "live")
	before := r.counter("write_bytes")
	r.removeAndReAdd()
	r.becomes(r.disk(), "in_sync")
	copied := r.counter("write_bytes") - before
	t.Logf("slowest operation %v; %d KiB written to the volume for a return after 128 KiB, of %sB", slowest.Round(time.Millisecond), copied>>10, arraySize)
	if copied > 1<<20 {
		t.Errorf("the return wrote %d bytes, of an array of %sB", copied, arraySize)
	}
	if mismatches := r.sync("check"); mismatches != 0 {
		t.Errorf("mismatch_cnt=%d", mismatches)
	}
	if n := guest.Number(t, sysfs+"/degraded"); n != 0 {
		t.Errorf("degraded=%d", n)
	}
	r.wantSame()
}

// md reads a write-mostly disk only when it has no other.
func TestWriteMostlyDiskIsNotRead(t *testing.T) {
	needs.Test(t, needs.Once)
	r := newRig(t)
	guest.Attach(t, r.port, options)
	r.create()
	writeRandom(t, array, 1024, 0)
	before := r.counter("reads")
	guest.Run(t, "dd", "if="+array, "of=/dev/null", "bs=1M", "iflag=direct", "status=none")
	if reads := r.counter("reads") - before; reads != 0 {
		t.Errorf("%d reads of the write-mostly disk", reads)
	}
	guest.Run(t, "mdadm", "--manage", array, "--fail", r.local)
	guest.Run(t, "dd", "if="+array, "of=/dev/null", "bs=1M", "iflag=direct", "status=none")
	if r.counter("reads") == before {
		t.Error("the array is read without any disk")
	}
	guest.Run(t, "mdadm", "--stop", array)
}

func TestCheckAndRepair(t *testing.T) {
	r := newRig(t)
	guest.Attach(t, r.port, options)
	r.create()
	inUse(t, r.disk(), array)
	writeRandom(t, array, 4096, 1024)
	if n := r.sync("check"); n != 0 {
		t.Errorf("mismatch_cnt=%d of an array without faults", n)
	}
	writeRandom(t, r.disk(), 64, 8<<10) // behind md's back
	if n := r.sync("check"); n < 128 {
		t.Errorf("mismatch_cnt=%d after 128 sectors were changed", n)
	}
	r.sync("repair")
	if n := r.sync("check"); n != 0 {
		t.Errorf("mismatch_cnt=%d after the repair", n)
	}
	r.wantSame()
}

// The agent puts the disk back by itself, with the capabilities of its unit and no way to write to
// sysfs, and leaves it alone when the operator took it out.
func TestAgentPutsDiskBack(t *testing.T) {
	needs.Test(t, needs.Once)
	r := newRig(t)
	config := filepath.Join(t.TempDir(), "krping.yaml")
	text := fmt.Sprintf("listen: /run/krping/agent.sock\nsessions:\n  - name: vol0\n    addr: %s\n    port: %d\n    fast_fail: 2\n    heartbeat: 0\n    raid: %s\n",
		guest.Addr(t), r.port, array)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log output.Buffer
	agent := exec.Command("unshare", "--mount", "sh", "-c", "mount -o remount,bind,ro /sys && exec setpriv --no-new-privs "+
		"--bounding-set=-all,+sys_admin,+bpf,+perfmon,+syslog,+dac_read_search "+guest.Binary(t, "krpingctl")+" agent --config "+config)
	agent.Stdout, agent.Stderr = &log, &log
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = agent.Process.Kill()
		_ = agent.Wait()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", log.String())
		}
		if guest.Session(t, "vol0") != nil {
			if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
				t.Errorf("stop vol0: %v", err)
			}
		}
	})
	logs := func(text string) {
		t.Helper()
		guest.Eventually(t, patience, "the agent logs "+text, func() bool { return strings.Contains(log.String(), text) })
	}
	logs("member=no_array")
	r.create()
	r.write()
	logs("member=in_sync")
	r.bridge.Kill()
	r.becomes(r.disk(), "faulty")
	r.progress(20)
	r.start()
	logs("put back into the array")
	r.becomes(r.disk(), "in_sync")
	r.progress(20)
	t.Logf("slowest operation %v", r.stopWriting().Round(time.Millisecond))

	guest.Run(t, "mdadm", "--manage", array, "--fail", r.disk())
	logs("not put back: the disk failed or was removed while its target was connected")
	if state := member(r.disk()); !strings.Contains(state, "faulty") {
		t.Errorf("the disk that the operator failed is %q", state)
	}
	r.removeAndReAdd()
	r.becomes(r.disk(), "in_sync")
	r.wantSame()
	t.Logf("the agent's log:\n%s", log.String())
}
