// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/coreos/go-systemd/v22/unit"
	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
	"krping/agent/host/rdmalink"
	"krping/proc"
)

// queues are the QPs of a device.
type queues struct {
	broken    bool // the GSI QP, which carries the connection manager's messages, is in the error state
	connected int  // RC QPs that have a peer
}

// readQueues returns those of each device.
func readQueues() (map[string]queues, error) {
	all := make(map[string]queues)
	err := resources(cmdResQP, attrResQP, func(device string, entry []byte) {
		q := all[device]
		q.add(entry)
		all[device] = q
	})
	return all, err
}

// add parses a QP; the numbers are enum ib_qp_type and ib_qp_state of include/rdma/ib_verbs.h.
func (q *queues) add(entry []byte) {
	const (
		gsi, connection = 1, 2
		sends, failed   = 3, 6
	)
	kind, state := -1, -1
	attributes(entry, func(attr uint16, value []byte) {
		switch {
		case attr == attrResType && len(value) > 0:
			kind = int(value[0])
		case attr == attrResState && len(value) > 0:
			state = int(value[0])
		}
	})
	q.broken = q.broken || kind == gsi && state == failed
	if kind == connection && state == sends {
		q.connected++
	}
}

// brokenGSI returns the cause and the fix for a GSI QP in the error state. What is connected still works.
func (d device) brokenGSI(p port) (cause, fix string) {
	cause = "sending a connection manager message failed (no carrier, or network device down), and the QP does not recover"
	if d.kind != rxe {
		return cause, "in a maintenance window, as it interrupts the network: devlink dev reload, for the device that devlink dev show lists; or boot the host again"
	}
	fix = fmt.Sprintf("krpingctl link del %s && krpingctl link add %s --netdev %s; or, also for the next time: systemctl enable --now %s", d.name, d.name, p.netdev, rxeUnit(p.netdev))
	if d.connected > 0 {
		cause += fmt.Sprintf("; %d connections that it had before still work", d.connected)
		fix = "when these may be interrupted (sessions of krping then connect again and go on): " + fix
	}
	return cause, fix
}

// rxeUnit returns the unit that keeps a Soft-RoCE device on a network device.
func rxeUnit(netdev string) string { return "krping-rxe@" + unit.UnitNameEscape(netdev) + ".service" }

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
	queues, err := readQueues()
	if err != nil {
		return "", err
	}
	if queues[name].broken {
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
