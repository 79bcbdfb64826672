// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/coreos/go-systemd/v22/unit"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"

	"krping/proc"
)

// bootBridges checks that the running bridges are started by the next boot.
func bootBridges(r root) []Finding {
	var findings []Finding
	for _, dir := range r.bridges() {
		who := fmt.Sprintf("krping-bridge (process %s)", path.Base(dir))
		group := r.content(dir + "/cgroup")
		service := path.Base(group)
		switch {
		case strings.HasPrefix(service, "krping-bridge@") && !r.isEnabled(service):
			findings = append(findings, lost(who+" is not started by a boot", service+" is not enabled", "systemctl enable "+service))
		case strings.Contains(group, "/user.slice/") && !r.starts("krping-bridge"):
			args, _ := os.ReadFile(r.path(dir + "/cmdline")) // fails if it has just ended
			_, options, _ := strings.Cut(strings.ReplaceAll(strings.TrimRight(string(args), "\x00"), "\x00", " "), " ")
			findings = append(findings, lost(who+" was started by hand: it is not started by a boot", "it belongs to the session of a user, and to no service",
				fmt.Sprintf("mkdir -p /etc/krping/targets && echo 'OPTIONS=%s' > /etc/krping/targets/NAME.conf && systemctl daemon-reload && systemctl enable krping-bridge@NAME; the unit's user, krping, needs access to the stores", options)))
		}
	}
	return findings
}

// bootVolumes checks that the module's volumes are served after the next boot.
func bootVolumes(r root, sessions []proc.Session) []Finding {
	var findings []Finding
	for _, s := range sessions {
		instance, hasFile := r.serverOf(s.Name)
		service := "krping-server@" + unit.UnitNameEscape(instance) + ".service"
		if s.Role != "target" || r.isEnabled(service) || r.starts("krping", s.Name) {
			continue
		}
		if hasFile {
			findings = append(findings, lost(fmt.Sprintf("volume %s is not served after a boot", s.Name), service+" is not enabled", "systemctl enable "+service))
			continue
		}
		options := "OPTIONS=--addr ADDRESS"
		if addr, err := netip.ParseAddrPort(s.Peer); err == nil {
			options = fmt.Sprintf("OPTIONS=--addr %v --port %d", addr.Addr(), addr.Port())
		}
		if instance != s.Name {
			options = "VOLUME=" + s.Name + "\\n" + options
		}
		findings = append(findings, lost(fmt.Sprintf("volume %s is served by hand: it is not served after a boot", s.Name), "no service serves it",
			fmt.Sprintf("mkdir -p /etc/krping/servers && printf '%s --backing DISK\\n' > /etc/krping/servers/%s.conf && systemctl daemon-reload && systemctl enable %s", options, instance, service)))
	}
	return findings
}

// serverOf returns the instance of krping-server@.service that serves a volume, and whether it has a file: by
// its VOLUME=, or else its name. Without a file, it is the name for a new one.
func (r root) serverOf(volume string) (instance string, hasFile bool) {
	for _, file := range r.glob("/etc/krping/servers/*.conf") {
		name := strings.TrimSuffix(path.Base(file), ".conf")
		served := name
		for line := range strings.Lines(r.content(file)) {
			if value, isVolume := strings.CutPrefix(strings.TrimSpace(line), "VOLUME="); isVolume {
				served = strings.Trim(value, `"'`)
			}
		}
		if served == volume {
			return name, true
		}
	}
	return strings.ReplaceAll(volume, "/", "_"), false
}

// savedTargets is the file that krping-nvmet.service and nvmetcli restore.
const savedTargets = "/etc/nvmet/config.json"

// bootNVMe checks that the subsystems of the kernel's NVMe target are served after the next boot.
func bootNVMe(r root) []Finding {
	var served []string
	for _, dir := range r.glob("/sys/kernel/config/nvmet/subsystems/*") {
		if nqn := path.Base(dir); !strings.HasPrefix(nqn, "nqn.2014-08.org.nvmexpress.discovery") {
			served = append(served, nqn)
		}
	}
	if len(served) == 0 || r.starts("nvmet") {
		return nil
	}
	var file struct {
		Subsystems []struct {
			NQN string `json:"nqn"`
		} `json:"subsystems"`
	}
	_ = json.Unmarshal([]byte(r.content(savedTargets)), &file) // a file that cannot be read has nothing saved
	unsaved := slices.DeleteFunc(slices.Clone(served), func(nqn string) bool {
		for _, s := range file.Subsystems {
			if s.NQN == nqn {
				return true
			}
		}
		return false
	})
	enabled := r.isEnabled("krping-nvmet.service") || r.isEnabled("nvmet.service")
	switch {
	case len(unsaved) > 0 && enabled:
		return []Finding{lost(unsaved[0]+" is not served after a boot", "it is not in "+savedTargets, "krpingctl nvme target save")}
	case len(unsaved) > 0:
		return []Finding{lost(unsaved[0]+" is not served after a boot", "it is not in "+savedTargets, "krpingctl nvme target save && systemctl enable krping-nvmet")}
	case !enabled:
		return []Finding{lost(served[0]+" is not served after a boot", "krping-nvmet.service is not enabled", "systemctl enable krping-nvmet")}
	}
	return nil
}

// Files with the rules that are loaded at boot, by what loads them.
var (
	firewalldFiles = []string{"/etc/firewalld/*", "/etc/firewalld/*/*"}
	iptablesFiles  = []string{"/etc/iptables/*", "/etc/sysconfig/iptables", "/etc/sysconfig/ip6tables"}
	nftablesFiles  = []string{"/etc/nftables.conf", "/etc/nftables/*", "/etc/nftables.d/*", "/etc/sysconfig/nftables.conf", "/etc/sysconfig/nftables/*"}
)

// bootFirewall checks that a rule that accepts RoCE is there after the next boot.
func (h host) bootFirewall(r root, tables []ruleset) []Finding {
	var findings []Finding
	for _, t := range tables {
		chain, found := t.acceptsRoCE()
		if !found || t.isUFW() || r.starts("4791") { // ufw saves each rule
			continue
		}
		t.distro = h.modules.distro
		if f, isLost := r.bootRule(t, chain); isLost {
			findings = append(findings, f)
		}
	}
	return findings
}

func (r root) bootRule(t ruleset, chain string) (Finding, bool) {
	saved := func(files []string) bool {
		return slices.ContainsFunc(r.glob(files...), func(name string) bool { return r.contains(name, "4791") })
	}
	found := fmt.Sprintf("the rule that accepts RoCE in table %s %s, chain %s is not there after a boot", family(t.table), t.table.Name, chain)
	file := t.distro.NftablesFile()
	if file == "" {
		file = "/etc/nftables.conf"
	}
	switch isIptables := chain == "INPUT" || chain == "OUTPUT"; {
	case t.table.Name == "firewalld":
		zone := ""
		if name, isZone := strings.CutPrefix(chain, "filter_IN_"); isZone {
			zone = "--zone=" + strings.TrimSuffix(name, "_allow") + " "
		}
		return lost(found, "firewalld has it until its next start only", "firewall-cmd --permanent "+zone+"--add-port=4791/udp"), !saved(firewalldFiles)
	case isIptables:
		save := t.distro.SaveIptables()
		if save == "" {
			save = "iptables-save, into the file that this distribution loads at boot"
		}
		return lost(found, "no file with saved rules of iptables has it", save), !saved(iptablesFiles)
	case !saved(nftablesFiles):
		return lost(found, "no file with rules of nftables has it", fmt.Sprintf("the rule `udp dport 4791 accept` in that chain in %s; then systemctl enable nftables", file)), true
	}
	return lost(found, "nftables.service is not enabled", "systemctl enable nftables"), !r.isEnabled("nftables.service")
}

// acceptsRoCE returns the first chain with a rule that accepts port 4791 and no other: only such a rule can be
// found in a file by that number.
func (r ruleset) acceptsRoCE() (chain string, found bool) {
	for _, c := range r.chains {
		w := walk{ruleset: r, packet: packet{ipv6: r.table.Family == nftables.TableFamilyIPv6}}
		accepts := func(rule *nftables.Rule) bool {
			m := w.match(rule.Exprs)
			return m.matches != no && m.kind == expr.VerdictAccept && slices.ContainsFunc(rule.Exprs, isRoCEOnly)
		}
		if slices.ContainsFunc(r.rules[c.Name], accepts) {
			return c.Name, true
		}
	}
	return "", false
}

func isRoCEOnly(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Cmp:
		return e.Op == expr.CmpOpEq && bytes.Equal(e.Data, binary.BigEndian.AppendUint16(nil, rocePort))
	case *expr.Match:
		udp, isUDP := e.Info.(*xt.Udp)
		return isUDP && udp.DstPorts == [2]uint16{rocePort, rocePort} && udp.InvFlags == 0
	}
	return false
}
