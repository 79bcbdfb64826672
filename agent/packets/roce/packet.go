// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"fmt"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// ICRCStatus is the result of checking a packet's ICRC, in Wireshark's words.
type ICRCStatus uint8

// The values of ICRCStatus.
const (
	ICRCUnverified ICRCStatus = iota // the packet was not captured whole
	ICRCGood
	ICRCBad
)

func (s ICRCStatus) String() string { return [...]string{"unverified", "good", "bad"}[s] }

// Packet is one RoCEv2 packet. Headers that its opcode does not have are nil. The slices refer to the
// frame's data.
type Packet struct {
	Src, Dst  netip.Addr
	SrcPort   uint16
	BTH       *BTH
	RETH      *RETH
	AETH      *AETH
	DETH      *DETH
	ImmDt     *ImmDt
	IETH      *IETH
	AtomicETH *AtomicETH
	AtomicAck *AtomicAckETH
	Payload   []byte // as far as it was captured
	Length    int    // of the payload on the wire, in bytes
	ICRC      ICRCStatus
}

// FromFrame returns the RoCEv2 packet of a decoded frame, or nil if the frame is not UDP to Port. It
// returns an error if it is, but malformed.
func FromFrame(frame gopacket.Packet) (*Packet, error) {
	udp, _ := frame.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if udp == nil || udp.DstPort != Port {
		return nil, nil
	}
	p := &Packet{SrcPort: uint16(udp.SrcPort)}
	var ip []byte
	switch network := frame.NetworkLayer().(type) {
	case *layers.IPv4:
		ip = network.Contents
		p.Src, _ = netip.AddrFromSlice(network.SrcIP)
		p.Dst, _ = netip.AddrFromSlice(network.DstIP)
	case *layers.IPv6:
		ip = network.Contents
		p.Src, _ = netip.AddrFromSlice(network.SrcIP)
		p.Dst, _ = netip.AddrFromSlice(network.DstIP)
	default:
		return nil, nil
	}
	headers := p.collect(frame)
	if failure := frame.ErrorLayer(); failure != nil {
		return nil, fmt.Errorf("malformed: %w", failure.Error())
	}
	if p.BTH == nil {
		return nil, fmt.Errorf("malformed: UDP payload of %d bytes has no BTH", len(udp.Payload))
	}
	if len(udp.Payload)+len(udp.Contents) < int(udp.Length) { // the ICRC was not captured
		p.Payload = udp.Payload[headers:]
		p.Length = max(len(p.Payload), int(udp.Length)-len(udp.Contents)-headers-int(p.BTH.PadCount)-icrcSize)
		return p, nil
	}
	p.Payload = udp.Payload[headers : len(udp.Payload)-int(p.BTH.PadCount)-icrcSize]
	p.Length = len(p.Payload)
	if sum, ok := icrc(ip, udp.Contents, udp.Payload); ok {
		p.ICRC = ICRCGood
		if sum != p.BTH.ICRC {
			p.ICRC = ICRCBad
		}
	}
	return p, nil
}

// collect takes the headers from the frame's layers, and returns their total size in bytes.
func (p *Packet) collect(frame gopacket.Packet) (size int) {
	for _, l := range frame.Layers() {
		switch l := l.(type) {
		case *BTH:
			p.BTH = l
		case *RETH:
			p.RETH = l
		case *AETH:
			p.AETH = l
		case *DETH:
			p.DETH = l
		case *ImmDt:
			p.ImmDt = l
		case *IETH:
			p.IETH = l
		case *AtomicETH:
			p.AtomicETH = l
		case *AtomicAckETH:
			p.AtomicAck = l
		default:
			continue
		}
		size += len(l.LayerContents())
	}
	return size
}
