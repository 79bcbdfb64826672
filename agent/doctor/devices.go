// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"krping/agent/host/rdmalink"
	"krping/bridge/sysfs"
)

// device is an RDMA device.
type device struct {
	name  string
	kind  string // rxe, iwarp, or "" for RoCE and InfiniBand in hardware
	ports []port
	queues
}

type port struct {
	number     int
	state      string // such as "4: ACTIVE"
	infiniband bool   // the link layer; else Ethernet
	netdev     string // Ethernet, or IP over InfiniBand
	gids       []gid
	deaf       []gid // of Soft-RoCE: those whose packets it does not receive
}

// serves reports whether connections through a network device use the port.
func (p port) serves(netdev string) bool {
	return p.netdev == netdev || slices.ContainsFunc(p.gids, func(g gid) bool { return g.netdev == netdev })
}

// gid is an address of a port. RoCE derives it from an IP address of the network device.
type gid struct {
	index  int
	addr   netip.Addr
	netdev string
	kind   string // such as "RoCE v2"
}

// netdev is a network device.
type netdev struct {
	name     string
	index    int
	up       bool
	carrier  bool
	loopback bool
	ethernet bool // or the like: it has a MAC address
	mtu      int
	gid      netip.Addr // IP over InfiniBand: that of its port
	addrs    []netip.Prefix
}

// Kinds of device.
const (
	rxe   = "rxe"
	iwarp = "iwarp"
)

const infiniband = "/sys/class/infiniband"

// readDevices returns this host's devices. With an error, it returns what it could read.
func readDevices() ([]device, error) {
	links, err := rdmalink.List()
	if err != nil || len(links) == 0 { // without a device the RDMA stack may not be loaded
		return nil, err
	}
	queues, err := readQueues()
	devices := make([]device, 0, len(links))
	for _, l := range links {
		d := readDevice(infiniband, l.Name)
		d.queues = queues[l.Name]
		devices = append(devices, d)
	}
	return devices, err
}

// readDevice reads a device from its sysfs class. Attributes that are missing, or vanish with the
// device, are left empty.
func readDevice(class, name string) device {
	dir := filepath.Join(class, name)
	d := device{name: name}
	parent := sysfs.Text(dir, "parent") // Soft-RoCE only
	switch {
	case parent != "":
		d.kind = rxe
	case strings.HasPrefix(sysfs.Text(dir, "node_type"), "4:"):
		d.kind = iwarp
	}
	for _, sub := range subdirectories(filepath.Join(dir, "ports")) {
		p := port{
			state: sysfs.Text(sub, "state"), netdev: parent, gids: readGIDs(sub),
			infiniband: sysfs.Text(sub, "link_layer") == "InfiniBand",
		}
		p.number, _ = strconv.Atoi(filepath.Base(sub)) // sysfs names ports by number
		if i := slices.IndexFunc(p.gids, func(g gid) bool { return g.netdev != "" }); i >= 0 && parent == "" {
			p.netdev = p.gids[i].netdev
		}
		d.ports = append(d.ports, p)
	}
	return d
}

func subdirectories(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var list []string
	for _, e := range entries {
		list = append(list, filepath.Join(dir, e.Name()))
	}
	return list
}

func readGIDs(port string) []gid {
	var gids []gid
	for _, file := range subdirectories(filepath.Join(port, "gids")) {
		addr, err := netip.ParseAddr(sysfs.Text(file))
		if err != nil || addr.IsUnspecified() || isEmptyGID(addr) {
			continue // a free table entry
		}
		name := filepath.Base(file)
		index, _ := strconv.Atoi(name)
		gids = append(gids, gid{
			index: index, addr: addr.Unmap(),
			netdev: sysfs.Text(port, "gid_attrs/ndevs", name), kind: sysfs.Text(port, "gid_attrs/types", name),
		})
	}
	slices.SortFunc(gids, func(a, b gid) int { return a.index - b.index })
	return gids
}

// isEmptyGID reports whether the GID is the default subnet prefix without an interface identifier.
func isEmptyGID(addr netip.Addr) bool { return addr == netip.MustParseAddr("fe80::") }

func readNetdevs() ([]netdev, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the network devices: %w", err)
	}
	var netdevs []netdev
	for _, l := range links {
		a := l.Attrs()
		n := netdev{
			name: a.Name, index: a.Index, mtu: a.MTU, up: a.RawFlags&unix.IFF_UP != 0,
			carrier: a.RawFlags&unix.IFF_LOWER_UP != 0, loopback: a.RawFlags&unix.IFF_LOOPBACK != 0,
			ethernet: len(a.HardwareAddr) == 6,
		}
		if len(a.HardwareAddr) == 20 { // 4 bytes of flags and queue pair before the GID
			n.gid = toAddr(net.IP(a.HardwareAddr[4:]))
		}
		addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("list the addresses of %s: %w", a.Name, err)
		}
		for _, addr := range addrs {
			n.addrs = append(n.addrs, prefix(addr))
		}
		netdevs = append(netdevs, n)
	}
	return netdevs, nil
}

// nameNetdevs finds the network device of each InfiniBand port: its link-layer address contains
// the port's GID.
func (h host) nameNetdevs() {
	for _, d := range h.devices {
		for i, p := range d.ports {
			isOf := func(n netdev) bool {
				return n.gid.IsValid() && slices.ContainsFunc(p.gids, func(g gid) bool { return g.addr == n.gid })
			}
			if at := slices.IndexFunc(h.netdevs, isOf); p.netdev == "" && at >= 0 {
				d.ports[i].netdev = h.netdevs[at].name
			}
		}
	}
}

func (h host) deviceFindings() []Finding {
	if len(h.devices) == 0 {
		return []Finding{h.noDevice()}
	}
	var findings []Finding
	for _, d := range h.devices {
		for _, p := range d.ports {
			findings = append(findings, h.portState(d, p))
		}
	}
	return findings
}

func (h host) noDevice() Finding {
	f := Finding{Check: "rdma devices", Level: Problem, Found: "this host has no RDMA device", Cause: "no RDMA NIC's driver is loaded, and no Soft-RoCE device exists"}
	if space, found := h.spaces.find(namespace.hasDevices); h.spaces.mode == exclusive && found {
		f.Found = "this network namespace has no RDMA device"
		f.Cause = fmt.Sprintf("each RDMA device belongs to one network namespace (rdma system: netns exclusive), and the %v has them", space)
		f.Fix = space.enter() + " krpingctl doctor, and work in that namespace; or rdma system set netns shared, once no other namespace exists"
		return f
	}
	f.Fix = h.makeDevice("")
	return f
}

// portState checks the state of a port.
func (h host) portState(d device, p port) Finding {
	where := d.name
	if len(d.ports) > 1 {
		where = fmt.Sprintf("%s port %d", d.name, p.number)
	}
	_, state, _ := strings.Cut(p.state, ": ")
	n, known := h.netdev(p.netdev)
	active := state == "ACTIVE" && (!known || n.up)
	if active && !d.broken {
		return ok("rdma devices", "%s%s is %s", where, on(p.netdev), state)
	}
	f := Finding{Check: "rdma devices", Level: Problem, Found: fmt.Sprintf("%s%s is %s", where, on(p.netdev), state)}
	if len(h.devices) > 1 {
		f.Level = Warning // another device may serve
	}
	switch {
	case active:
		f.Found += ", but makes no connections: its GSI QP is in the error state"
		f.Cause, f.Fix = d.brokenGSI(p)
	case known && !n.up:
		f.Cause, f.Fix = "its network device is down", "ip link set "+n.name+" up"
	case known && !n.carrier:
		f.Cause, f.Fix = n.name+" has no carrier", "check the cable, the transceiver and the switch port; ethtool "+n.name
	case p.infiniband && state == "INIT":
		f.Cause, f.Fix = "no subnet manager has configured the InfiniBand link", "run opensm on one host of the fabric, or enable it on the switch"
	default:
		f.Cause, f.Fix = "its link is not up", "check the cable; rdma link show "+d.name
	}
	return f
}

func on(netdev string) string {
	if netdev == "" {
		return ""
	}
	return " on " + netdev
}

// gidFindings checks the addresses of the ports.
func (h host) gidFindings() []Finding {
	var findings []Finding
	for _, d := range h.devices {
		for _, p := range d.ports {
			if !p.infiniband && d.kind != iwarp { // whose GIDs are not IP addresses
				deaf := h.deafFinding(d, p)
				if findings = append(findings, deaf...); len(deaf) == 0 || !d.servesNothing() {
					findings = append(findings, gidFinding(d, p))
				}
			}
		}
	}
	return findings
}

func gidFinding(d device, p port) Finding {
	var served []string
	usable := false
	isV1 := func(g gid) bool { return g.kind != "" && !strings.Contains(g.kind, "v2") }
	onlyV1 := !slices.ContainsFunc(p.gids, func(g gid) bool { return !isV1(g) })
	for _, g := range p.gids {
		if isV1(g) && !onlyV1 {
			continue // the address has a RoCE v2 entry, too
		}
		served = append(served, fmt.Sprintf("%v (GID %d)", g.addr, g.index))
		usable = usable || isUsable(g)
	}
	if usable && onlyV1 {
		return Finding{
			Check: "gids", Level: Note, Found: fmt.Sprintf("%s serves %s by RoCE v1 only", d.name, strings.Join(served, ", ")),
			Cause: "its hardware, or the set-up of its driver, has no RoCE v2: packets have no IP header, so that peers must be in the same Ethernet and do RoCE v1, too",
			Fix:   "use a NIC with RoCE v2 to reach peers behind a router; or look for the driver's option for it: modinfo -p DRIVER",
		}
	}
	if usable {
		return ok("gids", "%s serves %s", d.name, strings.Join(served, ", "))
	}
	f := Finding{Check: "gids", Level: Problem, Found: d.name + " serves no address", Cause: p.netdev + " has no IP address, from which GIDs are derived"}
	if len(served) > 0 {
		f.Level, f.Found = Warning, d.name+" serves only "+strings.Join(served, ", ")
		f.Cause = p.netdev + " has only link-local addresses, which must be followed by %" + p.netdev
	}
	f.Fix = "ip addr add ADDRESS/24 dev " + p.netdev
	return f
}

// roceMTU returns how many bytes of data a RoCE packet carries at a network device's MTU, by the
// rule of the kernel's connection manager; 0 if even the smallest packet does not fit.
func roceMTU(mtu int) int {
	const headers = 96 // GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4
	for size := 4096; size >= 256; size /= 2 {
		if mtu-headers >= size {
			return size
		}
	}
	return 0
}

// mtuFindings checks the MTU of the network devices that RoCE ports serve.
func (h host) mtuFindings() []Finding {
	var findings []Finding
	for _, d := range h.devices {
		for _, p := range d.ports {
			if p.infiniband || d.kind == iwarp {
				continue
			}
			for _, n := range h.served(p) {
				findings = append(findings, h.mtuFinding(d.name, n))
			}
		}
	}
	return findings
}

func (h host) mtuFinding(device string, n netdev) Finding {
	size := roceMTU(n.mtu)
	f := Finding{
		Check: "mtu", Found: fmt.Sprintf("%s has MTU %d: RoCE packets of %s carry %d bytes", n.name, n.mtu, device, size),
		Fix: h.setMTU(n.name, 1500),
	}
	switch {
	case size == 0:
		f.Level, f.Found = Problem, fmt.Sprintf("%s has MTU %d: too small for a RoCE packet of 256 bytes", n.name, n.mtu)
		f.Cause = "RoCE needs an MTU of at least 352"
	case size < 1024:
		f.Level, f.Cause = Warning, "the MTU is less than Ethernet's 1500"
	case size < 4096:
		f.Level, f.Cause = Note, "packets of 4096 bytes make large transfers faster, but get lost where an MTU is below 4192"
		f.Fix = "on both hosts, and only if the switches pass such packets: " + h.setMTU(n.name, 4300)
	default:
		return ok("mtu", "%s", f.Found)
	}
	return f
}
