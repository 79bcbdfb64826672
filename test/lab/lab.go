// SPDX-License-Identifier: Apache-2.0

// Package lab boots virtual machines from a stock Debian kernel on this host's own
// files, with Soft-RoCE between them, and runs commands in them. It needs QEMU, no KVM
// and no RDMA hardware.
//
// The guest's root is the host's, read-only with a tmpfs on top: programs installed on the host are
// available in the guest. The repository has the same path in the guest, and /lab/out in the guest is a
// directory of the host.
package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"krping/test/lab/insns"
)

// Config describes a lab.
type Config struct {
	Kernel  string        // as for FindKernel
	VMs     int           // 1 or 2
	Out     string        // directory for the guests' files and console logs; "" for a temporary one
	NoRXE   bool          // do not add rxe0
	IWARP   bool          // add siw0 instead; only the debug kernel has siw
	Console io.Writer     // gets a copy of the consoles; may be nil
	Boot    time.Duration // time limit of one boot, which is repeated once; 0 for one minute, more for a slow kernel
	Memory  int           // MiB of one VM; 0 for 1536, doubled for a slow kernel and for siw's large queue pairs
	CPUs    int           // of one VM; 0 for 2
	AtOnce  bool          // run a VM's CPUs at once: see atOnce
	Shells  bool          // open a shell on a second console of each VM: see ShellSocket
	Count   bool          // count the instructions of each VM, which has one CPU: see VM.Counts
}

// Lab is a set of running VMs.
type Lab struct {
	Kernel Kernel
	config Config // with defaults filled in
	vms    []*VM
	dir    string // holds sockets and the initramfs; removed by Close
	image  string // path of the kernel's image, unpacked unless it is a built kernel
	kvm    bool
	plugin string        // of QEMU, which counts instructions; "" without Config.Count
	used   time.Duration // CPU time of VMs that are gone
}

// CPUs returns the number of CPUs of each VM.
func (l *Lab) CPUs() int { return l.config.CPUs }

// Device returns the name of each VM's RDMA device.
func (l *Lab) Device() string {
	if l.config.IWARP {
		return "siw0"
	}
	return "rxe0"
}

// Repo returns the root of the repository that this program was built from.
func Repo() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// Build returns the directory that make writes to.
func Build() string { return filepath.Join(Repo(), "build") }

// Module returns the path of rdma_krping.ko for the kernel of that name.
func Module(kernel string) string {
	return filepath.Join(Build(), "kmod", kernel, "rdma_krping.ko")
}

// Start boots the VMs and waits until commands can run in all of them. The VMs die
// with this process, however it ends.
func Start(ctx context.Context, config Config) (*Lab, error) {
	kernel, err := FindKernel(config.Kernel)
	if err != nil {
		return nil, err
	}
	config.Kernel = kernel.Name
	agent := filepath.Join(Build(), "lab-guest")
	if _, err := os.Stat(agent); err != nil {
		return nil, fmt.Errorf("the guest agent is not built (make build): %w", err)
	}
	qemu, err := FindQEMU()
	if err != nil {
		return nil, err
	}
	if !qemu.patchedCode() {
		config.AtOnce = false
	}
	kvm := hasVirtualization() && !config.Count
	l, err := start(ctx, config, kernel, agent, kvm)
	if err != nil && ctx.Err() == nil && kvm {
		fmt.Fprintln(os.Stderr, "lab: the VM does not boot under KVM, trying emulation:", err)
		return start(ctx, config, kernel, agent, false)
	}
	return l, err
}

func start(ctx context.Context, config Config, kernel Kernel, agent string, kvm bool) (*Lab, error) {
	dir, err := os.MkdirTemp("", "krping-lab-")
	if err != nil {
		return nil, err
	}
	l := &Lab{Kernel: kernel, dir: dir, kvm: kvm}
	if err := l.boot(ctx, config, agent); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) boot(ctx context.Context, config Config, agent string) error {
	l.image = l.Kernel.Image
	if !l.Kernel.Built { // KASAN's shadow is not set up yet when PVH's C code runs
		image, err := vmlinux(l.Kernel, filepath.Join(Build(), "kernels"))
		if err != nil {
			return err
		}
		l.image = image
	}
	archive, err := initramfs(l.Kernel, Repo(), agent, config.Count)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(l.dir, "initramfs"), archive, 0o600); err != nil {
		return err
	}
	if config.Out == "" {
		config.Out = filepath.Join(l.dir, "out")
	}
	if config.Boot == 0 {
		config.Boot = time.Minute * time.Duration(l.Kernel.Slow)
		if config.Count {
			config.Boot *= 3 // counting takes time, and one CPU boots alone
		}
	}
	if config.Memory == 0 {
		config.Memory = 1536 * min(l.Kernel.Slow, 2)
		if config.IWARP {
			config.Memory *= 2
		}
	}
	if config.CPUs == 0 {
		config.CPUs = 2
	}
	if config.Count {
		config.CPUs = 1
		if l.plugin, err = insns.Build(l.dir); err != nil {
			return err
		}
	}
	l.config = config
	return onceMore(ctx, l.bootVMs)
}

// errBoot means that the kernel complained while it booted, when nothing of this project was loaded.
var errBoot = errors.New("while it booted")

// onceMore repeats a boot that hung or in which the kernel complained. With emulated CPUs that happens in
// about one of a hundred boots, before the guest's first process starts.
func onceMore(ctx context.Context, boot func(context.Context) error) error {
	err := boot(ctx)
	if (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errBoot)) && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "lab: booting once more:", err)
		err = boot(ctx)
	}
	return err
}

func (l *Lab) bootVMs(ctx context.Context) error {
	l.kill()
	l.vms = nil
	_ = os.Remove(filepath.Join(l.dir, "link")) // of VMs that were killed
	for i := range l.config.VMs {
		vm, err := startVM(l, i, "")
		if err != nil {
			return fmt.Errorf("start VM %d: %w", i+1, err)
		}
		l.vms = append(l.vms, vm)
	}
	for i, vm := range l.vms {
		if err := vm.waitReady(ctx, l.config.Boot); err != nil {
			return fmt.Errorf("boot VM %d: %w", i+1, err)
		}
	}
	return nil
}

// Restart kills the last VM and boots it again; not the first one, which owns the link between them. The
// new console is appended to the old one. VM returns the new VM.
func (l *Lab) Restart(ctx context.Context) error {
	last := len(l.vms) - 1
	l.vms[last].Kill()
	console := l.vms[last].Console()
	return onceMore(ctx, func(ctx context.Context) error {
		l.vms[last].Kill()
		vm, err := startVM(l, last, console)
		if err != nil {
			return fmt.Errorf("start VM %d again: %w", last+1, err)
		}
		l.vms[last] = vm
		if err := vm.waitReady(ctx, l.config.Boot); err != nil {
			return fmt.Errorf("boot VM %d again: %w", last+1, err)
		}
		return nil
	})
}

// VM returns a VM, from 0.
func (l *Lab) VM(i int) *VM { return l.vms[i] }

// Complaints returns a report on what the kernels complained about, or "". Lines that contain one of the
// expected strings do not count.
func (l *Lab) Complaints(expected ...string) string {
	var reports []string
	for i, vm := range l.vms {
		if report := findComplaint(vm.Console(), expected); report != "" {
			reports = append(reports, fmt.Sprintf("VM %d: %s", i+1, report))
		}
	}
	return strings.Join(reports, "\n")
}

// StuckCPU returns the report of a stuck CPU in the first VM's console, or "".
func (l *Lab) StuckCPU() string { return findStuckCPU(l.vms[0].Console()) }

// Close kills the VMs and removes the lab's files except Config.Out.
func (l *Lab) Close() error {
	l.kill()
	return os.RemoveAll(l.dir)
}

func (l *Lab) kill() {
	for _, vm := range l.vms {
		vm.Kill()
		l.used += vm.cpuTime()
	}
}

// CPUTime returns what the VMs have used of this host's CPUs, once the lab is closed.
func (l *Lab) CPUTime() time.Duration { return l.used }
