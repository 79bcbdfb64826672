// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/unit"

	"krping/agent/service/config"
	"krping/bridge/sysfs"
	"krping/proc"
)

// root is the directory below which files are read: "/", or that of a test.
type root string

func (r root) path(name string) string    { return filepath.Join(string(r), name) }
func (r root) content(name string) string { return sysfs.Text(r.path(name)) }
func (r root) exists(name string) bool    { return exists(r.path(name)) }

// glob returns the files of patterns, without the root.
func (r root) glob(patterns ...string) []string {
	var names []string
	for _, pattern := range patterns {
		found, _ := filepath.Glob(r.path(pattern)) // fails for bad patterns only
		for _, f := range found {
			names = append(names, "/"+strings.TrimPrefix(strings.TrimPrefix(f, string(r)), "/"))
		}
	}
	return names
}

// Where units are.
var unitDirs = []string{"/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// unitFile reports whether the file of a unit is installed.
func (r root) unitFile(name string) bool {
	return slices.ContainsFunc(unitDirs, func(dir string) bool { return r.exists(dir + "/" + name) })
}

// enabled returns the enabled units of a pattern.
func (r root) enabled(pattern string) []string {
	var names []string
	for _, dir := range unitDirs {
		for _, kind := range []string{"wants", "requires", "upholds"} {
			for _, link := range r.glob(dir + "/*." + kind + "/" + escapeGlob(pattern)) {
				names = append(names, filepath.Base(link))
			}
		}
	}
	return names
}

// escapeGlob makes the backslashes of unit names match themselves.
func escapeGlob(pattern string) string { return strings.ReplaceAll(pattern, `\`, `\\`) }

func (r root) isEnabled(name string) bool { return len(r.enabled(name)) > 0 }

// startFiles are files by which an administrator has something started at boot.
var startFiles = []string{
	"/etc/systemd/system/*.service", "/etc/systemd/system/*.d/*.conf", "/etc/systemd/network/*", "/etc/udev/rules.d/*",
	"/etc/network/interfaces", "/etc/network/interfaces.d/*", "/etc/network/if-up.d/*", "/etc/rc.local", "/etc/rc.d/rc.local",
	"/etc/init.d/*", "/etc/NetworkManager/dispatcher.d/*", "/etc/networkd-dispatcher/*/*", "/etc/cron.d/*", "/etc/crontab",
}

// starts reports whether one of the start files contains all words.
func (r root) starts(words ...string) bool {
	return slices.ContainsFunc(r.glob(startFiles...), func(name string) bool { return r.contains(name, words...) })
}

func (r root) contains(name string, words ...string) bool {
	text := r.content(name)
	return text != "" && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
}

func (h host) bootFindings(fs proc.FS) []Finding {
	sessions, _ := fs.Sessions() // without the module, or root, other findings say so
	return h.boot("/", sessions, h.readTables())
}

// boot reports what works now and will not be there after the next boot. Where systemd does not run,
// it is not known what a boot starts.
func (h host) boot(r root, sessions []proc.Session, tables []ruleset) []Finding {
	if !r.exists("/run/systemd/system") {
		return nil
	}
	findings := slices.Concat(
		h.bootLinks(r), h.modules.bootModule(r), bootSessions(r, sessions), bootMounts(r, sessions),
		bootBridges(r), bootVolumes(r, sessions), bootNVMe(r), h.bootFirewall(r, tables),
	)
	if len(findings) == 0 {
		return []Finding{ok("boot", "what is set up now is there after a boot, too")}
	}
	return findings
}

// readTables returns the firewall's tables if it matters for a device; none if it cannot be read, which another
// finding says.
func (h host) readTables() []ruleset {
	if !slices.ContainsFunc(h.devices, func(d device) bool { return d.kind == rxe }) {
		return nil
	}
	tables, _ := readFirewall()
	return tables
}

func lost(found, cause, fix string) Finding {
	return Finding{Check: "boot", Level: Note, Found: found, Cause: cause, Fix: fix}
}

// bootLinks checks the Soft-RoCE devices.
func (h host) bootLinks(r root) []Finding {
	var findings []Finding
	for _, d := range h.devices {
		if d.kind != rxe || len(d.ports) == 0 {
			continue
		}
		n := d.ports[0].netdev
		service := rxeUnit(n)
		if _, here := h.netdev(n); !here || r.isEnabled(service) || r.starts("rxe", n) {
			continue
		}
		fix := "systemctl enable --now " + service
		if !r.unitFile("krping-rxe@.service") {
			fix = "install the package krping-common, and " + fix + "; or run `krpingctl link keep " + n + "` in a service"
		}
		findings = append(findings, lost(fmt.Sprintf("%s on %s was made by hand: it is not there after a boot", d.name, n), service+" is not enabled; it also makes the device anew when it makes no connections any more", fix))
	}
	return findings
}

// bootModule checks that rdma_krping, if it is loaded, is loaded by the next boot.
func (m modules) bootModule(r root) []Finding {
	if !m.loaded[krping] || m.installed == nil {
		return nil
	}
	const load = "echo rdma_krping > /etc/modules-load.d/krping.conf"
	if !m.installed[krping] {
		return []Finding{lost("rdma_krping was loaded from a file: it is not loaded by a boot", "it is not installed below /lib/modules/"+m.release, "install the package krping-dkms; or make -C kmod dkms && "+load)}
	}
	var findings []Finding
	loads := slices.ContainsFunc(r.glob("/etc/modules-load.d/*.conf", "/usr/lib/modules-load.d/*.conf", "/usr/local/lib/modules-load.d/*.conf", "/lib/modules-load.d/*.conf", "/etc/modules"),
		func(name string) bool { return hasLine(r.content(name), "rdma_krping", "rdma-krping") })
	if !loads && !strings.Contains(r.content("/proc/cmdline"), "rdma_krping") && !r.isEnabled("krping-agent.service") && !r.isEnabled("krping-server@*.service") && !r.starts("rdma_krping") {
		findings = append(findings, lost("rdma_krping was loaded by hand: it is not loaded by a boot", "no file of modules-load.d names it, and no enabled service needs it", load))
	}
	for _, release := range r.newerKernels(m.release) {
		findings = append(findings, lost(fmt.Sprintf("the newer kernel %s has no rdma_krping", release), "it was not built for that kernel: its headers are not installed, or the build failed", "dkms autoinstall -k "+release+"; dkms status"))
	}
	return findings
}

// hasLine reports whether a text has one of the lines, not counting spaces around it.
func hasLine(text string, lines ...string) bool {
	for line := range strings.Lines(text) {
		if slices.Contains(lines, strings.TrimSpace(line)) {
			return true
		}
	}
	return false
}

// newerKernels returns the releases of installed kernels that are newer than the running one and do not have
// rdma_krping.
func (r root) newerKernels(running string) []string {
	var newer []string
	for _, file := range r.glob("/lib/modules/*/modules.dep") {
		release := filepath.Base(filepath.Dir(file))
		bootable := r.exists("/boot/vmlinuz-"+release) || r.exists("/lib/modules/"+release+"/vmlinuz")
		if bootable && compareReleases(release, running) > 0 && !parseModuleList(r.content(file))[krping] {
			newer = append(newer, release)
		}
	}
	return newer
}

// compareReleases compares the releases of kernels, numbers as numbers.
func compareReleases(a, b string) int {
	split := func(s string) (fields []string) {
		return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(".-+_~", r) })
	}
	x, y := split(a), split(b)
	for i := range min(len(x), len(y)) {
		m, err1 := strconv.Atoi(x[i])
		n, err2 := strconv.Atoi(y[i])
		order := strings.Compare(x[i], y[i])
		if err1 == nil && err2 == nil {
			order = m - n
		}
		if order != 0 {
			return order
		}
	}
	return len(x) - len(y)
}

// bootSessions checks that the agent attaches again what is attached.
func bootSessions(r root, sessions []proc.Session) []Finding {
	c, err := config.Load(r.path(config.DefaultPath))
	if err != nil && !os.IsNotExist(err) && r.exists(config.DefaultPath) {
		return nil // krpingctl agent --check says what is wrong
	}
	var findings []Finding
	enabled := r.isEnabled("krping-agent.service")
	for _, s := range sessions {
		if s.Role != "client" || r.starts("krpingctl", s.Name) {
			continue
		}
		declared := slices.ContainsFunc(c.Sessions, func(want config.Session) bool { return want.Name() == s.Name })
		switch {
		case !declared:
			findings = append(findings, lost(fmt.Sprintf("%s (volume %s) was attached by hand: it is not there after a boot", s.Dev, s.Name), "it is not in "+config.DefaultPath,
				fmt.Sprintf("in the sessions of %s: - %s; then systemctl enable --now krping-agent", config.DefaultPath, declaration(s))))
		case !enabled:
			findings = append(findings, lost(fmt.Sprintf("%s (volume %s) is not there after a boot", s.Dev, s.Name), "krping-agent.service is not enabled", "systemctl enable --now krping-agent"))
		}
	}
	return findings
}

// declaration returns a session as the agent's configuration has it.
func declaration(s proc.Session) string {
	peer, err := netip.ParseAddrPort(s.Peer)
	switch {
	case err != nil:
		return fmt.Sprintf("{name: %q, addr: ADDRESS}", s.Name)
	case peer.Port() == 9999:
		return fmt.Sprintf("{name: %q, addr: %q}", s.Name, peer.Addr())
	}
	return fmt.Sprintf("{name: %q, addr: %q, port: %d}", s.Name, peer.Addr(), peer.Port())
}

// mountUnit returns the unit that mounts a directory.
func mountUnit(dir string) string { return unit.UnitNamePathEscape(dir) + ".mount" }
