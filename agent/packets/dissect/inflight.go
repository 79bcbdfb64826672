// SPDX-License-Identifier: Apache-2.0

package dissect

import "slices"

// begin adds an I/O. One that has its tag already will not be answered any more.
func (d *Dissector) begin(c *conn, io *IO) *IO {
	if old := c.tagged(io.tag); old != nil || len(c.open) >= mostOpen {
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

func (c *conn) tagged(tag uint32) *IO {
	for _, io := range c.open {
		if io.tag == tag {
			return io
		}
	}
	return nil
}

// reaching returns the I/O in flight whose memory this is.
func (c *conn) reaching(addr uint64, key uint32) *IO {
	for _, io := range c.open {
		if io.rkey == key && key != 0 && addr >= io.addr && addr-io.addr <= uint64(io.Bytes) {
			return io
		}
	}
	return nil
}

// finish notes that the I/O's response was sent. The I/O is over when that is acknowledged.
func (c *conn) finish(io *IO, from int, psn uint32) {
	io.Done, io.answer, io.answerEnd = true, psn, from
	c.open = slices.DeleteFunc(c.open, func(i *IO) bool { return i == io })
	c.closing = append(c.closing, io)
}

// acknowledged ends the I/Os whose response is acknowledged.
func (c *conn) acknowledged(d *Dissector, end int, psn uint32) {
	c.closing = slices.DeleteFunc(c.closing, func(io *IO) bool {
		over := io.answerEnd == end && after(psn, io.answer) >= 0
		if over {
			d.options.OnIO(io)
		}
		return over
	})
}

// release ends I/Os whose acknowledgement seems to have been lost.
func (d *Dissector) release(c *conn) {
	for len(c.closing) > mostClosing {
		d.options.OnIO(c.closing[0])
		c.closing = c.closing[1:]
	}
}

// lose notes packets that are missing.
func (c *conn) lose(p *Packet, n int) {
	p.Lost = n
	for _, io := range slices.Concat(c.open, c.closing) {
		io.Lost += n
	}
}
