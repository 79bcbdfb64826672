// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"

	"github.com/vishvananda/netlink"

	"krping/agent/host/kernel"
	"krping/agent/host/rdmalink"
	"krping/bridge/inuse"
)

// mayDeleteLink returns an error if a disk in use is connected through an RDMA device.
func (p *program) mayDeleteLink(name string) error {
	for _, disk := range p.disksThrough(name) {
		uses, err := inuse.Find(disk)
		if err != nil || len(uses) == 0 { // it is gone, or free
			continue
		}
		used := &inuse.Error{Path: disk, Uses: uses}
		return &kernel.Failure{
			What: "cannot delete " + name, Cause: fmt.Sprintf("it connects %s, which is in use: %s", disk, used.Reasons()),
			Fix: used.Fix() + "; or add --force: its I/O then waits, and fails", Err: used,
		}
	}
	return nil
}

// disksThrough returns the disks of this host that are connected through an RDMA device. What cannot be
// found out is left out: without the module there are no sessions.
func (p *program) disksThrough(name string) []string {
	var disks []string
	sessions, _ := p.proc.Sessions()
	for _, s := range sessions {
		if s.Role == "client" && s.IBDev == name {
			disks = append(disks, s.Device())
		}
	}
	links, _ := rdmalink.List()
	i := slices.IndexFunc(links, func(l rdmalink.Link) bool { return l.Name == name })
	if i < 0 {
		return disks
	}
	controllers, _ := nvmeHost().Controllers()
	for _, c := range controllers {
		if c.Transport != "rdma" || !slices.ContainsFunc(links[i].Ports, func(p rdmalink.Port) bool { return p.Netdev != "" && reaches(p.Netdev, c.Address) }) {
			continue
		}
		for _, d := range c.Namespaces {
			disks = append(disks, d.Device())
		}
	}
	return disks
}

var targetAddress = regexp.MustCompile(`(?:^|,)traddr=([^,]+)`)

// reaches reports whether the target in a controller's address, traddr=A,trsvcid=P, is reached through a network
// device, or is an address of it.
func reaches(netdev, address string) bool {
	match := targetAddress.FindStringSubmatch(address)
	if match == nil {
		return false
	}
	addr, err := netip.ParseAddr(match[1])
	if err != nil {
		return false
	}
	device, err := net.InterfaceByName(netdev)
	if err != nil {
		return false
	}
	own, _ := device.Addrs()
	for _, a := range own {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr() == addr.WithZone("") {
			return true
		}
	}
	if addr.Zone() != "" {
		return addr.Zone() == netdev
	}
	routes, err := netlink.RouteGet(addr.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].LinkIndex == device.Index
}
