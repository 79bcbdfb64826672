// SPDX-License-Identifier: Apache-2.0

//go:build lab

package options

import (
	"errors"
	"math/bits"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/proc"
	"krping/test/guest/internal/guest"
)

// file is an open /proc/krping.
type file int

func openFile(t *testing.T) file {
	t.Helper()
	fd, err := unix.Open("/proc/krping", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return file(fd)
}

// write runs a command, and blocks signals of the Go runtime, which would end it.
func (f file) write(command string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &all, &before); err != nil {
		return err
	}
	_, err := unix.Write(int(f), []byte(command))
	return errors.Join(err, unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil))
}

// read reads the file from its beginning.
func (f file) read(t *testing.T) string {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Pread(int(f), buf, 0)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// measure runs a client command and returns its result line.
func (f file) measure(t *testing.T, options string) (proc.Result, string) {
	t.Helper()
	options = "addr=" + guest.Addr(t) + ",port=9982," + options
	done := guest.StartServer(t, "server,"+options)
	if err := f.write("client," + options); err != nil {
		t.Fatalf("client: %v", err)
	}
	if err := <-done; err != nil {
		t.Fatalf("server: %v", err)
	}
	line := f.read(t)
	results, err := proc.ParseResults(line)
	if err != nil || len(results) != 1 {
		t.Fatalf("%q: %d results, %v", line, len(results), err)
	}
	return results[0], line
}

// lower returns the shortest time of the bucket: buckets are 1 ns wide up to 63 ns, then there are 32 for each doubling.
func lower(b proc.Bucket) time.Duration {
	width := time.Duration(1) << max(0, bits.Len64(uint64(b.Upper))-6)
	return b.Upper - width + 1
}

func TestResults(t *testing.T) {
	guest.NoThreads(t)
	f := openFile(t)
	if text := f.read(t); text != "" {
		t.Errorf("without a command and without threads the file reads %q", text)
	}

	r, line := f.measure(t, "rlat,count=500,size=100")
	if r.Role != proc.Client || r.Test != proc.ReadLatency || r.State != "done" || r.Errno != 0 ||
		r.Size != 100 || r.Count != 500 || r.Device != guest.Device(t) || r.Peer != guest.Addr(t)+":9982" {
		t.Errorf("the result is of another command: %s", line)
	}
	if r.Ops != 500 || r.Timed != 500 {
		t.Errorf("ops %d and timed %d, want 500", r.Ops, r.Timed)
	}
	checkTimes(t, r)
	kept, err := os.ReadFile("/proc/krping_results")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(kept), line) {
		t.Errorf("/proc/krping_results does not have the line %q", line)
	}

	next, line := f.measure(t, "wlat,count=100")
	if next.ID <= r.ID || next.Test != proc.WriteLatency || next.Timed != 100 {
		t.Errorf("after another command the file reads %s", line)
	}
	checkTimes(t, next)
}

func checkTimes(t *testing.T, r proc.Result) {
	t.Helper()
	var sum uint64
	for _, b := range r.Histogram {
		sum += b.Count
	}
	if sum != r.Timed {
		t.Errorf("the histogram has %d operations, want %d", sum, r.Timed)
	}
	first, last := r.Histogram[0], r.Histogram[len(r.Histogram)-1]
	if r.Min < lower(first) || r.Min > first.Upper {
		t.Errorf("min %d is outside the first bucket, %d to %d", r.Min, lower(first), first.Upper)
	}
	if r.Max < lower(last) || r.Max > last.Upper {
		t.Errorf("max %d is outside the last bucket, %d to %d", r.Max, lower(last), last.Upper)
	}
	n := time.Duration(r.Timed)
	if r.Min > r.Max || r.Sum < n*r.Min || r.Sum > n*r.Max || r.Elapsed < r.Sum {
		t.Errorf("min %d, max %d, sum %d, elapsed %d contradict each other", r.Min, r.Max, r.Sum, r.Elapsed)
	}
}

// A refused command has no result: the file reads the threads again.
func TestFileWithoutResult(t *testing.T) {
	guest.NoThreads(t)
	f := openFile(t)
	f.measure(t, "count=1")
	if err := f.write("client"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a client without an address: %v, want EINVAL", err)
	}
	addr := "addr=" + guest.Addr(t) + ",port=9982"
	done := guest.StartServer(t, "server,"+addr)
	for name, f := range map[string]file{"after a refused command": f, "without a command": openFile(t)} {
		if text := f.read(t); text != "1 listen\n" {
			t.Errorf("%s the file reads %q", name, text)
		}
	}
	if err := guest.Command("client,count=1,"+addr, guest.Limit); err != nil {
		t.Errorf("client: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("server: %v", err)
	}
}
