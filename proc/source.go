// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var interfaceName = regexp.MustCompile(`^[!-+\-.0-~]{1,15}$`)

func validSource(text string) bool {
	if strings.ContainsAny(text, ":%") {
		_, err := netip.ParseAddr(text)
		_, zone, _ := strings.Cut(text, "%")
		return err == nil && (zone == "" || interfaceName.MatchString(zone))
	}
	return interfaceName.MatchString(text)
}

// netInterface is a network interface and its addresses.
type netInterface struct {
	name  string
	addrs []netip.Prefix
}

func netInterfaces() ([]netInterface, error) {
	found, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("look for the network interfaces: %w", err)
	}
	var list []netInterface
	for _, i := range found {
		addrs, err := i.Addrs()
		if err != nil {
			return nil, fmt.Errorf("look for the addresses of %s: %w", i.Name, err)
		}
		n := netInterface{name: i.Name}
		for _, a := range addrs {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				n.addrs = append(n.addrs, prefix)
			}
		}
		list = append(list, n)
	}
	return list, nil
}

const rdmaClass = "/sys/class/infiniband"

// netdevOf returns the network interface of an RDMA device's first port that has one, or "". class is a
// directory as rdmaClass.
func netdevOf(class, device string) string {
	ports := filepath.Join(class, device, "ports")
	entries, _ := os.ReadDir(ports) // none: not an RDMA device
	for _, port := range entries {
		name, err := os.ReadFile(filepath.Join(ports, port.Name(), "gid_attrs", "ndevs", "0"))
		if err == nil {
			return strings.TrimSpace(string(name))
		}
	}
	return ""
}

// WithSourceAddress returns the command with an address that this host has as its Source. An interface, or
// the RDMA device on it, is replaced by its address in the subnet of c.Addr, or else its first one of that
// family.
func (c Command) WithSourceAddress() (Command, error) {
	if c.Source == "" {
		return c, nil
	}
	interfaces, err := netInterfaces()
	if err != nil {
		return c, err
	}
	source, err := sourceAddress(c.Source, netdevOf(rdmaClass, c.Source), c.Addr.Unmap(), interfaces)
	if err != nil {
		return c, fmt.Errorf("source %q: %w", c.Source, err)
	}
	c.Source = source.String()
	return c, c.Check()
}

// sourceAddress returns the address that text, an address, an interface or an RDMA device, stands for. netdev
// is the interface of the device, "" if text is none.
func sourceAddress(text, netdev string, peer netip.Addr, interfaces []netInterface) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err == nil {
		return ownAddress(addr.Unmap(), interfaces)
	}
	i := slices.IndexFunc(interfaces, func(n netInterface) bool { return n.name == text || n.name == netdev })
	if i < 0 {
		var names []string
		for _, n := range interfaces {
			names = append(names, n.name)
		}
		return addr, fmt.Errorf("is neither an IP address nor a network interface of this host, which has %s, nor an RDMA device on one of them", strings.Join(names, ", "))
	}
	return interfaces[i].addressFor(peer)
}

// ownAddress finds the interface that has an address, and adds it to a link-local one as the zone.
func ownAddress(addr netip.Addr, interfaces []netInterface) (netip.Addr, error) {
	var own, on []string
	for _, n := range interfaces {
		for _, prefix := range n.addrs {
			own = append(own, fmt.Sprintf("%v (%s)", prefix.Addr(), n.name))
			if prefix.Addr() == addr.WithZone("") && (addr.Zone() == "" || addr.Zone() == n.name) {
				on = append(on, n.name)
			}
		}
	}
	switch {
	case len(on) == 0:
		return addr, fmt.Errorf("no network interface of this host has this address; there are %s", strings.Join(own, ", "))
	case !addr.IsLinkLocalUnicast() || addr.Is4():
		return addr, nil
	case len(on) > 1:
		return addr, fmt.Errorf("several interfaces have this address: add one of them, like %v%%%s", addr, on[0])
	}
	return addr.WithZone(on[0]), nil
}

// addressFor returns the interface's address from which to connect to a peer.
func (n netInterface) addressFor(peer netip.Addr) (netip.Addr, error) {
	var first netip.Addr
	for _, prefix := range n.addrs {
		addr := prefix.Addr()
		switch {
		case addr.Is4() != peer.Is4(), addr.Is6() && addr.IsLinkLocalUnicast() != peer.IsLinkLocalUnicast():
			continue
		case addr.Is6() && addr.IsLinkLocalUnicast():
			return addr.WithZone(n.name), nil
		case prefix.Contains(peer):
			return addr, nil
		case !first.IsValid():
			first = addr
		}
	}
	if !first.IsValid() {
		return first, fmt.Errorf("the interface has no address from which to connect to %v", peer)
	}
	return first, nil
}
