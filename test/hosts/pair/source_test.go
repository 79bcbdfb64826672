// SPDX-License-Identifier: Apache-2.0

//go:build lab

package pair

import (
	"fmt"
	"strings"
)

// testTwoInterfaces connects from each of two interfaces of the client, which are in the subnet of the target, by the name
// of the interface: the connection goes through its RDMA device.
func testTwoInterfaces(h *pair) {
	h.T.Helper()
	server, client := h.storage, h.client
	const second = "192.168.77.102"
	// eth1 shares eth0's cable, but is not stacked on it: as a macvlan it would be, and its addresses also eth0's. Each
	// interface answers for its own address only; Linux's default is that each answers for all.
	h.Sh(client, `set -e
modprobe -a veth sch_ingress cls_u32 act_mirred
sysctl -q net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
ip link add eth1 type veth peer name cable
ip link set cable promisc on up
ip link set eth0 promisc on
tc qdisc add dev cable clsact
tc qdisc add dev eth0 clsact
tc filter add dev cable ingress protocol all u32 match u32 0 0 action mirred egress redirect dev eth0
tc filter add dev eth0 ingress protocol arp u32 match u32 0 0 action mirred egress mirror dev cable
tc filter add dev eth0 ingress protocol ip u32 match ether dst $(cat /sys/class/net/eth1/address) action mirred egress redirect dev cable
ip addr add `+second+`/24 dev eth1
ip link set eth1 up
krpingctl link add rdma1 --netdev eth1`)
	for i, tc := range []struct{ source, addr, device string }{{"eth1", second, "rdma1"}, {"eth0", client.Addr(), ""}} {
		at := fmt.Sprintf(" --addr %s --port %d --block vol%d", server.Addr(), 9910+i, i)
		h.Sh(server, "krpingctl server"+at+" --backing ram:16M --allow "+tc.addr)
		h.Sh(client, "krpingctl client"+at+" --source "+tc.source+" && krpingctl write /dev/krping0 --size 4MiB --direct && krpingctl verify /dev/krping0")
		session := h.Sh(client, "cat /proc/krping_sessions")
		if !strings.Contains(session, " source="+tc.addr) || strings.Contains(session, " ibdev=rdma1 ") != (tc.device == "rdma1") {
			h.T.Errorf("from %s: %s", tc.source, session)
		}
		if served := h.Sh(server, "cat /proc/krping_sessions"); !strings.Contains(served, " writer="+tc.addr) {
			h.T.Errorf("from %s, the target has %s", tc.source, served)
		}
		h.Sh(client, fmt.Sprintf("krpingctl stop vol%d", i))
		h.Sh(server, fmt.Sprintf("krpingctl stop --target vol%d", i))
	}
	h.Sh(client, "rdma link delete rdma1 && tc qdisc del dev eth0 clsact && ip link delete eth1 && ip link set eth0 promisc off && sysctl -q net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.arp_announce=0")
}
