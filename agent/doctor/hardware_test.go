// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krping/agent/host/rdmalink"
)

// nic is a host with the NIC mlx5_0, whose port eth4 has an address and a VLAN.
func nic() host {
	return host{
		netdevs: []netdev{{name: "eth4", up: true, carrier: true, ethernet: true, mtu: 9000, addrs: addrs("10.0.0.1/24")}},
		stack:   rdmalink.Netdevs{{Name: "eth4", Kind: "device"}, {Name: "eth4.5", Kind: "vlan", Below: "eth4"}},
		devices: []device{{name: "mlx5_0", ports: []port{{number: 1, state: "4: ACTIVE", netdev: "eth4", gids: []gid{
			{0, netip.MustParseAddr("10.0.0.1"), "eth4", "IB/RoCE v1"}, {1, netip.MustParseAddr("10.0.0.1"), "eth4", "RoCE v2"},
		}}}}},
	}
}

// With DSCP 26 for priority 3, as most guides for RoCE have it.
func marked() map[int]uint8 { return map[int]uint8{0: 0, 26: 3, 48: 6} }

func TestFlowControl(t *testing.T) {
	const dir = "/sys/kernel/config/rdma_cm/mlx5_0/ports/1/"
	for _, tc := range []struct {
		name  string
		flow  flow
		files map[string]string
		level Level
		words []string // none: no finding
	}{
		{"the driver tells nothing", flow{}, nil, OK, nil},
		{"pause", flow{pauseKnown: true, pause: true, dcbKnown: true}, nil, OK, []string{"eth4 has pause frames"}},
		{"PFC", flow{pauseKnown: true, dcbKnown: true, pfc: 1 << 3, dscp: marked()}, map[string]string{dir + "default_roce_tos": "106\n", dir + "default_roce_mode": "RoCE v2\n"}, OK, []string{"ToS 106, DSCP 26", "priority 3, which has priority flow control on eth4"}},
		{"PFC, not marked", flow{dcbKnown: true, pfc: 1 << 3, dscp: marked()}, nil, Note, []string{"ToS 0, DSCP 0", "priority 0; eth4 has priority flow control for 3 only", "mkdir -p /sys/kernel/config/rdma_cm/mlx5_0 && echo 106 > " + dir + "default_roce_tos"}},
		{"PFC, no DSCP", flow{dcbKnown: true, pfc: 1<<4 | 1<<5}, nil, Note, []string{"for 4, 5 only", "dcb app add dev eth4 dscp-prio 26:4 && mkdir"}},
		{"PFC for all", flow{dcbKnown: true, pfc: 1}, nil, OK, []string{"priority 0"}},
		{"both", flow{pauseKnown: true, pause: true, dcbKnown: true, pfc: 1 << 3}, nil, Note, []string{"both priority flow control and pause frames"}},
		{"none", flow{pauseKnown: true, dcbKnown: true}, nil, Note, []string{"neither", "dcb pfc set dev eth4 prio-pfc 3:on", "ethtool -A eth4 rx on tx on"}},
		{"no DCB", flow{pauseKnown: true}, nil, Note, []string{"neither", "as the switches are set up: ethtool -A eth4"}},
		{"v1", flow{}, map[string]string{dir + "default_roce_mode": "IB/RoCE v1\n"}, Note, []string{"begins connections with RoCE v1", "echo 'RoCE v2' > " + dir + "default_roce_mode"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := nic().flowFindings(files(t, tc.files), func(string) flow { return tc.flow })
			if len(f) != min(len(tc.words), 1) {
				t.Fatalf("%+v", f)
			}
			if len(f) > 0 {
				want(t, f[0], tc.level, tc.words...)
			}
		})
	}

	lossless := func(string) flow { return flow{dcbKnown: true, pfc: 1 << 3, dscp: marked()} }
	ecn := map[string]string{dir + "default_roce_tos": "106", "/sys/class/net/eth4/ecn/roce_np/enable/3": "1\n", "/sys/class/net/eth4/ecn/roce_rp/enable/3": "0\n"}
	want(t, nic().flowFindings(files(t, ecn), lossless)[1], Note, "eth4 does not react to ECN in priority 3", "echo 1 > /sys/class/net/eth4/ecn/roce_np/enable/3")
	ecn["/sys/class/net/eth4/ecn/roce_rp/enable/3"] = "1"
	want(t, nic().flowFindings(files(t, ecn), lossless)[1], OK, "ECN")

	for change, h := range map[string]host{"Soft-RoCE": lab(), "no device": {}} {
		if f := h.flowFindings(files(t, nil), lossless); len(f) != 0 {
			t.Errorf("%s: %+v", change, f)
		}
	}
	var asked []string
	h := nic()
	h.stack = rdmalink.Netdevs{{Name: "bond0", Kind: "bond"}, {Name: "eth4", Kind: "device", Above: "bond0"}}
	h.devices[0].ports[0].netdev = "bond0"
	h.flowFindings(files(t, nil), func(name string) flow { asked = append(asked, name); return flow{} })
	if !slices.Equal(asked, []string{"eth4", "bond0"}) {
		t.Errorf("asked %v: the driver of a bond's port tells", asked)
	}
}

func TestParseDCB(t *testing.T) {
	app := func(selector, priority byte, protocol uint16) []byte {
		return attribute(1, binary.NativeEndian.AppendUint16([]byte{selector, priority}, protocol)...)
	}
	pfc := append([]byte{8, 1 << 3, 0, 0, 0, 0, 0, 0}, make([]byte, 128)...)
	apps := slices.Concat(app(5, 3, 26), app(1, 3, 0x8906), app(5, 6, 48))
	message := append([]byte{0, 21, 0, 0}, slices.Concat(attribute(1, 'e', 't', 'h', 0), attribute(13, slices.Concat(attribute(2, pfc...), attribute(3, apps...))...))...)
	var f flow
	f.parseDCB(message)
	if !f.dcbKnown || f.pfc != 8 || len(f.dscp) != 2 || f.priority(106) != 3 || f.priority(0) != 0 || f.priority(192) != 6 {
		t.Errorf("%+v", f)
	}
	for n := range message {
		(&flow{}).parseDCB(message[:n]) // must not panic
	}
	if f := readFlow("lo"); f.dcbKnown || f.pause {
		t.Errorf("lo: %+v", f)
	}
}

func TestCard(t *testing.T) {
	const dir = "/sys/class/infiniband/mlx5_0/"
	card := map[string]string{
		dir + "device/uevent": "DRIVER=mlx5_core\nPCI_SLOT_NAME=0000:19:00.0\n", dir + "ports/1/rate": "100 Gb/sec (4X EDR)\n",
		dir + "device/current_link_speed": "16.0 GT/s PCIe\n", dir + "device/max_link_speed": "16.0 GT/s PCIe\n",
		dir + "device/current_link_width": "16\n", dir + "device/max_link_width": "16\n",
		dir + "device/numa_node": "1\n", "/sys/devices/system/node/node0/cpulist": "0-7,16-23\n", "/sys/devices/system/node/node1/cpulist": "8-15,24-31\n",
		dir + "device/msi_irqs/50": "msix\n", dir + "device/msi_irqs/51": "msix\n",
		"/proc/irq/50/effective_affinity_list": "3\n", "/proc/irq/51/effective_affinity_list": "24\n",
		"/proc/449/comm": "krping-bridge\n", "/proc/449/cmdline": "krping-bridge\x00--listen\x0010.0.0.1\x00", "/proc/449/status": "Name:\tx\nCpus_allowed_list:\t0-31\nMems:\t1\n",
		"/proc/450/comm": "krping-bridge\n", "/proc/450/cmdline": "krping-bridge\x00--listen\x0010.9.9.9\x00", "/proc/450/status": "Cpus_allowed_list:\t0-3\n",
	}
	for _, tc := range []struct {
		name   string
		change map[string]string
		levels []Level
		words  []string
	}{
		{"good", nil, []Level{OK, OK}, []string{"16 GT/s x16, 252 Gb/s", "node 1 of 2, CPUs 8-15,24-31"}},
		{"few lanes", map[string]string{dir + "device/current_link_width": "4\n"}, []Level{Warning, OK}, []string{"x4, 63 Gb/s: less than the 100 Gb/s", "it can do 16 GT/s x16", "lspci -vv -s 0000:19:00.0"}},
		{"few, but enough", map[string]string{dir + "device/current_link_width": "8\n"}, []Level{OK, OK}, []string{"x8, 126 Gb/s"}},
		{"slow", map[string]string{dir + "device/current_link_speed": "2.5 GT/s PCIe\n"}, []Level{Warning, OK}, []string{"2.5 GT/s x16, 32 Gb/s"}},
		{"virtual function", map[string]string{dir + "device/current_link_speed": "Unknown\n", dir + "device/current_link_width": "0\n"}, []Level{OK}, []string{"node 1"}},
		{"interrupts", map[string]string{"/proc/irq/51/effective_affinity_list": "4\n"}, []Level{OK, OK, Note}, []string{"all interrupts of mlx5_0 go to CPUs of other nodes: 3,4", "echo 8-15,24-31 > /proc/irq/"}},
		{"bridge", map[string]string{"/proc/449/status": "Cpus_allowed_list:\t0-7\n"}, []Level{OK, OK, Note}, []string{"krping-bridge (process 449) runs on CPUs 0-7 only", "taskset -apc 8-15,24-31 449"}},
		{"no node", map[string]string{dir + "device/numa_node": "-1\n"}, []Level{OK}, []string{"linked"}},
		{"one node", map[string]string{"/sys/devices/system/node/node0/cpulist": "-", dir + "device/numa_node": "1\n"}, []Level{OK, OK}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := files(t, card)
			r.write(t, tc.change)
			if tc.name == "one node" {
				if err := os.Remove(filepath.Join(string(r), "sys/devices/system/node/node0")); err != nil {
					t.Fatal(err)
				}
				tc.levels = tc.levels[:1]
			}
			var levels []Level
			var texts []string
			for _, f := range nic().cardFindings(r) {
				want(t, f, f.Level)
				levels, texts = append(levels, f.Level), append(texts, f.Found, f.Cause, f.Fix)
			}
			if !slices.Equal(levels, tc.levels) {
				t.Errorf("%v, want %v: %v", levels, tc.levels, texts)
			}
			for _, word := range tc.words {
				if !strings.Contains(strings.Join(texts, "\n"), word) {
					t.Errorf("%q is not in %v", word, texts)
				}
			}
		})
	}
	if f := lab().cardFindings(files(t, nil)); len(f) != 0 {
		t.Errorf("Soft-RoCE: %+v", f)
	}
}

func TestIntersect(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want bool
	}{{"0-3", "4-7", false}, {"0-3,9", "4-7,9", true}, {"5", "4-7", true}, {"0-31", "8-15", true}, {"", "0", false}, {"x-y", "0", false}} {
		if intersect(tc.a, tc.b) != tc.want || intersect(tc.b, tc.a) != tc.want {
			t.Errorf("%q and %q: %v", tc.a, tc.b, !tc.want)
		}
	}
}

func TestRoCEv1Only(t *testing.T) {
	h := nic()
	want(t, h.gidFindings()[0], OK, "10.0.0.1 (GID 1)")
	h.devices[0].ports[0].gids = h.devices[0].ports[0].gids[:1]
	want(t, h.gidFindings()[0], Note, "10.0.0.1 (GID 0) by RoCE v1 only")
}

// What Soft-RoCE of an older kernel cannot do.
func TestSoftRoCELimits(t *testing.T) {
	elsewhere := func(release string) host {
		h := lab()
		h.modules.release, h.spaces.others = release, []namespace{{}}
		return h
	}
	tunnel := func(release string) host {
		h := lab()
		h.modules.release, h.netdevs[1].ethernet = release, false
		return h
	}
	for release, level := range map[string]Level{"6.1.0-56-amd64": Problem, "6.12.117+deb12-amd64": Problem, "6.14.0": Note, "7.3.4+deb13-amd64": "", "odd": ""} {
		for words, h := range map[string]host{"rxe0 is on eth0 in this network namespace": elsewhere(release), "eth0, which has no MAC address": tunnel(release)} {
			f := h.softRoCEFindings()
			if level == "" {
				if len(f) != 0 {
					t.Errorf("%s: %+v", release, f)
				}
				continue
			}
			if len(f) != 1 {
				t.Fatalf("%s: %+v", release, f)
			}
			want(t, f[0], level, words, "6.12", "7.3")
		}
	}
	h := lab()
	h.modules.release = "6.1.0"
	if f := h.softRoCEFindings(); len(f) != 0 {
		t.Errorf("a healthy host: %+v", f)
	}
	h.devices = append(h.devices, nic().devices...)
	h.netdevs[1].ethernet = false
	want(t, h.softRoCEFindings()[0], Note, "no MAC address")

	h = lab()
	h.devices[0].ports[0].netdev = "lo"
	h.devices[0].ports[0].gids = []gid{{1, netip.MustParseAddr("127.0.0.1"), "lo", "RoCE v2"}}
	want(t, h.addressFindings(netip.MustParseAddr("127.0.0.1"))[0], Problem, "no connection begins there", "another network device")
}

func TestMissingFile(t *testing.T) {
	r := files(t, map[string]string{
		"/sys/class/misc/rdma_cm/dev": "10:124\n", "/sys/class/infiniband_verbs/uverbs0/dev": "231:192\n", "/sys/class/infiniband_verbs/abi_version": "6\n",
		"/dev/infiniband/rdma_cm": "", "/dev/infiniband/uverbs0": "",
	})
	if name, _ := r.missingFile(); name != "" {
		t.Errorf("%s is there", name)
	}
	r.write(t, map[string]string{"/dev/infiniband/uverbs0": "-"})
	if name, number := r.missingFile(); name != "uverbs0" || number != "231 192" {
		t.Errorf("%q, %q", name, number)
	}
	r.write(t, map[string]string{"/dev/infiniband/rdma_cm": "-"})
	m := modules{installed: map[string]bool{"ib_core": true, "rdma_cm": true, "ib_uverbs": true, "rdma_ucm": true, "rdma_rxe": true}}
	m.noFile, m.noFileNumber = r.missingFile()
	want(t, m.drivers()[0], Warning, "/dev/infiniband/rdma_cm does not exist", "mknod -m 666 /dev/infiniband/rdma_cm c 10 124", "--device=/dev/infiniband")
	if name, _ := root(t.TempDir()).missingFile(); name != "" {
		t.Errorf("%s is missing without its module", name)
	}
}
