// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"

	"krping/agent/host/distro"
	"krping/proc"
)

// files writes files below a temporary directory.
func files(t *testing.T, contents map[string]string) root {
	t.Helper()
	r := root(t.TempDir())
	r.write(t, contents)
	return r
}

// write writes files. A name that ends with / is a directory; the text - removes a file.
func (r root) write(t *testing.T, contents map[string]string) {
	t.Helper()
	for name, text := range contents {
		file := r.path(name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(file, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if text == "-" {
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	wants = "/etc/systemd/system/multi-user.target.wants/"
	unitd = "/lib/systemd/system/"
)

// lasting is a host on which everything comes back: a client of vol0, whose disk is below LVM, and a target.
func lasting() map[string]string {
	return map[string]string{
		"/run/systemd/system/":        "",
		unitd + "krping-rxe@.service": "x", wants + "krping-rxe@eth0.service": "x",
		"/usr/lib/modules-load.d/krping.conf": "# module\nrdma_krping\n",
		"/etc/krping/krping.yaml":             "sessions:\n  - {name: vol0, addr: 10.0.0.1}\n  - {name: vol1, addr: 10.0.0.1}\n",
		wants + "krping-agent.service":        "x",
		"/proc/self/mountinfo": "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n" +
			"40 22 253:0 / /srv/my\\040data rw shared:2 - ext4 /dev/mapper/vg-lv rw\n" +
			"41 22 259:3 / /srv/part rw - xfs /dev/krping1p2 rw\n" +
			"42 22 0:50 /@ /srv/btrfs rw - btrfs /dev/krping2 rw\n" +
			"43 22 259:3 /sub /bind rw - xfs /dev/krping1p2 rw\n" +
			"44 22 259:3 / /var/lib/kubelet/pods/1/mount rw - xfs /dev/krping1p2 rw\n",
		"/sys/dev/block/253:0/slaves/dm-1":     "",
		"/sys/class/block/dm-1/slaves/krping0": "",
		"/etc/fstab": "# <file system>\nUUID=1 / ext4 defaults 0 1\n/dev/mapper/vg-lv /srv/my\\040data ext4 _netdev,nofail 0 2\n" +
			"/dev/krping/by-name/vol1-part2 /srv/part/ xfs rw,_netdev 0 2\nUUID=2 /srv/btrfs btrfs _netdev,subvol=@ 0 0\n",
		"/proc/449/comm": "krping-bridge\n", "/proc/449/cgroup": "0::/system.slice/system-krping\\x2dbridge.slice/krping-bridge@vol9.service\n",
		wants + "krping-bridge@vol9.service": "x", wants + "krping-server@ram0.service": "x",
		"/sys/kernel/config/nvmet/subsystems/nqn.2026-01.test:a/attr_model":                   "x",
		"/sys/kernel/config/nvmet/subsystems/nqn.2014-08.org.nvmexpress.discovery/attr_model": "x",
		"/etc/nvmet/config.json":          `{"subsystems": [{"nqn": "nqn.2026-01.test:a"}]}`,
		wants + "krping-nvmet.service":    "x",
		"/etc/nftables.conf":              "table inet filter {\n chain input {\n udp dport 4791 accept\n } }\n",
		wants + "nftables.service":        "x",
		"/lib/modules/6.12.9/modules.dep": "updates/dkms/rdma_krping.ko.xz:\n", "/boot/vmlinuz-6.12.9": "x",
		"/lib/modules/6.1.2/modules.dep": "kernel/x.ko:\n", "/boot/vmlinuz-6.1.2": "x",
	}
}

var (
	running = []proc.Session{
		{Role: "client", Name: "vol0", Dev: "krping0", Peer: "10.0.0.1:9999"},
		{Role: "client", Name: "vol1", Dev: "krping1", Peer: "10.0.0.1:9998"},
		{Role: "target", Name: "ram0", Peer: "10.0.0.9:9999"},
	}
	accepting = filter(nftables.ChainPolicyDrop, rule(udp(4791), accept))
)

func bootHost() host {
	h := lab()
	h.modules = modules{release: "6.12.3", loaded: map[string]bool{krping: true}, installed: map[string]bool{krping: true}, distro: distro.Parse("ID=debian", "6.12.3")}
	return h
}

func TestEverythingLasts(t *testing.T) {
	f := bootHost().boot(files(t, lasting()), running, []ruleset{accepting})
	if len(f) != 1 {
		t.Fatalf("%+v", f)
	}
	want(t, f[0], OK, "after a boot, too")
	without := lasting()
	delete(without, "/run/systemd/system/")
	if f := bootHost().boot(files(t, without), running, []ruleset{accepting}); f != nil {
		t.Errorf("without systemd it is not known: %+v", f)
	}
}

// Each change takes away what brings one thing back. Only that is reported.
func TestLostByABoot(t *testing.T) {
	iptables := filter(nftables.ChainPolicyDrop, rule(nil, &expr.Match{Name: "udp", Info: &xt.Udp{SrcPorts: [2]uint16{0, 0xffff}, DstPorts: [2]uint16{4791, 4791}}}, accept))
	iptables.chains[0].Name, iptables.rules["INPUT"] = "INPUT", iptables.rules["input"]
	iptables.table.Family = nftables.TableFamilyIPv4
	firewalld := filter(nftables.ChainPolicyDrop)
	firewalld.table.Name = "firewalld"
	firewalld.chains = append(firewalld.chains, &nftables.Chain{Name: "filter_IN_public_allow"})
	firewalld.rules["filter_IN_public_allow"] = []*nftables.Rule{rule(udp(4791), accept)}
	elsewhere := append([]proc.Session{{Role: "client", Name: "vol7", Dev: "krping7", Peer: "[fd77::1]:9998"}}, running...)
	r := files(t, lasting())
	for _, tc := range []struct {
		name     string
		change   map[string]string // "-" removes a file
		sessions []proc.Session
		table    ruleset
		words    []string // none: nothing is reported
	}{
		{"link", map[string]string{wants + "krping-rxe@eth0.service": "-"}, nil, ruleset{}, []string{"rxe0 on eth0 was made by hand", "systemctl enable --now krping-rxe@eth0.service"}},
		{"link, no unit", map[string]string{wants + "krping-rxe@eth0.service": "-", unitd + "krping-rxe@.service": "-"}, nil, ruleset{}, []string{"install the package krping-common"}},
		{"link of a script", map[string]string{wants + "krping-rxe@eth0.service": "-", "/etc/network/interfaces": "iface eth0\n up rdma link add rxe0 type rxe netdev eth0\n"}, nil, ruleset{}, nil},
		{"module", map[string]string{"/usr/lib/modules-load.d/krping.conf": "#rdma_krping\n", wants + "krping-agent.service": "-", wants + "krping-server@ram0.service": "-"}, running[2:2], ruleset{}, []string{"rdma_krping was loaded by hand", "/etc/modules-load.d/krping.conf"}},
		{"module of the agent", map[string]string{"/usr/lib/modules-load.d/krping.conf": "-"}, nil, ruleset{}, nil},
		{"module of the old file", map[string]string{"/usr/lib/modules-load.d/krping.conf": "-", wants + "krping-agent.service": "-", "/etc/modules": "loop\nrdma_krping\n", wants + "krping-server@ram0.service": "-"}, running[2:2], ruleset{}, nil},
		{"newer kernel", map[string]string{"/lib/modules/6.12.10/modules.dep": "kernel/x.ko:\n", "/boot/vmlinuz-6.12.10": "x"}, nil, ruleset{}, []string{"the newer kernel 6.12.10 has no rdma_krping", "dkms autoinstall -k 6.12.10"}},
		{"removed kernel", map[string]string{"/lib/modules/6.12.10/modules.dep": "kernel/x.ko:\n"}, nil, ruleset{}, nil},
		{"disk", nil, elsewhere, ruleset{}, []string{"krping7 (volume vol7) was attached by hand", `- {name: "vol7", addr: "fd77::1", port: 9998}; then systemctl enable --now krping-agent`}},
		{"disk of a script", map[string]string{"/etc/rc.local": "krpingctl client --addr fd77::1 --block vol7\n"}, elsewhere, ruleset{}, nil},
		{"agent", map[string]string{wants + "krping-agent.service": "-"}, running[:1], ruleset{}, []string{"krping0 (volume vol0) is not there", "krping-agent.service is not enabled"}},
		{"mount", map[string]string{"/etc/fstab": "UUID=2 /srv/btrfs btrfs _netdev 0 0\nUUID=3 /srv/part xfs _netdev 0 0\n"}, nil, ruleset{}, []string{"/dev/mapper/vg-lv on /srv/my data was mounted by hand", `echo "UUID=$(blkid -s UUID -o value /dev/mapper/vg-lv) /srv/my\040data ext4 _netdev,nofail`, ">> /etc/fstab"}},
		{"mount of btrfs", map[string]string{"/etc/fstab": "UUID=1 /srv/my\\040data ext4 _netdev 0 0\nUUID=3 /srv/part xfs _netdev 0 0\n"}, nil, ruleset{}, []string{"/dev/krping2 on /srv/btrfs was mounted by hand"}},
		{"mount of a unit", map[string]string{"/etc/fstab": "UUID=1 /srv/my\\040data ext4 _netdev 0 0\nUUID=3 /srv/part xfs _netdev 0 0\n", "/etc/systemd/system/srv-btrfs.mount": "x"}, nil, ruleset{}, nil},
		{"number in fstab", map[string]string{"/etc/fstab": lasting()["/etc/fstab"] + "/dev/krping1p3 /srv/old ext4 _netdev 0 0\n"}, nil, ruleset{}, []string{"mounts /dev/krping1p3 on /srv/old: after a boot that may be another disk", "instead of /dev/krping1p3: /dev/krping/by-name/vol1-part3"}},
		{"no _netdev", map[string]string{"/etc/fstab": lasting()["/etc/fstab"] + "/dev/disk/by-id/krping-uuid.1 /srv/old ext4 defaults\n"}, nil, ruleset{}, []string{"/srv/old may lose the network", "_netdev,nofail"}},
		{"bridge by hand", map[string]string{"/proc/449/cgroup": "0::/user.slice/user-0.slice/session-3.scope\n", "/proc/449/cmdline": "krping-bridge\x00--listen\x0010.0.0.1\x00--store\x00mem:\x00"}, nil, ruleset{}, []string{"krping-bridge (process 449) was started by hand", "echo 'OPTIONS=--listen 10.0.0.1 --store mem:' > /etc/krping/targets/NAME.conf"}},
		{"bridge not enabled", map[string]string{wants + "krping-bridge@vol9.service": "-"}, nil, ruleset{}, []string{"krping-bridge (process 449) is not started", "systemctl enable krping-bridge@vol9.service"}},
		{"bridge in a container", map[string]string{"/proc/449/cgroup": "0::/system.slice/docker-0123.scope\n"}, nil, ruleset{}, nil},
		{"volume by hand", map[string]string{wants + "krping-server@ram0.service": "-"}, nil, ruleset{}, []string{"volume ram0 is served by hand", "--addr 10.0.0.9 --port 9999", "/etc/krping/servers/ram0.conf"}},
		{"volume with a slash by hand", nil, []proc.Session{{Role: "target", Name: "pool/image", Peer: "10.0.0.9:9999"}}, ruleset{}, []string{"volume pool/image is served by hand", `printf 'VOLUME=pool/image\nOPTIONS=--addr 10.0.0.9 --port 9999 --backing DISK\n' > /etc/krping/servers/pool_image.conf`, "enable krping-server@pool_image.service"}},
		{"volume of another file", map[string]string{"/etc/krping/servers/a.conf": "VOLUME=pool/image\nOPTIONS=x\n"}, []proc.Session{{Role: "target", Name: "pool/image"}}, ruleset{}, []string{"volume pool/image is not served", "systemctl enable krping-server@a.service"}},
		{"enabled volume of another file", map[string]string{"/etc/krping/servers/a.conf": "VOLUME=pool/image\n", wants + "krping-server@a.service": "x"}, []proc.Session{{Role: "target", Name: "pool/image"}}, ruleset{}, nil},
		{"volume not enabled", map[string]string{wants + "krping-server@ram0.service": "-", "/etc/krping/servers/ram0.conf": "x"}, nil, ruleset{}, []string{"volume ram0 is not served", "systemctl enable krping-server@ram0"}},
		{"NVMe not saved", map[string]string{"/etc/nvmet/config.json": `{"subsystems": [{"nqn": "nqn.2026-01.test:b"}]}`}, nil, ruleset{}, []string{"nqn.2026-01.test:a is not served", "krpingctl nvme target save"}},
		{"NVMe not restored", map[string]string{wants + "krping-nvmet.service": "-"}, nil, ruleset{}, []string{"nqn.2026-01.test:a is not served", "systemctl enable krping-nvmet"}},
		{"NVMe by nvmetcli", map[string]string{wants + "krping-nvmet.service": "-", wants + "nvmet.service": "x"}, nil, ruleset{}, nil},
		{"rule of nftables", map[string]string{"/etc/nftables.conf": "flush ruleset\n"}, nil, accepting, []string{"the rule that accepts RoCE in table inet filter, chain input", "/etc/nftables.conf"}},
		{"nftables not enabled", map[string]string{wants + "nftables.service": "-"}, nil, accepting, []string{"nftables.service is not enabled"}},
		{"rule of iptables", nil, nil, iptables, []string{"table ip filter, chain INPUT", "netfilter-persistent save"}},
		{"saved rule of iptables", map[string]string{"/etc/iptables/rules.v4": "-A INPUT -p udp -m udp --dport 4791 -j ACCEPT\n"}, nil, iptables, nil},
		{"rule of firewalld", nil, nil, firewalld, []string{"firewall-cmd --permanent --zone=public --add-port=4791/udp"}},
		{"permanent rule of firewalld", map[string]string{"/etc/firewalld/zones/public.xml": `<port port="4791" protocol="udp"/>`}, nil, firewalld, nil},
		{"no such rule", map[string]string{"/etc/nftables.conf": "-"}, nil, filter(nftables.ChainPolicyAccept, rule(udp(4790), accept), rule(nil, accept)), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r.write(t, tc.change)
			undo := map[string]string{}
			for name, text := range tc.change {
				if before, had := lasting()[name]; had {
					undo[name] = before
				} else if text != "-" {
					undo[name] = "-"
				}
			}
			defer r.write(t, undo)
			sessions := tc.sessions
			if sessions == nil {
				sessions = running
			}
			tables := []ruleset{tc.table}
			if tc.table.table == nil {
				tables = []ruleset{accepting}
			}
			f := bootHost().boot(r, sessions, tables)
			if len(f) != 1 {
				t.Fatalf("%d findings, want one: %+v", len(f), f)
			}
			if tc.words == nil {
				want(t, f[0], OK)
			} else {
				want(t, f[0], Note, tc.words...)
			}
		})
	}
}

func TestModuleFromAFile(t *testing.T) {
	h := bootHost()
	h.modules.installed = map[string]bool{}
	f := h.boot(files(t, lasting()), running, []ruleset{accepting})
	want(t, f[0], Note, "loaded from a file", "make -C kmod dkms")
}

func TestCompareReleases(t *testing.T) {
	for _, order := range [][2]string{{"6.1.0-9-amd64", "6.1.0-10-amd64"}, {"6.9.1", "6.12.0"}, {"6.1.0-10-amd64", "6.12.9+deb12-amd64"}, {"5.14.0-70.el9", "5.14.0-427.el9"}, {"6.1", "6.1.1"}} {
		if compareReleases(order[0], order[1]) >= 0 || compareReleases(order[1], order[0]) <= 0 || compareReleases(order[0], order[0]) != 0 {
			t.Errorf("%s is before %s", order[0], order[1])
		}
	}
}
