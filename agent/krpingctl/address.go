// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/netip"
	"strings"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/bridge/input"
)

// parseAddr returns the address that an address flag gives, as an IP address or a host name. Without one, the
// address is not valid.
func parseAddr(cmd *cobra.Command, flag, text string) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	addr, port, err := resolve(cmd.Context(), flag, text)
	if err == nil && port != 0 {
		return addr, usagef("--%s %s: must have no port", flag, text)
	}
	return addr, err
}

// parseEndpoint is parseAddr for an address that may have a port. Without one the port is that of portFlag,
// which it must not contradict if that is given.
func parseEndpoint(cmd *cobra.Command, flag, text, portFlag string, port uint16) (netip.Addr, uint16, error) {
	if text == "" {
		return netip.Addr{}, port, nil
	}
	addr, own, err := resolve(cmd.Context(), flag, text)
	switch {
	case err != nil || own == 0:
		return addr, port, err
	case own != port && cmd.Flags().Changed(portFlag):
		return addr, 0, usagef("--%s %s and --%s %d: the ports differ", flag, text, portFlag, port)
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
