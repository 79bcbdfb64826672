// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"slices"

	"krping/agent/packets/roce"
)

// flow is the requests that one end has sent.
type flow struct {
	next    uint32 // PSN of the next request
	synced  bool   // next is known
	ops     []*op  // the most recent ones, oldest first
	sending *op    // its last packet has not been seen
}

// op is one operation: a SEND, an RDMA WRITE or READ, or an atomic.
type op struct {
	first    uint32 // PSN
	opcode   roce.Opcode
	bytes    int
	whole    bool      // no packet is missing
	message  []byte    // of a SEND, as far as it was captured without a gap
	length   int       // of the message on the wire, in bytes
	cut      bool      // message is not all of it
	blind    bool      // the header with the address and the key was not captured
	key      uint32    // that a SEND invalidates
	packets  []*Packet // of a SEND that has not ended
	parts    []part
	response uint32 // PSN of the next packet of the response to an RDMA READ
}

// Packet sequence numbers wrap around at 24 bits.
const (
	psnBits = 24
	psnMask = 1<<psnBits - 1
)

// after returns the distance from PSN b to a: negative if a is before b.
func after(a, b uint32) int {
	return int(int32(a-b) << (32 - psnBits) >> (32 - psnBits))
}

// find returns the operation that a PSN belongs to.
func (f *flow) find(psn uint32) *op {
	for _, o := range slices.Backward(f.ops) {
		if after(psn, o.first) >= 0 {
			return o
		}
	}
	return nil
}

func (f *flow) add(o *op) {
	if len(f.ops) >= maxOps {
		f.ops = slices.Delete(f.ops, 0, maxOps/2)
	}
	f.ops = append(f.ops, o)
}

func (d *Dissector) addConnected(p *Packet) {
	c, from := d.connectionOf(p.RoCE)
	if p.RoCE.BTH.Opcode.IsResponse() {
		d.addResponse(c, from, p)
	} else {
		d.addRequest(c, from, p)
	}
	p.Protocol = c.protocol().name()
}

// advance checks the PSN of a request against the expected one. It returns false for a retransmission.
func (f *flow) advance(c *conn, p *Packet) bool {
	b := p.RoCE.BTH
	if f.synced {
		switch gap := after(b.PSN, f.next); {
		case gap > 0:
			c.noteLost(p, gap)
			if f.sending != nil {
				f.sending.whole = false
			}
		case gap < 0:
			p.Retransmitted = true
			return false
		}
	}
	f.next, f.synced = (b.PSN+1)&psnMask, true
	if b.Opcode == roce.ReadRequest {
		f.synced = c.mtu > 0 // each packet of the response takes a PSN
		if f.synced = f.synced && p.RoCE.RETH != nil; f.synced {
			packets := max(1, (uint64(p.RoCE.RETH.Length)+uint64(c.mtu)-1)/uint64(c.mtu))
			f.next = (b.PSN + uint32(packets)) & psnMask
		}
	}
	return true
}

func (d *Dissector) addRequest(c *conn, from int, p *Packet) {
	f, r := &c.flows[from], p.RoCE
	opcode := r.BTH.Opcode
	if !f.advance(c, p) {
		if o := f.find(r.BTH.PSN); o != nil {
			addStep(p, from == c.host, withoutNotes(o.parts))
		}
		return
	}
	o := f.sending
	if opcode.Begins() {
		if o != nil { // its end is missing
			o.whole, o.message, o.packets = false, nil, nil
		}
		o = &op{first: r.BTH.PSN, response: r.BTH.PSN, opcode: opcode, whole: true}
		f.add(o)
		f.sending = nil
		if !opcode.Ends() {
			f.sending = o
		}
	}
	if o == nil || o.opcode.IsSend() != opcode.IsSend() { // its first packet is missing
		return
	}
	if opcode.Ends() {
		f.sending = nil
	} else {
		c.mtu = max(c.mtu, r.Length)
	}
	if opcode.IsSend() {
		d.addSend(c, from, p, o)
	} else {
		if opcode.Begins() {
			o.parts = d.access(c, from, p, o)
		}
		addStep(p, from == c.host, o.parts)
		o.parts = withoutNotes(o.parts)
	}
	if opcode.Service() == roce.UC && opcode.Ends() { // UC has no acknowledgements
		c.protocol().answered(c, from, o, opcode)
		c.acknowledged(d, from, o.first)
	}
}

// addSend adds a packet to a SEND, and reads the message when it is complete.
func (d *Dissector) addSend(c *conn, from int, p *Packet, o *op) {
	r := p.RoCE
	if o.length+r.Length > maxMessage || len(o.packets) >= maxMessagePackets { // too long for any protocol
		o.whole = false
	}
	if r.IETH != nil {
		o.key = r.IETH.RKey
	}
	if !o.whole {
		o.message, o.packets = nil, nil
	} else {
		p.at = o.length
		o.length += r.Length
		if !o.cut {
			o.message = append(o.message, r.Payload...)
			o.cut = len(r.Payload) < r.Length
		}
		o.packets = append(o.packets, p)
	}
	if !r.BTH.Opcode.Ends() {
		return
	}
	if o.whole {
		if c.upper == nil {
			c.recognise(from, o, d.options.Assume)
		}
		o.parts = c.protocol().message(d, c, from == c.host, o)
	}
	p.Info = joinNotes(o.parts)
	others := withoutNotes(o.parts)
	if n := len(o.packets) - 1; n > 0 && n*len(others) <= maxSteps { // else each would be a step of each I/O
		for _, earlier := range o.packets[:n] {
			addStep(earlier, from == c.host, others)
		}
	}
	addStep(p, from == c.host, o.parts)
	for _, part := range o.parts {
		if part.ends && part.io != nil {
			c.finish(part.io, from, r.BTH.PSN)
		}
	}
	o.parts, o.packets, o.message = others, nil, nil
	d.expire(c)
}

// access finds the I/O whose memory an RDMA READ, WRITE or atomic operation accesses.
func (d *Dissector) access(c *conn, from int, p *Packet, o *op) []part {
	r := p.RoCE
	var addr uint64
	var key uint32
	switch {
	case r.RETH != nil:
		addr, key, o.bytes = r.RETH.Addr, r.RETH.RKey, int(r.RETH.Length)
		p.Info = memory(r.RETH.Length, addr, key)
	case r.AtomicETH != nil:
		addr, key, o.bytes = r.AtomicETH.Addr, r.AtomicETH.RKey, 8
		p.Info = memory(8, addr, key)
	default:
		o.blind = true
		if r.BTH.Opcode.IsAtomic() {
			o.bytes = 8
		}
	}
	io := c.protocol().access(d, c, from == c.host, o, addr, key)
	if io == nil {
		return nil
	}
	return []part{{io: io, note: p.Info}}
}

// withoutNotes returns the parts without their notes.
func withoutNotes(parts []part) []part {
	quiet := make([]part, len(parts))
	for i, p := range parts {
		quiet[i] = part{io: p.io, from: p.from, to: p.to}
	}
	return quiet
}

func (d *Dissector) addResponse(c *conn, from int, p *Packet) {
	f, r := &c.flows[1-from], p.RoCE
	opcode := r.BTH.Opcode
	if opcode == roce.Acknowledge && r.AETH != nil {
		p.What = r.AETH.Syndrome.String()
	}
	o := f.find(r.BTH.PSN)
	if o == nil {
		return
	}
	if opcode.IsReadResponse() && o.opcode == roce.ReadRequest {
		switch gap := after(r.BTH.PSN, o.response); {
		case gap > 0:
			c.noteLost(p, gap)
		case gap < 0:
			p.Retransmitted = true
		}
		if !p.Retransmitted {
			o.response = (r.BTH.PSN + 1) & psnMask
		}
		if !opcode.Ends() {
			c.mtu = max(c.mtu, r.Length)
		}
	}
	addStep(p, from == c.host, withoutNotes(o.parts))
	if r.AETH != nil && !r.AETH.Syndrome.IsACK() || opcode == roce.Acknowledge && r.AETH == nil {
		return
	}
	c.protocol().answered(c, 1-from, o, opcode)
	c.acknowledged(d, 1-from, r.BTH.PSN)
}
