// SPDX-License-Identifier: Apache-2.0

// Package distro boots hosts as users have them: a Debian with systemd, its own kernel, initramfs and packages, on
// disks of its own that outlive a reboot. scripts/distro-image makes the disks.
//
// A host sees this repository's build directory, read-only, at /lab. It has no other network than the one to
// the other hosts of its lab.
package distro

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"krping/test/lab"
)

// Names of hosts, by their index.
var names = []string{"target", "client"}

const (
	memory    = 1024            // MiB of a host
	bootLimit = 4 * time.Minute // for a boot, on a busy machine
)

// Lab is a network of hosts.
type Lab struct {
	Hosts []*Host
	dir   string // disks and sockets
	hub   *hub
}

// Host is one machine: its disks stay, its VM is a new one after each boot.
type Host struct {
	*lab.VM // nil while it is off
	Name    string
	index   int
	format  string // of its disk for /: see qemu-img(1)
	lab     *Lab
	logs    string
	console string // of earlier boots
}

// Addr returns the host's address, which the image gives it: that of the page "Operating".
func (h *Host) Addr() string { return fmt.Sprintf("10.0.0.%d", h.index+1) }

// New makes the disks of hosts that are switched off. release is 12 or 13.
func New(ctx context.Context, release, logs string, hosts int) (*Lab, error) {
	image := filepath.Join(lab.Build(), "distro-"+release)
	if _, err := os.Stat(filepath.Join(image, "done")); err != nil {
		return nil, fmt.Errorf("the disks are not made (scripts/distro-image %s): %w", release, err)
	}
	dir, err := os.MkdirTemp("", "krping-distro-")
	if err != nil {
		return nil, err
	}
	l := &Lab{dir: dir}
	if err := l.make(ctx, image, logs, hosts); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) make(ctx context.Context, image, logs string, hosts int) (err error) {
	if image, err = filepath.EvalSymlinks(image); err != nil {
		return err
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return err
	}
	if l.hub, err = newHub(filepath.Join(l.dir, "net")); err != nil {
		return err
	}
	for i, name := range names[:hosts] {
		h := &Host{Name: name, index: i, format: "qcow2", lab: l, logs: logs}
		l.Hosts = append(l.Hosts, h)
		for _, argv := range [][]string{
			{"qemu-img", "create", "-q", "-f", h.format, "-F", "raw", "-b", filepath.Join(image, "root.img"), h.path("root")},
			{"cp", "--sparse=always", filepath.Join(image, "boot.img"), h.path("boot")},
		} {
			if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
			}
		}
	}
	return nil
}

// Close switches all hosts off and removes their disks.
func (l *Lab) Close() error {
	for _, h := range l.Hosts {
		h.Kill()
	}
	if l.hub != nil {
		l.hub.close()
	}
	return os.RemoveAll(l.dir)
}

func (h *Host) path(name string) string { return filepath.Join(h.lab.dir, h.Name+"-"+name) }

// Boot switches the host on and waits until commands can run in it. A boot in which the emulated kernel
// hangs before its first process is tried once more: see lab.Start.
func (h *Host) Boot(ctx context.Context) error {
	err := h.boot(ctx)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && !strings.Contains(h.console, "systemd[1]") {
		fmt.Fprintf(os.Stderr, "lab: booting %s once more: %v\n", h.Name, err)
		err = h.boot(ctx)
	}
	return err
}

func (h *Host) boot(ctx context.Context) error {
	if err := h.On(ctx); err != nil {
		return err
	}
	if err := h.VM.WaitReady(ctx, bootLimit); err != nil {
		h.Kill()
		return fmt.Errorf("boot %s: %w", h.Name, err)
	}
	return nil
}

// On switches the host on, as Boot, but does not wait.
func (h *Host) On(ctx context.Context) error {
	kernel, initrd, err := h.loader(ctx)
	if err != nil {
		return fmt.Errorf("boot %s: %w", h.Name, err)
	}
	disk := func(name, format string) []string {
		return []string{"-drive", fmt.Sprintf("if=virtio,file=%s,format=%s,cache=unsafe", h.path(name), format)}
	}
	args := []string{"-kernel", kernel, "-initrd", initrd,
		"-netdev", "stream,id=net,server=off,addr.type=unix,addr.path=" + filepath.Join(h.lab.dir, "net"),
		"-virtfs", "local,path=" + lab.Build() + ",mount_tag=lab,security_model=none,multidevs=remap,readonly=on"}
	args = append(append(args, disk("root", h.format)...), disk("boot", "raw")...)
	vm, err := lab.StartOwn(lab.Own{Index: h.index, Dir: h.lab.dir, Log: filepath.Join(h.logs, h.Name+".log"), Console: h.console, Memory: memory, Args: args,
		Append: "root=/dev/vda ro net.ifnames=0 systemd.hostname=" + h.Name})
	if err != nil {
		return fmt.Errorf("boot %s: %w", h.Name, err)
	}
	h.VM = vm
	return nil
}

// loader does what a boot loader does: it reads the newest kernel that the host has installed, and its initramfs,
// from the host's /boot.
func (h *Host) loader(ctx context.Context) (kernel, initrd string, err error) {
	debugfs := func(request string) (string, error) {
		out, err := exec.CommandContext(ctx, "debugfs", "-R", request, h.path("boot")).Output()
		if err != nil {
			return "", fmt.Errorf("debugfs %s: %w", request, err)
		}
		return string(out), nil
	}
	list, err := debugfs("ls -p /") // lines of /INODE/MODE/UID/GID/NAME/SIZE/
	if err != nil {
		return "", "", err
	}
	var kernels []string
	for line := range strings.Lines(list) {
		if fields := strings.Split(line, "/"); len(fields) > 5 && strings.HasPrefix(fields[5], "vmlinuz-") {
			kernels = append(kernels, fields[5])
		}
	}
	if len(kernels) == 0 {
		return "", "", fmt.Errorf("no kernel in /boot:\n%s", list)
	}
	name := lab.NewestImage(kernels)
	kernel, initrd = filepath.Join(h.lab.dir, h.Name+"-"+name), h.path("initrd")
	for from, to := range map[string]string{name: kernel, "initrd.img-" + strings.TrimPrefix(name, "vmlinuz-"): initrd} {
		_ = os.Remove(to) // debugfs reports only on stderr that a file is not there
		if _, err := debugfs("dump /" + from + " " + to); err != nil {
			return "", "", err
		}
		if _, err := os.Stat(to); err != nil {
			return "", "", fmt.Errorf("/boot/%s: %w", from, err)
		}
	}
	kernel, err = lab.Unpacked(kernel, h.lab.dir)
	return kernel, initrd, err
}

// Kill cuts the host's power.
func (h *Host) Kill() {
	if h.VM != nil {
		h.VM.Kill()
		h.off()
	}
}

func (h *Host) off() {
	h.console = h.VM.Console()
	h.VM = nil
}

// Shutdown lets systemd stop the host, by "poweroff" or "reboot", and returns how long that took. The host is off then:
// after "reboot", too, until Boot.
func (h *Host) Shutdown(ctx context.Context, verb string) (time.Duration, error) {
	began := time.Now()
	if out, err := h.Output(ctx, "systemctl --no-block "+verb); err != nil && !errors.Is(err, lab.ErrVMGone) {
		return 0, fmt.Errorf("%s %s: %w: %s", verb, h.Name, err, out)
	}
	select {
	case <-h.Gone():
		h.Kill() // closes what is left of it
		return time.Since(began), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s %s: %w; the console ends with:\n%s", verb, h.Name, ctx.Err(), tail(h.Console()))
	}
}

func tail(console string) string {
	lines := strings.Split(strings.TrimSpace(console), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}
