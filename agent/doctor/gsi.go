// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"krping/proc"
)

// readBroken returns the devices whose GSI queue pair, over which connections are made, is in the error state.
func readBroken() (map[string]bool, error) {
	broken := make(map[string]bool)
	err := resources(cmdResQP, attrResQP, func(device string, entry []byte) {
		broken[device] = broken[device] || isBrokenGSI(entry)
	})
	return broken, err
}

// isBrokenGSI reads a queue pair: enum ib_qp_type and ib_qp_state of include/rdma/ib_verbs.h.
func isBrokenGSI(entry []byte) bool {
	const gsi, failed = 1, 6
	var isGSI, hasFailed bool
	attributes(entry, func(kind uint16, value []byte) {
		switch {
		case kind == attrResType && len(value) > 0:
			isGSI = value[0] == gsi
		case kind == attrResState && len(value) > 0:
			hasFailed = value[0] == failed
		}
	})
	return isGSI && hasFailed
}

// brokenGSI returns the cause and the remedy of a queue pair for the connection manager that is of no use any more.
func (d device) brokenGSI(p port) (cause, fix string) {
	cause = "a packet of the connection manager could not be sent (no carrier, network device down), and nothing mends that queue pair; what listens here has to be started again, too"
	if d.kind != rxe {
		return cause, "unload and load the driver of " + d.name
	}
	return cause, fmt.Sprintf("krpingctl link del %s && krpingctl link add %s --netdev %s", d.name, d.name, p.netdev)
}

// unserved is a port that nobody listens on: tcpmux.
const unserved = 1

// loopbackFindings has the Soft-RoCE device of an own address connect to that address, where nobody listens: it is
// refused at once, unless the device's GSI queue pair is broken. On Linux 6.1 the state of that queue pair does not
// say so: its half that sends is mended, the one that receives is not.
func (h host) loopbackFindings(ctx context.Context, fs proc.FS, own netip.Addr) []Finding {
	d, p, found := h.serving(own)
	if !found || d.kind != rxe || d.broken {
		return nil
	}
	once := uint32(1)
	_, err := fs.Run(ctx, proc.Command{Role: proc.Client, Addr: own, Port: unserved, Count: &once, Timeout: peerTimeout})
	if !errors.Is(err, unix.ETIMEDOUT) {
		return nil
	}
	cause, fix := d.brokenGSI(p)
	return []Finding{{Check: "rdma devices", Level: Problem, Found: fmt.Sprintf("%s does not answer at %v, not even this host", d.name, own), Cause: cause, Fix: fix}}
}

// serving returns the device, and its port, that has a GID of an address.
func (h host) serving(addr netip.Addr) (device, port, bool) {
	for _, d := range h.devices {
		for _, p := range d.ports {
			if slices.ContainsFunc(p.gids, func(g gid) bool { return g.addr == addr.Unmap().WithZone("") }) {
				return d, p, true
			}
		}
	}
	return device{}, port{}, false
}
