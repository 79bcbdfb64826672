// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"net/netip"
	"slices"

	"krping/agent/packets/roce"
)

// Bounds on what a connection may hold: a capture has no end, memory has.
const (
	mostConnections = 1 << 14
	mostHalves      = 256
	mostOps         = 2048
	mostOpen        = 4096
	mostClosing     = 256
	mostMessage     = 1 << 20 // bytes
	mostParts       = 1 << 12 // packets of a message
)

// endpoint is a queue pair of a host.
type endpoint struct {
	addr netip.Addr
	qpn  uint32
}

// reference is one of the two ends of a connection.
type reference struct {
	conn *conn
	end  int
}

// conn is a connection of two queue pairs. A packet names its destination's only; the other end of
// a connection whose set-up was not captured is found when it acknowledges something.
type conn struct {
	ends  [2]endpoint
	both  bool    // ends[0]'s QP is known, too
	host  int     // the end that asks; the other one answers
	upper upper   // nil as long as the protocol is not known
	tries int     // messages that it was not recognised by
	mtu   int     // bytes; 0 if not known
	flows [2]flow // the requests of each end
	open  []*IO   // in flight
	// have their response, which was not acknowledged yet
	closing []*IO
}

// connectionOf returns the packet's connection, and which end has sent it.
func (d *Dissector) connectionOf(p *roce.Packet) (c *conn, from int) {
	to := endpoint{p.Dst, p.BTH.DestQP}
	ref, found := d.ends[to]
	if found && ref.conn.ends[1-ref.end].addr != p.Src { // its number is used anew
		d.forget(to)
		found = false
	}
	if !found {
		half := &conn{ends: [2]endpoint{{addr: p.Src}, to}}
		ref = reference{half, 1}
		d.register(to, ref)
		d.halves = append(d.halves, half)
		if len(d.halves) > mostHalves {
			d.halves = d.halves[1:]
		}
	}
	if !ref.conn.both && p.BTH.Opcode.IsResponse() {
		ref = d.pair(ref, p)
	}
	return ref.conn, 1 - ref.end
}

func (d *Dissector) register(at endpoint, ref reference) {
	if len(d.ends) >= mostConnections {
		d.Close()
	}
	d.ends[at] = ref
}

// pair finds the connection whose request a response answers: the response's destination is that
// one's other end.
func (d *Dissector) pair(answer reference, p *roce.Packet) reference {
	match := -1
	for i, c := range d.halves {
		if c == answer.conn || c.ends[1].addr != p.Src || c.ends[0].addr != p.Dst {
			continue
		}
		if o := c.flows[0].find(p.BTH.PSN); o == nil || after(c.flows[0].next, p.BTH.PSN) <= 0 && c.flows[0].synced {
			continue
		}
		if match >= 0 {
			return answer // two might be meant
		}
		match = i
	}
	if match < 0 {
		return answer
	}
	c := d.halves[match]
	c.both = true
	c.ends[0] = answer.conn.ends[1]
	c.flows[1] = answer.conn.flows[0]
	for _, io := range answer.conn.open { // what the other end began, seen as its own operations
		io.answerEnd, io.tag = 1, verbsTag(1, io.answer)
		c.open = append(c.open, io)
	}
	c.closing = append(c.closing, answer.conn.closing...)
	answer.conn.open, answer.conn.closing = nil, nil
	d.halves = slices.DeleteFunc(d.halves, func(h *conn) bool { return h == c || h == answer.conn })
	d.ends[c.ends[0]] = reference{c, 0}
	return reference{c, 0}
}

// forget ends the I/Os of a connection whose queue pair's number is used anew.
func (d *Dissector) forget(end endpoint) {
	ref, found := d.ends[end]
	if !found {
		return
	}
	for _, io := range append(ref.conn.closing, ref.conn.open...) {
		d.options.OnIO(io)
	}
	ref.conn.closing, ref.conn.open = nil, nil
	delete(d.ends, end)
}
