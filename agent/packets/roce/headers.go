// SPDX-License-Identifier: Apache-2.0

// Package roce decodes packets of RoCE: the InfiniBand transport over UDP port 4791 (v2), or directly over
// Ethernet (v1).
//
// The format is that of the InfiniBand Architecture Specification, volume 1: section 9.2 has the base
// transport header (BTH), section 9.3 the extension headers, annex A16 RoCE v1, annex A17 RoCEv2. Integers
// are big-endian on the wire, except the ICRC.
package roce

import (
	"encoding/binary"
	"fmt"
)

// Port is RoCEv2's UDP port.
const Port = 4791

// Sizes of the headers, in bytes.
const (
	bthSize       = 12
	rethSize      = 16
	aethSize      = 4
	dethSize      = 8
	immDtSize     = 4
	iethSize      = 4
	atomicSize    = 28
	atomicAckSize = 8
	icrcSize      = 4
)

// A header is one of the extension headers, which follow the BTH.
type header uint8

const (
	reth header = iota
	aeth
	deth
	immDt
	ieth
	atomicETH
	atomicAckETH
)

var headerSizes = [...]int{reth: rethSize, aeth: aethSize, deth: dethSize, immDt: immDtSize, ieth: iethSize, atomicETH: atomicSize, atomicAckETH: atomicAckSize}

var headerNames = [...]string{reth: "RETH", aeth: "AETH", deth: "DETH", immDt: "ImmDt", ieth: "IETH", atomicETH: "AtomicETH", atomicAckETH: "AtomicAckETH"}

// decode reads the BTH and the extension headers of its opcode, and returns their size on the wire. If
// the packet is cut, headers may be missing; p.BTH is nil if that is.
func (p *Packet) decode(data []byte, cut bool) (size int, err error) {
	if len(data) < bthSize {
		if cut {
			return 0, nil
		}
		return 0, fmt.Errorf("BTH: %d bytes, needs %d", len(data), bthSize)
	}
	p.BTH = newBTH(data)
	size = bthSize
	for _, h := range p.BTH.Opcode.extensions() {
		if left := len(data) - size; left >= headerSizes[h] {
			p.add(h, data[size:])
		} else if !cut {
			return 0, fmt.Errorf("%s: %d bytes left, needs %d", headerNames[h], max(0, left), headerSizes[h])
		}
		size += headerSizes[h]
	}
	if trailer := int(p.BTH.PadCount) + icrcSize; !cut && len(data) < size+trailer {
		return 0, fmt.Errorf("BTH: headers are followed by %d bytes, too short for padding and ICRC of %d", len(data)-size, trailer)
	}
	return size, nil
}

// add reads an extension header, of which data has all bytes.
func (p *Packet) add(h header, data []byte) {
	switch h {
	case reth:
		p.RETH = &RETH{binary.BigEndian.Uint64(data), binary.BigEndian.Uint32(data[8:]), binary.BigEndian.Uint32(data[12:])}
	case aeth:
		p.AETH = &AETH{Syndrome(data[0]), uint24(data[1:])}
	case deth:
		p.DETH = &DETH{binary.BigEndian.Uint32(data), uint24(data[5:])}
	case immDt:
		p.ImmDt = &ImmDt{binary.BigEndian.Uint32(data)}
	case ieth:
		p.IETH = &IETH{binary.BigEndian.Uint32(data)}
	case atomicETH:
		p.AtomicETH = &AtomicETH{
			binary.BigEndian.Uint64(data), binary.BigEndian.Uint32(data[8:]), binary.BigEndian.Uint64(data[12:]), binary.BigEndian.Uint64(data[20:]),
		}
	case atomicAckETH:
		p.AtomicAck = &AtomicAckETH{binary.BigEndian.Uint64(data)}
	}
}

// BTH is the base transport header, 12 bytes.
type BTH struct {
	Opcode    Opcode
	Solicited bool
	Migrated  bool
	PadCount  uint8 // bytes of padding after the payload
	Version   uint8 // of the transport headers; 0
	PKey      uint16
	FECN      bool
	BECN      bool
	DestQP    uint32 // 24 bits
	AckReq    bool
	PSN       uint32 // 24 bits
}

func newBTH(data []byte) *BTH {
	return &BTH{
		Opcode:    Opcode(data[0]),
		Solicited: data[1]&0x80 != 0,
		Migrated:  data[1]&0x40 != 0,
		PadCount:  data[1] >> 4 & 3,
		Version:   data[1] & 0xf,
		PKey:      binary.BigEndian.Uint16(data[2:]),
		FECN:      data[4]&0x80 != 0,
		BECN:      data[4]&0x40 != 0,
		DestQP:    uint24(data[5:]),
		AckReq:    data[8]&0x80 != 0,
		PSN:       uint24(data[9:]),
	}
}

// RETH is the RDMA extended transport header, 16 bytes.
type RETH struct {
	Addr   uint64 // in the responder's memory
	RKey   uint32
	Length uint32 // of the whole message, in bytes
}

// A Syndrome is the first byte of an AETH: ACK, RNR NAK, or NAK with its reason.
type Syndrome uint8

// IsACK reports whether it is a positive acknowledgement.
func (s Syndrome) IsACK() bool { return s>>5&3 == 0 }

func (s Syndrome) String() string {
	code := uint8(s) & 0x1f
	switch s >> 5 & 3 {
	case 0:
		return "ACK"
	case 1:
		return fmt.Sprintf("RNR NAK, timer %d", code)
	case 3:
		reasons := []string{"PSN sequence error", "invalid request", "remote access error", "remote operational error", "invalid RD request"}
		if int(code) < len(reasons) {
			return "NAK: " + reasons[code]
		}
	}
	return fmt.Sprintf("syndrome %#02x", uint8(s))
}

// AETH is the acknowledge extended transport header, 4 bytes.
type AETH struct {
	Syndrome Syndrome
	MSN      uint32 // 24 bits: message sequence number, of the messages that the responder has completed
}

// DETH is the datagram extended transport header, 8 bytes.
type DETH struct {
	QKey  uint32
	SrcQP uint32 // 24 bits
}

// ImmDt is the immediate data, 4 bytes of the application.
type ImmDt struct {
	Data uint32
}

// IETH is the invalidate extended transport header, 4 bytes.
type IETH struct {
	RKey uint32 // that the responder is to invalidate
}

// AtomicETH is the atomic extended transport header, 28 bytes.
type AtomicETH struct {
	Addr    uint64
	RKey    uint32
	SwapAdd uint64
	Compare uint64
}

// AtomicAckETH is the atomic acknowledge extended transport header, 8 bytes.
type AtomicAckETH struct {
	Original uint64 // value before the operation
}

func uint24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }
