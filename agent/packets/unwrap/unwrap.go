// SPDX-License-Identifier: Apache-2.0

// Package unwrap finds the network packet in a captured frame: below the headers of the link, VLAN tags,
// and the tunnels by which switches mirror traffic or networks are overlaid (GRE, ERSPAN, VXLAN, Geneve,
// IP in IP).
package unwrap

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Protocols of a Packet.
const (
	TCP        = uint8(layers.IPProtocolTCP)
	UDP        = uint8(layers.IPProtocolUDP)
	InfiniBand = 0x1b // after a GRH: the packet is of RoCE v1
)

// EtherRoCE is RoCE v1's Ethernet type. Its packets begin with a global route header (GRH), which has the
// layout of an IPv6 header.
const EtherRoCE = 0x8915

// UDP ports of tunnels. Linux uses 8472 for VXLAN unless told otherwise, and so does flannel.
const (
	PortVXLAN      = 4789
	PortVXLANLinux = 8472
	PortGeneve     = 6081
)

// Packet is an IP packet, or one of RoCE v1. The slices refer to the frame's data.
type Packet struct {
	Src, Dst netip.Addr
	Header   []byte // of IPv4 or IPv6, without extension headers, or the GRH
	Protocol uint8
	Payload  []byte // as far as it was captured
	Length   int    // of the payload on the wire, in bytes
}

const (
	etherQinQ1   = 0x9100 // VLAN tags before 802.1ad
	etherQinQ2   = 0x9200
	etherERSPAN3 = 0x22eb
)

// layerTypeERSPAN3 is the header of ERSPAN III (draft-foschiano-erspan).
var layerTypeERSPAN3 = gopacket.RegisterLayerType(1799, gopacket.LayerTypeMetadata{Name: "ERSPAN III", Decoder: gopacket.DecodeFunc(decodeERSPAN3)})

func init() {
	tag := layers.EthernetTypeMetadata[layers.EthernetTypeDot1Q]
	layers.EthernetTypeMetadata[etherQinQ1], layers.EthernetTypeMetadata[etherQinQ2] = tag, tag
	layers.EthernetTypeMetadata[EtherRoCE] = layers.EthernetTypeMetadata[layers.EthernetTypeIPv6]
	layers.EthernetTypeMetadata[etherERSPAN3] = layers.EnumMetadata{DecodeWith: layerTypeERSPAN3, Name: "ERSPAN III", LayerType: layerTypeERSPAN3}
	raw := layers.LinkTypeMetadata[layers.LinkTypeRaw]
	layers.LinkTypeMetadata[layers.LinkTypeIPv4], layers.LinkTypeMetadata[layers.LinkTypeIPv6] = raw, raw
	layers.RegisterUDPPortLayerType(PortVXLANLinux, layers.LayerTypeVXLAN)
}

// erspan3 is the header of ERSPAN III: 12 bytes, and 8 more if the last bit says so.
type erspan3 struct{ layers.BaseLayer }

func (*erspan3) LayerType() gopacket.LayerType { return layerTypeERSPAN3 }

func decodeERSPAN3(data []byte, p gopacket.PacketBuilder) error {
	size := 12
	if len(data) >= size && data[size-1]&1 != 0 {
		size += 8
	}
	if len(data) < size || data[0]>>4 != 2 {
		return fmt.Errorf("ERSPAN III: %d bytes, version %d", len(data), data[0]>>4)
	}
	p.AddLayer(&erspan3{layers.BaseLayer{Contents: data[:size], Payload: data[size:]}})
	if frameType := data[10] >> 2 & 0x1f; frameType == 2 { // an IP packet without Ethernet header
		return p.NextDecoder(layers.LinkTypeRaw)
	}
	return p.NextDecoder(layers.LinkTypeEthernet)
}

// Frame returns the innermost network packet of a frame, and a name of what the frame holds. The packet is
// nil if there is none that can be read. missing is the number of bytes of the frame that were not captured.
func Frame(data []byte, link layers.LinkType, missing int) (p *Packet, name string) {
	frame := gopacket.NewPacket(data, link, gopacket.DecodeOptions{NoCopy: true})
	name = linkName(link)
	for _, l := range frame.Layers() {
		switch l := l.(type) {
		case *layers.Ethernet:
			name = etherName(l.EthernetType)
		case *layers.Dot1Q:
			name = etherName(l.Type)
		case *layers.LinuxSLL:
			name = etherName(l.EthernetType)
		case *layers.LinuxSLL2:
			name = etherName(l.ProtocolType)
		case *layers.IPv4:
			p, name = ipv4(l, missing)
		case *layers.IPv6:
			p, name = ipv6(l)
		case *layers.UDP:
			if !isTunnel(uint16(l.DstPort)) {
				return p, name
			}
		}
	}
	return p, name
}

// Tunnelled reports whether an Ethernet frame may be of GRE, VXLAN or Geneve. It is much faster than Frame.
func Tunnelled(frame []byte) bool {
	at := 12
	for at+4 <= len(frame) && isTag(binary.BigEndian.Uint16(frame[at:])) {
		at += 4
	}
	const udpPort = 2 // offset of the destination port
	ip := at + 2
	switch {
	case ip+40 > len(frame):
		return true
	case binary.BigEndian.Uint16(frame[at:]) == uint16(layers.EthernetTypeIPv6):
		return frame[ip+6] != TCP && (frame[ip+6] != UDP || ip+40+udpPort+2 > len(frame) || isTunnel(binary.BigEndian.Uint16(frame[ip+40+udpPort:])))
	case binary.BigEndian.Uint16(frame[at:]) == uint16(layers.EthernetTypeIPv4):
		to := ip + int(frame[ip]&0xf)*4 + udpPort
		return frame[ip+9] != TCP && (frame[ip+9] != UDP || to+2 > len(frame) || isTunnel(binary.BigEndian.Uint16(frame[to:])))
	}
	return false
}

func isTag(kind uint16) bool {
	return kind == etherQinQ1 || kind == etherQinQ2 || kind == uint16(layers.EthernetTypeDot1Q) || kind == uint16(layers.EthernetTypeQinQ)
}

func linkName(link layers.LinkType) string {
	if link < layers.LinkTypeMax && layers.LinkTypeMetadata[link].DecodeWith != nil {
		return fmt.Sprintf("%v frames that are malformed or cut off", link)
	}
	return fmt.Sprintf("frames of link type %d", link)
}

func isTunnel(port uint16) bool {
	return port == PortVXLAN || port == PortVXLANLinux || port == PortGeneve
}

func etherName(t layers.EthernetType) string {
	switch t {
	case layers.EthernetTypeLinkLayerDiscovery:
		return "LLDP"
	case 0x8906:
		return "FCoE"
	case 0x8808:
		return "Ethernet flow control"
	}
	if layers.EthernetTypeMetadata[t].DecodeWith != nil {
		return t.String()
	}
	return fmt.Sprintf("Ethernet type %#04x", uint16(t))
}

func ipv4(l *layers.IPv4, missing int) (*Packet, string) {
	if l.FragOffset != 0 || l.Flags&layers.IPv4MoreFragments != 0 {
		return nil, "IPv4 fragments"
	}
	if len(l.SrcIP) == 0 {
		return nil, "IPv4 packets that are malformed or cut off"
	}
	p := &Packet{Header: l.Contents, Protocol: uint8(l.Protocol), Payload: l.Payload}
	p.Src, _ = netip.AddrFromSlice(l.SrcIP)
	p.Dst, _ = netip.AddrFromSlice(l.DstIP)
	p.Length = max(len(l.Payload), int(l.Length)-len(l.Contents))
	if l.Contents[2] == 0 && l.Contents[3] == 0 { // a packet for the NIC to segment, of more than 65535 bytes
		p.Length = len(l.Payload) + max(0, missing)
	}
	return p, p.name("IPv4", l.Protocol)
}

func ipv6(l *layers.IPv6) (*Packet, string) {
	if len(l.SrcIP) == 0 {
		return nil, "IPv6 packets that are malformed or cut off"
	}
	p := &Packet{Header: l.Contents, Protocol: uint8(l.NextHeader), Payload: l.Payload}
	p.Src, _ = netip.AddrFromSlice(l.SrcIP)
	p.Dst, _ = netip.AddrFromSlice(l.DstIP)
	if p.Protocol == InfiniBand { // a GID of a RoCE v1 port may have an IPv4 address
		p.Src, p.Dst = p.Src.Unmap(), p.Dst.Unmap()
	}
	p.Length = max(len(l.Payload), int(l.Length))
	return p, p.name("IPv6", layers.IPProtocol(p.Protocol))
}

// name describes the packet by its protocol, and by the lower one of its ports.
func (p *Packet) name(ip string, protocol layers.IPProtocol) string {
	if (p.Protocol == TCP || p.Protocol == UDP) && len(p.Payload) >= 4 {
		port := min(binary.BigEndian.Uint16(p.Payload), binary.BigEndian.Uint16(p.Payload[2:]))
		return fmt.Sprintf("%v port %d", protocol, port)
	}
	if layers.IPProtocolMetadata[protocol].DecodeWith != nil {
		return protocol.String()
	}
	return fmt.Sprintf("%s protocol %d", ip, protocol)
}
