// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"slices"

	"krping/agent/packets/roce"
)

// flow is the requests of one end, and what answers them.
type flow struct {
	next    uint32 // PSN of the next request
	synced  bool   // next is known
	ops     []*op  // the last ones, oldest first
	sending *op    // has packets still to come
}

// op is one operation: a SEND, an RDMA WRITE or READ, an atomic.
type op struct {
	first    uint32 // PSN
	opcode   roce.Opcode
	bytes    int
	whole    bool // nothing of it is missing
	message  []byte
	key      uint32    // that a SEND invalidates
	packets  []*Packet // of a SEND that has not ended
	parts    []part
	response uint32 // PSN of the next packet of an RDMA READ's response
}

// Packet sequence numbers have 24 bits and begin anew at 0.
const (
	psnBits = 24
	psnMask = 1<<psnBits - 1
)

// after returns how far PSN a is behind b: negative if it is before it.
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
	if len(f.ops) >= mostOps {
		f.ops = slices.Delete(f.ops, 0, mostOps/2)
	}
	f.ops = append(f.ops, o)
}

func (d *Dissector) addConnected(p *Packet) {
	c, from := d.connectionOf(p.RoCE)
	if p.RoCE.BTH.Opcode.IsResponse() {
		d.respond(c, from, p)
	} else {
		d.request(c, from, p)
	}
	p.Protocol = c.protocol().name()
}

// step checks a request's PSN against those before. It returns false if it was sent before.
func (f *flow) step(c *conn, p *Packet) bool {
	b := p.RoCE.BTH
	if f.synced {
		switch gap := after(b.PSN, f.next); {
		case gap > 0:
			c.lose(p, gap)
			if f.sending != nil {
				f.sending.whole = false
			}
		case gap < 0:
			p.Again = true
			return false
		}
	}
	f.next, f.synced = (b.PSN+1)&psnMask, true
	if b.Opcode == roce.ReadRequest {
		f.synced = c.mtu > 0 // the response takes a PSN a packet
		if f.synced {
			packets := max(1, (uint64(p.RoCE.RETH.Length)+uint64(c.mtu)-1)/uint64(c.mtu))
			f.next = (b.PSN + uint32(packets)) & psnMask
		}
	}
	return true
}

func (d *Dissector) request(c *conn, from int, p *Packet) {
	f, r := &c.flows[from], p.RoCE
	opcode := r.BTH.Opcode
	if !f.step(c, p) {
		if o := f.find(r.BTH.PSN); o != nil {
			attach(p, from == c.host, unsaid(o.parts))
		}
		return
	}
	o := f.sending
	if opcode.Begins() {
		o = &op{first: r.BTH.PSN, response: r.BTH.PSN, opcode: opcode, whole: true}
		f.add(o)
		f.sending = nil
		if !opcode.Ends() {
			f.sending = o
		}
	}
	if o == nil || o.opcode.IsSend() != opcode.IsSend() { // its beginning is missing
		return
	}
	if opcode.Ends() {
		f.sending = nil
	} else {
		c.mtu = max(c.mtu, r.Length)
	}
	if opcode.IsSend() {
		d.send(c, from, p, o)
	} else {
		if opcode.Begins() {
			o.parts = d.access(c, from, p, o)
		}
		attach(p, from == c.host, o.parts)
		o.parts = unsaid(o.parts)
	}
	if opcode.Service() == roce.UC && opcode.Ends() { // nothing acknowledges it
		c.protocol().answered(c, from, o, opcode)
		c.acknowledged(d, from, o.first)
	}
}

// send adds a packet to a SEND, and reads the message when it is whole.
func (d *Dissector) send(c *conn, from int, p *Packet, o *op) {
	r := p.RoCE
	if len(o.message)+len(r.Payload) > mostMessage || len(o.packets) >= mostParts {
		o.whole, o.message, o.packets = false, nil, nil // too long for any message of commands
	}
	if r.ICRC == roce.Unchecked { // a part of it was not captured
		o.whole = false
	}
	p.at = len(o.message)
	o.message = append(o.message, r.Payload...)
	o.packets = append(o.packets, p)
	if r.IETH != nil {
		o.key = r.IETH.RKey
	}
	if !r.BTH.Opcode.Ends() {
		return
	}
	if o.whole {
		if c.upper == nil {
			c.recognise(from, o.message, d.options.Assume)
		}
		o.parts = c.protocol().message(d, c, from == c.host, o)
	}
	p.Info = listed(o.parts)
	others := unsaid(o.parts)
	for _, earlier := range o.packets[:len(o.packets)-1] {
		attach(earlier, from == c.host, others)
	}
	attach(p, from == c.host, o.parts)
	for _, part := range o.parts {
		if part.ends && part.io != nil {
			c.finish(part.io, from, r.BTH.PSN)
		}
	}
	o.parts, o.packets, o.message = others, nil, nil
	d.release(c)
}

// access finds the I/O whose memory an RDMA READ, WRITE or atomic reaches.
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
	}
	io := c.protocol().access(d, c, from == c.host, o, addr, key)
	if io == nil {
		return nil
	}
	return []part{{io: io, note: p.Info}}
}

// unsaid is the same I/Os, with nothing said about them.
func unsaid(parts []part) []part {
	quiet := make([]part, len(parts))
	for i, p := range parts {
		quiet[i] = part{io: p.io, from: p.from, to: p.to}
	}
	return quiet
}

func (d *Dissector) respond(c *conn, from int, p *Packet) {
	f, r := &c.flows[1-from], p.RoCE
	opcode := r.BTH.Opcode
	if opcode == roce.Acknowledge {
		p.What = r.AETH.Syndrome.String()
	}
	o := f.find(r.BTH.PSN)
	if o == nil {
		return
	}
	if opcode.IsReadResponse() && o.opcode == roce.ReadRequest {
		switch gap := after(r.BTH.PSN, o.response); {
		case gap > 0:
			c.lose(p, gap)
		case gap < 0:
			p.Again = true
		}
		if !p.Again {
			o.response = (r.BTH.PSN + 1) & psnMask
		}
		if !opcode.Ends() {
			c.mtu = max(c.mtu, r.Length)
		}
	}
	attach(p, from == c.host, unsaid(o.parts))
	if r.AETH != nil && !r.AETH.Syndrome.IsACK() {
		return
	}
	c.protocol().answered(c, 1-from, o, opcode)
	c.acknowledged(d, 1-from, r.BTH.PSN)
}
