// SPDX-License-Identifier: Apache-2.0

package input

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// ErrAddress is printed after an option and its value.
var ErrAddress = errors.New("must be an IP address or a host name, perhaps with a port: 10.0.0.1:9999 or [fd77::1]:9999")

// HostPort splits HOST, HOST:PORT, [IPV6] or [IPV6]:PORT. The port is 0 if there is none. An IPv6 address
// without brackets has no port.
func HostPort(text string) (host string, port uint16, err error) {
	if _, err := netip.ParseAddr(text); err == nil {
		return text, 0, nil
	}
	host = text
	if inner, ok := strings.CutPrefix(text, "["); ok && strings.HasSuffix(inner, "]") {
		host = strings.TrimSuffix(inner, "]")
	} else if strings.Contains(text, ":") {
		var number string
		if host, number, err = net.SplitHostPort(text); err != nil {
			return "", 0, ErrAddress
		}
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 {
			return "", 0, fmt.Errorf("port %q: must be 1 to 65535", number)
		}
		port = uint16(n)
	}
	addr, err := netip.ParseAddr(host)
	bracketed := strings.HasPrefix(text, "[")
	if bracketed && (err != nil || !addr.Is6()) || err != nil && !isHostName(host) {
		return "", 0, ErrAddress
	}
	return host, port, nil
}

// isHostName reports whether a name may be one of a host. It refuses what was meant as an IPv4 address.
func isHostName(name string) bool {
	if name == "" || len(name) > 253 || strings.Trim(name, ".0123456789") == "" {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if label == "" || len(label) > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") ||
			strings.Trim(strings.ToLower(label), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

// resolveTimeout limits the wait for name servers.
const resolveTimeout = 10 * time.Second

// Resolve returns the addresses of a host, an IP address or a name, best first (RFC 6724). named tells whether
// it was a name.
func Resolve(ctx context.Context, host string) (addrs []netip.Addr, named bool, err error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	addrs, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, true, fmt.Errorf("no address for the host name: %w", err)
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return addrs, true, nil
}
