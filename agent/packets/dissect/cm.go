// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"krping/bridge/wire"
)

// A management datagram (MAD) of the connection manager: 24 bytes of header, then the message
// (InfiniBand Architecture Specification, volume 1, sections 13.4 and 12.6). Offsets of private data
// are from the beginning of the message.
const (
	madSize       = 256
	madHeader     = 24
	cmLeast       = 12 // bytes of a message that are read of each kind: its communication IDs, and four more
	reqLeast      = 51 // of a REQ to know the connection
	classCM       = 0x07
	cmREQ         = 0x10
	cmMRA         = 0x11
	cmREJ         = 0x12
	cmREP         = 0x13
	cmRTU         = 0x14
	cmDREQ        = 0x15
	cmDREP        = 0x16
	reqPrivate    = 140 // offset of the private data
	rejPrivate    = 84
	repPrivate    = 36
	ipHeader      = 36        // size of the RDMA IP CM header at the start of a REQ's private data (annex A11)
	serviceTCP    = 0x1060000 // service ID of RDMA_PS_TCP, without the port
	rejReasonCons = 28        // consumer reject: the private data has the reason
)

var cmNames = map[uint16]string{
	cmREQ: "REQ", cmMRA: "MRA", cmREJ: "REJ", cmREP: "REP", cmRTU: "RTU", cmDREQ: "DREQ", cmDREP: "DREP",
	0x17: "SIDR_REQ", 0x18: "SIDR_REP", 0x19: "LAP", 0x1a: "APR",
}

// requestKey identifies a REQ: its sender and the sender's communication ID.
type requestKey struct {
	addr netip.Addr
	id   uint32
}

// connectRequest is a REQ without a REP yet.
type connectRequest struct {
	qpn, psn uint32
	mtu      int   // bytes
	upper    upper // nil if the private data does not identify it
}

// addManagement reads a packet to queue pair 1.
func (d *Dissector) addManagement(p *Packet) {
	mad := p.RoCE.Payload
	if p.RoCE.Length < madSize || len(mad) < madHeader+cmLeast || mad[1] != classCM {
		return
	}
	captured := len(mad) - madHeader
	if len(mad) < madSize { // what was not captured reads as zeros, which are no private data
		mad = append(slices.Clone(mad), make([]byte, madSize-len(mad))...)
	}
	p.Protocol = CM
	kind, m := binary.BigEndian.Uint16(mad[16:]), mad[madHeader:]
	p.Info = nameOfCM(kind)
	id, to := binary.BigEndian.Uint32(m), binary.BigEndian.Uint32(m[4:])
	switch kind {
	case cmREQ:
		if captured < reqLeast {
			break
		}
		d.connect(p, requestKey{p.Src, id}, m)
	case cmREP:
		if captured < repPrivate {
			break
		}
		d.accept(p, requestKey{p.Dst, to}, m)
	case cmREJ:
		reason := binary.BigEndian.Uint16(m[10:])
		p.Info += fmt.Sprintf(": reason %d", reason)
		if reject, err := wire.DecodeReject(m[rejPrivate:]); err == nil && reason == rejReasonCons {
			p.Info += fmt.Sprintf(", krping reason %d, value %d", reject.Reason, reject.Value)
		}
		delete(d.requests, requestKey{p.Dst, to})
	case cmDREQ:
		p.Info += fmt.Sprintf(" of QP %#x", binary.BigEndian.Uint32(m[8:])>>8)
	}
}

func nameOfCM(kind uint16) string {
	if name, ok := cmNames[kind]; ok {
		return name
	}
	return fmt.Sprintf("message %#02x", kind)
}

func (d *Dissector) connect(p *Packet, from requestKey, m []byte) {
	service := binary.BigEndian.Uint64(m[8:])
	req := &connectRequest{
		qpn: binary.BigEndian.Uint32(m[32:]) >> 8,
		psn: binary.BigEndian.Uint32(m[44:]) >> 8,
	}
	if code := m[50] >> 4; code >= 1 && code <= 5 {
		req.mtu = 128 << code
	}
	p.Info += fmt.Sprintf(" from QP %#x", req.qpn)
	private := m[reqPrivate : madSize-madHeader]
	if service&^0xffff == serviceTCP {
		p.Info += fmt.Sprintf(" to port %d", service&0xffff)
		private = private[ipHeader:]
	}
	var about string
	req.upper, about = fromPrivateData(private)
	if about != "" {
		p.Info += ": " + about
	}
	if len(d.requests) >= maxConnections {
		clear(d.requests)
	}
	d.requests[from] = req
}

// fromPrivateData recognises a protocol by the private data of its REQ.
func fromPrivateData(b []byte) (u upper, about string) {
	if hello, err := wire.DecodeHello(b); err == nil {
		return block{}, fmt.Sprintf("krping, volume %s, queue %d of %d, depth %d", hello.Volume, hello.QueueIndex, hello.QueueCount, hello.Depth)
	}
	if hello, found, err := wire.DecodeTestHello(b); found && err == nil {
		if hello.Test == wire.TestPing {
			return &ping{}, fmt.Sprintf("krping-ping, %d bytes", hello.Size)
		}
		return verbs{}, fmt.Sprintf("krping test %d, %d bytes", hello.Test, hello.Size)
	}
	// NVM Express RDMA Transport Specification: format 0, queue ID, sizes of the host's queues, then
	// reserved bytes; little-endian.
	size := binary.LittleEndian.Uint16(b[6:])
	if binary.LittleEndian.Uint16(b) == 0 && binary.LittleEndian.Uint16(b[4:]) > 0 && size > 0 && zero(b[8:32]) {
		queue := nvmeQueue{int(binary.LittleEndian.Uint16(b[2:])), true}
		return &nvme{queue}, fmt.Sprintf("nvme-rdma, queue %d, %d commands", queue.number, size)
	}
	return nil, ""
}

func zero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// accept reads a REP, which completes the connection.
func (d *Dissector) accept(p *Packet, asked requestKey, m []byte) {
	qpn, psn := binary.BigEndian.Uint32(m[12:])>>8, binary.BigEndian.Uint32(m[20:])>>8
	p.Info += fmt.Sprintf(" from QP %#x", qpn)
	if welcome, err := wire.DecodeWelcome(m[repPrivate:]); err == nil {
		p.Info += fmt.Sprintf(": krping, %d bytes in blocks of %d, inline up to %d, depth %d", welcome.Capacity, welcome.BlockSize, welcome.MaxInline, welcome.Depth)
	}
	req := d.requests[asked]
	if req == nil {
		return // the REQ was not captured, or this REP is a retransmission
	}
	delete(d.requests, asked)
	c := &conn{
		ends: [2]endpoint{{p.Dst, req.qpn}, {p.Src, qpn}}, both: true, upper: req.upper, mtu: req.mtu,
		// REQ and REP each tell the first PSN of what the other end sends.
		flows: [2]flow{{next: psn, synced: true}, {next: req.psn, synced: true}},
	}
	for i, end := range c.ends {
		d.forget(end)
		d.register(end, connEnd{c, i})
	}
}
