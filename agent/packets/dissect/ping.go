// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"krping/agent/packets/roce"
	"krping/bridge/wire"
)

// ping is krping's ping/pong (kmod/PROTOCOL.md, section 1). One ping lasts from the client's source
// advertisement to the server's second "go ahead".
type ping struct {
	io       *IO
	goAheads int
}

// isPingMessage reports whether a SEND advertises memory, as the first one of a ping does.
func isPingMessage(message []byte) bool {
	m, err := wire.DecodePingMessage(message)
	return err == nil && m.Addr > 0xffff && m.Rkey != 0 && m.Length > 0 && m.Length <= 1<<30
}

func (*ping) name() Protocol { return Ping }

func (g *ping) message(d *Dissector, c *conn, fromHost bool, o *op) []part {
	m, err := wire.DecodePingMessage(o.message)
	switch {
	case err != nil:
		return []part{{note: err.Error()}}
	case fromHost && g.io == nil:
		g.io = d.begin(c, &IO{Name: "ping", Bytes: int(m.Length), addr: m.Addr, rkey: m.Rkey})
		g.goAheads = 0
		return []part{{io: g.io, note: "source: " + memory(m.Length, m.Addr, m.Rkey)}}
	case fromHost:
		return []part{{io: g.io, note: "sink: " + memory(m.Length, m.Addr, m.Rkey)}}
	case m.Rkey != 0: // a server that advertises memory runs one of krping's tests
		c.upper = verbs{}
		return []part{{note: "sink: " + memory(m.Length, m.Addr, m.Rkey)}}
	}
	said := part{io: g.io, note: "go ahead"}
	if g.goAheads++; g.goAheads == 2 && g.io != nil {
		g.io.Status = "done"
		said.ends = true
		g.io = nil
	}
	return []part{said}
}

func (g *ping) access(*Dissector, *conn, bool, *op, uint64, uint32) *IO { return g.io }

func (*ping) answered(*conn, int, *op, roce.Opcode) {}
