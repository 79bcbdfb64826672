// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// route is the route to the peer.
type route struct {
	netdev  string
	local   bool       // the peer is this host
	source  netip.Addr // default source address
	gateway netip.Addr // next hop, if valid
	mtu     int        // 0 unless the route sets one
	err     error
}

func (h host) readRoute(peer netip.Addr) route {
	if peer.Zone() != "" {
		return route{netdev: peer.Zone()}
	}
	routes, err := netlink.RouteGet(peer.Unmap().AsSlice())
	if err != nil || len(routes) == 0 {
		return route{err: err}
	}
	r := routes[0]
	found := route{local: r.Type == unix.RTN_LOCAL, mtu: r.MTU, source: toAddr(r.Src), gateway: toAddr(r.Gw)}
	if i := slices.IndexFunc(h.netdevs, func(n netdev) bool { return n.index == r.LinkIndex }); i >= 0 {
		found.netdev = h.netdevs[i].name
	}
	return found
}

// routeFindings checks the path to the peer: route, next hop, and MTU.
func (h host) routeFindings(o Options) []Finding {
	r := h.readRoute(o.Peer)
	findings := []Finding{h.routeFinding(o, r)}
	if r.err != nil || r.local {
		return findings
	}
	hop := o.Peer
	if r.gateway.IsValid() {
		hop = r.gateway
	}
	state, err := resolve(hop, o.Peer, r.netdev)
	if err != nil {
		return append(findings, unchecked("neighbour", err))
	}
	findings = append(findings, neighbourFinding(hop, r.netdev, state))
	return append(findings, h.pathFindings(o.Peer, r.netdev)...)
}

func (h host) routeFinding(o Options, r route) Finding {
	f := Finding{Check: "route", Level: Problem}
	if r.err != nil {
		f.Found, f.Cause = fmt.Sprintf("no route to %v", o.Peer), r.err.Error()
		f.Fix = fmt.Sprintf("ip route add %v dev NETDEV; or add an address in its network: ip addr add ADDRESS/PREFIX dev NETDEV", o.Peer)
		return f
	}
	if r.local {
		return ok("route", "%v is this host", o.Peer)
	}
	carries := func(d device) bool {
		return slices.ContainsFunc(d.ports, func(p port) bool { return p.serves(r.netdev) })
	}
	i := slices.IndexFunc(h.devices, carries)
	if i < 0 {
		f.Found = fmt.Sprintf("the route to %v is through %s, which has no RDMA device", o.Peer, r.netdev)
		f.Cause, f.Fix = "the connection manager uses the RDMA device of the route's network device", h.makeDevice(r.netdev)
		if i := slices.IndexFunc(h.devices, func(d device) bool { return !d.servesNothing() && d.ports[0].netdev != "" }); i >= 0 {
			f.Fix += fmt.Sprintf("; or ip route add %v dev %s", o.Peer, h.devices[i].ports[0].netdev)
		}
		return f
	}
	if n, known := h.netdev(r.netdev); known && o.Addr.IsValid() && !hasAddress(n.addrs, o.Addr.Unmap().WithZone("")) {
		f.Level, f.Found = Warning, fmt.Sprintf("the route to %v is through %s, which does not have %v", o.Peer, r.netdev, o.Addr)
		f.Cause = "connections to the peer come from an address other than the one given"
		f.Fix = fmt.Sprintf("ip route add %v src %v dev %s", o.Peer, o.Addr, h.netdevOf(o.Addr))
		return f
	}
	if n, known := h.netdev(r.netdev); known && r.mtu != 0 && roceMTU(r.mtu) < roceMTU(n.mtu) {
		f.Level, f.Found = Warning, fmt.Sprintf("the route to %v has MTU %d, but RoCE packets use the MTU of %s, %d", o.Peer, r.mtu, r.netdev, n.mtu)
		f.Cause, f.Fix = "RoCE packets are not fragmented: large ones are lost", fmt.Sprintf("ip link set %s mtu %d", r.netdev, r.mtu)
		return f
	}
	through := ""
	if r.gateway.IsValid() {
		through = fmt.Sprintf(" by %v", r.gateway)
	}
	return ok("route", "to %v through %s%s, RDMA device %s", o.Peer, r.netdev, through, h.devices[i].name)
}

// netdevOf returns the network device that has an address, NETDEV if none has it.
func (h host) netdevOf(addr netip.Addr) string {
	for _, n := range h.netdevs {
		if hasAddress(n.addrs, addr.Unmap().WithZone("")) {
			return n.name
		}
	}
	return "NETDEV"
}

// resolve triggers neighbour resolution of the next hop and returns the state of its entry: a NUD_
// constant of netlink, NUD_NONE if there is no entry.
func resolve(hop, peer netip.Addr, netdev string) (int, error) {
	link, err := netlink.LinkByName(netdev)
	if err != nil {
		return 0, fmt.Errorf("network device %s: %w", netdev, err)
	}
	const discard = 9
	if conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, discard))); err == nil {
		_, _ = conn.Write([]byte{0}) // only to trigger the resolution
		_ = conn.Close()
	}
	bare := hop.Unmap().WithZone("")
	for deadline := time.Now().Add(4 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		entries, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return 0, fmt.Errorf("list the neighbours on %s: %w", netdev, err)
		}
		state := netlink.NUD_NONE
		for _, e := range entries {
			if toAddr(e.IP) == bare {
				state = e.State
			}
		}
		if state != netlink.NUD_INCOMPLETE || time.Now().After(deadline) {
			return state, nil
		}
	}
}

func neighbourFinding(hop netip.Addr, netdev string, state int) Finding {
	switch {
	case state&(netlink.NUD_REACHABLE|netlink.NUD_STALE|netlink.NUD_DELAY|netlink.NUD_PROBE) != 0:
		return ok("neighbour", "%v answers on %s", hop, netdev)
	case state&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0:
		return ok("neighbour", "%v on %s needs no resolution", hop, netdev)
	case state == netlink.NUD_NONE:
		return Finding{
			Check: "neighbour", Level: Warning, Found: fmt.Sprintf("%s has no entry for %v", netdev, hop),
			Cause: "no packet could be sent to it", Fix: fmt.Sprintf("ping -c 1 -I %s %v", netdev, hop),
		}
	}
	return Finding{
		Check: "neighbour", Level: Problem, Found: fmt.Sprintf("%v does not answer on %s", hop, netdev),
		Cause: "no host on that network has the address, its network device is down, or a switch or VLAN separates the hosts",
		Fix:   fmt.Sprintf("on the peer: ip addr, ip link set NETDEV up; then on this host: ip neigh flush to %v dev %s", hop, netdev),
	}
}
