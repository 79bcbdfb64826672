// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// listener is an RDMA connection manager's id that waits for connections.
type listener struct {
	addr netip.AddrPort
	pid  uint32 // of its process, or 0
	name string // of the module that has it, if none has
}

// Of the dump of connection manager ids: include/uapi/rdma/rdma_netlink.h.
const (
	cmdResCMID      = 11
	attrResPID      = 28
	attrResKernName = 29
	attrResCMID     = 30
	attrResSrcAddr  = 33
	attrResDstAddr  = 34
)

func readListeners() ([]listener, error) {
	devices, err := netlink.RdmaLinkList()
	if err != nil {
		return nil, fmt.Errorf("list the RDMA devices: %w", err)
	}
	var listeners []listener
	for _, d := range devices {
		request := nl.NewNetlinkRequest(nl.RDMA_NL_NLDEV<<nl.RDMA_NL_GET_CLIENT_SHIFT|cmdResCMID, unix.NLM_F_DUMP)
		index := binary.NativeEndian.AppendUint32(nil, d.Attrs.Index)
		request.AddData(nl.NewRtAttr(nl.RDMA_NLDEV_ATTR_DEV_INDEX, index))
		messages, err := request.Execute(unix.NETLINK_RDMA, 0)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, fmt.Errorf("list the connections of %s: %w", d.Attrs.Name, err)
		}
		for _, m := range messages {
			listeners = append(listeners, parseListeners(m)...)
		}
	}
	return listeners, nil
}

// parseListeners reads one message of the dump.
func parseListeners(message []byte) []listener {
	var listeners []listener
	attributes(message, func(kind uint16, table []byte) {
		if kind != attrResCMID {
			return
		}
		attributes(table, func(_ uint16, entry []byte) {
			if l, listens := parseListener(entry); listens {
				listeners = append(listeners, l)
			}
		})
	})
	return listeners
}

// parseListener reads an id. The port is its own if it is not connected to another.
func parseListener(entry []byte) (l listener, listens bool) {
	var to netip.AddrPort
	attributes(entry, func(kind uint16, value []byte) {
		switch {
		case kind == attrResPID && len(value) >= 4:
			l.pid = binary.NativeEndian.Uint32(value)
		case kind == attrResKernName:
			l.name = unix.ByteSliceToString(value)
		case kind == attrResSrcAddr:
			l.addr = parseSockaddr(value)
		case kind == attrResDstAddr:
			to = parseSockaddr(value)
		}
	})
	return l, to.Port() == 0 && l.addr.Port() != 0
}

// attributes calls a function for each netlink attribute.
func attributes(data []byte, each func(kind uint16, value []byte)) {
	for len(data) >= 4 {
		length := int(binary.NativeEndian.Uint16(data))
		if length < 4 || length > len(data) {
			return
		}
		each(binary.NativeEndian.Uint16(data[2:])&^unix.NLA_F_NESTED, data[4:length])
		data = data[min((length+3)&^3, len(data)):]
	}
}

// parseSockaddr reads a struct sockaddr_in or sockaddr_in6.
func parseSockaddr(b []byte) netip.AddrPort {
	if len(b) < 28 {
		return netip.AddrPort{}
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port)
	}
	return netip.AddrPort{}
}

// portFindings says who listens on the port here.
func portFindings(addr netip.Addr, port uint16) []Finding {
	listeners, err := readListeners()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOENT) {
		return nil // no RDMA stack is loaded: other findings say so
	}
	if err != nil {
		return []Finding{unchecked("port", err)}
	}
	for _, l := range listeners {
		if l.pid != 0 {
			l.name = content(fmt.Sprintf("/proc/%d/comm", l.pid))
		}
		if l.takes(addr, port) {
			return []Finding{l.finding()}
		}
	}
	return []Finding{ok("port", "nothing listens on port %d here", port)}
}

// takes says whether another server could not listen on the port of an address, or of any
// if it is not valid.
func (l listener) takes(addr netip.Addr, port uint16) bool {
	same := !addr.IsValid() || l.addr.Addr().IsUnspecified() || l.addr.Addr() == addr.Unmap().WithZone("")
	return same && l.addr.Port() == port
}

func (l listener) finding() Finding {
	f := Finding{Check: "port", Level: Note, Cause: "a second server there fails with EADDRINUSE"}
	f.Found = fmt.Sprintf("%s listens on %v", strings.TrimSpace(l.name), l.addr)
	f.Fix = "krpingctl stat, which shows what the module serves; or give another server another --port"
	if l.pid != 0 {
		f.Found += fmt.Sprintf(" (process %d)", l.pid)
		f.Fix = fmt.Sprintf("kill %d; or give another server another --port", l.pid)
	}
	return f
}
