// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const exclusive = "exclusive"

// namespaces describes the other network namespaces.
type namespaces struct {
	mode   string // of the RDMA devices: shared, exclusive, or "" if unknown
	others []namespace
	closed int // others that could not be read
}

// namespace is a named network namespace, or that of process 1.
type namespace struct {
	name    string // "" for that of process 1
	addrs   []netip.Prefix
	devices int // number of RDMA devices
}

func (n namespace) String() string {
	if n.name == "" {
		return "host's first network namespace"
	}
	return "network namespace " + n.name
}

// enter returns the prefix of a command that runs in the namespace.
func (n namespace) enter() string {
	if n.name == "" {
		return "nsenter --net=/proc/1/ns/net"
	}
	return "ip netns exec " + n.name
}

// find returns the first other namespace that satisfies the condition.
func (s namespaces) find(condition func(namespace) bool) (namespace, bool) {
	i := slices.IndexFunc(s.others, condition)
	if i < 0 {
		return namespace{}, false
	}
	return s.others[i], true
}

func (n namespace) hasDevices() bool { return n.devices > 0 }

func hasAddress(addrs []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr() == addr })
}

// owns reports whether an address is this host's.
func (h host) owns(addr netip.Addr) bool {
	return slices.ContainsFunc(h.netdevs, func(n netdev) bool { return hasAddress(n.addrs, addr.Unmap().WithZone("")) })
}

// readNamespaces reads the mode and the other namespaces.
func readNamespaces() (namespaces, error) {
	var s namespaces
	var err error
	s.mode, err = netlink.RdmaSystemGetNetnsMode()
	if err != nil {
		s.mode = "" // no RDMA stack is loaded; other findings report that
	}
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return s, fmt.Errorf("stat this process's network namespace: %w", err)
	}
	files, err := filepath.Glob("/run/netns/*")
	if err != nil {
		return s, err
	}
	for _, file := range append([]string{"/proc/1/ns/net"}, files...) {
		info, err := os.Stat(file)
		if err != nil || os.SameFile(own, info) {
			continue
		}
		n, err := readNamespace(file)
		if err != nil {
			s.closed++
			continue
		}
		s.others = append(s.others, n)
	}
	return s, nil
}

func readNamespace(file string) (namespace, error) {
	var n namespace
	if filepath.Dir(file) == "/run/netns" {
		n.name = filepath.Base(file)
	}
	ns, err := netns.GetFromPath(file)
	if err != nil {
		return n, err
	}
	defer ns.Close()
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE, unix.NETLINK_RDMA)
	if err != nil {
		return n, err
	}
	defer handle.Close()
	addrs, err := handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return n, err
	}
	for _, a := range addrs {
		n.addrs = append(n.addrs, prefix(a))
	}
	if devices, err := handle.RdmaLinkList(); err == nil {
		n.devices = len(devices)
	}
	return n, nil
}

func prefix(a netlink.Addr) netip.Prefix {
	ones, _ := a.Mask.Size()
	return netip.PrefixFrom(toAddr(a.IP), ones)
}

func toAddr(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip) // the kernel's are 4 or 16 bytes
	return addr.Unmap()
}

// namespaceFindings reports whether network namespaces share the RDMA devices.
func (h host) namespaceFindings() []Finding {
	switch h.spaces.mode {
	case "":
		return nil
	case exclusive:
		return []Finding{{
			Check: "namespaces", Level: Note, Found: "rdma system: netns exclusive",
			Cause: "each RDMA device is visible in one network namespace only; krping has no device in the others, or in containers",
			Fix:   "rdma system set netns shared; or, while other network namespaces exist, use the one that has the devices",
		}}
	}
	return []Finding{ok("namespaces", "rdma system: netns %s, all network namespaces see the RDMA devices", h.spaces.mode)}
}

// addressFindings checks this host's address.
func (h host) addressFindings(addr netip.Addr) []Finding {
	if !addr.IsValid() {
		return nil
	}
	zone, bare := addr.Zone(), addr.Unmap().WithZone("")
	i := slices.IndexFunc(h.netdevs, func(n netdev) bool {
		return (zone == "" || zone == n.name) && hasAddress(n.addrs, bare)
	})
	if i < 0 {
		return []Finding{h.notHere(addr)}
	}
	n := h.netdevs[i]
	for _, d := range h.devices {
		for _, p := range d.ports {
			served := slices.ContainsFunc(p.gids, func(g gid) bool { return g.addr == bare && (g.netdev == n.name || g.netdev == "") })
			served = served || p.netdev == n.name && (p.infiniband || d.kind == iwarp)
			below := served || p.netdev == n.name || p.netdev != "" && p.netdev == h.stack.Real(n.name)
			switch {
			case below && !n.up:
				return []Finding{isDown(addr, n, d.name)}
			case served && bare.IsLoopback():
				return []Finding{{
					Check: "address", Level: Problem, Found: fmt.Sprintf("%v is on %s, served by %s, but no connection begins there", addr, n.name, d.name),
					Cause: "the connection manager finds no route for loopback addresses", Fix: "use an address of another network device, also for connections of this host to itself",
				}}
			case served:
				return []Finding{ok("address", "%v is on %s, served by %s", addr, n.name, d.name)}
			}
		}
	}
	f := Finding{Check: "address", Level: Problem, Found: fmt.Sprintf("%v is on %s, which has no RDMA device", addr, n.name)}
	f.Cause = "connections from and to an address go through an RDMA device on its network device"
	f.Fix = h.makeDevice(n.name)
	if n.loopback {
		f.Fix = "use the address of another network device: no RDMA device serves " + n.name
	}
	return []Finding{f}
}

// notHere returns the finding for an address that no network device of this host has.
func (h host) notHere(addr netip.Addr) Finding {
	f := Finding{Check: "address", Level: Problem, Found: fmt.Sprintf("%v is not an address of this host", addr), Cause: "no network device has it"}
	if space, found := h.spaces.find(func(n namespace) bool { return hasAddress(n.addrs, addr) }); found {
		f.Found = fmt.Sprintf("%v is in the %v, not in this one", addr, space)
		f.Cause = "a command uses the addresses of the network namespace it runs in"
		f.Fix = space.enter() + " krpingctl doctor --addr " + addr.String()
		return f
	}
	if h.spaces.closed > 0 {
		f.Cause += fmt.Sprintf("; %d other network namespaces could not be read: that needs root", h.spaces.closed)
	}
	for _, n := range h.netdevs {
		for _, p := range n.addrs {
			if !n.loopback && p.Contains(addr) {
				f.Fix = fmt.Sprintf("ip addr add %v/%d dev %s; or use %v", addr, p.Bits(), n.name, p.Addr())
				return f
			}
		}
	}
	f.Fix = "ip addr add " + addr.String() + "/PREFIX dev NETDEV; or use an address that ip addr lists"
	return f
}
