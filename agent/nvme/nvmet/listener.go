// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"fmt"
	"net/netip"

	"github.com/prometheus/procfs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"krping/agent/doctor"
)

// listener says who listens on a port, or "" if that is not to be seen.
func (t *Tree) listener(p Port, addr netip.Addr, port uint16) string {
	if config, err := t.Read(); err == nil {
		for _, other := range config.Ports {
			if other.ID != p.ID && other.Addr["trsvcid"] == p.Addr["trsvcid"] && other.Addr["trtype"] == p.Addr["trtype"] && len(other.Subsystems) > 0 {
				return fmt.Sprintf("the target's port %d listens on %s:%s", other.ID, other.Addr["traddr"], other.Addr["trsvcid"])
			}
		}
	}
	if p.Addr["trtype"] == TCP {
		return tcpListener(addr, port)
	}
	for _, f := range doctor.ExaminePort(addr, port) {
		if f.Level != doctor.OK {
			return f.Found
		}
	}
	return ""
}

// tcpListener returns who listens on a TCP port, or "".
func tcpListener(addr netip.Addr, port uint16) string {
	families := []uint8{unix.AF_INET, unix.AF_INET6} // a socket of IPv6 may take IPv4 as well
	if addr.Is6() {
		families = families[1:]
	}
	const listens = 10 // TCP_LISTEN of the kernel's tcp_states.h
	for _, family := range families {
		sockets, _ := netlink.SocketDiagTCP(family) // without them nobody is named
		for _, s := range sockets {
			if s.State == listens && s.ID.SourcePort == port {
				return fmt.Sprintf("%s listens on %s", holder(s.INode), netip.AddrPortFrom(unmapped(s.ID.Source), port))
			}
		}
	}
	return ""
}

func unmapped(ip []byte) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip) // netlink's are 4 or 16 bytes
	return addr.Unmap()
}

// holder returns the process that has a socket open.
func holder(inode uint32) string {
	const kernels = "the kernel" // no process has it
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return kernels
	}
	processes, err := fs.AllProcs()
	if err != nil {
		return kernels
	}
	wanted := fmt.Sprintf("socket:[%d]", inode)
	for _, p := range processes {
		targets, err := p.FileDescriptorTargets()
		if err != nil {
			continue // it has ended
		}
		for _, target := range targets {
			if name, err := p.Comm(); target == wanted && err == nil {
				return fmt.Sprintf("%s (process %d)", name, p.PID)
			}
		}
	}
	return kernels
}
