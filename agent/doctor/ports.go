// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"krping/bridge/sysfs"
)

// listener is a listening id of the RDMA connection manager.
type listener struct {
	addr netip.AddrPort
	pid  uint32 // of the process that owns it, or 0
	name string // of that process, or of the kernel module that owns it
}

func readListeners() ([]listener, error) {
	var listeners []listener
	err := resources(cmdResCMID, attrResCMID, func(_ string, entry []byte) {
		if l, listens := parseListener(entry); listens {
			l.pid = processOf(l.pid)
			listeners = append(listeners, l)
		}
	})
	return listeners, err
}

// processOf returns the process of a thread, whose ID the kernel tells; the same ID if it has ended.
func processOf(thread uint32) uint32 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	_, after, _ := strings.Cut(string(status), "\nTgid:")
	line, _, _ := strings.Cut(after, "\n")
	if process, err := strconv.ParseUint(strings.TrimSpace(line), 10, 32); err == nil {
		return uint32(process)
	}
	return thread
}

// parseListener parses an id; it listens if it has a port and no peer.
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

// parseSockaddr parses a struct sockaddr_in or sockaddr_in6.
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

// portFindings reports who listens on the port of this host.
func portFindings(addr netip.Addr, port uint16) []Finding {
	listeners, err := readListeners()
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOENT) {
		return nil // no RDMA stack is loaded; other findings report that
	}
	if err != nil {
		return []Finding{unchecked("port", err)}
	}
	for _, l := range listeners {
		if l.pid != 0 {
			l.name = sysfs.Text(fmt.Sprintf("/proc/%d/comm", l.pid))
		}
		if l.takes(addr, port) {
			return []Finding{l.finding()}
		}
	}
	return []Finding{ok("port", "nothing listens on port %d of this host", port)}
}

// takes reports whether the listener occupies the port of an address; of any address, if addr is
// not valid.
func (l listener) takes(addr netip.Addr, port uint16) bool {
	same := !addr.IsValid() || l.addr.Addr().IsUnspecified() || l.addr.Addr() == addr.Unmap().WithZone("")
	return same && l.addr.Port() == port
}

func (l listener) finding() Finding {
	f := Finding{Check: "port", Level: Note, Cause: "a second server on that port fails with EADDRINUSE"}
	f.Found = fmt.Sprintf("%s listens on %v", strings.TrimSpace(l.name), l.addr)
	f.Fix = "start another server with another --port; krpingctl stat lists what the module serves"
	if strings.TrimSpace(l.name) == "rdma_krping" {
		f.Fix += "; another volume may share that port"
	}
	if l.pid != 0 {
		f.Found += fmt.Sprintf(" (process %d)", l.pid)
		f.Fix = "start another server with another --port; ps -fp " + strconv.Itoa(int(l.pid)) + " shows what listens"
	}
	return f
}
