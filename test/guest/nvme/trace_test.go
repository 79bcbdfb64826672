// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvme

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/trace/biotrace"
	"krping/test/guest/internal/guest"
	"krping/test/output"
)

// trace is a running `krpingctl trace --json`.
type trace struct {
	cmd      *exec.Cmd
	out, err output.Buffer
}

func startTrace(t *testing.T, dev string) *trace {
	t.Helper()
	tr := &trace{cmd: exec.Command(guest.Binary(t, "krpingctl"), "trace", dev, "--json", "--op", "write")}
	tr.cmd.Stdout, tr.cmd.Stderr = &tr.out, &tr.err
	if err := tr.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tr.cmd.Process.Kill() })
	guest.Eventually(t, guest.TraceStarts, "the trace runs", func() bool { return strings.Contains(tr.err.String(), "tracing") })
	return tr
}

// bios waits until n bios were traced, and returns them.
func (tr *trace) bios(t *testing.T, n int) (all []biotrace.Bio) {
	t.Helper()
	guest.Eventually(t, 20*time.Second, "the bios are traced", func() bool { return strings.Count(tr.out.String(), "\n") >= n })
	for line := range strings.Lines(tr.out.String()) {
		var b biotrace.Bio
		if err := json.Unmarshal([]byte(line), &b); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, b)
	}
	return all
}

// end ends the trace, and returns its log.
func (tr *trace) end(t *testing.T) string {
	t.Helper()
	guest.Signal(t, tr.cmd, unix.SIGINT)
	_ = tr.cmd.Wait() // the exit status of an interrupted trace does not matter
	return tr.err.String()
}
