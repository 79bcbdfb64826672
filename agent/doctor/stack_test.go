// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net/netip"
	"strings"
	"testing"

	"krping/agent/host/rdmalink"
)

// stacked is a host whose rxe0 is on eth0 with the VLAN eth0.100, rxe1 on eth1, which is a port of br0, and
// that has bond0 over eth2 with the VLAN bond0.7, without a device. The kernel gives rxe1 br0's addresses.
func stacked() host {
	gids := func(list ...string) (gids []gid) {
		for i := 0; i < len(list); i += 2 {
			gids = append(gids, gid{i, netip.MustParseAddr(list[i]), list[i+1], "RoCE v2"})
		}
		return gids
	}
	up := func(name string, list ...string) netdev {
		return netdev{name: name, up: true, carrier: true, ethernet: true, mtu: 1500, addrs: addrs(list...)}
	}
	return host{
		netdevs: []netdev{
			up("br0", "10.2.0.1/24"), up("eth0", "10.0.0.1/24"), up("eth0.100", "10.1.0.1/24"), up("eth1"), up("eth2"),
			up("bond0"), up("bond0.7", "10.4.0.1/24"),
		},
		devices: []device{
			{name: "rxe0", kind: rxe, ports: []port{{state: "4: ACTIVE", netdev: "eth0", gids: gids("fe80::1", "eth0", "10.0.0.1", "eth0", "10.1.0.1", "eth0.100")}}},
			{name: "rxe1", kind: rxe, ports: []port{{state: "4: ACTIVE", netdev: "eth1", gids: gids("fe80::2", "eth1", "10.2.0.1", "br0")}}},
		},
		stack: rdmalink.Netdevs{
			{Name: "br0", Kind: "bridge"}, {Name: "eth0", Kind: "device"}, {Name: "eth0.100", Kind: "vlan", Below: "eth0"},
			{Name: "eth1", Kind: "device", Above: "br0"}, {Name: "eth2", Kind: "device", Above: "bond0"},
			{Name: "bond0", Kind: "bond"}, {Name: "bond0.7", Kind: "vlan", Below: "bond0"},
		},
	}
}

// Soft-RoCE serves VLANs of its network device, but not a bridge whose port it is on.
func TestStackedNetdevs(t *testing.T) {
	h := stacked()
	h.findDeaf()
	check := func(addr string) Finding { return h.addressFindings(netip.MustParseAddr(addr))[0] }
	want(t, check("10.0.0.1"), OK, "served by rxe0")
	want(t, check("10.1.0.1"), OK, "eth0.100, served by rxe0")
	remake := "krpingctl link del rxe1 && krpingctl link add rxe1 --netdev br0"
	want(t, check("10.2.0.1"), Problem, "br0, which has no RDMA device", remake)
	want(t, check("10.4.0.1"), Problem, "bond0.7, which has no RDMA device", "krpingctl link add rxe2 --netdev bond0")
	if strings.Contains(check("10.4.0.1").Fix, "bond0.7") {
		t.Error("a device cannot be made on a VLAN")
	}

	gids := h.gidFindings()
	want(t, gids[0], OK, "10.0.0.1", "10.1.0.1")
	want(t, gids[1], Problem, "rxe1 has 10.2.0.1 of br0, but receives no packets", "eth1 is a port of the bridge br0", remake)
	if len(gids) != 2 {
		t.Errorf("%+v", gids)
	}

	h.devices[1].connected = 2 // to eth1's own address, which it had
	want(t, check("10.2.0.1"), Problem, "when nothing uses rxe1 any more: "+remake)
	want(t, h.gidFindings()[1], Note, "rxe1 has 10.2.0.1 of br0")

	h.netdevs[2].up = false
	want(t, check("10.1.0.1"), Problem, "eth0.100 is down", "ip link set eth0.100 up")
	want(t, h.routeFinding(Options{Peer: netip.MustParseAddr("10.4.0.2")}, route{netdev: "bond0.7"}), Problem, "--netdev bond0; or ip route add 10.4.0.2 dev eth0")
}

// An MTU is set first on what is below.
func TestMTUOfStackedNetdevs(t *testing.T) {
	h := stacked()
	for name, fix := range map[string]string{
		"eth0": "ip link set eth0 mtu 4300", "eth0.100": "ip link set eth0 mtu 4300 && ip link set eth0.100 mtu 4300",
		"br0": "ip link set eth1 mtu 4300 && ip link set br0 mtu 4300", "bond0.7": "ip link set bond0 mtu 4300 && ip link set bond0.7 mtu 4300",
	} {
		if got := h.setMTU(name, 4300); got != fix {
			t.Errorf("%s: %q, want %q", name, got, fix)
		}
	}
	h.findDeaf()
	var found []string
	for _, f := range h.mtuFindings() {
		found = append(found, f.Found)
	}
	if text := strings.Join(found, "\n"); !strings.Contains(text, "eth0.100 has MTU") || strings.Contains(text, "br0") {
		t.Errorf("the MTU of VLANs counts, that of the bridge not:\n%s", text)
	}
}

func TestBestNetdev(t *testing.T) {
	h := stacked()
	if got := h.bestNetdev(); got != "eth0" {
		t.Errorf("%s: a NIC comes before a bridge", got)
	}
	h.netdevs[1].ethernet, h.netdevs[2].carrier, h.netdevs[6].up = false, false, false
	if got := h.bestNetdev(); got != "br0" {
		t.Errorf("%s: only br0 is left", got)
	}
	h.netdevs[0].addrs = nil
	if got := h.bestNetdev(); got != "NETDEV" {
		t.Errorf("%s: nothing is left", got)
	}
}
