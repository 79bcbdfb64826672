// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"krping/agent/host/distro"
	"krping/bridge/sysfs"
)

// ErrNoModule is wrapped by failures to load a module.
var ErrNoModule = errors.New("a kernel module is not loaded")

// Loaded reports whether a module is loaded, or built in and visible in sysfs.
func Loaded(name string) bool {
	_, err := os.Stat(filepath.Join("/sys/module", strings.ReplaceAll(name, "-", "_")))
	return err == nil
}

// Version returns the version of a loaded module, "" if it has none or is not loaded.
func Version(name string) string {
	return sysfs.Text("/sys/module", strings.ReplaceAll(name, "-", "_"), "version")
}

// Load loads modules with modprobe, in this order, unless they are loaded. If modprobe fails, the error
// is a *Failure that wraps ErrNoModule or, without root, fs.ErrPermission.
func Load(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := LoadWith(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// LoadWith is Load for one module with parameters, NAME=VALUE.
func LoadWith(ctx context.Context, name string, parameters ...string) error {
	if Loaded(name) {
		return nil
	}
	log := LogFromNow()
	defer log.Close()
	out, err := exec.CommandContext(ctx, "modprobe", append([]string{name}, parameters...)...).CombinedOutput()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if why, fix := Denied(); why != "" {
		return &Failure{What: "cannot load the module " + name, Cause: why, Fix: fix, Err: fs.ErrPermission}
	}
	said := strings.TrimSpace(string(out))
	if said == "" {
		said = err.Error()
	}
	rule, _ := exec.CommandContext(ctx, "modprobe", "--dry-run", "--verbose", name).Output() // best effort: it only improves the message
	return explainLoad(name, distro.Read("/", Release()), Release(), said, string(rule), log.Lines())
}

// explainLoad returns the cause of a failure of modprobe and a fix, from its output (said), the commands
// that it would run (plan), and what the kernel logged.
func explainLoad(name string, d distro.Distro, release, said, plan string, log Lines) *Failure {
	f := &Failure{What: "cannot load the module " + name, Err: ErrNoModule}
	mixed := log.Find("exports duplicate symbol", "disagrees about version of symbol", "Unknown symbol")
	switch {
	case mixed != "":
		f.Cause = fmt.Sprintf("modules of two driver stacks are mixed, such as the kernel's own and a vendor's (MLNX_OFED, DOCA): the kernel logged %q", mixed)
		f.Fix = fmt.Sprintf("modinfo -n ib_core rdma_cm nvme_fabrics %s shows which stack each is from. Use one stack: install the vendor's with its NVMe-oF modules, or remove it. Then run depmod -a; the next boot uses it", name)
	case rule(plan) != "":
		f.Cause = fmt.Sprintf("a rule in modprobe's configuration replaces it: %s", rule(plan))
		f.Fix = fmt.Sprintf("grep -rE 'install +(%s|%s)' /etc/modprobe.d /run/modprobe.d /lib/modprobe.d, and remove the rule", name, strings.ReplaceAll(name, "-", "_"))
	case missingFile(plan) != "", strings.Contains(said, "not found"):
		f.Cause = fmt.Sprintf("it is not installed for kernel %s (%s)", release, cmp.Or(missingFile(plan), said))
		f.Fix = d.InstallModules() + ", then depmod -a; a new kernel must be booted"
	case strings.Contains(said, "Key was rejected"), strings.Contains(said, "Operation not permitted"), strings.Contains(said, "Required key not available"):
		f.Cause = "the kernel rejects it: " + said
		f.Fix = fmt.Sprintf("with secure boot, mokutil --import %s (the key with which DKMS signs) and a reboot, or sign the module with another key that the kernel trusts; sysctl kernel.modules_disabled must be 0", d.SigningKey())
	default:
		f.Cause = strings.Join(append([]string{said}, log...), "; ")
		f.Fix = "modprobe -v " + name + "; dmesg"
	}
	return f
}

// rule returns the command that modprobe would run instead of loading the module, or "".
func rule(plan string) string {
	for line := range strings.Lines(plan) {
		if strings.HasPrefix(line, "install ") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// missingFile describes the first file that modprobe would load and that does not exist, or returns "".
// modprobe itself reports unknown symbols in that case.
func missingFile(plan string) string {
	for line := range strings.Lines(plan) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "insmod" {
			continue
		}
		if _, err := os.Stat(fields[1]); errors.Is(err, fs.ErrNotExist) {
			return fields[1] + " does not exist"
		}
	}
	return ""
}

// Release returns the release of the running kernel, as uname -r prints it.
func Release() string {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "?"
	}
	return unix.ByteSliceToString(uts.Release[:])
}
