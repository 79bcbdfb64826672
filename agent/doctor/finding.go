// SPDX-License-Identifier: Apache-2.0

// Package doctor looks for what is wrong with a host's set-up: modules, RDMA devices,
// addresses, the network, the kernel, the peer. What it finds comes with its cause and the
// command that mends it. Reading is apart from judging, which is pure.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"krping/proc"
)

// Level says how bad a finding is.
type Level string

// Levels, from good to bad.
const (
	OK      Level = "ok"
	Note    Level = "note"    // nothing is wrong, but it may surprise
	Warning Level = "warning" // something does not work, or could not be looked at
	Problem Level = "problem" // pings and disks do not work
)

// Finding is what a check found. One that is not OK has a cause and the command to mend it.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Found string `json:"found"`
	Cause string `json:"cause,omitempty"`
	Fix   string `json:"fix,omitempty"`
}

// Report is what all checks found.
type Report struct {
	Findings []Finding `json:"findings"`
	Problems int       `json:"problems"`
	Warnings int       `json:"warnings"`
}

// Options say what to look at beside the host itself.
type Options struct {
	Addr netip.Addr // own address to serve or to connect from, if valid
	Peer netip.Addr // address of the other host, if valid
	Port uint16     // of the server, here or there
}

// host is what several checks look at, read once.
type host struct {
	modules modules
	devices []device
	netdevs []netdev
	spaces  namespaces
}

// Examine makes all checks. One that cannot be made has a finding that says why, and does
// not hide the others.
func Examine(ctx context.Context, proc proc.FS, o Options) Report {
	var r Report
	h := readHost(&r)
	r.add(h.modules.findings()...)
	r.add(h.deviceFindings()...)
	r.add(h.gidFindings()...)
	r.add(h.mtuFindings()...)
	r.add(h.namespaceFindings()...)
	r.add(h.addressFindings(o.Addr)...)
	r.add(h.loopbackFindings(ctx, proc, h.own(o))...)
	r.add(portFindings(o.Addr, o.Port)...)
	r.add(kernelFindings(h.modules.release)...)
	firewall, lost := h.firewallFindings(o)
	r.add(firewall...)
	if !o.Peer.IsValid() {
		return r
	}
	r.add(h.routeFindings(o)...)
	if lost && !h.owns(o.Peer) {
		r.add(notPinged(o, "the firewall here may drop what is sent, which Soft-RoCE sends again and again: the ping could not be ended", "mend the firewall, as said above, and ask again"))
		return r
	}
	r.add(peerFindings(ctx, proc, o)...)
	return r
}

// own returns the address of this host that connections come from or go to, or an invalid one.
func (h host) own(o Options) netip.Addr {
	if o.Addr.IsValid() || !o.Peer.IsValid() {
		return o.Addr
	}
	return h.readRoute(o.Peer).source
}

func readHost(r *Report) host {
	var h host
	var err error
	if h.modules, err = readModules(); err != nil {
		r.add(unchecked("modules", err))
	}
	if h.devices, err = readDevices(); err != nil {
		r.add(unchecked("rdma devices", err))
	}
	if h.netdevs, err = readNetdevs(); err != nil {
		r.add(unchecked("network devices", err))
	}
	h.nameNetdevs()
	if h.spaces, err = readNamespaces(); err != nil {
		r.add(unchecked("network namespaces", err))
	}
	return h
}

func (r *Report) add(findings ...Finding) {
	for _, f := range findings {
		switch f.Level {
		case Problem:
			r.Problems++
		case Warning:
			r.Warnings++
		}
	}
	r.Findings = append(r.Findings, findings...)
}

// unchecked is the finding of a check that could not be made.
func unchecked(check string, err error) Finding {
	f := Finding{Check: check, Level: Warning, Found: "could not be looked at", Cause: err.Error()}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EPERM) {
		f.Fix = "sudo krpingctl doctor"
	}
	return f
}

func ok(check, format string, args ...any) Finding {
	return Finding{Check: check, Level: OK, Found: fmt.Sprintf(format, args...)}
}

func (h host) netdev(name string) (netdev, bool) {
	i := slices.IndexFunc(h.netdevs, func(n netdev) bool { return n.name == name })
	if i < 0 {
		return netdev{}, false
	}
	return h.netdevs[i], true
}
