// SPDX-License-Identifier: Apache-2.0

package dissect_test

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"krping/agent/packets/dissect"
)

// The wrap functions below make of an Ethernet frame what a switch, a host or a tool makes of it.

var (
	outerEther = []byte("\x02\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x02")
	be         = binary.BigEndian
)

func ether(kind uint16, payload []byte) []byte {
	return append(be.AppendUint16(slices.Clone(outerEther), kind), payload...)
}

func ip4(protocol byte, payload []byte) []byte {
	h := []byte{0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, protocol, 0, 0, 172, 16, 0, 1, 172, 16, 0, 2}
	be.PutUint16(h[2:], uint16(len(h)+len(payload)))
	return append(h, payload...)
}

func ip6(next byte, payload []byte) []byte {
	h := append([]byte{0x60, 0, 0, 0, 0, 0, next, 64}, make([]byte, 32)...)
	be.PutUint16(h[4:], uint16(len(payload)))
	h[8], h[24] = 0xfd, 0xfd
	return append(h, payload...)
}

func udp(src, dst uint16, payload []byte) []byte {
	b := be.AppendUint16(be.AppendUint16(nil, src), dst)
	return append(be.AppendUint16(be.AppendUint16(b, uint16(8+len(payload))), 0), payload...)
}

func gre(flags, protocol uint16, optional, payload []byte) []byte {
	return slices.Concat(be.AppendUint16(be.AppendUint16(nil, flags), protocol), optional, payload)
}

func erspan3(subheader bool, ip bool, frame []byte) []byte {
	h := make([]byte, 12, 20)
	h[0] = 0x20
	if ip {
		h[10], frame = 2<<2, frame[14:]
	}
	if subheader {
		h[11] |= 1
		h = h[:20]
	}
	return append(h, frame...)
}

func tag(frame []byte, tags ...uint16) []byte {
	b := slices.Clone(frame[:12])
	for i, kind := range tags {
		b = be.AppendUint16(be.AppendUint16(b, kind), uint16(100+i))
	}
	return append(b, frame[12:]...)
}

// rocev1 turns a RoCEv2 packet over IPv4 into one of RoCE v1, whose GIDs are the IPv4 addresses.
func rocev1(frame []byte) []byte {
	if frame[12] != 8 || frame[13] != 0 || frame[23] != 17 {
		return frame // TCP
	}
	data := slices.Clone(frame[42:])
	grh := append([]byte{0x60, 0, 0, 0, 0, 0, 0x1b, 64}, make([]byte, 32)...)
	be.PutUint16(grh[4:], uint16(len(data)))
	for i, at := range []int{26, 30} {
		addr := netip.AddrFrom4([4]byte(frame[at:])).As16()
		copy(grh[8+16*i:], addr[:])
	}
	// The ICRC is over eight bytes of ones, and what routers do not change.
	covered := slices.Concat([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\x6f\xff\xff\xff"), grh[4:7], []byte{0xff}, grh[8:], data[:4], []byte{0xff}, data[5:len(data)-4])
	binary.LittleEndian.PutUint32(data[len(data)-4:], crc32.ChecksumIEEE(covered))
	return append(append(slices.Clone(frame[:12]), 0x89, 0x15), append(grh, data...)...)
}

var wrappings = map[string]struct {
	link layers.LinkType
	wrap func(frame []byte) []byte
}{
	"VLAN":        {1, func(f []byte) []byte { return tag(f, 0x8100) }},
	"QinQ":        {1, func(f []byte) []byte { return tag(f, 0x88a8, 0x8100) }},
	"QinQ 0x9100": {1, func(f []byte) []byte { return tag(f, 0x9100, 0x8100) }},
	"QinQ 0x9200": {1, func(f []byte) []byte { return tag(f, 0x9200, 0x8100) }},
	"three tags":  {1, func(f []byte) []byte { return tag(f, 0x9100, 0x88a8, 0x8100) }},
	"FCS":         {1, func(f []byte) []byte { return append(slices.Clone(f), 0xde, 0xad, 0xbe, 0xef) }},
	"SLL": {layers.LinkTypeLinuxSLL, func(f []byte) []byte {
		return slices.Concat([]byte{0, 0, 0, 1, 0, 6}, f[6:12], []byte{0, 0}, f[12:])
	}},
	"SLL, VLAN": {layers.LinkTypeLinuxSLL, func(f []byte) []byte {
		return slices.Concat([]byte{0, 0, 0, 1, 0, 6}, f[6:12], []byte{0, 0, 0x81, 0, 0, 100}, f[12:])
	}},
	"SLL2": {layers.LinkTypeLinuxSLL2, func(f []byte) []byte {
		return slices.Concat(f[12:14], []byte{0, 0, 0, 0, 0, 2, 0, 1, 0, 6}, f[6:12], []byte{0, 0}, f[14:])
	}},
	"raw IP":      {layers.LinkTypeRaw, func(f []byte) []byte { return f[14:] }},
	"raw IP, 228": {layers.LinkTypeIPv4, func(f []byte) []byte { return f[14:] }},
	"BSD loop":    {layers.LinkTypeLoop, func(f []byte) []byte { return append([]byte{0, 0, 0, 2}, f[14:]...) }},
	"ERSPAN I":    {1, func(f []byte) []byte { return ether(0x800, ip4(47, gre(0, 0x88be, nil, f))) }},
	"ERSPAN II": {1, func(f []byte) []byte {
		return ether(0x800, ip4(47, gre(0x1000, 0x88be, []byte{0, 0, 0, 9}, append([]byte{0x10, 1, 0x10, 0, 0, 0, 0, 0}, f...))))
	}},
	"ERSPAN II over IPv6, VLANs": {1, func(f []byte) []byte {
		return tag(ether(0x86dd, ip6(47, gre(0x1000, 0x88be, []byte{0, 0, 0, 9}, append([]byte{0x10, 1, 0x10, 0, 0, 0, 0, 0}, tag(f, 0x8100)...)))), 0x8100)
	}},
	"ERSPAN III": {1, func(f []byte) []byte {
		return ether(0x800, ip4(47, gre(0x1000, 0x22eb, []byte{0, 0, 0, 9}, erspan3(false, false, f))))
	}},
	"ERSPAN III, subheader": {1, func(f []byte) []byte {
		return ether(0x800, ip4(47, gre(0x1000, 0x22eb, []byte{0, 0, 0, 9}, erspan3(true, false, f))))
	}},
	"ERSPAN III, IP": {1, func(f []byte) []byte {
		return ether(0x800, ip4(47, gre(0x1000, 0x22eb, []byte{0, 0, 0, 9}, erspan3(true, true, f))))
	}},
	"ERSPAN II in SLL2": {layers.LinkTypeLinuxSLL2, func(f []byte) []byte {
		inner := ip4(47, gre(0x1000, 0x88be, []byte{0, 0, 0, 9}, append([]byte{0x10, 1, 0x10, 0, 0, 0, 0, 0}, f...)))
		return append([]byte{8, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 2, 0, 0, 0, 0, 2, 0, 0}, inner...)
	}},
	"GRETAP":      {1, func(f []byte) []byte { return ether(0x800, ip4(47, gre(0, 0x6558, nil, f))) }},
	"GRETAP, key": {1, func(f []byte) []byte { return ether(0x800, ip4(47, gre(0x2000, 0x6558, []byte{0, 0, 0, 7}, f))) }},
	"GRE":         {1, func(f []byte) []byte { return ether(0x800, ip4(47, gre(0, 0x800, nil, f[14:]))) }},
	"IP in IP":    {1, func(f []byte) []byte { return ether(0x800, ip4(4, f[14:])) }},
	"VXLAN": {1, func(f []byte) []byte {
		return ether(0x800, ip4(17, udp(49152, 4789, append([]byte{8, 0, 0, 0, 0, 0, 5, 0}, f...))))
	}},
	"VXLAN, Linux' old port": {1, func(f []byte) []byte {
		return ether(0x800, ip4(17, udp(4791, 8472, append([]byte{8, 0, 0, 0, 0, 0, 5, 0}, f...))))
	}},
	"VXLAN over IPv6": {1, func(f []byte) []byte {
		return ether(0x86dd, ip6(17, udp(49152, 4789, append([]byte{8, 0, 0, 0, 0, 0, 5, 0}, f...))))
	}},
	"Geneve": {1, func(f []byte) []byte {
		return ether(0x800, ip4(17, udp(49152, 6081, append([]byte{2, 0, 0x65, 0x58, 0, 0, 5, 0, 1, 2, 3, 1, 0, 0, 0, 0}, f...))))
	}},
	"ERSPAN II of VXLAN": {1, func(f []byte) []byte {
		inner := ether(0x800, ip4(17, udp(49152, 4789, append([]byte{8, 0, 0, 0, 0, 0, 5, 0}, f...))))
		return ether(0x800, ip4(47, gre(0x1000, 0x88be, []byte{0, 0, 0, 9}, append([]byte{0x10, 1, 0x10, 0, 0, 0, 0, 0}, inner...))))
	}},
	"RoCE v1":         {1, rocev1},
	"RoCE v1, ERSPAN": {1, func(f []byte) []byte { return ether(0x800, ip4(47, gre(0, 0x88be, nil, tag(rocev1(f), 0x8100)))) }},
}

// However packets are wrapped, the same I/Os are found in them, and the same packets.
func TestWrappedPackets(t *testing.T) {
	for _, capture := range []string{"krping", "ping", "nvme", "verbs", "tcp"} {
		plain := frames(t, capture)
		want := dissectAll(plain, dissect.Options{})
		for name, w := range wrappings {
			wrapped := slices.Clone(plain)
			for i := range wrapped {
				data := w.wrap(plain[i].Data)
				wrapped[i].Data, wrapped[i].Length, wrapped[i].Link = data, len(data), w.link
			}
			got := dissectAll(wrapped, dissect.Options{})
			if got.totals != want.totals {
				t.Errorf("%s, %s: totals %+v, want %+v", capture, name, got.totals, want.totals)
			}
			expect(t, capture+", "+name, kinds(got.ios), kinds(want.ios))
			for i := range min(len(got.packets), len(want.packets)) {
				a, b := got.packets[i], want.packets[i]
				if a.What != b.What || a.Info != b.Info || a.Bytes != b.Bytes || a.Src != b.Src || a.Protocol != b.Protocol {
					t.Fatalf("%s, %s: packet %d is %+v, want %+v", capture, name, i, a, b)
				}
			}
		}
	}
}

// A tool may keep only the first bytes of each frame. I/Os are found as far as their headers are there,
// their bytes are those of the headers, and nothing counts as lost.
func TestSnapLengths(t *testing.T) {
	// The least snap lengths with which all I/Os are found, one being in flight.
	enough := map[string]int{"krping": 64, "ping": 80, "verbs": 64, "nvme": 128, "tcp": 96}
	for _, capture := range []string{"krping", "ping", "nvme", "verbs", "tcp", "deep"} {
		whole := dissectAll(frames(t, capture), dissect.Options{})
		for _, snap := range []int{48, 64, 80, 96, 128, 192, 256, 512} {
			cut := frames(t, capture)
			n := 0
			for i, f := range cut {
				if len(f.Data) > snap {
					cut[i].Data = f.Data[:snap]
					n++
				}
			}
			r := dissectAll(cut, dissect.Options{})
			if r.totals.Lost+r.totals.Malformed+r.totals.BadICRC+r.totals.Others+r.totals.Retransmitted > 0 || r.totals.Packets != len(cut) || r.totals.Cut != n {
				t.Errorf("%s, %d bytes: %d packets cut, totals %+v", capture, snap, n, r.totals)
			}
			if least := enough[capture]; least > 0 && snap >= least {
				expect(t, fmt.Sprintf("%s, %d bytes", capture, snap), kinds(r.ios), kinds(whole.ios))
			}
			sum := func(packets []*dissect.Packet) (bytes int) {
				for _, p := range packets {
					bytes += p.Bytes
				}
				return bytes
			}
			if a, b := sum(r.packets), sum(whole.packets); a != b && snap > 48 {
				t.Errorf("%s, %d bytes: the packets carry %d bytes, want %d", capture, snap, a, b)
			}
			whole, partial := 0, 0
			for _, o := range r.ios {
				if o.Done && !o.Cut {
					whole++
				} else {
					partial++
				}
			}
			if capture == "nvme" && snap == 64 && whole < 27 || capture == "deep" && (whole < 5 || partial < 10) && snap > 48 {
				t.Errorf("%s, %d bytes: %d I/Os are whole, %d are not:\n%s", capture, snap, whole, partial, kinds(r.ios))
			}
		}
	}
}

// Of a live capture, what is in tunnels is dropped unless it is RoCE or NVMe/TCP.
func TestRelevant(t *testing.T) {
	roce, tcp := frames(t, "krping")[0].Data, frames(t, "tcp")[0].Data
	dns := ether(0x800, ip4(17, udp(40000, 53, make([]byte, 40))))
	for name, tunnel := range map[string]bool{
		"VLAN": false, "QinQ 0x9100": false, "FCS": false, "ERSPAN II": true, "ERSPAN II over IPv6, VLANs": true, "ERSPAN III, subheader": true,
		"GRETAP": true, "VXLAN": true, "VXLAN over IPv6": true, "Geneve": true,
	} {
		for _, c := range []struct {
			data []byte
			port uint16
			want bool
		}{
			{roce, 1, true}, {tcp, 4420, true}, {dns, 53, !tunnel}, {tcp, 1, !tunnel},
		} {
			data := wrappings[name].wrap(c.data)
			if got := dissect.Relevant(dissect.Frame{Data: data, Length: len(data)}, []uint16{c.port}); got != c.want {
				t.Errorf("%s, port %d: %v", name, c.port, got)
			}
		}
	}
}

// What is neither RoCE nor NVMe/TCP is told.
func TestOthers(t *testing.T) {
	d := dissect.New(dissect.Options{})
	plain := frames(t, "krping")[0].Data
	for _, f := range []dissect.Frame{
		{Data: ether(0x806, make([]byte, 28))}, {Data: ether(0x88cc, make([]byte, 28))}, {Data: ether(0x800, ip4(17, udp(40000, 53, make([]byte, 12))))},
		{Data: ether(0x800, ip4(17, udp(40000, 4789, append([]byte{8, 0, 0, 0, 0, 0, 5, 0}, ether(0x806, make([]byte, 28))...))))},
		{Data: ether(0x800, ip4(6, append([]byte{0x01, 0xbb, 0xc0, 0}, make([]byte, 16)...)))}, {Data: ether(0x1234, make([]byte, 28))},
		{Data: ether(0x800, ip4(6, append([]byte{0x01, 0xbb, 0xc0, 0}, make([]byte, 16)...)))}, {Data: plain[:20]},
		{Data: []byte("infiniband"), Link: 247}, {Data: append(ether(0x800, nil), func() []byte { b := ip4(17, make([]byte, 16)); b[6] = 0x20; return b }()...)},
	} {
		f.Length = len(f.Data)
		if p := d.Add(f); p != nil {
			t.Errorf("%x is %+v", f.Data, p)
		}
	}
	expect(t, "others", strings.Join(d.Others(), "\n"), `
ARP: 2
TCP port 443: 2
Ethernet type 0x1234: 1
IPv4 fragments: 1
IPv4 packets that are malformed or cut off: 1
LLDP: 1
UDP port 53: 1
frames of link type 247: 1`)
}
