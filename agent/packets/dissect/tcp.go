// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"krping/agent/packets/unwrap"
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
	lead   int    // how many of these still belong to the PDU's header
	io     *IO    // that these bytes are data of
	ends   bool   // they complete that I/O
	data   bool   // the current PDU, or the one that has just ended, is C2HData
}

// segment is a TCP segment.
type segment struct {
	src, dst uint16
	seq      uint32
	flags    uint8
	data     []byte // as far as it was captured
	length   int    // of the data on the wire, in bytes
}

// Flags of a segment.
const (
	flagFIN = 0x01
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// newSegment reads a TCP header. ok is false if it is not valid, or too little of it was captured.
func newSegment(n *unwrap.Packet) (s segment, ok bool) {
	b := n.Payload
	if n.Protocol != unwrap.TCP || len(b) < 14 {
		return s, false
	}
	header := int(b[12]>>4) * 4
	if header < 20 || header > n.Length {
		return s, false
	}
	return segment{
		src: binary.BigEndian.Uint16(b), dst: binary.BigEndian.Uint16(b[2:]), seq: binary.BigEndian.Uint32(b[4:]), flags: b[13],
		data: b[min(header, len(b)):], length: n.Length - header,
	}, true
}

// what returns the names of the flags.
func (s segment) what() string {
	text := "TCP"
	for _, f := range []struct {
		name string
		bit  uint8
	}{{"SYN", flagSYN}, {"FIN", flagFIN}, {"RST", flagRST}, {"ACK", flagACK}} {
		if s.flags&f.bit != 0 {
			text += " " + f.name
		}
	}
	return text
}

// addTCP reads a segment from or to one of the ports. It returns false for any other packet.
func (d *Dissector) addTCP(p *Packet, n *unwrap.Packet) bool {
	tcp, ok := newSegment(n)
	if !ok {
		return false
	}
	toTarget := slices.Contains(d.options.TCPPorts, tcp.dst)
	if !toTarget && !slices.Contains(d.options.TCPPorts, tcp.src) {
		return false
	}
	p.SrcPort, p.DstPort = tcp.src, tcp.dst
	p.Protocol, p.Bytes, p.Cut = NVMeTCP, tcp.length, len(tcp.data) < tcp.length
	from, to := netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort)
	key, end := streamKey{from, to}, 0
	if !toTarget {
		key, end = streamKey{to, from}, 1
	}
	s := d.streams[key]
	if s == nil || tcp.flags&(flagSYN|flagACK) == flagSYN {
		if len(d.streams) >= maxConnections {
			d.Close()
		}
		s = &stream{key: key}
		d.streams[key] = s
	}
	if tcp.flags&flagSYN != 0 {
		s.sides[end] = side{next: tcp.seq + 1, synced: true}
	}
	p.What = tcp.what()
	if tcp.length > 0 {
		d.segment(s, end, p, tcp)
	}
	return true
}

// segment reads the data of a segment that has not been seen before.
func (d *Dissector) segment(s *stream, end int, p *Packet, tcp segment) {
	side, data, length := &s.sides[end], tcp.data, tcp.length
	switch gap := int32(tcp.seq - side.next); {
	case !side.synced: // the beginning was not captured: try whether a PDU begins here
		*side = side.from(tcp.seq)
	case gap < 0:
		p.Retransmitted = true
		if int(-gap) >= length {
			return
		}
		data, length = data[min(int(-gap), len(data)):], length+int(gap)
	case gap > 0:
		p.Lost = 1
		for _, io := range s.open {
			io.Lost++
		}
		*side = side.from(tcp.seq)
	}
	side.next = tcp.seq + uint32(tcp.length)
	parts, names := d.pdus(s, end, data)
	if missing := length - len(data); missing > 0 && side.synced {
		parts, names = d.skip(s, end, missing, parts, names)
	}
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

// skip passes over bytes of a stream that were not captured. A PDU whose header began before them is
// read as far as it is there. If PDUs begin in them, their number is not known, nor where the next one
// begins: the next segment may begin with one.
func (d *Dissector) skip(s *stream, end, missing int, parts []part, names []string) ([]part, []string) {
	side := &s.sides[end]
	if len(side.header) >= pduCommon {
		parts, names = d.begun(s, end, parts, names)
	}
	n := min(side.rest, missing)
	side.rest -= n
	parts = side.carry(parts, n)
	if missing -= n; missing == pduCommon+cqeSize && side.data && side.io != nil && len(side.header) == 0 {
		// What follows the data of a Read, and has the size of a response, is the Read's response.
		names = append(names, pduNames[pduResponse])
		return join(parts, s.answer(uint16(side.io.tag), "status not captured", "")), names
	}
	if len(side.header) > 0 || missing > 0 {
		*side = side.from(side.next)
		s.unsure()
	}
	return parts, names
}

// unsure notes that PDUs of the I/Os in flight may not have been captured.
func (s *stream) unsure() {
	for _, io := range s.open {
		io.Cut = true
	}
}

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
		parts, names = d.begun(s, end, parts, names)
	}
	return parts, names
}

// begun reads the header of a PDU that has begun, as far as it was captured.
func (d *Dissector) begun(s *stream, end int, parts []part, names []string) ([]part, []string) {
	side := &s.sides[end]
	if name := pduNames[side.header[0]]; !slices.Contains(names, name) {
		names = append(names, name)
	}
	said := d.pdu(s, end, side.header)
	side.rest, side.io = pduLength(side.header)-len(side.header), said.io
	side.lead = max(0, int(side.header[2])-len(side.header))
	side.data = side.header[0] == pduC2HData
	side.header = nil
	side.ends = said.ends && side.rest > 0
	said.ends = said.ends && !side.ends
	if said.note != "" || said.io != nil {
		parts = join(parts, said)
	}
	return parts, names
}

// carry adds bytes of data to the part of the side's I/O.
func (s *side) carry(parts []part, bytes int) []part {
	lead := min(s.lead, bytes)
	s.lead -= lead
	bytes -= lead
	if s.io == nil || bytes+lead == 0 {
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

// pduHeaders are the sizes of the headers, which the specification fixes, by type.
var pduHeaders = map[uint8]uint8{
	0x00: 128, 0x01: 128, 0x02: 24, 0x03: 24, pduCommand: pduCommon + sqeSize, pduResponse: pduCommon + cqeSize,
	pduH2CData: 24, pduC2HData: 24, pduR2T: 24,
}

// plausible reports whether a PDU may begin with these 8 bytes.
func plausible(header []byte) bool {
	size, known := pduHeaders[header[0]]
	return known && header[2] == size && pduLength(header) >= int(size)
}

// pdu reads the header of a PDU, of which at least the first pduCommon bytes were captured.
func (d *Dissector) pdu(s *stream, end int, h []byte) part {
	kind, flags, body := h[0], h[1], h[pduCommon:]
	switch kind {
	case pduCommand:
		c, err := readCommand(body, pduLength(h)-pduCommon, &s.queue)
		if err != nil {
			return part{note: err.Error()}
		}
		if old := s.byTag(c.cid); old != nil { // its response was missed
			s.giveUp(d, old)
		}
		if len(s.open) >= maxOpen {
			s.giveUp(d, s.open[0])
		}
		d.ios++
		io := c.io()
		io.ID, io.Protocol, io.Host, io.Target = d.ios, NVMeTCP, s.key.host.Addr(), s.key.target.Addr()
		s.open = append(s.open, io)
		return part{io: io, note: c.text()}
	case pduResponse:
		c, err := readCompletion(body)
		if err != nil {
			s.unsure()
			return part{note: err.Error()}
		}
		return s.answer(c.cid, c.status, c.text())
	case pduR2T, pduH2CData, pduC2HData:
		if len(body) < 12 {
			s.unsure()
			return part{note: fmt.Sprintf("header of %d bytes is too short", len(body))}
		}
		cid := binary.LittleEndian.Uint16(body)
		note := fmt.Sprintf("cid %d, %d bytes at %d", cid, binary.LittleEndian.Uint32(body[8:]), binary.LittleEndian.Uint32(body[4:]))
		if kind == pduC2HData && flags&flagEnd != 0 {
			return s.answer(cid, "success", note+": success")
		}
		return part{io: s.byTag(cid), note: note}
	}
	return part{}
}

func (s *stream) giveUp(d *Dissector, io *IO) {
	s.open = slices.DeleteFunc(s.open, func(i *IO) bool { return i == io })
	d.options.OnIO(io)
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
