// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestComplaints(t *testing.T) {
	for _, line := range []string{
		"[ 1.0] BUG: kernel NULL pointer dereference, address: 0000000000000000",
		"[ 1.0] WARNING: CPU: 0 PID: 1 at kernel/x.c:1 f+0x1/0x2",
		"[ 1.0] WARNING: kernel/workqueue.c:5938 at __alloc_workqueue+0x6be/0x7a0, CPU#0: insmod/165",
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
		"[ 1.0] WARNING: held lock freed!",
		"[ 1.0] WARNING: lock held when returning to user space!",
		"[ 1.0] turning off the locking correctness validator.",
		"[ 1.0] INFO: trying to register non-static key.",
		"[ 1.0] DMA-API: pci 0000:00:01.0: device driver frees DMA memory with wrong function",
	} {
		if !isComplaint(line) {
			t.Errorf("missed: %s", line)
		}
	}
	for _, line := range []string{
		"[ 1.0] rdma_krping: loading out-of-tree module taints kernel.",
		"[ 1.0] BUG: soft lockup - CPU#0 stuck for 22s!",
		"[ 1.0] rcu: INFO: rcu_preempt self-detected stall on CPU",
		"[ 1.0] DMA-API: preallocated 65536 debug entries",
		"[ 1.0] DMA-API: debugging enabled by kernel config",
		"[ 1.0] DEBUG: x", "[ 1.0] krping: [vol0@1.2.3.4:9] WARNING of our own",
		"[ 1.0] Unstable clock detected, switching default tracing clock to \"global\"",
	} {
		if isComplaint(line) {
			t.Errorf("taken for a complaint: %s", line)
		}
	}
}

func TestStuckCPU(t *testing.T) {
	log := "[ 1.0] before\n[ 2.0] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [dd:171]\n[ 2.0] RIP: 0010:asm_exc_int3+0x0/0x40\n"
	if report := findStuckCPU(log); !strings.HasPrefix(report, "[ 2.0] watchdog") || !strings.Contains(report, "asm_exc_int3") {
		t.Errorf("the report is %q", report)
	}
	if report := findStuckCPU("[ 1.0] before\n"); report != "" {
		t.Errorf("without a stuck CPU the report is %q", report)
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

// A summary shows the first line of a report alone.
func TestComplaintBeginsWithStack(t *testing.T) {
	log := `[   93.330366] INFO: task krpingctl:819 blocked for more than 30 seconds.
[   93.331000]       Tainted: G           OE      7.3.4 #1
[   93.332000] task:krpingctl       state:D stack:0     pid:819   tgid:819   ppid:300    flags:0x00004002
[   93.333000] Call Trace:
[   93.334000]  <TASK>
[   93.335000]  __schedule+0x3f1/0x8a0
[   93.336000]  ? srso_return_thunk+0x5/0x5f
[   93.337000]  __flush_work.isra.0+0x1a2/0x2b0
[   93.338000]  delete_store+0x5e/0x70 [nvme_core]
[   93.339000]  </TASK>
[   93.340000] Showing all locks
[   93.341000]  other+0x1/0x2
`
	want := "the kernel complains: [   93.330366] INFO: task krpingctl:819 blocked for more than 30 seconds. (in __schedule < __flush_work.isra.0 < delete_store)"
	if first, _, _ := strings.Cut(findComplaint(log, nil), "\n"); first != want {
		t.Errorf("the report begins with %q, want %q", first, want)
	}
}

func TestBootsThatTheEmulatorSpoils(t *testing.T) {
	other := errors.New("QEMU has ended")
	for _, c := range []struct {
		first, want error
		times       int
	}{
		{nil, nil, 1},
		{fmt.Errorf("boot VM 1: %w", context.DeadlineExceeded), nil, 2},
		{fmt.Errorf("boot VM 1: %w: BUG: x", errBoot), nil, 2},
		{other, other, 1},
	} {
		times := 0
		err := onceMore(t.Context(), func(context.Context) error {
			if times++; times > 1 {
				return nil
			}
			return c.first
		})
		if !errors.Is(err, c.want) || times != c.times {
			t.Errorf("%v: %v after %d boots, want %v after %d", c.first, err, times, c.want, c.times)
		}
	}
}

// A kernel that panics while it boots ends the VM: also that is a spoilt boot.
func TestBootThatPanics(t *testing.T) {
	var vm VM
	vm.console.WriteString("[ 3.2] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n")
	if err := vm.bootError(io.EOF); !errors.Is(err, errBoot) || !strings.Contains(err.Error(), "Oops: int3") {
		t.Errorf("%v, want a spoilt boot", err)
	}
	vm = VM{}
	vm.console.WriteString("qemu-system-x86_64: system/physmem.c:2678: iotlb_to_section: Assertion `section_index < d->map.sections_nb' failed.\n")
	if err := vm.bootError(io.EOF); !errors.Is(err, errBoot) {
		t.Errorf("%v, want a spoilt boot", err)
	}
	vm = VM{}
	if err := vm.bootError(io.EOF); errors.Is(err, errBoot) || !errors.Is(err, io.EOF) {
		t.Errorf("%v, want EOF", err)
	}
}

func TestFindKernel(t *testing.T) {
	boot := t.TempDir()
	for _, name := range []string{"vmlinuz-6.1.0-9-amd64", "vmlinuz-6.1.0-56-amd64", "vmlinuz-6.12.9+deb12-amd64", "vmlinuz-6.12.117+deb12-amd64", "vmlinuz-5.10.0-1-amd64"} {
		if err := os.WriteFile(filepath.Join(boot, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := t.TempDir()
	unpacked := filepath.Join(build, "unpacked")
	if err := os.Mkdir(unpacked, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(unpacked, "vmlinuz-7.3.4+deb13-amd64"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("unpacked", filepath.Join(build, "kernel-newest")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Kernel{
		"6.1":    {Name: "6.1", Release: "6.1.0-56-amd64", Root: "/"},
		"6.12":   {Name: "6.12", Release: "6.12.117+deb12-amd64", Root: "/"},
		"newest": {Name: "newest", Release: "7.3.4+deb13-amd64", Root: unpacked},
		"7.3":    {Name: "newest", Release: "7.3.4+deb13-amd64", Root: unpacked},
	} {
		k, err := findKernel(boot, build, name)
		if err != nil || k.Name != want.Name || k.Release != want.Release || k.Root != want.Root {
			t.Errorf("%s: %+v, %v, want %+v", name, k, err, want)
		}
	}
	if _, err := findKernel(boot, build, "5.10"); err == nil || !strings.Contains(err.Error(), "6.1, 6.12, newest") {
		t.Errorf("series that is not supported: %v", err)
	}
	if _, err := findKernel(t.TempDir(), build, "6.12"); err == nil || !strings.Contains(err.Error(), "scripts/install-deps 6.12") {
		t.Errorf("kernel that is not installed: %v", err)
	}
	if err := os.WriteFile(filepath.Join(build, "kernel-newest.failed"), []byte("the mirror is away\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := findKernel(boot, build, "newest"); err == nil || !strings.HasSuffix(err.Error(), "the mirror is away") {
		t.Errorf("kernel that could not be had: %v", err)
	}
}

func TestVmlinux(t *testing.T) {
	dir := t.TempDir()
	for _, series := range Kernels {
		kernel, err := FindKernel(series)
		if err != nil {
			t.Fatal(err)
		}
		path, err := vmlinux(kernel, dir)
		if err != nil {
			t.Fatal(err)
		}
		image, err := elf.Open(path)
		if err != nil {
			t.Fatalf("%s: %v", series, err)
		}
		if image.Section(".text") == nil || image.Machine != elf.EM_X86_64 {
			t.Errorf("%s: no kernel: %v", series, image.FileHeader)
		}
		_ = image.Close()
	}
	for _, image := range [][]byte{nil, make([]byte, 600), make([]byte, 4096)} {
		if _, err := unpack(image); err == nil {
			t.Errorf("%d zeros are unpacked", len(image))
		}
	}
}

func TestModuleClosureIsInOrder(t *testing.T) {
	for _, series := range Kernels {
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

func TestLeaks(t *testing.T) {
	object := func(frame string) string {
		return "unreferenced object 0xffff8880042f1000 (size 64):\n  comm \"sh\", pid 1\n  backtrace:\n    [<00000000d3f1>] kmalloc_trace+0x27/0xa0\n    [<00000000d3f2>] " + frame + "\n"
	}
	named, unloaded, other := object("krping_thread_run+0x1/0x2 [rdma_krping]"), object("0xffffffffc0a01234"), object("siw_accept+0x1/0x2")
	known := object("sysfs_slab_add+0x1/0x2\n    [<00000000d3f2>] krping_stack_open+0x1/0x2 [rdma_krping]")
	ours, others := leaks(named + other + unloaded + known)
	if ours != named+unloaded || others != other+known {
		t.Errorf("ours:\n%s\nothers:\n%s", ours, others)
	}
	if ours, others := leaks(""); ours+others != "" {
		t.Errorf("leaks of nothing: %s%s", ours, others)
	}
}

func TestScheduled(t *testing.T) {
	var s Scheduled
	for _, line := range []string{"4592489940 15168179364 18990\n", "7510060 831820636 10\n"} {
		if err := s.add(line); err != nil {
			t.Fatal(err)
		}
	}
	if want := (Scheduled{4600 * time.Millisecond, 16 * time.Second}); s != want {
		t.Errorf("%v, want %v", s, want)
	}
	for _, line := range []string{"", "1 2", "a b c"} {
		if err := s.add(line); err == nil {
			t.Errorf("%q: no error", line)
		}
	}
}
