// SPDX-License-Identifier: Apache-2.0

//go:build lab

package verbs

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"krping/proc"
	"krping/test/guest/internal/guest"
)

// cpuTime returns the CPU time of a process in seconds.
func cpuTime(t *testing.T, pid int) float64 {
	t.Helper()
	p, err := procfs.NewProc(pid)
	if err != nil {
		t.Fatal(err)
	}
	stat, err := p.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return stat.CPUTime()
}

// A server that polls leaves the CPU alone in a test that brings it no completions, and not in another. The client is
// another process, and leaves a CPU idle.
func TestPassiveServerSleeps(t *testing.T) {
	seconds := guest.Slow(3 * time.Second).Seconds()
	for _, test := range []struct {
		verb    string
		passive bool
	}{{proc.Read, true}, {proc.Write, true}, {proc.FetchAdd, true}, {proc.Send, false}} {
		k := kind{test.verb, "rc"}
		if !k.possible(t) {
			continue
		}
		for _, server := range []string{"module", "bridge"} {
			t.Run(test.verb+"/"+server, func(t *testing.T) {
				port, pid, done := guest.NextPort(), os.Getpid(), make(<-chan error)
				at := fmt.Sprintf("addr=%s,port=%d,", guest.Addr(t), port)
				if server == "bridge" {
					pid = guest.StartPingBridge(t, port, "--ping-poll").Cmd.Process.Pid
				} else {
					done = guest.StartServer(t, "server,verbs,"+at+"poll")
				}
				before := cpuTime(t, pid)
				guest.Run(t, "sh", "-c", fmt.Sprintf("echo client,%s%sbw,rate=50,duration=%.0f >/proc/krping", at, k.options(), seconds))
				used := cpuTime(t, pid) - before
				if server == "module" {
					if err := <-done; err != nil {
						t.Errorf("server: %v", err)
					}
				}
				if test.passive != (used < seconds/2) {
					t.Errorf("the server used %.2f s of CPU in %.0f s", used, seconds)
				}
				t.Logf("%.2f s of CPU in %.0f s", used, seconds)
			})
		}
	}
}
