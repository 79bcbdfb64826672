// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// flow is what a network device does against lost packets, as far as its driver tells.
type flow struct {
	pauseKnown bool
	pause      bool // it sends and obeys pause frames

	dcbKnown bool
	pfc      uint8         // priorities with priority flow control, a bit each
	dscp     map[int]uint8 // priority by DSCP; empty if DSCP is not looked at
}

// readFlow asks a driver.
func readFlow(netdev string) flow {
	var f flow
	f.pause, f.pauseKnown = readPause(netdev)
	request := nl.NewNetlinkRequest(unix.RTM_GETDCB, unix.NLM_F_REQUEST)
	request.AddData(rawData{unix.AF_UNSPEC, cmdIEEEGet, 0, 0}) // struct dcbmsg
	request.AddData(nl.NewRtAttr(attrDCBName, nl.ZeroTerminated(netdev)))
	if messages, err := request.Execute(unix.NETLINK_ROUTE, 0); err == nil && len(messages) > 0 {
		f.parseDCB(messages[0])
	}
	return f
}

// rawData is part of a netlink request.
type rawData []byte

func (d rawData) Len() int          { return len(d) }
func (d rawData) Serialize() []byte { return d }

// Commands, attributes and selectors of include/uapi/linux/dcbnl.h.
const (
	cmdIEEEGet      = 21
	attrDCBName     = 1
	attrIEEE        = 13
	attrIEEEPFC     = 2
	attrIEEEApps    = 3
	selectorDSCP    = 5
	headerLen       = 4
	ethtoolGetPause = 0x12
)

// parseDCB parses the answer to cmdIEEEGet.
func (f *flow) parseDCB(message []byte) {
	if len(message) < headerLen {
		return
	}
	attributes(message[headerLen:], func(kind uint16, value []byte) {
		if kind != attrIEEE {
			return
		}
		attributes(value, func(kind uint16, value []byte) {
			switch {
			case kind == attrIEEEPFC && len(value) >= 2: // struct ieee_pfc: capabilities, enabled
				f.dcbKnown, f.pfc = true, value[1]
			case kind == attrIEEEApps:
				attributes(value, func(_ uint16, app []byte) { // struct dcb_app: selector, priority, protocol
					if len(app) >= 4 && app[0] == selectorDSCP {
						if f.dscp == nil {
							f.dscp = map[int]uint8{}
						}
						f.dscp[int(binary.NativeEndian.Uint16(app[2:]))] = app[1]
					}
				})
			}
		})
	})
}

// readPause reports whether pause frames are on in both directions, and whether the driver tells.
func readPause(netdev string) (on, known bool) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, false
	}
	defer unix.Close(fd)
	pause := struct{ command, autoneg, rx, tx uint32 }{command: ethtoolGetPause}
	var request struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:unix.IFNAMSIZ-1], netdev)
	request.data = unsafe.Pointer(&pause)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	return pause.rx != 0 && pause.tx != 0, errno == 0
}

// roce is how the connection manager marks the packets of a port.
type roce struct {
	tos int
	v1  bool // it begins connections with RoCE v1
}

// readRoCE reads what was set for a port. Without that, connections have ToS 0 and the newest type.
func (r root) readRoCE(device string, port int) roce {
	dir := fmt.Sprintf("/sys/kernel/config/rdma_cm/%s/ports/%d/", device, port)
	tos, _ := strconv.Atoi(r.content(dir + "default_roce_tos")) // 0 if it was not set
	return roce{tos: tos, v1: strings.Contains(r.content(dir+"default_roce_mode"), "v1")}
}

// priority returns the priority of packets with a type of service, as a NIC that looks at DSCP has it.
func (f flow) priority(tos int) uint8 { return f.dscp[tos>>2] }

func (f flow) isLossless(priority uint8) bool { return f.pfc&(1<<priority) != 0 }

// flowFindings checks what hardware RoCE needs to lose no packets. read asks a driver.
func (h host) flowFindings(r root, read func(netdev string) flow) []Finding {
	var findings []Finding
	for _, d := range h.devices {
		for _, p := range d.ports {
			if d.kind != "" || p.infiniband || p.netdev == "" || !strings.HasSuffix(p.state, "ACTIVE") {
				continue
			}
			set := r.readRoCE(d.name, p.number)
			findings = append(findings, typeFindings(d, p, set)...)
			n := h.stack.Real(p.netdev)
			for _, slave := range append(h.stack.Ports(n), n) {
				if f := read(slave); f.dcbKnown || f.pauseKnown {
					findings = append(findings, flowFinding(d, p, slave, f, set), r.ecnFinding(slave, f.priority(set.tos)))
					break
				}
			}
		}
	}
	return slices.DeleteFunc(findings, func(f Finding) bool { return f.Check == "" })
}

// typeFindings checks the type with which connections begin.
func typeFindings(d device, p port, set roce) []Finding {
	hasV2 := slices.ContainsFunc(p.gids, func(g gid) bool { return strings.Contains(g.kind, "v2") })
	if !set.v1 || !hasV2 {
		return nil
	}
	return []Finding{{
		Check: "flow control", Level: Note, Found: fmt.Sprintf("%s begins connections with RoCE v1", d.name),
		Cause: "default_roce_mode says so: such packets have no IP header, are not routed, and have no DSCP for a switch to look at",
		Fix:   fmt.Sprintf("on both hosts: echo 'RoCE v2' > /sys/kernel/config/rdma_cm/%s/ports/%d/default_roce_mode", d.name, p.number),
	}}
}

func flowFinding(d device, p port, netdev string, f flow, set roce) Finding {
	priority := f.priority(set.tos)
	marked := fmt.Sprintf("packets of %s (ToS %d, DSCP %d)", d.name, set.tos, set.tos>>2)
	note := Finding{Check: "flow control", Level: Note}
	switch {
	case f.pfc != 0 && f.pause:
		note.Found = fmt.Sprintf("%s has both priority flow control and pause frames", netdev)
		note.Cause = "most NICs and switches do one of them: with pause frames, other traffic stops as well"
		note.Fix = fmt.Sprintf("ethtool -A %s rx off tx off", netdev)
	case f.isLossless(priority):
		return ok("flow control", "%s have priority %d, which has priority flow control on %s", marked, priority, netdev)
	case f.pfc != 0:
		first := uint8(bits.TrailingZeros8(f.pfc))
		note.Found = fmt.Sprintf("%s have priority %d; %s has priority flow control for %s only", marked, priority, netdev, priorities(f.pfc))
		note.Cause = "switches may drop them when they are full, and RoCE sends everything since a lost packet again"
		note.Fix = markWith(d, p, netdev, f, first)
	case f.pause:
		return ok("flow control", "%s has pause frames", netdev)
	default:
		note.Found = fmt.Sprintf("%s has neither priority flow control nor pause frames", netdev)
		note.Cause = "switches may drop packets when they are full, and RoCE sends everything since a lost packet again; between two hosts without a switch nothing is lost"
		note.Fix = fmt.Sprintf("as the switches are set up: dcb pfc set dev %s prio-pfc 3:on, with a DSCP of that priority; or ethtool -A %s rx on tx on, for all traffic", netdev, netdev)
		if !f.dcbKnown {
			note.Fix = fmt.Sprintf("as the switches are set up: ethtool -A %s rx on tx on", netdev)
		}
	}
	return note
}

// priorities lists those of a set.
func priorities(set uint8) string {
	var list []string
	for i := range 8 {
		if set&(1<<i) != 0 {
			list = append(list, strconv.Itoa(i))
		}
	}
	return strings.Join(list, ", ")
}

// markWith returns the commands that give RoCE's packets a DSCP of a priority.
func markWith(d device, p port, netdev string, f flow, priority uint8) string {
	const usual, ect = 26, 2 // DSCP of most guides for RoCE; ECN-capable
	dscp, add := -1, ""
	for code, of := range f.dscp {
		if of == priority && (dscp < 0 || code < dscp) {
			dscp = code
		}
	}
	if dscp < 0 {
		dscp, add = usual, fmt.Sprintf("dcb app add dev %s dscp-prio %d:%d && ", netdev, usual, priority)
	}
	dir := "/sys/kernel/config/rdma_cm/" + d.name
	return fmt.Sprintf("as the switches are set up: %smkdir -p %s && echo %d > %s/ports/%d/default_roce_tos", add, dir, dscp<<2|ect, dir, p.number)
}

// ecnFinding checks the congestion control of drivers that have files for it, as those of MLNX_OFED.
func (r root) ecnFinding(netdev string, priority uint8) Finding {
	dir := "/sys/class/net/" + netdev + "/ecn/"
	np, rp := fmt.Sprintf("%sroce_np/enable/%d", dir, priority), fmt.Sprintf("%sroce_rp/enable/%d", dir, priority)
	switch off := r.content(np) == "0" || r.content(rp) == "0"; {
	case !r.exists(np) || !r.exists(rp):
		return Finding{}
	case off:
		return Finding{
			Check: "flow control", Level: Note, Found: fmt.Sprintf("%s does not react to ECN in priority %d", netdev, priority),
			Cause: "a sender then goes on at full speed into a congested switch", Fix: fmt.Sprintf("as the switches are set up: echo 1 > %s && echo 1 > %s", np, rp),
		}
	}
	return ok("flow control", "%s reacts to ECN in priority %d", netdev, priority)
}
