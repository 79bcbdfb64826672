// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// pathFindings tests whether packets as large as RoCE's reach the peer and return. RoCE packets
// are not fragmented, and the MTU of the peer or a switch may be smaller than this host's. If the
// peer does not answer ICMP echoes, nothing is reported.
func (h host) pathFindings(peer netip.Addr, netdev string) []Finding {
	isRoCE := func(d device) bool {
		return d.kind != iwarp && slices.ContainsFunc(d.ports, func(p port) bool { return !p.infiniband && p.serves(netdev) })
	}
	n, _ := h.netdev(netdev)
	most := roceMTU(n.mtu)
	if most == 0 || !slices.ContainsFunc(h.devices, isRoCE) {
		return nil
	}
	e, err := newEcho(peer)
	if err != nil {
		return []Finding{unchecked("path", err)}
	}
	defer e.conn.Close()
	if !e.answered(0) {
		return nil
	}
	size := most
	for size >= 256 && !e.answered(size) {
		size /= 2
	}
	return []Finding{pathFinding(peer, n, most, size)}
}

// pathFinding compares the largest RoCE payload that returned from the peer, size, with the
// largest that the network device allows, most.
func pathFinding(peer netip.Addr, n netdev, most, size int) Finding {
	if size == most {
		return ok("path", "RoCE packets with %d bytes of data get to %v and back", size, peer)
	}
	least := max(size, 256) + 104
	if size == 1024 {
		least = 1500
	}
	f := Finding{Check: "path", Level: Problem, Found: fmt.Sprintf("RoCE packets with %d bytes of data do not get to %v and back, those with %d do", most, peer, size)}
	if size < 256 {
		f.Found = fmt.Sprintf("no RoCE packet gets to %v and back: even 256 bytes of data are too large", peer)
	}
	f.Cause = fmt.Sprintf("the MTU of the peer, or of a switch on the path, is less than the %d of %s", n.mtu, n.name)
	f.Fix = fmt.Sprintf("ip link set %s mtu %d; or on the peer and on each hop: ip link set NETDEV mtu %d", n.name, least, n.mtu)
	return f
}

// echo sends ICMP echo requests to a host.
type echo struct {
	conn    *net.IPConn
	to      netip.Addr
	timeout time.Duration // of each request
	seq     int
}

func newEcho(to netip.Addr) (*echo, error) {
	network, level, option := "ip4:icmp", unix.IPPROTO_IP, unix.IP_MTU_DISCOVER
	if to.Unmap().Is6() {
		network, level, option = "ip6:ipv6-icmp", unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER
	}
	conn, err := net.ListenIP(network, nil)
	if err != nil {
		return nil, fmt.Errorf("open a socket for ICMP: %w", err)
	}
	raw, err := conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), level, option, unix.IP_PMTUDISC_PROBE) // no fragmentation
		})
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("set up a socket for ICMP: %w", err)
	}
	return &echo{conn: conn, to: to.Unmap(), timeout: 500 * time.Millisecond}, nil
}

// answered reports whether the host answers an echo request as large as a RoCE packet with size
// bytes of data, in two attempts.
func (e *echo) answered(size int) bool {
	const more = 8 + 12 + 16 + 4 - 8 // UDP, BTH, RETH and ICRC instead of ICMP
	for range 2 {
		e.seq++
		if e.once(size + more) {
			return true
		}
	}
	return false
}

func (e *echo) once(size int) bool {
	request, reply := icmp.Type(ipv4.ICMPTypeEcho), icmp.Type(ipv4.ICMPTypeEchoReply)
	if e.to.Is6() {
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	body := &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: e.seq, Data: bytes.Repeat([]byte{'k'}, size)}
	message, err := (&icmp.Message{Type: request, Body: body}).Marshal(nil)
	if err != nil {
		return false
	}
	if err := e.conn.SetDeadline(time.Now().Add(e.timeout)); err != nil {
		return false
	}
	if _, err := e.conn.WriteTo(message, &net.IPAddr{IP: e.to.AsSlice(), Zone: e.to.Zone()}); err != nil {
		return false
	}
	buf := make([]byte, 1<<16)
	for {
		n, _, err := e.conn.ReadFrom(buf)
		if err != nil {
			return false
		}
		got, err := icmp.ParseMessage(reply.Protocol(), buf[:n])
		if err != nil || got.Type != reply {
			continue
		}
		if b, isEcho := got.Body.(*icmp.Echo); isEcho && b.ID == body.ID && b.Seq == body.Seq {
			return true
		}
	}
}
