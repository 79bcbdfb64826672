// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"fmt"
	"net/netip"

	"github.com/prometheus/procfs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"krping/agent/doctor"
	"krping/bridge/display"
)

// listener describes what listens on the address of a port, or returns "" if that is not known.
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

// tcpListener describes what listens on a TCP port, or returns "".
func tcpListener(addr netip.Addr, port uint16) string {
	families := []uint8{unix.AF_INET, unix.AF_INET6} // an IPv6 socket may accept IPv4, too
	if addr.Is6() {
		families = families[1:]
	}
	const tcpListen = 10 // TCP_LISTEN of include/net/tcp_states.h
	for _, family := range families {
		sockets, _ := netlink.SocketDiagTCP(family) // best effort: it only improves a message
		for _, s := range sockets {
			if s.State == tcpListen && s.ID.SourcePort == port {
				return fmt.Sprintf("%s listens on %s", holder(s.INode), netip.AddrPortFrom(unmapped(s.ID.Source), port))
			}
		}
	}
	return ""
}

func unmapped(ip []byte) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip) // netlink returns 4 or 16 bytes
	return addr.Unmap()
}

// holder returns the name and number of the process that has a socket open.
func holder(inode uint32) string {
	const kernels = "the kernel" // if no process has it
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
			continue // the process has ended
		}
		for _, target := range targets {
			if name, err := p.Comm(); target == wanted && err == nil {
				return fmt.Sprintf("%s (process %d)", display.Text(name), p.PID)
			}
		}
	}
	return kernels
}
