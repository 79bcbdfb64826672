// SPDX-License-Identifier: Apache-2.0

// Package roce decodes RoCEv2, the InfiniBand transport over UDP port 4791, into gopacket layers.
//
// The format is that of the InfiniBand Architecture Specification, volume 1: section 9.2 has the base
// transport header (BTH), section 9.3 the extension headers, annex A17 RoCEv2. Integers are
// big-endian on the wire, except the ICRC.
package roce

import (
	"encoding/binary"
	"fmt"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
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

// Layer types. Importing this package makes gopacket decode UDP to Port with LayerTypeBTH; it decodes
// the others after a BTH only.
var (
	LayerTypeBTH          = register(1791, "BTH", decodeBTH)
	LayerTypeRETH         = register(1792, "RETH", nil)
	LayerTypeAETH         = register(1793, "AETH", nil)
	LayerTypeDETH         = register(1794, "DETH", nil)
	LayerTypeImmDt        = register(1795, "ImmDt", nil)
	LayerTypeIETH         = register(1796, "IETH", nil)
	LayerTypeAtomicETH    = register(1797, "AtomicETH", nil)
	LayerTypeAtomicAckETH = register(1798, "AtomicAckETH", nil)
)

func register(number int, name string, decode gopacket.DecodeFunc) gopacket.LayerType {
	if decode == nil {
		decode = func(data []byte, p gopacket.PacketBuilder) error {
			return fmt.Errorf("%s: can be decoded only after a BTH", name)
		}
	}
	return gopacket.RegisterLayerType(number, gopacket.LayerTypeMetadata{Name: name, Decoder: decode})
}

func init() { layers.RegisterUDPPortLayerType(Port, LayerTypeBTH) }

// extension is an extension header: one that follows the BTH.
type extension interface {
	gopacket.Layer
	decode(data []byte) error
}

func newExtension(t gopacket.LayerType) extension {
	switch t {
	case LayerTypeRETH:
		return &RETH{}
	case LayerTypeAETH:
		return &AETH{}
	case LayerTypeDETH:
		return &DETH{}
	case LayerTypeImmDt:
		return &ImmDt{}
	case LayerTypeIETH:
		return &IETH{}
	case LayerTypeAtomicETH:
		return &AtomicETH{}
	default:
		return &AtomicAckETH{}
	}
}

// take splits data into a header of size bytes and the payload.
func take(base *layers.BaseLayer, data []byte, size int, name string) error {
	if len(data) < size {
		return fmt.Errorf("%s: %d bytes left, needs %d", name, len(data), size)
	}
	base.Contents, base.Payload = data[:size], data[size:]
	return nil
}

// BTH is the base transport header, 12 bytes. Its payload excludes the padding and the ICRC.
type BTH struct {
	layers.BaseLayer
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
	ICRC      uint32 // as received; Packet.ICRC has the result of the check
}

// LayerType is LayerTypeBTH.
func (*BTH) LayerType() gopacket.LayerType { return LayerTypeBTH }

func (b *BTH) decode(data []byte) error {
	if err := take(&b.BaseLayer, data, bthSize, "BTH"); err != nil {
		return err
	}
	b.Opcode = Opcode(data[0])
	b.Solicited = data[1]&0x80 != 0
	b.Migrated = data[1]&0x40 != 0
	b.PadCount = data[1] >> 4 & 3
	b.Version = data[1] & 0xf
	b.PKey = binary.BigEndian.Uint16(data[2:])
	b.FECN = data[4]&0x80 != 0
	b.BECN = data[4]&0x40 != 0
	b.DestQP = uint24(data[5:])
	b.AckReq = data[8]&0x80 != 0
	b.PSN = uint24(data[9:])
	trailer := int(b.PadCount) + icrcSize
	if len(b.Payload) < trailer {
		return fmt.Errorf("BTH: followed by %d bytes, too short for padding and ICRC of %d", len(b.Payload), trailer)
	}
	end := len(b.Payload) - trailer
	b.ICRC = binary.LittleEndian.Uint32(b.Payload[len(b.Payload)-icrcSize:])
	b.Payload = b.Payload[:end]
	return nil
}

func decodeBTH(data []byte, p gopacket.PacketBuilder) error {
	b := &BTH{}
	if err := b.decode(data); err != nil {
		return err
	}
	p.AddLayer(b)
	if !b.Opcode.Known() {
		return p.NextDecoder(gopacket.LayerTypePayload)
	}
	return extensions(b.Opcode.extensions()).after(b, p)
}

// extensions is a decoder of these headers and then the payload.
type extensions []gopacket.LayerType

// Decode implements gopacket.Decoder.
func (e extensions) Decode(data []byte, p gopacket.PacketBuilder) error {
	if len(e) == 0 {
		return gopacket.LayerTypePayload.Decode(data, p)
	}
	header := newExtension(e[0])
	if err := header.decode(data); err != nil {
		return err
	}
	p.AddLayer(header)
	return e[1:].after(header, p)
}

// after continues with the payload of l. It reports a missing header itself, as gopacket does not
// call a decoder when no bytes are left.
func (e extensions) after(l gopacket.Layer, p gopacket.PacketBuilder) error {
	if len(e) > 0 && len(l.LayerPayload()) == 0 {
		return fmt.Errorf("%v: missing after the %v", e[0], l.LayerType())
	}
	return p.NextDecoder(e)
}

// RETH is the RDMA extended transport header, 16 bytes.
type RETH struct {
	layers.BaseLayer
	Addr   uint64 // in the responder's memory
	RKey   uint32
	Length uint32 // of the whole message, in bytes
}

// LayerType is LayerTypeRETH.
func (*RETH) LayerType() gopacket.LayerType { return LayerTypeRETH }

func (h *RETH) decode(data []byte) error {
	if err := take(&h.BaseLayer, data, rethSize, "RETH"); err != nil {
		return err
	}
	h.Addr = binary.BigEndian.Uint64(data)
	h.RKey = binary.BigEndian.Uint32(data[8:])
	h.Length = binary.BigEndian.Uint32(data[12:])
	return nil
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
	layers.BaseLayer
	Syndrome Syndrome
	MSN      uint32 // 24 bits: message sequence number, of the messages that the responder has completed
}

// LayerType is LayerTypeAETH.
func (*AETH) LayerType() gopacket.LayerType { return LayerTypeAETH }

func (h *AETH) decode(data []byte) error {
	if err := take(&h.BaseLayer, data, aethSize, "AETH"); err != nil {
		return err
	}
	h.Syndrome, h.MSN = Syndrome(data[0]), uint24(data[1:])
	return nil
}

// DETH is the datagram extended transport header, 8 bytes.
type DETH struct {
	layers.BaseLayer
	QKey  uint32
	SrcQP uint32 // 24 bits
}

// LayerType is LayerTypeDETH.
func (*DETH) LayerType() gopacket.LayerType { return LayerTypeDETH }

func (h *DETH) decode(data []byte) error {
	if err := take(&h.BaseLayer, data, dethSize, "DETH"); err != nil {
		return err
	}
	h.QKey, h.SrcQP = binary.BigEndian.Uint32(data), uint24(data[5:])
	return nil
}

// ImmDt is the immediate data, 4 bytes of the application.
type ImmDt struct {
	layers.BaseLayer
	Data uint32
}

// LayerType is LayerTypeImmDt.
func (*ImmDt) LayerType() gopacket.LayerType { return LayerTypeImmDt }

func (h *ImmDt) decode(data []byte) error {
	if err := take(&h.BaseLayer, data, immDtSize, "ImmDt"); err != nil {
		return err
	}
	h.Data = binary.BigEndian.Uint32(data)
	return nil
}

// IETH is the invalidate extended transport header, 4 bytes.
type IETH struct {
	layers.BaseLayer
	RKey uint32 // that the responder is to invalidate
}

// LayerType is LayerTypeIETH.
func (*IETH) LayerType() gopacket.LayerType { return LayerTypeIETH }

func (h *IETH) decode(data []byte) error {
	if err := take(&h.BaseLayer, data, iethSize, "IETH"); err != nil {
		return err
	}
	h.RKey = binary.BigEndian.Uint32(data)
	return nil
}

// AtomicETH is the atomic extended transport header, 28 bytes.
type AtomicETH struct {
	layers.BaseLayer
	Addr    uint64
	RKey    uint32
	SwapAdd uint64
	Compare uint64
}

// LayerType is LayerTypeAtomicETH.
func (*AtomicETH) LayerType() gopacket.LayerType { return LayerTypeAtomicETH }

func (h *AtomicETH) decode(data []byte) error {
	if err := take(&h.BaseLayer, data, atomicSize, "AtomicETH"); err != nil {
		return err
	}
	h.Addr = binary.BigEndian.Uint64(data)
	h.RKey = binary.BigEndian.Uint32(data[8:])
	h.SwapAdd = binary.BigEndian.Uint64(data[12:])
	h.Compare = binary.BigEndian.Uint64(data[20:])
	return nil
}

// AtomicAckETH is the atomic acknowledge extended transport header, 8 bytes.
type AtomicAckETH struct {
	layers.BaseLayer
	Original uint64 // value before the operation
}

// LayerType is LayerTypeAtomicAckETH.
func (*AtomicAckETH) LayerType() gopacket.LayerType { return LayerTypeAtomicAckETH }

func (h *AtomicAckETH) decode(data []byte) error {
	if err := take(&h.BaseLayer, data, atomicAckSize, "AtomicAckETH"); err != nil {
		return err
	}
	h.Original = binary.BigEndian.Uint64(data)
	return nil
}

func uint24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }
