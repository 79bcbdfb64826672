// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

// A CPU goes offline when the requests that it has submitted have ended. While the target is lost, they wait for it: at
// most for timeout= or fast_fail=.
func TestCPUGoesOffline(t *testing.T) {
	const online = "/sys/devices/system/cpu/cpu1/online"
	set := func(value string) {
		t.Helper()
		if err := os.WriteFile(online, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	served, path := attach(t, targets.Bridge, 16*mib, targets.Config{}, ",queues=2")
	guest.WriteAndSync(t, guest.OpenDirect(t, path))
	served.Stop()
	guest.SessionBecomes(t, "reconnecting")
	set("0") // it has no request
	set("1")

	written := make(chan error, 1)
	dd := guest.Start(t, "taskset", "-c", "1", "dd", "if=/dev/zero", "of="+path, "bs=4k", "count=1", "oflag=direct")
	go func() { written <- dd.Wait() }()
	guest.Eventually(t, 20*time.Second, "dd waits for its write", func() bool {
		stack, err := os.ReadFile(fmt.Sprintf("/proc/%d/stack", dd.Process.Pid))
		return err == nil && strings.Contains(string(stack), "blkdev_write_iter")
	})
	offline := make(chan error, 1)
	go func() { offline <- os.WriteFile(online, []byte("0"), 0) }()
	defer set("1")
	select {
	case err := <-offline:
		t.Errorf("the CPU is offline while its request waits: %v", err)
	case <-time.After(2 * time.Second):
	}
	served.Again(t)
	if err := guest.Within(t, 20*time.Second, "the CPU is offline", offline); err != nil {
		t.Error(err)
	}
	if err := guest.Within(t, 20*time.Second, "the write ends", written); err != nil {
		t.Error(err)
	}
	guest.WriteAndSync(t, guest.OpenDirect(t, path)) // by the other CPU
}
