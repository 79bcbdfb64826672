// SPDX-License-Identifier: Apache-2.0

package roce

import "fmt"

// An Opcode has the transport service in its upper three bits and the operation in its lower five
// (InfiniBand Architecture Specification, volume 1, section 9.2.1, table 38).
type Opcode uint8

// Transport services: the upper three bits of an Opcode.
const (
	RC Opcode = 0x00 // reliable connected
	UC Opcode = 0x20 // unreliable connected
	UD Opcode = 0x60 // unreliable datagram

	service   = 0xe0
	operation = 0x1f
)

// Operations: the lower five bits of an Opcode. RC has all, UC those up to WriteOnlyImmediate, UD
// SendOnly and SendOnlyImmediate.
const (
	SendFirst Opcode = iota
	SendMiddle
	SendLast
	SendLastImmediate
	SendOnly
	SendOnlyImmediate
	WriteFirst
	WriteMiddle
	WriteLast
	WriteLastImmediate
	WriteOnly
	WriteOnlyImmediate
	ReadRequest
	ReadResponseFirst
	ReadResponseMiddle
	ReadResponseLast
	ReadResponseOnly
	Acknowledge
	AtomicAcknowledge
	CompareSwap
	FetchAdd
	_
	SendLastInvalidate
	SendOnlyInvalidate
)

// CNP is the congestion notification packet of RoCEv2 (annex A17.9.3).
const CNP Opcode = 0x81

type kind struct {
	name    string
	headers []header // extension headers, in order
}

var kinds = [operation + 1]kind{
	SendFirst:          {"SEND First", nil},
	SendMiddle:         {"SEND Middle", nil},
	SendLast:           {"SEND Last", nil},
	SendLastImmediate:  {"SEND Last with Immediate", []header{immDt}},
	SendOnly:           {"SEND Only", nil},
	SendOnlyImmediate:  {"SEND Only with Immediate", []header{immDt}},
	WriteFirst:         {"RDMA WRITE First", []header{reth}},
	WriteMiddle:        {"RDMA WRITE Middle", nil},
	WriteLast:          {"RDMA WRITE Last", nil},
	WriteLastImmediate: {"RDMA WRITE Last with Immediate", []header{immDt}},
	WriteOnly:          {"RDMA WRITE Only", []header{reth}},
	WriteOnlyImmediate: {"RDMA WRITE Only with Immediate", []header{reth, immDt}},
	ReadRequest:        {"RDMA READ Request", []header{reth}},
	ReadResponseFirst:  {"RDMA READ response First", []header{aeth}},
	ReadResponseMiddle: {"RDMA READ response Middle", nil},
	ReadResponseLast:   {"RDMA READ response Last", []header{aeth}},
	ReadResponseOnly:   {"RDMA READ response Only", []header{aeth}},
	Acknowledge:        {"Acknowledge", []header{aeth}},
	AtomicAcknowledge:  {"ATOMIC Acknowledge", []header{aeth, atomicAckETH}},
	CompareSwap:        {"CmpSwap", []header{atomicETH}},
	FetchAdd:           {"FetchAdd", []header{atomicETH}},
	SendLastInvalidate: {"SEND Last with Invalidate", []header{ieth}},
	SendOnlyInvalidate: {"SEND Only with Invalidate", []header{ieth}},
}

var (
	datagram          = []header{deth}
	datagramImmediate = []header{deth, immDt}
)

// Service returns the transport service: RC, UC, UD, or one that this package does not decode.
func (o Opcode) Service() Opcode { return o & service }

// Operation returns the opcode without its transport service.
func (o Opcode) Operation() Opcode { return o & operation }

// Known reports whether the specification defines the opcode for RC, UC or UD. The other opcodes are
// not decoded beyond the BTH.
func (o Opcode) Known() bool {
	op := o.Operation()
	switch o.Service() {
	case RC:
		return kinds[op].name != ""
	case UC:
		return op <= WriteOnlyImmediate
	case UD:
		return op == SendOnly || op == SendOnlyImmediate
	}
	return false
}

// extensions returns the headers that follow the BTH of a known opcode.
func (o Opcode) extensions() []header {
	switch o {
	case UD | SendOnly:
		return datagram
	case UD | SendOnlyImmediate:
		return datagramImmediate
	}
	return kinds[o.Operation()].headers
}

// String returns the specification's name, without the service for RC.
func (o Opcode) String() string {
	switch {
	case o == CNP:
		return "CNP"
	case !o.Known():
		return fmt.Sprintf("opcode %#02x", uint8(o))
	case o.Service() == UC:
		return "UC " + kinds[o.Operation()].name
	case o.Service() == UD:
		return "UD " + kinds[o.Operation()].name
	}
	return kinds[o.Operation()].name
}

// IsSend reports whether the packet belongs to a SEND.
func (o Opcode) IsSend() bool {
	op := o.Operation()
	return o.Known() && (op <= SendOnlyImmediate || op >= SendLastInvalidate)
}

// IsWrite reports whether the packet belongs to an RDMA WRITE.
func (o Opcode) IsWrite() bool {
	op := o.Operation()
	return o.Known() && op >= WriteFirst && op <= WriteOnlyImmediate
}

// IsAtomic reports whether the packet is an atomic request.
func (o Opcode) IsAtomic() bool { return o == CompareSwap || o == FetchAdd }

// IsReadResponse reports whether the packet belongs to the response to an RDMA READ.
func (o Opcode) IsReadResponse() bool { return o >= ReadResponseFirst && o <= ReadResponseOnly }

// IsResponse reports whether the responder sent the packet: its PSN is that of a request.
func (o Opcode) IsResponse() bool { return o >= ReadResponseFirst && o <= AtomicAcknowledge }

// Begins reports whether the packet is the first of its message.
func (o Opcode) Begins() bool {
	switch o.Operation() {
	case SendMiddle, SendLast, SendLastImmediate, SendLastInvalidate, WriteMiddle, WriteLast, WriteLastImmediate, ReadResponseMiddle, ReadResponseLast:
		return false
	}
	return true
}

// Ends reports whether the packet is the last of its message.
func (o Opcode) Ends() bool {
	switch o.Operation() {
	case SendFirst, SendMiddle, WriteFirst, WriteMiddle, ReadResponseFirst, ReadResponseMiddle:
		return false
	}
	return true
}
