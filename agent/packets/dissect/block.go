// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"fmt"
	"math"

	"krping/agent/packets/roce"
	"krping/bridge/wire"
)

// block is krping's block protocol (kmod/PROTOCOL.md, section 2).
type block struct{}

// anyLimits are the widest possible ones. What the target granted in the set-up may not be captured.
var anyLimits = wire.Limits{BlockSize: 512, MaxData: math.MaxUint32, MaxInline: math.MaxUint32, MaxMessage: math.MaxUint32, Depth: math.MaxUint16}

// isBlockMessage reports whether a SEND is a message of commands.
func isBlockMessage(message []byte) bool {
	_, err := wire.DecodeRequests(message, anyLimits)
	return err == nil
}

func (block) name() Protocol { return Block }

func (block) message(d *Dissector, c *conn, fromHost bool, o *op) []part {
	if fromHost {
		return commands(d, c, o.message)
	}
	answers, err := wire.DecodeAnswers(o.message)
	if err != nil {
		return []part{{note: err.Error()}}
	}
	var parts []part
	at := 0 // offset in the message
	for _, a := range answers {
		at += wire.ResponseSize
		text := statusText(a.Status)
		note := fmt.Sprintf("%s, tag %d", text, a.Tag)
		if len(a.Data) > 0 {
			note += fmt.Sprintf(", %d bytes inline", len(a.Data))
		}
		if o.key != 0 {
			note += fmt.Sprintf(", invalidates key %#x", o.key)
		}
		io := c.byTag(uint32(a.Tag))
		if io != nil {
			io.Status = text
		}
		parts = append(parts, part{io: io, note: note, ends: true, from: at, to: at + len(a.Data)})
		at += wire.Padded(len(a.Data))
	}
	return parts
}

// commands reads the host's messages.
func commands(d *Dissector, c *conn, message []byte) []part {
	requests, err := wire.DecodeRequests(message, anyLimits)
	if err != nil {
		return []part{{note: err.Error()}}
	}
	var parts []part
	at := 0 // offset in the message
	for _, r := range requests {
		at += wire.CommandSize
		inline := r.Flags&wire.FlagInline != 0
		io := d.begin(c, &IO{
			Name: r.Op.String(), Bytes: int(r.Length), Inline: inline, Detail: fmt.Sprintf("offset %d", r.Offset),
			tag: uint32(r.Tag), addr: r.Addr, rkey: r.Rkey,
		})
		note := fmt.Sprintf("%s tag %d, offset %d", r.Op, r.Tag, r.Offset)
		switch {
		case r.Rkey != 0:
			note += ", " + memory(r.Length, r.Addr, r.Rkey)
		case inline && r.Op != wire.OpKeepAlive:
			note += fmt.Sprintf(", %d bytes inline", r.Length)
		case r.Length > 0:
			note += fmt.Sprintf(", %d bytes", r.Length)
		}
		if r.Flags&wire.FlagFUA != 0 {
			note += ", FUA"
		}
		parts = append(parts, part{io: io, note: note, from: at, to: at + len(r.Data)})
		at += wire.Padded(len(r.Data))
	}
	return parts
}

func statusText(s wire.Status) string {
	names := []string{"OK", "IO", "CRC", "RANGE", "READ_ONLY", "NO_SPACE", "UNSUPPORTED", "INVALID"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("status %d", s)
}

func (block) access(_ *Dissector, c *conn, _ bool, _ *op, addr uint64, key uint32) *IO {
	return c.byMemory(addr, key)
}

func (block) answered(*conn, int, *op, roce.Opcode) {}
