// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestComplaints(t *testing.T) {
	for _, line := range []string{
		"[ 1.0] BUG: kernel NULL pointer dereference, address: 0000000000000000",
		"[ 1.0] WARNING: CPU: 0 PID: 1 at kernel/x.c:1 f+0x1/0x2",
		"[ 1.0] WARNING: possible circular locking dependency detected",
		"[ 1.0] BUG: KASAN: slab-use-after-free in f+0x1/0x2",
		"[ 1.0] Oops: 0000 [#1] PREEMPT SMP",
		"[ 1.0] INFO: task rdma:488 blocked for more than 30 seconds.",
		"[ 1.0] Kernel panic - not syncing: Fatal exception",
		"[ 1.0] general protection fault, probably for non-canonical address",
		"[ 1.0] BUG: sleeping function called from invalid context at mm/slab.h:1",
		"[ 1.0] BUG: scheduling while atomic: x/1/0x2",
		"[ 1.0] refcount_t: underflow; use-after-free.",
		"[ 1.0] unregister_netdevice: waiting for eth0 to become free. Usage count = 1",
		"[ 1.0] kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
	} {
		if !isComplaint(line) {
			t.Errorf("missed: %s", line)
		}
	}
	for _, line := range []string{
		"[ 1.0] rdma_krping: loading out-of-tree module taints kernel.",
		"[ 1.0] BUG: soft lockup - CPU#0 stuck for 22s!",
		"[ 1.0] rcu: INFO: rcu_preempt self-detected stall on CPU",
		"[ 1.0] DEBUG: x", "[ 1.0] krping: [vol0@1.2.3.4:9] WARNING of our own",
		"[ 1.0] Unstable clock detected, switching default tracing clock to \"global\"",
	} {
		if isComplaint(line) {
			t.Errorf("taken for a complaint: %s", line)
		}
	}
}

func TestComplaintIsReportedWithItsSurroundings(t *testing.T) {
	log := strings.Repeat("before\n", 50) + "[ 1.0] BUG: provoked\nCall Trace:\n f+0x1\n"
	report := findComplaint(log, nil)
	for _, want := range []string{"BUG: provoked", "before", "Call Trace"} {
		if !strings.Contains(report, want) {
			t.Errorf("no %q in %s", want, report)
		}
	}
	if report := findComplaint(log, []string{"provoked"}); report != "" {
		t.Errorf("an expected line is reported: %s", report)
	}
}

func TestFindKernel(t *testing.T) {
	boot := t.TempDir()
	for _, name := range []string{"vmlinuz-6.1.0-9-amd64", "vmlinuz-6.1.0-56-amd64", "vmlinuz-6.12.9+deb12-amd64", "vmlinuz-6.12.117+deb12-amd64", "vmlinuz-5.10.0-1-amd64"} {
		if err := os.WriteFile(filepath.Join(boot, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for series, want := range map[string]string{"6.1": "6.1.0-56-amd64", "6.12": "6.12.117+deb12-amd64"} {
		k, err := findKernel(boot, series)
		if err != nil || k.Release != want || k.Series() != series {
			t.Errorf("%s: %+v, %v, want %s", series, k, err, want)
		}
	}
	if _, err := findKernel(boot, "5.10"); err == nil || !strings.Contains(err.Error(), "6.1 and 6.12") {
		t.Errorf("series that is not supported: %v", err)
	}
	if _, err := findKernel(t.TempDir(), "6.12"); err == nil || !strings.Contains(err.Error(), "apt-get install linux-image-6.12-amd64") {
		t.Errorf("kernel that is not installed: %v", err)
	}
}

func TestModuleClosureIsInOrder(t *testing.T) {
	for series := range Kernels {
		kernel, err := FindKernel(series)
		if err != nil {
			t.Fatal(err)
		}
		paths, err := moduleClosure(kernel, initModules)
		if err != nil {
			t.Fatal(err)
		}
		at := map[string]int{}
		for i, path := range paths {
			at[strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".xz"), ".ko")] = i + 1
		}
		for _, pair := range [][2]string{{"virtio_ring", "virtio"}, {"9pnet", "9pnet_virtio"}, {"9pnet", "9p"}, {"virtio_pci_modern_dev", "virtio_pci"}} {
			if at[pair[0]] != 0 && at[pair[0]] > at[pair[1]] && at[pair[1]] != 0 {
				t.Errorf("%s: %s comes after %s", kernel.Release, pair[0], pair[1])
			}
		}
		if at["9p"] == 0 || at["overlay"] == 0 {
			t.Errorf("%s: 9p or overlay is missing of %v", kernel.Release, at)
		}
		if data, err := readModule(paths[0]); err != nil || string(data[:4]) != "\x7fELF" {
			t.Errorf("%s: not an unpacked module: %v", paths[0], err)
		}
	}
}

func TestStream(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() { _ = NewStream(a).Encode(FromGuest{Stdout: []byte("x"), Ended: true, Code: 3}) }()
	var got FromGuest
	if err := NewStream(b).Decode(&got); err != nil || string(got.Stdout) != "x" || !got.Ended || got.Code != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}
