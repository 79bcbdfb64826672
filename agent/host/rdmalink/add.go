// SPDX-License-Identifier: Apache-2.0

package rdmalink

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
)

// Kinds of software RDMA devices.
const (
	RXE = "rxe" // Soft-RoCE
	SIW = "siw" // Soft-iWARP
)

// module returns the module of a kind.
func module(kind string) string {
	if kind == RXE {
		return "rdma_rxe"
	}
	return kind
}

const maxName = 63 // IB_DEVICE_NAME_MAX, without the NUL

// Add adds a software RDMA device, RXE or SIW, to a network device. The driver is loaded if it is not. An error
// that it can explain is a *kernel.Failure.
func Add(ctx context.Context, name, kind, netdev string) error {
	netdevs, err := ReadNetdevs()
	if err != nil {
		return err
	}
	devices, err := present()
	if err != nil {
		return err
	}
	if err := check(name, kind, netdev, netdevs, devices); err != nil {
		return err
	}
	log := kernel.LogFromNow()
	defer log.Close()
	err = netlink.RdmaLinkAdd(name, kind, netdev)
	if err != nil && !errors.Is(err, unix.EPERM) && !kernel.Loaded(module(kind)) {
		if err := kernel.Load(ctx, module(kind)); err != nil {
			return fmt.Errorf("add RDMA device %s to %s: %w", name, netdev, err)
		}
		err = netlink.RdmaLinkAdd(name, kind, netdev)
	}
	if err != nil {
		return explainAdd(name, kind, netdev, err, log.Lines())
	}
	return nil
}

// check returns a *kernel.Failure if a device cannot be added, or would receive no packets.
func check(name, kind, netdev string, netdevs Netdevs, devices []existing) error {
	f := &kernel.Failure{What: fmt.Sprintf("cannot add RDMA device %s to %s", name, netdev), Err: unix.EINVAL}
	add := func(to string) string {
		if on(devices, to) != "" {
			return "krpingctl doctor; there is one on it: " + on(devices, to)
		}
		return fmt.Sprintf("krpingctl link add %s --netdev %s", name, to)
	}
	n, found := netdevs.Get(netdev)
	real := netdevs.Real(netdev)
	above, aboveKind := netdevs.Bundle(netdev)
	_, taken := named(devices, name)
	switch {
	case name == "" || len(name) > maxName || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("/%", r) }):
		f.Cause, f.Fix = fmt.Sprintf("a name has 1 to %d letters, digits, - and _", maxName), "krpingctl link add rxe0 --netdev "+netdev
	case !found:
		f.Cause, f.Fix, f.Err = "there is no such network device", "ip link lists them", fs.ErrNotExist
		if before, _, cut := strings.Cut(netdev, "@"); cut {
			f.Fix = "krpingctl link add " + name + " --netdev " + before
		}
	case taken:
		f.Cause, f.Fix, f.Err = "there is an RDMA device of that name", "use another name; krpingctl link list", unix.EEXIST
	case kind == RXE && n.Kind == VLAN && real == "":
		f.Cause = netdev + " is a VLAN, and the device below it is in another network namespace; Soft-RoCE can only be added to that one"
		f.Fix = "use a network device whose addresses are here"
	case kind == RXE && n.Kind == VLAN:
		f.Cause = fmt.Sprintf("%s is a VLAN; Soft-RoCE on %s below it serves the addresses of its VLANs, too", netdev, real)
		f.Fix = add(real)
	case kind == RXE && above != "":
		f.Cause = fmt.Sprintf("%s is a port of the %s %s, which receives its packets: Soft-RoCE is added to that one", netdev, aboveKind, above)
		f.Fix = add(above)
	case kind == RXE && on(devices, netdev) != "":
		f.Cause = fmt.Sprintf("%s has a Soft-RoCE device, %s, and can have only one; it serves all its addresses", netdev, on(devices, netdev))
		f.Fix, f.Err = "use "+on(devices, netdev)+"; krpingctl link list", unix.EEXIST
	default:
		for _, p := range netdevs.Ports(netdev) {
			if below := on(devices, p); kind == RXE && below != "" {
				f.Cause = fmt.Sprintf("%s has the Soft-RoCE device %s, which would begin connections of %s and receive none of their packets", p, below, netdev)
				f.Fix, f.Err = fmt.Sprintf("if nothing uses %s: krpingctl link del %s && krpingctl link add %s --netdev %s", below, below, name, netdev), unix.EEXIST
				return f
			}
		}
		return nil
	}
	return f
}

// existing is an RDMA device.
type existing struct {
	name   string
	netdev string // of Soft-RoCE: the network device that it was added to
}

func present() ([]existing, error) {
	devices, err := devices()
	if err != nil {
		return nil, err
	}
	var all []existing
	for _, d := range devices {
		all = append(all, existing{d.Attrs.Name, attribute(d.Attrs.Name, "parent")}) // only Soft-RoCE has it
	}
	return all, nil
}

func named(devices []existing, name string) (existing, bool) {
	i := slices.IndexFunc(devices, func(d existing) bool { return d.name == name })
	if i < 0 {
		return existing{}, false
	}
	return devices[i], true
}

// on returns the Soft-RoCE device of a network device, "" if it has none.
func on(devices []existing, netdev string) string {
	i := slices.IndexFunc(devices, func(d existing) bool { return d.netdev == netdev })
	if i < 0 {
		return ""
	}
	return devices[i].name
}

// explainAdd explains the kernel's errno, with what it logged.
func explainAdd(name, kind, netdev string, err error, log kernel.Lines) error {
	f := &kernel.Failure{What: fmt.Sprintf("cannot add RDMA device %s of type %s to %s", name, kind, netdev), Err: err}
	said := err.Error()
	if about := log.About("rxe", "siw", "infiniband"); about != "" {
		said += " (the kernel logged: " + about + ")"
	}
	f.Cause, f.Fix = said, "krpingctl dmesg; ip -d link show "+netdev
	switch {
	case errors.Is(err, unix.EPERM):
		if why, fix := kernel.Denied(); why != "" {
			f.Cause, f.Fix = why, fix
		}
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENFILE): // the kernel's for a name that is taken
		f.Cause, f.Fix, f.Err = "there is such a device already", "krpingctl link list", unix.EEXIST
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		if !kernel.Loaded(module(kind)) {
			f.Cause, f.Fix, f.Err = "the driver "+module(kind)+" is not loaded: "+said, "modprobe "+module(kind), kernel.ErrNoModule
		}
	case errors.Is(err, unix.ENODEV):
		f.Cause, f.Fix = "there is no such network device in the network namespace of the driver: "+said, "krpingctl doctor"
	}
	return f
}

// Del deletes a software RDMA device.
func Del(name string) error {
	devices, err := present()
	if err != nil {
		return err
	}
	f := &kernel.Failure{What: "cannot delete RDMA device " + name, Fix: "krpingctl link list"}
	if _, found := named(devices, name); !found {
		f.Cause, f.Err = "there is no such device", fs.ErrNotExist
		return f
	}
	err = netlink.RdmaLinkDel(name)
	if err == nil {
		return nil
	}
	f.Cause, f.Err = err.Error(), err
	switch why, fix := kernel.Denied(); {
	case errors.Is(err, unix.EPERM) && why != "":
		f.Cause, f.Fix = why, fix
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		f.Cause = "it is not one of software: only those can be deleted"
	}
	return f
}
