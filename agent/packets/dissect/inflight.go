// SPDX-License-Identifier: Apache-2.0

package dissect

import "slices"

// begin adds an I/O. An older one with the same tag is given up: its response was missed.
func (d *Dissector) begin(c *conn, io *IO) *IO {
	if old := c.byTag(io.tag); old != nil || len(c.open) >= maxOpen {
		if old == nil {
			old = c.open[0]
		}
		c.open = slices.DeleteFunc(c.open, func(i *IO) bool { return i == old })
		d.options.OnIO(old)
	}
	d.ios++
	io.ID = d.ios
	io.Protocol = c.protocol().name()
	io.Host, io.Target = c.ends[c.host].addr, c.ends[1-c.host].addr
	c.open = append(c.open, io)
	return io
}

func (c *conn) byTag(tag uint32) *IO {
	for _, io := range c.open {
		if io.tag == tag {
			return io
		}
	}
	return nil
}

// byMemory returns the I/O in flight that owns the memory that an operation accesses, or nil.
func (c *conn) byMemory(o *op, addr uint64, key uint32) *IO {
	for _, io := range c.open {
		if io.rkey == key && key != 0 && addr >= io.addr && addr-io.addr <= uint64(io.Bytes) {
			return io
		}
	}
	return c.only(func(io *IO) bool { return !io.Inline && (o.blind || io.blind) })
}

// byKey returns the I/O in flight whose key a response invalidates, or the only one. The response itself
// was not captured; its key may be 0.
func (c *conn) byKey(key uint32) *IO {
	for _, io := range c.open {
		if io.rkey == key && key != 0 {
			return io
		}
	}
	return c.only(func(io *IO) bool { return key == 0 || io.blind })
}

// only returns the one I/O in flight that can be meant, as too little was captured to tell it by what the
// packets say. If there are several, some packets of theirs are not found.
func (c *conn) only(can func(*IO) bool) (one *IO) {
	var all []*IO
	for _, io := range c.open {
		if can(io) {
			all = append(all, io)
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	for _, io := range all {
		io.Cut = true
	}
	return nil
}

// finish records that the I/O's response was sent. The I/O is over when that is acknowledged.
func (c *conn) finish(io *IO, from int, psn uint32) {
	io.Done, io.answer, io.answerEnd = true, psn, from
	c.open = slices.DeleteFunc(c.open, func(i *IO) bool { return i == io })
	c.closing = append(c.closing, io)
}

// acknowledged ends the I/Os whose responses are acknowledged by psn.
func (c *conn) acknowledged(d *Dissector, end int, psn uint32) {
	c.closing = slices.DeleteFunc(c.closing, func(io *IO) bool {
		over := io.answerEnd == end && after(psn, io.answer) >= 0
		if over {
			d.options.OnIO(io)
		}
		return over
	})
}

// expire ends the oldest I/Os whose responses have no acknowledgement in the capture.
func (d *Dissector) expire(c *conn) {
	for len(c.closing) > maxClosing {
		d.options.OnIO(c.closing[0])
		c.closing = c.closing[1:]
	}
}

// noteLost records that n packets are missing before p.
func (c *conn) noteLost(p *Packet, n int) {
	p.Lost = n
	for _, io := range slices.Concat(c.open, c.closing) {
		io.Lost += n
	}
}
