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

// PDUs of NVMe/TCP (NVM Express TCP Transport Specification). Each begins with 8 bytes: type,
// flags, length of its header, offset of its data, length of it all (4 bytes, little-endian).
const (
	pduCommand  = 0x04
	pduResponse = 0x05
	pduH2CData  = 0x06
	pduC2HData  = 0x07
	pduR2T      = 0x09

	pduCommon = 8
	pduHeader = pduCommon + sqeSize // the most that is read of a PDU
	flagEnd   = 0x08                // of C2HData: the data is the response, too
)

var pduNames = map[uint8]string{
	0x00: "ICReq", 0x01: "ICResp", 0x02: "H2CTermReq", 0x03: "C2HTermReq", pduCommand: "CapsuleCmd", pduResponse: "CapsuleResp",
	pduH2CData: "H2CData", pduC2HData: "C2HData", pduR2T: "R2T",
}

// streamKey is a connection of TCP: the host's end first.
type streamKey struct{ host, target netip.AddrPort }

// stream is a connection of NVMe/TCP.
type stream struct {
	key   streamKey
	queue nvmeQueue
	sides [2]side // of the host, of the target
	open  []*IO
}

// side is what one end sends: PDU after PDU.
type side struct {
	next   uint32 // sequence number
	synced bool
	header []byte // of the PDU that has begun
	rest   int    // bytes of it that are still to come, without those in header
	io     *IO    // whose data they are
	ends   bool   // with them
}

// addTCP reads a segment from or to one of the ports; it returns false if it is none.
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
		if len(d.streams) >= mostConnections {
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

// segment reads a segment's data where it follows what was there before.
func (d *Dissector) segment(s *stream, end int, p *Packet, tcp *layers.TCP) {
	side, data := &s.sides[end], tcp.Payload
	switch gap := int32(tcp.Seq - side.next); {
	case !side.synced: // the beginning was not captured: perhaps a PDU begins here
		*side = side.from(tcp.Seq)
	case gap < 0:
		p.Again = true
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
	if !side.synced || len(names) == 0 { // or a part of a PDU's header
		p.What = "TCP data"
		return
	}
	p.What = strings.Join(names, ", ") // each once: what it says of I/Os is in Info
	p.Info = listed(parts)
	attach(p, end == 0, parts)
	for _, part := range parts {
		if part.ends && part.io != nil {
			s.open = slices.DeleteFunc(s.open, func(io *IO) bool { return io == part.io })
			d.options.OnIO(part.io)
		}
	}
}

func (side) from(seq uint32) side { return side{next: seq, synced: true} }

// pdus reads data of a stream: what it says of I/Os, and the names of the PDUs that it has, each once.
// After what cannot be a PDU the side is not synced.
func (d *Dissector) pdus(s *stream, end int, data []byte) (parts []part, names []string) {
	side := &s.sides[end]
	if side.rest > 0 {
		names = append(names, "data") // of the PDU that began before
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

// carry notes that bytes of the side's I/O went by.
func (s *side) carry(parts []part, bytes int) []part {
	if s.io == nil {
		return parts
	}
	return join(parts, part{io: s.io, data: bytes, ends: s.ends && s.rest == 0})
}

// join adds what is said about an I/O to what was said about it in the same packet.
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

// missing returns how many bytes the header lacks.
func (s *side) missing() int {
	if len(s.header) < pduCommon {
		return pduCommon - len(s.header)
	}
	return min(pduHeader, int(s.header[2])) - len(s.header)
}

func pduLength(header []byte) int { return int(binary.LittleEndian.Uint32(header[4:])) }

// plausible says whether a PDU may begin like this.
func plausible(header []byte) bool {
	return pduNames[header[0]] != "" && header[2] >= pduCommon && pduLength(header) >= int(header[2])
}

// pdu reads the header of a PDU.
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
		if len(s.open) >= mostOpen {
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
		return part{io: s.tagged(cid), note: note}
	}
	return part{}
}

func (s *stream) answer(cid uint16, status, note string) part {
	io := s.tagged(cid)
	if io != nil {
		io.Status, io.Done = status, true
	}
	return part{io: io, note: note, ends: true}
}

func (s *stream) tagged(cid uint16) *IO {
	for _, io := range s.open {
		if io.tag == uint32(cid) {
			return io
		}
	}
	return nil
}
