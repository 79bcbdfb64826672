// SPDX-License-Identifier: Apache-2.0

package doctor

import "net/netip"

// ExamineAddress checks whether an RDMA device serves an address of this host.
func ExamineAddress(addr netip.Addr) Finding {
	h := readHost(&Report{})
	return h.addressFindings(addr)[0]
}

// ExamineLocal checks whether an address is this host's, with or without an RDMA device.
func ExamineLocal(addr netip.Addr) Finding {
	h := readHost(&Report{})
	if h.owns(addr) {
		return ok("address", "%v is this host's", addr)
	}
	return h.notHere(addr)
}

// ExamineRoute checks whether the route to a peer starts at an RDMA device. It sends nothing.
func ExamineRoute(peer netip.Addr) Finding {
	h := readHost(&Report{})
	r := h.readRoute(peer)
	if r.local {
		return h.addressFindings(peer)[0]
	}
	return h.routeFinding(Options{Peer: peer}, r)
}

// ExaminePort reports who listens on an RDMA port of an address.
func ExaminePort(addr netip.Addr, port uint16) []Finding { return portFindings(addr, port) }
