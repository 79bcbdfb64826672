// SPDX-License-Identifier: Apache-2.0

package main

import "net/netip"

// parseAddr parses the value of an address flag. Without one, the address is not valid.
func parseAddr(flag, text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return addr, usagef("--%s %s: not an IP address", flag, text)
	}
	return addr, nil
}
