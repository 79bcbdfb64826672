// SPDX-License-Identifier: Apache-2.0

// Package doctor checks a host's set-up: modules, RDMA devices, addresses, the network, the
// kernel and the peer. Each finding that is not OK comes with a cause and a fix. Code that reads
// the host's state is kept apart from code that judges it, which is pure.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
	"krping/agent/host/rdmalink"
	"krping/agent/service/volumes"
	"krping/proc"
)

// Level says how bad a finding is.
type Level string

// Levels, from good to bad.
const (
	OK      Level = "ok"
	Note    Level = "note"    // works, but may surprise
	Warning Level = "warning" // something does not work, or could not be checked
	Problem Level = "problem" // pings and disks do not work
)

// Finding is the result of a check. Unless it is OK, it has a cause and a fix.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Found string `json:"found"`
	Cause string `json:"cause,omitempty"`
	Fix   string `json:"fix,omitempty"`
}

// Report holds the findings of all checks.
type Report struct {
	Findings []Finding `json:"findings"`
	Problems int       `json:"problems"`
	Warnings int       `json:"warnings"`
}

// Options say what to check in addition to the host itself.
type Options struct {
	Version string // of this program

	Addr netip.Addr // this host's address to serve or connect from, if valid
	Peer netip.Addr // the other host's address, if valid
	Port uint16     // the server's, on either host
}

// host is the state that several checks use, read once.
type host struct {
	modules modules
	devices []device
	netdevs []netdev
	stack   rdmalink.Netdevs // the same network devices, with those below and above
	spaces  namespaces
}

// Examine runs all checks. A check that cannot run is reported as a finding; the others still run.
func Examine(ctx context.Context, proc proc.FS, o Options) Report {
	var r Report
	h := readHost(&r)
	r.add(h.modules.findings()...)
	r.add(h.modules.versionFindings(o.Version)...)
	r.add(h.deviceFindings()...)
	r.add(h.gidFindings()...)
	r.add(h.softRoCEFindings()...)
	r.add(h.mtuFindings()...)
	r.add(h.flowFindings("/", readFlow)...)
	r.add(h.cardFindings("/")...)
	r.add(h.namespaceFindings()...)
	r.add(h.addressFindings(o.Addr)...)
	r.add(h.loopbackFindings(ctx, proc, h.own(o))...)
	r.add(portFindings(o.Addr, o.Port)...)
	r.add(h.checkTargets(proc)...)
	r.add(kernelFindings(h.modules.release)...)
	r.add(volumeFindings(volumes.DefaultPath)...)
	r.add(controllerFindings()...)
	firewall, dropsSent := h.firewallFindings(o)
	r.add(firewall...)
	r.add(h.bootFindings(proc)...)
	if !o.Peer.IsValid() {
		return r
	}
	r.add(h.routeFindings(o)...)
	if dropsSent && !h.owns(o.Peer) {
		r.add(notPinged(o, "this host's firewall may drop outgoing packets, which Soft-RoCE retransmits forever: the ping could not be interrupted", "fix the firewall as described above, then run doctor again"))
		return r
	}
	r.add(peerFindings(ctx, proc, o)...)
	return r
}

// own returns this host's address for connections, or an invalid one if it is not known.
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
	if h.stack, err = rdmalink.ReadNetdevs(); err != nil {
		r.add(unchecked("network devices", err))
	}
	h.nameNetdevs()
	h.findDeaf()
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

// unchecked returns the finding for a check that could not run.
func unchecked(check string, err error) Finding {
	f := Finding{Check: check, Level: Warning, Found: "could not be checked", Cause: err.Error()}
	if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EPERM) {
		return f
	}
	why, _ := kernel.Denied()
	return f.denied(why, os.Geteuid())
}

// denied explains that something was not permitted; why is what this process lacks of root's rights.
func (f Finding) denied(why string, uid int) Finding {
	switch {
	case why == "": // root may be refused by other means than capabilities
		f.Fix = "krpingctl dmesg; dmesg | grep -iE 'denied|lockdown'"
	case uid != 0:
		f.Cause, f.Fix = f.Cause+": "+why, "sudo krpingctl doctor"
	default:
		f.Cause, f.Fix = f.Cause+": "+why, "run krpingctl doctor on the host"
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
