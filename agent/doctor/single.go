// SPDX-License-Identifier: Apache-2.0

package doctor

import "net/netip"

// ExamineAddress says whether an RDMA device serves the host's own address.
func ExamineAddress(addr netip.Addr) Finding {
	h := readHost(&Report{})
	return h.addressFindings(addr)[0]
}

// ExamineLocal says whether an address is one of this host's, whatever serves it.
func ExamineLocal(addr netip.Addr) Finding {
	h := readHost(&Report{})
	if h.owns(addr) {
		return ok("address", "%v is this host's", addr)
	}
	return h.notHere(addr)
}

// ExamineRoute says whether the way to a peer begins with an RDMA device. It sends nothing.
func ExamineRoute(peer netip.Addr) Finding {
	h := readHost(&Report{})
	r := h.readRoute(peer)
	if r.local {
		return h.addressFindings(peer)[0]
	}
	return h.routeFinding(Options{Peer: peer}, r)
}

// ExaminePort says who listens on an RDMA port of an address, if anybody does.
func ExaminePort(addr netip.Addr, port uint16) []Finding { return portFindings(addr, port) }
