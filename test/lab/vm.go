// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"krping/test/lab/insns"
)

// VM is one running virtual machine.
type VM struct {
	index   int
	out     string
	qemu    *exec.Cmd
	gone    chan struct{} // QEMU has ended
	socket  string
	shell   string
	monitor string
	counts  string // file of the plugin that counts instructions
	began   int    // offset of its boot in the console
	session *yamux.Session

	mu      sync.Mutex
	console bytes.Buffer
	log     *os.File
	copy    io.Writer
}

// hasVirtualization reports whether KVM can run a stock kernel. That /dev/kvm exists is not enough.
func hasVirtualization() bool {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !bytes.Contains(info, []byte(" vmx")) && !bytes.Contains(info, []byte(" svm")) {
		return false
	}
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = f.Close()
	return true
}

// emulated is a CPU without the instructions that are fast in hardware but slow in the emulator, which
// works bit by bit or byte by byte: CRC32 and PCLMULQDQ (a CRC32C of 4 KiB takes 40 us with them), and
// the string copies of ERMS. The kernel then uses its portable code, which is several times faster.
// AES goes with PCLMULQDQ: aesni_intel of Linux 6.1 oopses on a CPU that has only the former.
const emulated = "max,erms=off,fsrm=off,pclmulqdq=off,sse4.2=off,aes=off"

// withCRC is a CPU with the instructions for CRCs that hosts have: programs choose their way by them. How long the
// emulator takes does not matter where instructions are counted.
const withCRC = "max,erms=off,fsrm=off"

// How the emulator runs the CPUs of a VM. In turn costs a fifth less of the host's CPU time; the guest still switches
// CPUs at any instruction. At once is for tests that look for races between CPUs, and for benchmarks.
//
// If one CPU translates an instruction while another one patches it, QEMU 7.2 may keep the old translation:
// a breakpoint, if the kernel was attaching a tracer or switching another static key. The CPU then takes
// that exception without end: a soft lockup in asm_exc_int3 or at an innocent instruction. Switching the
// block tracepoints on and off causes it within seconds, without the module. It cannot happen to CPUs that
// run in turn, as they always do in QEMU before 10. In QEMU 10, with the CPUs at once, 2600 switches did not
// cause it.
const (
	atOnce = "tcg,thread=multi"
	inTurn = "tcg,thread=single"
)

func accelerator(kvm bool, config Config) []string {
	accel, cpu := inTurn, emulated
	if config.AtOnce {
		accel = atOnce
	}
	if config.Count {
		cpu = withCRC
	}
	if kvm {
		accel, cpu = "kvm", "max"
	}
	return []string{"-accel", accel, "-cpu", cpu}
}

// machineArgs returns the arguments that all VMs have: the machine, its console, the agent's port, the monitor
// and the network device.
func machineArgs(kvm bool, config Config, index int, agent, monitor string) []string {
	// The default machine routes interrupts by ACPI code: 1 s of a boot, and minutes under KASAN.
	return append(accelerator(kvm, config), "-machine", "q35", "-smp", fmt.Sprint(config.CPUs), "-m", fmt.Sprint(config.Memory),
		"-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-serial", "stdio",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=agent,server=on,wait=off,path="+agent,
		"-device", "virtserialport,chardev=agent,name="+PortName,
		"-qmp", "unix:"+monitor+",server=on,wait=off",
		"-device", "virtio-rng-pci",
		"-device", fmt.Sprintf("virtio-net-pci,netdev=net,host_mtu=9000,romfile=,mac=52:54:00:77:00:%02x", index+1))
}

// kernelParameters returns those that all kernels get: for the console and the clock.
func kernelParameters(kvm bool) string {
	parameters := "console=ttyS0 loglevel=5 panic=-1 no_timer_check tsc=reliable clocksource=tsc"
	if khz := tscKHz(); !kvm && khz > 0 {
		parameters += fmt.Sprintf(" tsc_early_khz=%d", khz)
	}
	return parameters
}

func qemuArgs(l *Lab, index int, out, socket string) []string {
	config := l.config
	cmdline := fmt.Sprintf("%s lab.index=%d lab.slow=%d", kernelParameters(l.kvm), index+1, l.Kernel.Slow)
	if config.Count {
		cmdline += " nokaslr norandmaps" // the same code at the same address in all runs
	}
	if config.NoRXE {
		cmdline += " lab.norxe=1"
	}
	if config.Kernel == Debug {
		cmdline += " kasan_multi_shot" // a known report must not hide others
	}
	if config.IWARP {
		cmdline += " lab.iwarp=1"
	}
	share := func(path, tag, mode string) []string {
		return []string{"-virtfs", fmt.Sprintf("local,path=%s,mount_tag=%s,security_model=none,multidevs=remap%s", path, tag, mode)}
	}
	args := append(machineArgs(l.kvm, config, index, socket, monitorSocket(l, index)),
		"-kernel", l.image, "-initrd", filepath.Join(l.dir, "initramfs"), "-append", cmdline)
	if config.Count {
		args = append(args, "-plugin", "file="+l.plugin+",out="+countsFile(l, index))
	}
	args = append(args, share("/", "hostroot", ",readonly=on")...)
	args = append(args, share(Repo(), "repo", ",readonly=on")...)
	args = append(args, share(out, "out", "")...)
	if config.Shells {
		args[slices.Index(args, "-append")+1] += " lab.shell=1"
		args = append(args, "-chardev", "socket,id=shell,server=on,wait=off,path="+shellSocket(l, index),
			"-device", "virtconsole,chardev=shell")
	}
	link := filepath.Join(l.dir, "link")
	switch {
	case config.VMs == 1:
		args = append(args, "-netdev", "user,id=net,restrict=on")
	case index == 0:
		args = append(args, "-netdev", "stream,id=net,server=on,addr.type=unix,addr.path="+link)
	default:
		args = append(args, "-netdev", "stream,id=net,server=off,addr.type=unix,addr.path="+link)
	}
	return args
}

func countsFile(l *Lab, index int) string { return filepath.Join(l.dir, fmt.Sprintf("insns%d", index)) }

// Counts returns the instructions that the VM has executed so far, if Config.Count asked for it.
func (vm *VM) Counts() (insns.Counts, error) { return insns.Read(vm.counts) }

func shellSocket(l *Lab, index int) string {
	return filepath.Join(l.dir, fmt.Sprintf("shell%d", index))
}

// ShellSocket returns the Unix socket of the VM's shell, if Config.Shells asked for one.
func (vm *VM) ShellSocket() string { return vm.shell }

// startVM starts a VM whose console follows an earlier one's.
func startVM(l *Lab, index int, console string) (*VM, error) {
	config := l.config
	out := filepath.Join(config.Out, fmt.Sprintf("vm%d", index+1))
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	vm := &VM{
		index: index, out: out, copy: config.Console, socket: filepath.Join(l.dir, fmt.Sprintf("agent%d", index)),
		shell: shellSocket(l, index), monitor: monitorSocket(l, index), counts: countsFile(l, index),
	}
	if err := vm.start(qemuArgs(l, index, out, vm.socket), filepath.Join(config.Out, fmt.Sprintf("console%d.log", index+1)), console); err != nil {
		return nil, err
	}
	if index == 0 && config.VMs > 1 { // the first VM's end of the link must exist before the other connects
		for range 200 {
			if _, err := os.Stat(filepath.Join(l.dir, "link")); err == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return vm, nil
}

// start starts QEMU. The console goes to a log, after what an earlier VM has printed.
func (vm *VM) start(args []string, logPath, console string) error {
	qemu, err := FindQEMU()
	if err != nil {
		return err
	}
	log, err := os.Create(logPath)
	if err != nil {
		return err
	}
	if _, err := log.WriteString(console); err != nil {
		return fmt.Errorf("write the console's log: %w", err)
	}
	vm.log, vm.began, vm.gone = log, len(console), make(chan struct{})
	vm.console.WriteString(console)
	vm.qemu = exec.Command(qemu.Path, slices.Concat(qemu.Args, args)...)
	vm.qemu.Stdout = consoleWriter{vm}
	vm.qemu.Stderr = consoleWriter{vm}
	vm.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := startLocked(vm.qemu); err != nil {
		return fmt.Errorf("start QEMU: %w", err)
	}
	go func() {
		_ = vm.qemu.Wait()
		close(vm.gone)
	}()
	return nil
}

var starter = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		lockThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

// startLocked starts a command from a thread that lives as long as this process. The end of the thread that
// started it would send it Pdeathsig.
func startLocked(cmd *exec.Cmd) error {
	result := make(chan error)
	starter() <- func() { result <- cmd.Start() }
	return <-result
}

type consoleWriter struct{ vm *VM }

func (w consoleWriter) Write(p []byte) (int, error) {
	w.vm.mu.Lock()
	defer w.vm.mu.Unlock()
	w.vm.console.Write(p)
	_, _ = w.vm.log.Write(p)
	if w.vm.copy != nil {
		_, _ = w.vm.copy.Write(p)
	}
	return len(p), nil
}

// Console returns what the VM's kernel and agent have printed so far.
func (vm *VM) Console() string {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.console.String()
}

// Addr returns the VM's IPv4 address.
func (vm *VM) Addr() string { return fmt.Sprintf("192.168.77.%d", vm.index+1) }

// Out returns the directory of this host that is /lab/out in the guest.
func (vm *VM) Out() string { return vm.out }

// YamuxConfig returns the configuration of both ends. An emulated guest may be slow, so no keep-alives.
func YamuxConfig() *yamux.Config {
	config := yamux.DefaultConfig()
	config.EnableKeepAlive = false
	config.ConnectionWriteTimeout = time.Minute
	config.StreamOpenTimeout = 0
	config.StreamCloseTimeout = time.Hour
	config.LogOutput = io.Discard
	return config
}

func (vm *VM) waitReady(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var conn net.Conn
	for conn == nil {
		var err error
		if conn, err = net.Dial("unix", vm.socket); err != nil {
			select {
			case <-ctx.Done():
				return vm.bootError(ctx.Err())
			case <-vm.gone:
				return vm.bootError(errors.New("QEMU has ended"))
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	ready := make(chan error, 1)
	go func() {
		_, err := readReady(conn)
		ready <- err
	}()
	select {
	case err := <-ready:
		if err != nil {
			select { // wait for the end of its console
			case <-vm.gone:
			case <-ctx.Done():
			}
			return vm.bootError(err)
		}
	case <-vm.gone:
		return vm.bootError(errors.New("the VM has powered off"))
	case <-ctx.Done():
		_ = conn.Close()
		return vm.bootError(ctx.Err())
	}
	if report := vm.complaint(); report != "" {
		return fmt.Errorf("%w: %s", errBoot, report)
	}
	session, err := yamux.Client(conn, YamuxConfig())
	vm.session = session
	return err
}

// readReady reads the line and not a byte more.
func readReady(r io.Reader) (string, error) {
	line := make([]byte, len(Ready))
	if _, err := io.ReadFull(r, line); err != nil {
		return "", err
	}
	if string(line) != Ready {
		return "", fmt.Errorf("the agent says %q", line)
	}
	return string(line), nil
}

// complaint returns what the kernel has complained about since it was started.
func (vm *VM) complaint() string { return findComplaint(vm.Console()[vm.began:], nil) }

func (vm *VM) bootError(err error) error {
	if report := vm.complaint(); report != "" {
		return fmt.Errorf("%w: %w: %s", err, errBoot, report)
	}
	lines := strings.Split(strings.TrimSpace(vm.Console()), "\n")
	return fmt.Errorf("%w; the console ends with:\n%s", err, strings.Join(lines[max(0, len(lines)-25):], "\n"))
}

// Kill ends the VM as a power failure would, and waits until it is gone.
func (vm *VM) Kill() {
	_ = vm.qemu.Process.Kill()
	<-vm.gone
	if vm.session != nil {
		_ = vm.session.Close()
	}
	_ = vm.log.Close()
}

// cpuTime returns what the VM has used of this host's CPUs; it is gone.
func (vm *VM) cpuTime() time.Duration {
	return vm.qemu.ProcessState.UserTime() + vm.qemu.ProcessState.SystemTime()
}

// Alive reports whether the VM still runs.
func (vm *VM) Alive() bool {
	select {
	case <-vm.gone:
		return false
	default:
		return true
	}
}
