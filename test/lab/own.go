// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Own is a VM that boots from disks of its own, not from this host's files. The agent (build/lab-guest serve)
// runs in it as a service.
type Own struct {
	Index   int      // from 0: its address is Addr, its MAC address ends with Index+1
	Dir     string   // for its sockets
	Log     string   // path of the console's log
	Console string   // of its earlier boots, which the log begins with
	Memory  int      // MiB
	Append  string   // parameters of the kernel, besides those that all VMs get
	Args    []string // of QEMU: kernel, disks, and a -netdev with id=net
}

// StartOwn starts it. QEMU ends when the guest powers off or reboots. It dies with this process.
func StartOwn(o Own) (*VM, error) {
	vm := &VM{index: o.Index, socket: filepath.Join(o.Dir, fmt.Sprintf("agent%d", o.Index)), monitor: filepath.Join(o.Dir, fmt.Sprintf("monitor%d", o.Index))}
	_ = os.Remove(vm.socket) // of an earlier boot
	_ = os.Remove(vm.monitor)
	// CPUs in turn: at once, QEMU 10.0 may fail an assertion as the kernel sets up PCI devices: it did in one of about
	// 120 boots. Lab.Start repeats such a boot.
	args := append(machineArgs(hasVirtualization(), Config{CPUs: 2, Memory: o.Memory}, o.Index, vm.socket, vm.monitor),
		append([]string{"-append", kernelParameters(hasVirtualization()) + " " + o.Append}, o.Args...)...)
	return vm, vm.start(args, o.Log, o.Console)
}

// WaitReady waits until commands can run in the VM.
func (vm *VM) WaitReady(ctx context.Context, limit time.Duration) error {
	return vm.waitReady(ctx, limit)
}

// Gone is closed when the VM has powered off, or ended otherwise.
func (vm *VM) Gone() <-chan struct{} { return vm.gone }

// Complaints returns a report on what the kernel has complained about since it was started, or "". Lines that contain
// one of the expected strings do not count.
func (vm *VM) Complaints(expected ...string) string {
	return findComplaint(vm.Console()[vm.began:], expected)
}

// Unpacked returns the path of the ELF image in a vmlinuz, which it unpacks into dir: see vmlinux.
func Unpacked(vmlinuz, dir string) (string, error) {
	return vmlinux(Kernel{Release: release(vmlinuz), Image: vmlinuz}, dir)
}
