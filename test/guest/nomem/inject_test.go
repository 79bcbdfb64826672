// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package nomem makes allocations of the module fail, one by one and at random. Nothing may crash, leak, or lose an
// acknowledged write. It needs the debug kernel, which detects that.
package nomem

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
)

// injectors are the kernel's, with the attribute of each that exempts some allocations unless it is cleared.
var injectors = map[string][]string{
	"failslab":        {"ignore-gfp-wait"},
	"fail_page_alloc": {"ignore-gfp-wait", "ignore-gfp-highmem"},
}

// file returns the path of an injector's attribute.
func file(injector, attribute string) string {
	return filepath.Join("/sys/kernel/debug", injector, attribute)
}

func set(t *testing.T, injector, attribute, value string) {
	t.Helper()
	if err := os.WriteFile(file(injector, attribute), []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

// setUp makes all allocations eligible to fail, until the end of the test. None fails yet.
func setUp(t *testing.T) {
	t.Helper()
	for injector, exceptions := range injectors {
		for _, exception := range exceptions {
			set(t, injector, exception, "N")
		}
		set(t, injector, "verbose", "0")
		set(t, injector, "probability", "0")
		set(t, injector, "times", "-1")
	}
	set(t, "fail_page_alloc", "min-order", "0")
	t.Cleanup(func() { stop(t) })
}

// stop ends the failures.
func stop(t *testing.T) {
	t.Helper()
	for injector := range injectors {
		set(t, injector, "probability", "0")
	}
}

// Stack frames that are searched for the module: allocations by the RDMA core or a driver on behalf of the module count
// as the module's.
const depth = "12"

// enough is more than the number of failures: what is left of it tells how many there were.
const enough = 1 << 30

// failOurs makes a percentage of the module's allocations fail, in all threads and interrupts, for the kinds of the
// injectors.
func failOurs(t *testing.T, percent int, injectors ...string) {
	t.Helper()
	from, to := module(t)
	for _, injector := range injectors {
		set(t, injector, "stacktrace-depth", depth)
		set(t, injector, "require-start", fmt.Sprintf("%#x", from))
		set(t, injector, "require-end", fmt.Sprintf("%#x", to))
		set(t, injector, "times", strconv.Itoa(enough))
		set(t, injector, "probability", strconv.Itoa(percent))
	}
}

// failed returns the number of an injector's failures since failOurs.
func failed(t *testing.T, injector string) int {
	t.Helper()
	return enough - guest.Number(t, file(injector, "times"))
}

// module returns the module's address range.
func module(t *testing.T) (from, to uint64) {
	t.Helper()
	f, err := os.Open("/proc/modules")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if fields[0] != "rdma_krping" {
			continue
		}
		size, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		from, err := strconv.ParseUint(fields[5], 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		return from, from + size
	}
	t.Fatal("the module is not loaded")
	return 0, 0
}

// failNth makes the nth allocation in do, which is one system call of this thread, fail. It returns how many allocations
// were missing to n: 0 if one failed.
func failNth(t *testing.T, n int, do func() error) (missing int, result error) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	nth, err := unix.Open("/proc/thread-self/fail-nth", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(nth)
	// Signals of the Go runtime would end the command.
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &all, &before); err != nil {
		t.Fatal(err)
	}
	left := make([]byte, 16)
	if _, err := unix.Pwrite(nth, []byte(strconv.Itoa(n)), 0); err != nil {
		t.Fatal(err)
	}
	result = do()
	length, err := unix.Pread(nth, left, 0)
	_, _ = unix.Pwrite(nth, []byte("0"), 0)
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil)
	if err != nil {
		t.Fatal(err)
	}
	missing, err = strconv.Atoi(strings.TrimSpace(string(left[:length])))
	if err != nil {
		t.Fatal(err)
	}
	return missing, result
}

// failNthOf is failNth for a command to /proc/krping. It returns the command's errno, and whether there was an nth
// allocation.
func failNthOf(t *testing.T, n int, command string) (failed bool, result error) {
	t.Helper()
	krping, err := unix.Open("/proc/krping", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(krping)
	data := []byte(command)
	missing, err := failNth(t, n, func() error {
		_, err := unix.Write(krping, data)
		return err
	})
	return missing == 0, err
}

// sweep calls do with increasing n for failNthOf, until do reports fewer than n allocations. It tries all of the first
// ones and some of the rest, since queues repeat the same allocations.
func sweep(t *testing.T, do func(n int) (failed bool)) {
	t.Helper()
	n, tried := 1, 0
	for do(n) {
		tried++
		n += 1 + n/sparse(t)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d of %d allocations were made to fail", tried, n)
}

// sparse is the number of allocations that are all tried; beyond it ever fewer are.
func sparse(t *testing.T) int {
	if testing.Short() {
		return 20
	}
	return 60
}

// nothingLeft fails if a failed command has left a session.
func nothingLeft(t *testing.T, n int, err error) {
	t.Helper()
	if guest.Session(t, "vol0") != nil {
		t.Errorf("allocation %d failed: %v, but there is a session", n, err)
	}
}
