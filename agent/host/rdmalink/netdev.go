// SPDX-License-Identifier: Apache-2.0

package rdmalink

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Kinds of network devices that are stacked on others, as `ip -d link` names them.
const (
	VLAN    = "vlan"
	MACVLAN = "macvlan"
	IPVLAN  = "ipvlan"
	Bridge  = "bridge"
	Bond    = "bond"
	Team    = "team"
)

// Netdev is a network device, with those below and above it.
type Netdev struct {
	Name  string
	Kind  string // such as VLAN; "device" for a NIC
	Below string // of a VLAN, MACVLAN or IPVLAN: the device that it is on; "" if that is in another namespace
	Above string // the bridge, bond or VRF that it is a port of
}

// Netdevs are the network devices of a network namespace.
type Netdevs []Netdev

// ReadNetdevs returns those of this process.
func ReadNetdevs() (Netdevs, error) {
	links, err := retry(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the network devices: %w", err)
	}
	return netdevsOf(links), nil
}

func netdevsOf(links []netlink.Link) Netdevs {
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	all := make(Netdevs, 0, len(links))
	for _, l := range links {
		n := Netdev{Name: l.Attrs().Name, Kind: l.Type(), Above: names[l.Attrs().MasterIndex]}
		if (n.Kind == VLAN || n.Kind == MACVLAN || n.Kind == IPVLAN) && l.Attrs().NetNsID < 0 { // else the index is that of another namespace
			n.Below = names[l.Attrs().ParentIndex]
		}
		all = append(all, n)
	}
	return all
}

// Get returns the device of a name.
func (all Netdevs) Get(name string) (Netdev, bool) {
	i := slices.IndexFunc(all, func(n Netdev) bool { return n.Name == name })
	if i < 0 {
		return Netdev{}, false
	}
	return all[i], true
}

// Real returns the device below a VLAN, and below that if it is one as well; of others, the device itself.
// Soft-RoCE is added to it, and serves the addresses of its VLANs. It is "" if it is in another namespace.
func (all Netdevs) Real(name string) string {
	for range all {
		n, found := all.Get(name)
		if !found || n.Kind != VLAN {
			break
		}
		name = n.Below
	}
	return name
}

// Bundle returns the bridge, bond or team that receives the packets of a device, and its kind: Soft-RoCE on
// the device itself receives none. A device that has VLANs receives theirs.
func (all Netdevs) Bundle(name string) (above, kind string) {
	n, _ := all.Get(name)
	master, _ := all.Get(n.Above)
	hasVLAN := slices.ContainsFunc(all, func(v Netdev) bool { return v.Kind == VLAN && v.Below == name })
	if hasVLAN || master.Kind != Bridge && master.Kind != Bond && master.Kind != Team {
		return "", ""
	}
	return master.Name, master.Kind
}

// Ports returns the devices that pass the packets of a bridge, bond, team, MACVLAN or IPVLAN. Soft-RoCE on one
// of them has its addresses, too, and connections may begin there, but it receives none of the packets.
func (all Netdevs) Ports(name string) []string {
	n, _ := all.Get(name)
	var ports []string
	if n.Kind == MACVLAN || n.Kind == IPVLAN {
		ports = append(ports, n.Below)
	}
	if n.Kind == Bridge || n.Kind == Bond || n.Kind == Team {
		for _, p := range all {
			if p.Above == name {
				ports = append(ports, p.Name)
			}
		}
	}
	return ports
}

// Idle says why an RDMA device on a network device makes no connections yet, and what to do; "" if it does.
func Idle(netdev string) (why, fix string) {
	l, err := netlink.LinkByName(netdev)
	if err != nil {
		return "", "" // it has just gone
	}
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	return idle(netdev, l.Attrs().RawFlags, len(addrs) > 0 || err != nil)
}

func idle(netdev string, flags uint32, hasAddress bool) (why, fix string) {
	switch {
	case flags&unix.IFF_UP == 0:
		return netdev + " is down", "ip link set " + netdev + " up"
	case flags&unix.IFF_LOWER_UP == 0:
		return netdev + " has no carrier", "check the cable and the switch port; ethtool " + netdev
	case !hasAddress:
		return netdev + " has no IP address", "ip addr add ADDRESS/24 dev " + netdev
	}
	return "", ""
}
