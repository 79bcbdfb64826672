// SPDX-License-Identifier: Apache-2.0

//go:build lab

package guest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/output"
)

// Load is a running fio that verifies its data.
type Load struct {
	t   testing.TB
	cmd *exec.Cmd
	out output.Buffer
}

// Runtime returns the option for the time that fio runs, longer on a slow kernel (Slow).
func Runtime(limit time.Duration) string {
	return fmt.Sprintf("--runtime=%.0f", Slow(limit).Seconds())
}

func fio(dev string, args []string) []string {
	return append([]string{"fio", "--name=load", "--filename=" + dev, "--allow_file_create=0", "--direct=1", "--ioengine=libaio",
		"--verify=crc32c", "--verify_fatal=1"}, args...)
}

// Fio runs fio on a device; it verifies what it reads.
func Fio(t testing.TB, dev string, args ...string) {
	t.Helper()
	Run(t, fio(dev, args)...)
}

// StartFio starts fio in the background and kills it at the end of the test. With a disk of krping it returns when the
// disk has the first I/O: a fio that is stopped before that has failed.
func StartFio(t testing.TB, dev string, args ...string) *Load {
	t.Helper()
	before := begun(filepath.Base(dev))
	argv := fio(dev, args)
	l := &Load{t: t, cmd: exec.Command(argv[0], argv[1:]...)}
	l.cmd.Stdout, l.cmd.Stderr = &l.out, &l.out
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.cmd.Process.Kill() })
	if name := filepath.Base(dev); strings.HasPrefix(name, "krping") {
		Eventually(t, Limit, "fio begins", func() bool { return begun(name) != before })
	}
	return l
}

// begun returns what the kernel counts of a disk's I/O that has begun: Documentation/block/stat.rst. "" if there is no
// such disk.
func begun(disk string) string {
	stat, err := os.ReadFile("/sys/class/block/" + disk + "/stat")
	fields := strings.Fields(string(stat))
	if err != nil || len(fields) < 9 {
		return ""
	}
	return fields[0] + " " + fields[4] + " " + fields[8] // reads, writes, in flight
}

// StartWriting starts writes of all sizes to the first 8 MiB of a device, until Stop.
func StartWriting(t testing.TB, dev string) *Load {
	t.Helper()
	return StartFio(t, dev, "--rw=randwrite", "--bsrange=512-256k", "--blockalign=512", "--iodepth=16", "--size=8M", "--io_size=1g",
		"--time_based", "--runtime=1h", "--verify_backlog=64")
}

// loadLimit is more than any load takes.
const loadLimit = 3 * time.Minute

// wait returns the error of fio. If fio does not end, the test fails.
func (l *Load) wait() error {
	l.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- l.cmd.Wait() }()
	return Within(l.t, loadLimit, "fio ends", ended)
}

// Succeeds waits for fio, which must not see an error, and returns its output.
func (l *Load) Succeeds() string {
	l.t.Helper()
	if err := l.wait(); err != nil {
		l.t.Fatalf("fio: %v\n%s", err, l.out.String())
	}
	return l.out.String()
}

// Stop ends fio, which must still be running and must not have seen an error.
func (l *Load) Stop() {
	l.t.Helper()
	if err := l.cmd.Process.Signal(unix.SIGTERM); err != nil {
		l.t.Errorf("fio has ended before: %v", err)
	}
	err := l.wait()
	if code := l.cmd.ProcessState.ExitCode(); code != terminated || !strings.Contains(l.out.String(), "err= 0") {
		l.t.Errorf("fio: %v\n%s", err, l.out.String())
	}
}

// Kill ends fio in the middle of its I/O.
func (l *Load) Kill() {
	l.t.Helper()
	if err := l.cmd.Process.Kill(); err != nil {
		l.t.Errorf("fio has ended before: %v", err)
	}
	_ = l.wait()
}

// terminated is the exit code of a fio that a signal has ended.
const terminated = 128

// Fails waits for fio, whose device is removed meanwhile.
func (l *Load) Fails() {
	l.t.Helper()
	if err := l.wait(); err == nil {
		l.t.Error("fio succeeded on a device that was removed")
	}
}
