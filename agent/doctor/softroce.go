// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
)

// What Soft-RoCE cannot do on older kernels. It was tried on 6.1, 6.12 and 7.3: the first two cannot, the last
// one can. Between them it is not known.
const (
	limitedUntil = "6.12"
	liftedFrom   = "7.3"
)

// limited reports whether a kernel has these limits, or may have them.
func limited(release string) (surely, perhaps bool) {
	n := number(release)
	return n != 0 && n <= number(limitedUntil), n != 0 && n < number(liftedFrom)
}

// softRoCEFindings reports the limits of the kernel's Soft-RoCE that this host's devices meet.
func (h host) softRoCEFindings() []Finding {
	_, elsewhere := h.spaces.find(func(n namespace) bool { return n.name == "" }) // process 1 is in another namespace
	surely, perhaps := limited(h.modules.release)
	var findings []Finding
	for _, d := range h.devices {
		if d.kind != rxe || len(d.ports) == 0 || !perhaps {
			continue
		}
		n, here := h.netdev(d.ports[0].netdev)
		f := Finding{Check: "soft-roce", Level: Note}
		if surely {
			f.Level = Problem
		}
		switch {
		case here && elsewhere:
			f.Found = fmt.Sprintf("%s is on %s in this network namespace: there it makes no connections", d.name, n.name)
			f.Cause = fmt.Sprintf("Soft-RoCE up to Linux %s receives packets in the host's first network namespace only; with Linux %s it works in others", limitedUntil, liftedFrom)
			f.Fix = "use the host's first network namespace: " + namespace{}.enter() + " krpingctl doctor; or a kernel from " + liftedFrom + " on"
		case here && !n.ethernet && !n.loopback:
			f.Found = fmt.Sprintf("%s is on %s, which has no MAC address: there it makes no connections", d.name, n.name)
			f.Cause = fmt.Sprintf("Soft-RoCE up to Linux %s does not work on tunnels; with Linux %s it does", limitedUntil, liftedFrom)
			f.Fix = "use a network device with a MAC address: " + h.makeDevice("") + "; or a kernel from " + liftedFrom + " on"
		default:
			continue
		}
		if h.spareDevice(d) {
			f.Level = Note
		}
		findings = append(findings, f)
	}
	return findings
}

// spareDevice reports whether the host has another device that serves an address.
func (h host) spareDevice(but device) bool {
	return slices.ContainsFunc(h.devices, func(d device) bool { return d.name != but.name && !d.servesNothing() })
}
