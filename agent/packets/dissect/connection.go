// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"net/netip"
	"slices"

	"krping/agent/packets/roce"
)

// Limits on the state that is kept, as a live capture may run forever.
const (
	maxConnections    = 1 << 14
	maxHalfKnown      = 256
	maxOps            = 2048
	maxOpen           = 4096
	maxClosing        = 256
	maxMessage        = 1 << 20 // bytes
	maxMessagePackets = 1 << 12
)

// endpoint is a queue pair and the address of its host.
type endpoint struct {
	addr netip.Addr
	qpn  uint32
}

// connEnd is one of the two ends of a connection.
type connEnd struct {
	conn *conn
	end  int
}

// conn is a connection of two queue pairs. A packet has only its destination's QP number. If the
// set-up was not captured, the other end is found when it acknowledges something.
type conn struct {
	ends    [2]endpoint
	both    bool    // the QP of ends[0] is known, too
	host    int     // index of the end that sends commands; the other one is the target
	upper   upper   // nil until the protocol is known
	tries   int     // messages that did not reveal the protocol
	mtu     int     // bytes; 0 if not known
	flows   [2]flow // the requests of each end
	open    []*IO   // in flight
	closing []*IO   // response sent, but not yet acknowledged
}

// connectionOf returns the packet's connection, and the index of the end that sent it.
func (d *Dissector) connectionOf(p *roce.Packet) (c *conn, from int) {
	to := endpoint{p.Dst, p.BTH.DestQP}
	ref, found := d.ends[to]
	if found && ref.conn.ends[1-ref.end].addr != p.Src { // the QP number was reused
		d.forget(to)
		found = false
	}
	if !found {
		half := &conn{ends: [2]endpoint{{addr: p.Src}, to}}
		ref = connEnd{half, 1}
		d.register(to, ref)
		d.halfKnown = append(d.halfKnown, half)
		if len(d.halfKnown) > maxHalfKnown {
			d.halfKnown = d.halfKnown[1:]
		}
	}
	if !ref.conn.both && p.BTH.Opcode.IsResponse() {
		ref = d.pair(ref, p)
	}
	return ref.conn, 1 - ref.end
}

func (d *Dissector) register(at endpoint, ref connEnd) {
	if len(d.ends) >= maxConnections {
		d.Close()
	}
	d.ends[at] = ref
}

// pair joins two half-known connections: the destination of a response is the other end of the
// connection that has the request with its PSN.
func (d *Dissector) pair(answer connEnd, p *roce.Packet) connEnd {
	match := -1
	for i, c := range d.halfKnown {
		if c == answer.conn || c.ends[1].addr != p.Src || c.ends[0].addr != p.Dst {
			continue
		}
		if o := c.flows[0].find(p.BTH.PSN); o == nil || after(c.flows[0].next, p.BTH.PSN) <= 0 && c.flows[0].synced {
			continue
		}
		if match >= 0 {
			return answer // ambiguous
		}
		match = i
	}
	if match < 0 {
		return answer
	}
	c := d.halfKnown[match]
	c.both = true
	c.ends[0] = answer.conn.ends[1]
	c.flows[1] = answer.conn.flows[0]
	for _, io := range answer.conn.open { // operations that the other end requested
		io.answerEnd, io.tag = 1, verbsTag(1, io.answer)
		c.open = append(c.open, io)
	}
	c.closing = append(c.closing, answer.conn.closing...)
	answer.conn.open, answer.conn.closing = nil, nil
	d.halfKnown = slices.DeleteFunc(d.halfKnown, func(h *conn) bool { return h == c || h == answer.conn })
	d.ends[c.ends[0]] = connEnd{c, 0}
	return connEnd{c, 0}
}

// forget ends the I/Os of a connection whose QP number is reused.
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
