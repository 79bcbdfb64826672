// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"krping/proc"
)

// endpoint is an address that a target of this host should listen on.
type endpoint struct {
	target string
	pid    uint32 // of krping-bridge; 0 for a volume of the module
	addr   netip.AddrPort
}

// log returns the command that shows the target's log.
func (e endpoint) log() string {
	if e.pid == 0 {
		return "krpingctl dmesg"
	}
	return fmt.Sprintf("journalctl _PID=%d", e.pid)
}

// readBridges returns the addresses of the running bridges of this network namespace, from their command
// lines.
func readBridges() []endpoint {
	own, _ := os.Stat("/proc/self/ns/net")
	var bridges []endpoint
	for _, dir := range root("/").bridges() {
		if space, err := os.Stat(filepath.Join(dir, "ns/net")); err == nil && !os.SameFile(own, space) {
			continue
		}
		pid, _ := strconv.ParseUint(filepath.Base(dir), 10, 32)
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // fails if it has just ended
		bridges = append(bridges, bridgeEndpoints(uint32(pid), string(command))...)
	}
	return bridges
}

// bridges returns the directories in /proc of the running bridges.
func (r root) bridges() []string {
	var dirs []string
	for _, comm := range r.glob("/proc/[0-9]*/comm") {
		if r.content(comm) == "krping-bridge" {
			dirs = append(dirs, filepath.Dir(comm))
		}
	}
	return dirs
}

// bridgeEndpoints parses a command line, whose arguments end with a NUL.
func bridgeEndpoints(pid uint32, command string) []endpoint {
	var endpoints []endpoint
	args := strings.Split(command, "\x00")
	for i, arg := range args {
		flag, value, assigned := strings.Cut(arg, "=")
		if flag != "--listen" && flag != "--ping" {
			continue
		}
		if !assigned && i+1 < len(args) {
			value = args[i+1]
		}
		addr, err := netip.ParseAddrPort(value)
		if ip, bad := netip.ParseAddr(strings.Trim(value, "[]")); bad == nil {
			addr, err = netip.AddrPortFrom(ip, 9999), nil
		}
		if err == nil {
			endpoints = append(endpoints, endpoint{fmt.Sprintf("krping-bridge (process %d)", pid), pid, addr})
		}
	}
	return endpoints
}

// readVolumes returns the addresses of the module's volumes that have lost their RDMA device.
func readVolumes(fs proc.FS) []endpoint {
	sessions, err := fs.Sessions()
	if err != nil {
		return nil // the module is not loaded, or another finding says why it cannot be read
	}
	var lost []endpoint
	for _, s := range sessions {
		addr, err := netip.ParseAddrPort(s.Peer)
		if err == nil && s.Role == "target" && s.State == "no_device" {
			lost = append(lost, endpoint{"volume " + s.Name, 0, addr})
		}
	}
	return lost
}

// checkTargets reads what targetFindings judges.
func (h host) checkTargets(fs proc.FS) []Finding {
	endpoints := append(readBridges(), readVolumes(fs)...)
	if len(endpoints) == 0 {
		return nil
	}
	listeners, err := readListeners()
	if err != nil && len(h.devices) > 0 { // without a device the RDMA stack may not be loaded
		return []Finding{unchecked("targets", err)}
	}
	return h.targetFindings(endpoints, listeners)
}

// targetFindings reports the addresses on which nothing listens, although a running target should.
func (h host) targetFindings(endpoints []endpoint, listeners []listener) []Finding {
	var findings []Finding
	for _, e := range endpoints {
		listens := slices.ContainsFunc(listeners, func(l listener) bool {
			return e.pid != 0 && l.pid == e.pid && l.takes(e.addr.Addr(), e.addr.Port())
		})
		if listens || e.addr.Addr().IsUnspecified() { // without any device another finding says so
			continue
		}
		f := Finding{
			Check: "targets", Level: Problem, Found: fmt.Sprintf("%s does not listen on %v", e.target, e.addr),
			Cause: "the RDMA device may have come just now: a target looks for it once a second; else its log has the reason",
			Fix:   "in some seconds: krpingctl doctor; or read the target's log: " + e.log(),
		}
		if a := h.addressFindings(e.addr.Addr())[0]; a.Level != OK {
			f.Cause, f.Fix = a.Found+": "+a.Cause, a.Fix
		}
		findings = append(findings, f)
	}
	return findings
}
