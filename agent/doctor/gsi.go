// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
	"krping/agent/host/rdmalink"
	"krping/proc"
)

// readBroken returns the devices whose GSI QP, which carries the connection manager's messages, is
// in the error state.
func readBroken() (map[string]bool, error) {
	broken := make(map[string]bool)
	err := resources(cmdResQP, attrResQP, func(device string, entry []byte) {
		broken[device] = broken[device] || isBrokenGSI(entry)
	})
	return broken, err
}

// isBrokenGSI parses a QP; the numbers are enum ib_qp_type and ib_qp_state of include/rdma/ib_verbs.h.
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

// brokenGSI returns the cause and the fix for a GSI QP in the error state.
func (d device) brokenGSI(p port) (cause, fix string) {
	cause = "sending a connection manager message failed (no carrier, or network device down), and the QP does not recover"
	if d.kind != rxe {
		return cause, "unload and reload the driver of " + d.name
	}
	return cause, fmt.Sprintf("krpingctl link del %s && krpingctl link add %s --netdev %s; or, also for the next time: systemctl enable --now krping-rxe@%s", d.name, d.name, p.netdev, p.netdev)
}

// unusedPort is a port nobody listens on: tcpmux.
const unusedPort = 1

// loopbackFindings connects through the Soft-RoCE device of this host's address to that address,
// at a port nobody listens on. That is refused at once unless the device's GSI QP is broken. On
// Linux 6.1 the QP's state does not show this: its send side recovers, its receive side does not.
func (h host) loopbackFindings(ctx context.Context, fs proc.FS, own netip.Addr) []Finding {
	d, p, found := h.serving(own)
	if !found || d.kind != rxe || d.broken {
		return nil
	}
	if !isSilent(ctx, fs, own) {
		return nil
	}
	cause, fix := d.brokenGSI(p)
	return []Finding{{Check: "rdma devices", Level: Problem, Found: fmt.Sprintf("%s does not answer at %v, even from this host", d.name, own), Cause: cause, Fix: fix}}
}

// isSilent reports whether this host does not answer a connect request to an address of its own. It is not
// known without one of the modules rdma_ucm and rdma_krping.
func isSilent(ctx context.Context, fs proc.FS, own netip.Addr) bool {
	if refused, err := rdmalink.Refuses(ctx, netip.AddrPortFrom(own, unusedPort), peerTimeout); err == nil {
		return !refused
	}
	once := uint32(1)
	_, err := fs.Run(ctx, proc.Command{Role: proc.Client, Addr: own, Port: unusedPort, Count: &once, Timeout: peerTimeout})
	return errors.Is(err, unix.ETIMEDOUT)
}

// Dead returns why a Soft-RoCE device makes no connections any more, "" if it does. With try, it also connects
// through the device to itself, on a kernel that does not show the state of the GSI QP.
func Dead(ctx context.Context, fs proc.FS, name string, try bool) (string, error) {
	broken, err := readBroken()
	if err != nil {
		return "", err
	}
	if broken[name] {
		return "its GSI queue pair is in the error state", nil
	}
	if !try || showsBroken() {
		return "", nil
	}
	for _, p := range readDevice(infiniband, name).ports {
		for _, g := range p.gids {
			if g.addr.IsLinkLocalUnicast() {
				continue
			}
			for range 2 { // the host may be slow
				if !isSilent(ctx, fs, g.addr) || ctx.Err() != nil {
					return "", ctx.Err()
				}
			}
			return fmt.Sprintf("it does not answer at %v, even from this host", g.addr), nil
		}
	}
	return "", nil
}

// showsBroken reports whether the kernel shows the error state of Soft-RoCE's GSI QP: from 6.4 on, rxe has one
// state for both sides of a QP.
func showsBroken() bool { return number(kernel.Release()) >= number("6.4") }

// serving returns the device and port that have a GID for the address.
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
