// SPDX-License-Identifier: Apache-2.0

package roce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"krping/agent/packets/unwrap"
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

// Packet is one RoCE packet. Headers that its opcode does not have, or that were not captured, are nil.
// The slices refer to the frame's data.
type Packet struct {
	Src, Dst  netip.Addr
	SrcPort   uint16 // 0 with RoCE v1
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
	Received  uint32 // the ICRC in the packet; 0 if that was not captured
	ICRC      ICRCStatus
}

// Cut reports whether the packet was not captured whole.
func (p *Packet) Cut() bool { return p.ICRC == ICRCUnverified }

// ErrCut is returned for a packet that was cut off before the end of its base transport header.
var ErrCut = errors.New("cut off before the end of its base transport header")

const udpSize = 8

// Decode returns the RoCE packet in a network packet, or nil if that is something else. It returns an
// error if the packet is RoCE, but malformed or cut off too early.
func Decode(n *unwrap.Packet) (*Packet, error) {
	p := &Packet{Src: n.Src, Dst: n.Dst}
	var udp []byte
	data, length := n.Payload, n.Length
	switch {
	case n.Protocol == unwrap.InfiniBand:
	case n.Protocol == unwrap.UDP && len(data) >= 4 && binary.BigEndian.Uint16(data[2:]) == Port:
		if len(data) < udpSize {
			return nil, ErrCut
		}
		p.SrcPort = binary.BigEndian.Uint16(data)
		if inUDP := int(binary.BigEndian.Uint16(data[4:])); inUDP != 0 {
			length = inUDP
		}
		if length < udpSize {
			return nil, fmt.Errorf("malformed: UDP length %d", length)
		}
		udp, data, length = data[:udpSize], data[udpSize:], length-udpSize
	default:
		return nil, nil
	}
	data = data[:min(len(data), length)]
	cut := len(data) < length
	headers, err := p.decode(data, cut)
	switch {
	case err != nil:
		return nil, fmt.Errorf("malformed: %w", err)
	case p.BTH == nil:
		return nil, ErrCut
	}
	trailer := int(p.BTH.PadCount) + icrcSize
	p.Length = max(0, length-headers-trailer)
	p.Payload = data[min(headers, len(data)):]
	p.Payload = p.Payload[:min(p.Length, len(p.Payload))]
	if cut {
		return p, nil
	}
	p.Received = binary.LittleEndian.Uint32(data[length-icrcSize:])
	if sum, ok := icrc(n.Header, udp, data); ok {
		p.ICRC = ICRCBad
		if sum == p.Received {
			p.ICRC = ICRCGood
		}
	}
	return p, nil
}
