// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"krping/agent/host/distro"
	"krping/agent/host/kernel"
	"krping/bridge/sysfs"
)

const krping = "rdma_krping"

// modules is the state of the kernel's modules.
type modules struct {
	release      string // of the kernel, as uname -r prints it
	distro       distro.Distro
	installed    map[string]bool // or built in; nil if unknown
	loaded       map[string]bool // or built in, if listed in /sys/module
	headers      bool            // for building modules are installed
	version      string          // of rdma_krping, if it is loaded
	taint        string          // letters from /sys/module/rdma_krping/taint
	noFile       string          // in /dev/infiniband, of the user-space interface: the first that is missing
	noFileNumber string          // "10 124"
	signedOnly   bool            // the kernel refuses modules without a trusted signature
}

func readModules() (modules, error) {
	m := modules{release: kernel.Release()}
	m.distro = distro.Read("/", m.release)
	dir := filepath.Join("/lib/modules", m.release)
	m.headers = exists(filepath.Join(dir, "build", "Makefile"))
	m.version, m.taint = sysfs.Text("/sys/module/"+krping+"/version"), sysfs.Text("/sys/module/"+krping+"/taint")
	m.signedOnly = sysfs.Text("/sys/module/module/parameters/sig_enforce") == "Y" || isLockedDown(sysfs.Text("/sys/kernel/security/lockdown"))
	m.noFile, m.noFileNumber = root("/").missingFile()
	m.loaded = map[string]bool{}
	entries, err := os.ReadDir("/sys/module")
	if err != nil {
		return m, fmt.Errorf("list the loaded modules: %w", err)
	}
	for _, e := range entries {
		m.loaded[e.Name()] = true
	}
	if list := sysfs.Text(dir, "modules.dep"); list != "" {
		m.installed = parseModuleList(list + "\n" + sysfs.Text(dir, "modules.builtin"))
	}
	return m, nil
}

// missingFile returns the first file of the RDMA devices' user-space interface that should be in
// /dev/infiniband and is not, and its number.
func (r root) missingFile() (name, number string) {
	for _, file := range r.glob("/sys/class/misc/rdma_cm/dev", "/sys/class/infiniband_verbs/uverbs*/dev") {
		if name := path.Base(path.Dir(file)); !r.exists("/dev/infiniband/" + name) {
			return name, strings.ReplaceAll(r.content(file), ":", " ")
		}
	}
	return "", ""
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// parseModuleList parses modules.dep or modules.builtin: one path per line, optionally followed by
// a colon and other paths.
func parseModuleList(text string) map[string]bool {
	names := map[string]bool{}
	for line := range strings.Lines(text) {
		file, _, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name, _, found := strings.Cut(path.Base(file), ".ko"); found {
			names[strings.ReplaceAll(name, "-", "_")] = true
		}
	}
	return names
}

// isLockedDown parses /sys/kernel/security/lockdown, such as "none [integrity] confidentiality".
func isLockedDown(text string) bool {
	return strings.Contains(text, "[") && !strings.Contains(text, "[none]")
}

// OldestKernel and NewestKernel are the versions of Linux that rdma_krping is known to build on, with
// all between. The READMEs and kmod/dkms.conf say the same: package test/docs compares them.
const OldestKernel, NewestKernel = "6.1", "7.3"

// Supported reports whether a kernel is one of these, by its release as uname -r prints it. One that
// is none may still build, if its distribution has taken newer code over: kmod/probe asks its headers.
func Supported(release string) bool {
	n := number(release)
	return n == 0 || n >= number(OldestKernel) && n <= number(NewestKernel) // 0: the compiler will tell
}

// number makes the releases of kernels comparable: 6.1.0-56-amd64 equals 6.1. It is 0 for an odd one.
func number(release string) int {
	var major, minor int
	if found, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); found != 2 {
		return 0
	}
	return major<<16 | minor
}

func (m modules) findings() []Finding {
	if m.loaded == nil {
		return nil
	}
	findings := []Finding{m.own()}
	if m.signedOnly && !m.loaded[krping] {
		findings = append(findings, Finding{
			Check: "module signature", Level: Warning, Found: "this kernel loads only modules with a trusted signature",
			Cause: "secure boot, lockdown or module.sig_enforce; insmod fails with \"Key was rejected\" or \"Operation not permitted\"",
			Fix:   fmt.Sprintf("mokutil --import %s, the key with which DKMS signs, and a reboot; without DKMS, the same with CERT, and /lib/modules/%s/build/scripts/sign-file sha256 KEY CERT kmod/rdma_krping.ko", m.distro.SigningKey(), m.release),
		})
	}
	return append(findings, m.drivers()...)
}

// versionFindings checks that the loaded module is of the same version as this program.
func (m modules) versionFindings(program string) []Finding {
	if m.version == "" || m.version == program {
		return nil
	}
	return []Finding{{
		Check: "version", Level: Note, Found: fmt.Sprintf("the loaded %s is %s, this program is %s", krping, m.version, program),
		Cause: "only one of them was upgraded, or the module was in use then: the old one stays loaded",
		Fix:   "install both in one version; the next boot of this host loads it; or, when no disk is attached and no volume served: modprobe -r rdma_krping && modprobe rdma_krping",
	}}
}

// own checks the project's own module.
func (m modules) own() Finding {
	f := Finding{Check: "module", Level: Problem, Found: krping + " is not loaded"}
	load := "modprobe -a rdma_cm && insmod kmod/rdma_krping.ko"
	if m.installed["libcrc32c"] { // newer kernels have it built in, under another name
		load = "modprobe -a rdma_cm libcrc32c && insmod kmod/rdma_krping.ko"
	}
	switch {
	case m.loaded[krping] && strings.Contains(m.taint, "F"):
		f.Level, f.Found = Warning, krping+" "+m.version+" is loaded by force"
		f.Cause, f.Fix = "it was built for another kernel", "when no disk is attached and no volume served: make -C kmod clean modules && rmmod rdma_krping && "+load
	case m.loaded[krping]:
		return ok("module", "%s %s is loaded%s", krping, m.version, explainTaint(m.taint))
	case m.installed[krping]:
		f.Cause, f.Fix = "it is installed, but was not loaded since boot", "modprobe rdma_krping"
	case !Supported(m.release):
		f.Cause = fmt.Sprintf("it is not installed, and is not known to build for kernel %s: only for %s to %s", m.release, OldestKernel, NewestKernel)
		f.Fix = "boot a supported kernel, or try make -C kmod modules && " + load + "; krping-bridge needs no module"
	case !m.headers:
		f.Cause = "it is not installed for kernel " + m.release + ", and neither are the headers to build it"
		f.Fix = m.distro.InstallHeaders() + " && make -C kmod modules && " + load
	default:
		f.Cause = "it is not installed for kernel " + m.release
		f.Fix = "make -C kmod modules && " + load
	}
	return f
}

// explainTaint explains the letters of /sys/module/NAME/taint that concern users.
func explainTaint(letters string) string {
	text := ""
	if strings.Contains(letters, "O") {
		text += ", built outside the kernel's tree"
	}
	if strings.Contains(letters, "E") {
		text += ", without a signature"
	}
	return text
}

// drivers checks the kernel's own modules that the project needs.
func (m modules) drivers() []Finding {
	if m.installed == nil {
		return []Finding{{
			Check: "drivers", Level: Warning, Found: "the modules of kernel " + m.release + " are not known",
			Cause: "/lib/modules/" + m.release + "/modules.dep does not exist: an upgrade has replaced the running kernel's package, as Arch's do, or this is a container",
			Fix:   m.distro.InstallModules() + ", then depmod -a; a new kernel must be booted",
		}}
	}
	missing := func(names ...string) []string {
		var list []string
		for _, name := range names {
			if !m.installed[name] && !m.loaded[name] {
				list = append(list, name)
			}
		}
		return list
	}
	core, soft := missing("ib_core", "rdma_cm"), missing("ib_uverbs", "rdma_ucm", "rdma_rxe")
	if all := append(core, soft...); len(all) > 0 {
		f := Finding{Check: "drivers", Level: Warning, Found: "this kernel has no " + strings.Join(all, ", no ")}
		if len(core) > 0 {
			f.Level = Problem
		}
		f.Cause, f.Fix = m.explainMissing()
		return []Finding{f}
	}
	if m.noFile != "" {
		return []Finding{{
			Check: "drivers", Level: Warning, Found: fmt.Sprintf("rdma_ucm is loaded, but /dev/infiniband/%s does not exist", m.noFile),
			Cause: "this is a container that was not given it, or udev does not run; krping-bridge and rping need it",
			Fix:   fmt.Sprintf("mkdir -p /dev/infiniband && mknod -m 666 /dev/infiniband/%s c %s; or start the container with --device=/dev/infiniband", m.noFile, m.noFileNumber),
		}}
	}
	if !m.loaded["rdma_ucm"] || !m.loaded["ib_uverbs"] {
		return []Finding{{
			Check: "drivers", Level: Note, Found: "rdma_ucm and ib_uverbs are not both loaded",
			Cause: "user-space programs need them: krping-bridge, rping, ibv_devinfo",
			Fix:   "modprobe -a rdma_ucm ib_uverbs",
		}}
	}
	return []Finding{ok("drivers", "rdma_ucm and ib_uverbs are loaded, for krping-bridge")}
}

func (m modules) explainMissing() (cause, fix string) {
	switch {
	case m.distro.Is("ubuntu"):
		return "Ubuntu ships them in a package that is not installed", m.distro.InstallModules()
	case m.distro.Is("debian") && strings.Contains(m.release, "-cloud-"):
		return "cloud kernels lack them", m.distro.InstallModules() + ", and boot that kernel"
	case m.distro.Is("rhel"), m.distro.Is("suse"):
		return "they are in packages that are not installed, or not part of this distribution's kernel", m.distro.InstallModules() + ", and boot that kernel if it is a newer one"
	}
	return "it was built without CONFIG_INFINIBAND, CONFIG_INFINIBAND_ADDR_TRANS, CONFIG_INFINIBAND_USER_ACCESS or CONFIG_RDMA_RXE", "boot a kernel that has them"
}
