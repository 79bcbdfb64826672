// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"krping/agent/host/rdmalink"
)

// served returns the network devices whose addresses a port serves: its own, and the VLANs on that.
func (h host) served(p port) []netdev {
	names := []string{p.netdev}
	for _, g := range p.gids {
		if !slices.Contains(names, g.netdev) {
			names = append(names, g.netdev)
		}
	}
	var all []netdev
	for _, name := range names {
		if n, known := h.netdev(name); known {
			all = append(all, n)
		}
	}
	return all
}

// findDeaf moves the GIDs of Soft-RoCE that are of no use from gids to deaf. The kernel gives a device the
// addresses of all network devices above its own, but Soft-RoCE looks for the device of a packet by the
// network device that the IP layer received it from: a bridge, bond or MACVLAN, not what is below it. Only
// VLANs are an exception.
func (h host) findDeaf() {
	for _, d := range h.devices {
		for i, p := range d.ports {
			if d.kind != rxe {
				continue
			}
			isDeaf := func(g gid) bool {
				_, known := h.stack.Get(g.netdev)
				return known && h.stack.Real(g.netdev) != p.netdev
			}
			d.ports[i].gids = slices.DeleteFunc(slices.Clone(p.gids), isDeaf)
			d.ports[i].deaf = slices.DeleteFunc(slices.Clone(p.gids), func(g gid) bool { return !isDeaf(g) })
		}
	}
}

func isUsable(g gid) bool { return !g.addr.IsLinkLocalUnicast() }

// soft returns the Soft-RoCE device that was added to a network device.
func (h host) soft(netdev string) (device, bool) {
	for _, d := range h.devices {
		if d.kind == rxe && len(d.ports) > 0 && d.ports[0].netdev == netdev {
			return d, true
		}
	}
	return device{}, false
}

// servesNothing reports whether a device has no address whose packets it receives.
func (d device) servesNothing() bool {
	return d.connected == 0 && !slices.ContainsFunc(d.ports, func(p port) bool { return slices.ContainsFunc(p.gids, isUsable) })
}

// deafFinding reports that a port has addresses whose packets it does not receive.
func (h host) deafFinding(d device, p port) []Finding {
	i := slices.IndexFunc(p.deaf, isUsable)
	if i < 0 {
		return nil
	}
	g := p.deaf[i]
	f := Finding{
		Check: "gids", Level: Problem, Found: fmt.Sprintf("%s has %v of %s, but receives no packets for it", d.name, g.addr, g.netdev),
		Cause: fmt.Sprintf("%s is on %s, and Soft-RoCE receives what comes through its own network device and its VLANs: %s", d.name, p.netdev, h.stacked(g.netdev, p.netdev)),
		Fix:   h.makeDevice(g.netdev),
	}
	if !d.servesNothing() {
		f.Level = Note
		f.Fix = fmt.Sprintf("use an address of %s; or another network device for %s, as the kernel may begin connections from %v with either", p.netdev, d.name, g.addr)
	}
	return []Finding{f}
}

// stacked says how one network device is above another.
func (h host) stacked(above, below string) string {
	n, _ := h.stack.Get(above)
	for _, name := range h.stack.Ports(above) {
		if name == below && n.Below == "" {
			return fmt.Sprintf("%s is a port of the %s %s", below, n.Kind, above)
		}
	}
	return fmt.Sprintf("%s is a %s above %s", above, n.Kind, below)
}

// makeDevice returns the command that makes a Soft-RoCE device that serves the addresses of a network device;
// if that is "", those of the first that is up and has an address.
func (h host) makeDevice(on string) string {
	if on == "" {
		on = h.bestNetdev()
	}
	if to := h.stack.Real(on); to != "" {
		on = to
	}
	for _, name := range h.stack.Ports(on) {
		below, found := h.soft(name)
		if _, has := h.soft(on); !found || has {
			continue
		}
		remake := fmt.Sprintf("krpingctl link del %s && krpingctl link add %s --netdev %s", below.name, below.name, on)
		if !below.servesNothing() {
			remake = fmt.Sprintf("when nothing uses %s any more: %s", below.name, remake)
		}
		return remake
	}
	name := "rxe0"
	for i := 1; slices.ContainsFunc(h.devices, func(d device) bool { return d.name == name }); i++ {
		name = fmt.Sprintf("rxe%d", i)
	}
	return fmt.Sprintf("modprobe rdma_rxe && krpingctl link add %s --netdev %s", name, on)
}

// bestNetdev returns the network device on which to make a Soft-RoCE device, NETDEV if there is none.
func (h host) bestNetdev() string {
	best := "NETDEV"
	for _, n := range h.netdevs {
		if n.loopback || !n.up || !n.carrier || !n.ethernet || len(n.addrs) == 0 {
			continue
		}
		if s, _ := h.stack.Get(n.name); s.Kind != rdmalink.Bridge { // it may be for virtual machines only
			return n.name
		}
		if best == "NETDEV" {
			best = n.name
		}
	}
	return best
}

// setMTU returns the commands that set the MTU of a network device, and before it of what is below it.
func (h host) setMTU(name string, mtu int) string {
	var commands []string
	for _, n := range append(h.below(name), name) {
		if d, known := h.netdev(n); !known || n == name || d.mtu < mtu {
			commands = append(commands, fmt.Sprintf("ip link set %s mtu %d", n, mtu))
		}
	}
	return strings.Join(commands, " && ")
}

// below returns the network devices whose MTU limits that of another, the lowest first.
func (h host) below(name string) []string {
	n, _ := h.stack.Get(name)
	under := h.stack.Ports(name)
	switch {
	case n.Kind == rdmalink.Bond, n.Kind == rdmalink.Team:
		return nil // they set it on their ports
	case n.Kind == rdmalink.VLAN && n.Below != "":
		under = []string{n.Below}
	}
	var all []string
	for _, u := range under {
		all = append(append(all, h.below(u)...), u)
	}
	return all
}

// isDown returns the finding for an address whose network device is down.
func isDown(addr netip.Addr, n netdev, served string) Finding {
	return Finding{
		Check: "address", Level: Problem, Found: fmt.Sprintf("%v is on %s, but %s does not serve it", addr, n.name, served),
		Cause: n.name + " is down", Fix: "ip link set " + n.name + " up",
	}
}
