// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// PDUs of NVMe/TCP (NVM Express TCP Transport Specification). Each begins with 8 bytes: type, flags,
// header length, data offset, PDU length (4 bytes, little-endian).
const (
	pduCommand  = 0x04
	pduResponse = 0x05
	pduH2CData  = 0x06
	pduC2HData  = 0x07
	pduR2T      = 0x09

	pduCommon = 8
	pduHeader = pduCommon + sqeSize // maximum that is read of a PDU
	flagEnd   = 0x08                // C2HData: success, no CapsuleResp follows
)

var pduNames = map[uint8]string{
	0x00: "ICReq", 0x01: "ICResp", 0x02: "H2CTermReq", 0x03: "C2HTermReq", pduCommand: "CapsuleCmd", pduResponse: "CapsuleResp",
	pduH2CData: "H2CData", pduC2HData: "C2HData", pduR2T: "R2T",
}

// streamKey identifies a TCP connection.
type streamKey struct{ host, target netip.AddrPort }

// stream is an NVMe/TCP connection.
type stream struct {
	key   streamKey
	queue nvmeQueue
	sides [2]side // what the host sends, what the target sends
	open  []*IO
}

// side is the PDUs that one end sends.
type side struct {
	next   uint32 // sequence number
	synced bool   // next is known, and where PDUs begin
	header []byte // of the current PDU, as far as it was seen
	rest   int    // bytes of the current PDU that follow header
	io     *IO    // that these bytes are data of
	ends   bool   // they complete that I/O
}

// addTCP reads a segment from or to one of the ports. It returns false for any other frame.
func (d *Dissector) addTCP(p *Packet, frame gopacket.Packet) bool {
	tcp, _ := frame.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if tcp == nil {
		return false
	}
	toTarget := slices.Contains(d.options.TCPPorts, uint16(tcp.DstPort))
	if !toTarget && !slices.Contains(d.options.TCPPorts, uint16(tcp.SrcPort)) {
		return false
	}
	p.Src, p.Dst = addresses(frame)
	p.SrcPort, p.DstPort = uint16(tcp.SrcPort), uint16(tcp.DstPort)
	p.Protocol, p.Bytes = NVMeTCP, len(tcp.Payload)
	from, to := netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)
	key, end := streamKey{from, to}, 0
	if !toTarget {
		key, end = streamKey{to, from}, 1
	}
	s := d.streams[key]
	if s == nil || tcp.SYN && !tcp.ACK {
		if len(d.streams) >= maxConnections {
			d.Close()
		}
		s = &stream{key: key}
		d.streams[key] = s
	}
	if tcp.SYN {
		s.sides[end] = side{next: tcp.Seq + 1, synced: true}
	}
	p.What = flags(tcp)
	if len(tcp.Payload) > 0 {
		d.segment(s, end, p, tcp)
	}
	return true
}

func flags(tcp *layers.TCP) string {
	var set []string
	for _, f := range []struct {
		name string
		set  bool
	}{{"SYN", tcp.SYN}, {"FIN", tcp.FIN}, {"RST", tcp.RST}, {"ACK", tcp.ACK}} {
		if f.set {
			set = append(set, f.name)
		}
	}
	return "TCP " + strings.Join(set, " ")
}

// segment reads the data of a segment that has not been seen before.
func (d *Dissector) segment(s *stream, end int, p *Packet, tcp *layers.TCP) {
	side, data := &s.sides[end], tcp.Payload
	switch gap := int32(tcp.Seq - side.next); {
	case !side.synced: // the beginning was not captured: try whether a PDU begins here
		*side = side.from(tcp.Seq)
	case gap < 0:
		p.Retransmitted = true
		if int(-gap) >= len(data) {
			return
		}
		data = data[-gap:]
	case gap > 0:
		p.Lost = 1
		for _, io := range s.open {
			io.Lost++
		}
		*side = side.from(tcp.Seq)
	}
	side.next = tcp.Seq + uint32(len(tcp.Payload))
	parts, names := d.pdus(s, end, data)
	if !side.synced || len(names) == 0 { // unknown data, or a part of a PDU's header
		p.What = "TCP data"
		return
	}
	p.What = strings.Join(names, ", ")
	p.Info = joinNotes(parts)
	addStep(p, end == 0, parts)
	for _, part := range parts {
		if part.ends && part.io != nil {
			s.open = slices.DeleteFunc(s.open, func(io *IO) bool { return io == part.io })
			d.options.OnIO(part.io)
		}
	}
}

func (side) from(seq uint32) side { return side{next: seq, synced: true} }

// pdus reads data of a stream. It returns what the PDUs say about I/Os, and the PDUs' names, each once.
// At data that cannot be a PDU it stops and clears synced.
func (d *Dissector) pdus(s *stream, end int, data []byte) (parts []part, names []string) {
	side := &s.sides[end]
	if side.rest > 0 {
		names = append(names, "data") // of a PDU that began in an earlier segment
	}
	for len(data) > 0 {
		if side.rest > 0 {
			n := min(side.rest, len(data))
			data = data[n:]
			side.rest -= n
			parts = side.carry(parts, n)
			continue
		}
		n := min(side.missing(), len(data))
		side.header = append(side.header, data[:n]...)
		data = data[n:]
		if len(side.header) == pduCommon && !plausible(side.header) {
			side.synced, side.header = false, nil
			return parts, names
		}
		if side.missing() > 0 {
			continue
		}
		if name := pduNames[side.header[0]]; !slices.Contains(names, name) {
			names = append(names, name)
		}
		said := d.pdu(s, end, side.header)
		side.rest, side.io = pduLength(side.header)-len(side.header), said.io
		side.header = nil
		side.ends = said.ends && side.rest > 0
		said.ends = said.ends && !side.ends
		if said.note != "" || said.io != nil {
			parts = join(parts, said)
		}
	}
	return parts, names
}

// carry adds bytes of data to the part of the side's I/O.
func (s *side) carry(parts []part, bytes int) []part {
	if s.io == nil {
		return parts
	}
	return join(parts, part{io: s.io, data: bytes, ends: s.ends && s.rest == 0})
}

// join merges a part with the one of the same I/O in the same packet.
func join(parts []part, more part) []part {
	i := slices.IndexFunc(parts, func(p part) bool { return p.io == more.io && p.io != nil })
	if i < 0 {
		return append(parts, more)
	}
	p := &parts[i]
	p.note = strings.TrimPrefix(p.note+"; "+more.note, "; ")
	p.note = strings.TrimSuffix(p.note, "; ")
	p.data += more.data
	p.ends = p.ends || more.ends
	return parts
}

// missing returns the number of bytes until the header is complete.
func (s *side) missing() int {
	if len(s.header) < pduCommon {
		return pduCommon - len(s.header)
	}
	return min(pduHeader, int(s.header[2])) - len(s.header)
}

func pduLength(header []byte) int { return int(binary.LittleEndian.Uint32(header[4:])) }

// plausible reports whether a PDU may begin with these 8 bytes.
func plausible(header []byte) bool {
	return pduNames[header[0]] != "" && header[2] >= pduCommon && pduLength(header) >= int(header[2])
}

// pdu reads a complete PDU header.
func (d *Dissector) pdu(s *stream, end int, h []byte) part {
	kind, flags, body := h[0], h[1], h[pduCommon:]
	if len(body) < cqeSize {
		return part{}
	}
	switch kind {
	case pduCommand:
		c, err := readCommand(body, &s.queue)
		if err != nil {
			return part{note: err.Error()}
		}
		d.ios++
		io := c.io()
		io.ID, io.Protocol, io.Host, io.Target = d.ios, NVMeTCP, s.key.host.Addr(), s.key.target.Addr()
		if len(s.open) >= maxOpen {
			d.options.OnIO(s.open[0])
			s.open = s.open[1:]
		}
		s.open = append(s.open, io)
		return part{io: io, note: c.text()}
	case pduResponse:
		c, err := readCompletion(body)
		if err != nil {
			return part{note: err.Error()}
		}
		return s.answer(c.cid, c.status, c.text())
	case pduR2T, pduH2CData, pduC2HData:
		cid := binary.LittleEndian.Uint16(body)
		note := fmt.Sprintf("cid %d, %d bytes at %d", cid, binary.LittleEndian.Uint32(body[8:]), binary.LittleEndian.Uint32(body[4:]))
		if kind == pduC2HData && flags&flagEnd != 0 {
			return s.answer(cid, "success", note+": success")
		}
		return part{io: s.byTag(cid), note: note}
	}
	return part{}
}

func (s *stream) answer(cid uint16, status, note string) part {
	io := s.byTag(cid)
	if io != nil {
		io.Status, io.Done = status, true
	}
	return part{io: io, note: note, ends: true}
}

func (s *stream) byTag(cid uint16) *IO {
	for _, io := range s.open {
		if io.tag == uint32(cid) {
			return io
		}
	}
	return nil
}
