// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package selftest tests the lab itself.
package selftest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/lab"
	"krping/test/output"
)

// labCommand runs a command in the lab with this run's kernel.
func labCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	kernel := os.Getenv("KERNEL")
	if kernel == "" {
		t.Fatal("KERNEL is not set: want 6.1, 6.12 or newest")
	}
	cmd := exec.Command(filepath.Join(lab.Build(), "lab"), append([]string{"run", "--kernel", kernel}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	return cmd
}

// left returns what the command has left behind: VMs, and files in its temporary directory.
func left(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	dir := strings.TrimPrefix(cmd.Env[len(cmd.Env)-1], "TMPDIR=")
	out, _ := exec.Command("pgrep", "-af", "qemu.*"+dir).Output() // fails if there are none
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		out = append(out, entry.Name()...)
	}
	return string(out)
}

func TestExitCodeOutputAndFiles(t *testing.T) {
	out := t.TempDir()
	cmd := labCommand(t, "--out", out, "--", "sh", "-c", "echo to stdout; echo to stderr >&2; echo kept > /lab/out/file; touch "+lab.Repo()+"/x; exit 7")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	_ = cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit code %d, want 7: %s", code, stderr.String())
	}
	if stdout.String() != "to stdout\n" || !strings.Contains(stderr.String(), "to stderr\n") {
		t.Errorf("stdout %q, stderr %q", stdout.String(), stderr.String())
	}
	if kept, err := os.ReadFile(filepath.Join(out, "vm1", "file")); err != nil || string(kept) != "kept\n" {
		t.Errorf("collected file: %q, %v", kept, err)
	}
	if log, err := os.ReadFile(filepath.Join(out, "console1.log")); err != nil || len(log) == 0 {
		t.Errorf("console log of %d bytes, %v", len(log), err)
	}
	if _, err := os.Stat(filepath.Join(lab.Repo(), "x")); err == nil {
		t.Error("a guest can write to the repository")
	}
	if rest := left(t, cmd); rest != "" {
		t.Errorf("left behind: %s", rest)
	}
}

func TestKernelComplaintFailsRun(t *testing.T) {
	cmd := labCommand(t, "--", "sh", "-c", "echo '<2>BUG: provoked by a test' > /dev/kmsg; sleep 1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "the kernel complains: ") {
		t.Errorf("%v: %s", err, out)
	}
}

// Other projects' suites, which also run in the guests, expect what udev and systemd set up elsewhere.
func TestGuestHasDeviceLinksAndConfigfs(t *testing.T) {
	cmd := labCommand(t, "--", "bash", "-c", "cat <(echo a descriptor); echo an error > /dev/stderr; mountpoint /sys/kernel/config && ! grep -wq aes /proc/cpuinfo")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "a descriptor\n") || !strings.Contains(string(out), "an error\n") {
		t.Errorf("%v: %s", err, out)
	}
}

// A guest that measures its clock itself gets it wrong on a busy host.
func TestGuestDoesNotMeasureItsClock(t *testing.T) {
	cmd := labCommand(t, "--", "sh", "-c", "dmesg | grep 'tsc: '; tr ' ' '\\n' < /proc/cmdline")
	out, err := cmd.CombinedOutput()
	_, rest, _ := strings.Cut(string(out), "tsc_early_khz=")
	khz, _, _ := strings.Cut(rest, "\n")
	if len(khz) < 4 {
		t.Fatalf("%v: %s", err, out)
	}
	mhz := khz[:len(khz)-3] + "." + khz[len(khz)-3:]
	if !strings.Contains(string(out), mhz+" MHz") {
		t.Errorf("want %s MHz: %s", mhz, out)
	}
}

func TestTimeoutStopsRun(t *testing.T) {
	start := time.Now()
	cmd := labCommand(t, "--timeout", "25s", "--", "sleep", "1000")
	out, err := cmd.CombinedOutput()
	if err == nil || time.Since(start) > 45*time.Second {
		t.Errorf("%v after %v: %s", err, time.Since(start), out)
	}
	if rest := left(t, cmd); rest != "" {
		t.Errorf("left behind: %s", rest)
	}
}

// Ctrl-C ends the VMs, and so does SIGKILL, which the lab cannot catch.
func TestSignalsStopVMs(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGKILL} {
		cmd := labCommand(t, "--vms", "2", "--", "sh", "-c", "echo running; sleep 1000")
		var stdout output.Buffer
		cmd.Stdout = &stdout
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(stdout.String(), "running") && time.Now().Before(deadline); {
			time.Sleep(100 * time.Millisecond)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Errorf("%v: %v, want a failure", sig, err)
		}
		rest := left(t, cmd)
		for deadline := time.Now().Add(20 * time.Second); strings.Contains(rest, "qemu") && time.Now().Before(deadline); rest = left(t, cmd) {
			time.Sleep(100 * time.Millisecond)
		}
		if strings.Contains(rest, "qemu") || rest != "" && sig != unix.SIGKILL {
			t.Errorf("%v: left behind: %s", sig, rest)
		}
	}
}
