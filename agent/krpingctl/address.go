// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/netip"
	"strings"

	"github.com/rs/zerolog/log"

	"krping/bridge/input"
)

// parseAddr returns the address that an address flag gives, as an IP address or a host name. Without one, the
// address is not valid.
func parseAddr(flag, text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	addr, port, err := resolve(context.Background(), flag, text)
	if err == nil && port != 0 {
		return addr, usagef("--%s %s: must have no port: it has a flag of its own", flag, text)
	}
	return addr, err
}

// parseAddrPort is parseAddr of --addr, which may have a port. It must not contradict --port, if that is
// given.
func parseAddrPort(ctx context.Context, text string, port uint16, given bool) (netip.Addr, uint16, error) {
	return parseEndpoint(ctx, "addr", text, port, given)
}

// parseEndpoint is parseAddrPort for any flag.
func parseEndpoint(ctx context.Context, flag, text string, port uint16, given bool) (netip.Addr, uint16, error) {
	addr, own, err := resolve(ctx, flag, text)
	switch {
	case err != nil || own == 0:
		return addr, port, err
	case given && own != port:
		return addr, 0, usagef("--%s %s and --port %d: the ports differ", flag, text, port)
	}
	return addr, own, nil
}

// resolve returns the address and port that a flag gives. It logs which address of a host name it has chosen.
func resolve(ctx context.Context, flag, text string) (netip.Addr, uint16, error) {
	host, port, err := input.HostPort(text)
	if err != nil {
		return netip.Addr{}, 0, usagef("--%s %s: %w", flag, orQuotes(text), err)
	}
	addrs, named, err := input.Resolve(ctx, host)
	if err != nil {
		return netip.Addr{}, 0, usagef("--%s %s: %w", flag, text, err)
	}
	if named {
		var others []string
		for _, a := range addrs[1:] {
			others = append(others, a.String())
		}
		event := log.Info()
		if len(others) > 0 {
			event = event.Str("others", strings.Join(others, ", "))
		}
		event.Msgf("%s is %s", host, addrs[0])
	}
	return addrs[0], port, nil
}
