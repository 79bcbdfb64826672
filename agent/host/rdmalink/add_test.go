// SPDX-License-Identifier: Apache-2.0

package rdmalink

import (
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
)

// stacked has eth0 below two VLANs, one on the other; eth1 in a bridge; eth2 in a bond, which is in a VRF and
// below a VLAN; eth3 in a VRF; eth4 in a bridge and below a VLAN; a VLAN whose device is elsewhere; and
// eth5 in a bridge and below a MACVLAN.
func stacked() Netdevs {
	attrs := func(index int, name string, parent, master int) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Index, a.Name, a.ParentIndex, a.MasterIndex = index, name, parent, master
		return a
	}
	other := attrs(30, "vlan9", 2, 0)
	other.NetNsID = 0
	return netdevsOf([]netlink.Link{
		&netlink.Device{LinkAttrs: attrs(2, "eth0", 0, 0)},
		&netlink.Vlan{LinkAttrs: attrs(3, "eth0.100", 2, 0)},
		&netlink.Vlan{LinkAttrs: attrs(4, "eth0.100.7", 3, 0)},
		&netlink.Bridge{LinkAttrs: attrs(5, "br0", 0, 0)},
		&netlink.Device{LinkAttrs: attrs(6, "eth1", 0, 5)},
		&netlink.Bond{LinkAttrs: attrs(7, "bond0", 0, 9)},
		&netlink.Device{LinkAttrs: attrs(8, "eth2", 0, 7)},
		&netlink.Vrf{LinkAttrs: attrs(9, "blue", 0, 0)},
		&netlink.Device{LinkAttrs: attrs(10, "eth3", 0, 9)},
		&netlink.Vlan{LinkAttrs: attrs(11, "bond0.5", 7, 0)},
		&netlink.Device{LinkAttrs: attrs(12, "eth4", 0, 5)},
		&netlink.Vlan{LinkAttrs: attrs(13, "eth4.5", 12, 0)},
		&netlink.Vlan{LinkAttrs: other},
		&netlink.Macvlan{LinkAttrs: attrs(14, "mv0", 15, 0)},
		&netlink.Device{LinkAttrs: attrs(15, "eth5", 0, 16)},
		&netlink.Bridge{LinkAttrs: attrs(16, "br1", 0, 0)},
	})
}

func TestAddIsChecked(t *testing.T) {
	devices := []existing{{"rxe5", "br0"}, {"mlx5_0", ""}, {"rxe7", "eth3"}, {"rxe6", "eth5"}}
	for _, tc := range []struct {
		name, kind, netdev string
		is                 error
		cause, fix         string // "": it is added
	}{
		{"rxe0", RXE, "eth0", nil, "", ""},
		{"rxe0", RXE, "bond0", nil, "", ""},
		{"rxe0", RXE, "eth4", nil, "", ""},
		{"siw0", SIW, "eth0.100", nil, "", ""},
		{"siw0", SIW, "eth3", nil, "", ""},
		{"rxe0", RXE, "eth0.100", unix.EINVAL, "a VLAN; Soft-RoCE on eth0 below it serves", "krpingctl link add rxe0 --netdev eth0"},
		{"rxe0", RXE, "eth0.100.7", unix.EINVAL, "Soft-RoCE on eth0 below", "--netdev eth0"},
		{"rxe0", RXE, "bond0.5", unix.EINVAL, "Soft-RoCE on bond0", "--netdev bond0"},
		{"rxe0", RXE, "vlan9", unix.EINVAL, "in another network namespace", "whose addresses are here"},
		{"rxe0", RXE, "eth2", unix.EINVAL, "a port of the bond bond0", "krpingctl link add rxe0 --netdev bond0"},
		{"rxe0", RXE, "eth1", unix.EINVAL, "a port of the bridge br0", "there is one on it: rxe5"},
		{"rxe0", RXE, "eth3", unix.EEXIST, "can have only one", "use rxe7"},
		{"rxe0", RXE, "br1", unix.EEXIST, "eth5 has the Soft-RoCE device rxe6", "link del rxe6 && krpingctl link add rxe0 --netdev br1"},
		{"rxe0", RXE, "mv0", unix.EEXIST, "eth5 has the Soft-RoCE device rxe6", "link del rxe6 && krpingctl link add rxe0 --netdev mv0"},
		{"rxe5", RXE, "eth0", unix.EEXIST, "an RDMA device of that name", "another name"},
		{"mlx5_0", SIW, "eth0", unix.EEXIST, "an RDMA device of that name", "another name"},
		{"rxe0", RXE, "eth9", fs.ErrNotExist, "no such network device", "ip link"},
		{"rxe0", RXE, "eth0.100@eth0", fs.ErrNotExist, "no such network device", "--netdev eth0.100"},
		{"", RXE, "eth0", unix.EINVAL, "1 to 63", "rxe0"},
		{"a/b", RXE, "eth0", unix.EINVAL, "1 to 63", "rxe0"},
		{"rxe%d", RXE, "eth0", unix.EINVAL, "1 to 63", "rxe0"},
		{strings.Repeat("x", 64), RXE, "eth0", unix.EINVAL, "1 to 63", "rxe0"},
	} {
		err := check(tc.name, tc.kind, tc.netdev, stacked(), devices)
		if tc.is == nil {
			if err != nil {
				t.Errorf("%s on %s: %v", tc.name, tc.netdev, err)
			}
			continue
		}
		if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.cause) || !strings.Contains(kernel.Fix(err), tc.fix) {
			t.Errorf("%s on %s: %v, fix %q: want %v, %q and %q", tc.name, tc.netdev, err, kernel.Fix(err), tc.is, tc.cause, tc.fix)
		}
	}
}

// What the kernel answers is explained by what it logged.
func TestExplainAdd(t *testing.T) {
	for _, tc := range []struct {
		err   error
		log   kernel.Lines
		is    error
		words string
	}{
		{unix.EEXIST, nil, unix.EEXIST, "such a device already"},
		{unix.ENFILE, kernel.Lines{"rdma_rxe: rxe_register_device failed with error -23"}, unix.EEXIST, "such a device already"},
		{unix.ENOMEM, kernel.Lines{"usb 1-1: new device", "rdma_rxe: failed to add eth0"}, unix.ENOMEM, "cannot allocate memory (the kernel logged: rdma_rxe: failed to add eth0)"},
		{unix.EINVAL, nil, kernel.ErrNoModule, "the driver nodriver is not loaded"},
	} {
		err := explainAdd("rxe0", "nodriver", "eth0", tc.err, tc.log)
		if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.words) || kernel.Fix(err) == "" {
			t.Errorf("%v: %v, fix %q: want %v and %q", tc.err, err, kernel.Fix(err), tc.is, tc.words)
		}
	}
}

func TestIdle(t *testing.T) {
	for _, tc := range []struct {
		flags   uint32
		address bool
		why     string
	}{
		{unix.IFF_UP | unix.IFF_LOWER_UP, true, ""},
		{unix.IFF_UP | unix.IFF_LOWER_UP, false, "no IP address"},
		{unix.IFF_UP, true, "no carrier"},
		{0, false, "is down"},
	} {
		why, fix := idle("eth0", tc.flags, tc.address)
		if !strings.Contains(why, tc.why) || (why == "") != (tc.why == "") || (fix == "") != (why == "") {
			t.Errorf("%+v: %q, %q", tc, why, fix)
		}
	}
}
