// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"net/netip"
	"strings"
)

// List is a list of addresses that are allowed. An empty list allows all.
type List []netip.Prefix

// ParseList parses addresses of the form ADDR or ADDR/BITS.
func ParseList(texts []string) (List, error) {
	var list List
	for _, text := range texts {
		prefix, err := parsePrefix(text)
		mapped := prefix.Addr().Is4In6()
		if err != nil || mapped && prefix.Bits() < 96 {
			return nil, fmt.Errorf("%q: must be an IP address or prefix, like 192.168.77.2 or fd77::/64", text)
		}
		if mapped {
			prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
		}
		list = append(list, prefix)
	}
	return list, nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return netip.ParsePrefix(text)
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.ParsePrefix(fmt.Sprintf("%s/%d", text, addr.BitLen())) // refuses a zone
}

// Allows reports whether the list allows the address.
func (l List) Allows(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	for _, prefix := range l {
		if prefix.Contains(addr) {
			return true
		}
	}
	return len(l) == 0
}
