// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"encoding/binary"
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
func isBlockMessage(o *op) bool {
	if o.cut {
		requests, err := cutRequests(o.message, o.length)
		return err == nil && len(requests) > 0
	}
	_, err := wire.DecodeRequests(o.message, anyLimits)
	return err == nil
}

func (block) name() Protocol { return Block }

func (block) message(d *Dissector, c *conn, fromHost bool, o *op) []part {
	if fromHost {
		return commands(d, c, o)
	}
	answers, err := wire.DecodeAnswers(o.message)
	if o.cut {
		answers, err = cutAnswers(o.message, o.length)
	}
	if err != nil {
		return []part{{note: err.Error()}}
	}
	var parts []part
	at := 0 // offset in the message
	for _, a := range answers {
		at += wire.ResponseSize
		text, inline := statusText(a.Status), 0
		note := fmt.Sprintf("%s, tag %d", text, a.Tag)
		if a.Flags&wire.ResponseInline != 0 {
			inline = int(a.Length)
			note += fmt.Sprintf(", %d bytes inline", inline)
		}
		if o.key != 0 {
			note += fmt.Sprintf(", invalidates key %#x", o.key)
		}
		io := c.byTag(uint32(a.Tag))
		if io != nil {
			io.Status = text
		}
		parts = append(parts, part{io: io, note: note, ends: true, from: at, to: at + inline})
		at += wire.Padded(inline)
	}
	if at < o.length { // responses to any I/O may follow
		for _, io := range c.open {
			io.Cut = true
		}
	}
	return parts
}

// commands reads the host's messages.
func commands(d *Dissector, c *conn, o *op) []part {
	requests, err := wire.DecodeRequests(o.message, anyLimits)
	if o.cut {
		requests, err = cutRequests(o.message, o.length)
	}
	if err != nil {
		return []part{{note: err.Error()}}
	}
	var parts []part
	at := 0 // offset in the message
	for _, r := range requests {
		captured := len(o.message) - at
		at += wire.CommandSize
		inline := r.Flags&wire.FlagInline != 0
		io := &IO{Name: r.Op.String(), Bytes: int(r.Length), Inline: inline, tag: uint32(r.Tag), addr: r.Addr, rkey: r.Rkey, blind: captured < endRkey}
		note := fmt.Sprintf("%s tag %d", r.Op, r.Tag)
		if captured >= endOffset {
			io.Detail = fmt.Sprintf("offset %d", r.Offset)
			note += ", " + io.Detail
		}
		io = d.begin(c, io)
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
		data := inlineData(r.Command)
		parts = append(parts, part{io: io, note: note, from: at, to: at + data})
		at += wire.Padded(data)
	}
	if at < o.length { // the packets are of more I/Os than these
		for _, part := range parts {
			part.io.Cut = true
		}
	}
	return parts
}

// Ends of the fields of a command and of a response, in bytes.
const (
	endLength = 8
	endOffset = 16
	endRkey   = 28
	endStatus = 4
)

// inlineData returns the bytes of data that follow the command.
func inlineData(c wire.Command) int {
	if c.Op == wire.OpWrite && c.Flags&wire.FlagInline != 0 {
		return int(c.Length)
	}
	return 0
}

// cutRequests reads the commands of a message of length bytes, of which only the first ones were captured.
// Commands of which too little was captured, and those after them, are left out.
func cutRequests(message []byte, length int) ([]wire.Request, error) {
	var requests []wire.Request
	for at := 0; at < length && at+endLength <= len(message); {
		b := message[at:]
		c := wire.Command{Op: wire.Op(b[0]), Flags: b[1], Tag: binary.BigEndian.Uint16(b[2:]), Length: binary.BigEndian.Uint32(b[4:])}
		if len(b) >= endOffset {
			c.Offset = binary.BigEndian.Uint64(b[8:])
		}
		if len(b) >= endRkey {
			c.Addr, c.Rkey = binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint32(b[24:])
		}
		at += wire.CommandSize
		known := c.Op >= wire.OpRead && c.Op <= wire.OpKeepAlive && c.Flags < 2*wire.FlagBye && (c.Length%512 == 0)
		if data := inlineData(c); !known || data > length-at {
			return nil, fmt.Errorf("not a command: op %d, flags %#x, %d bytes", c.Op, c.Flags, c.Length)
		} else if at += wire.Padded(data); at > length {
			return nil, fmt.Errorf("commands of %d bytes in a message of %d", at, length)
		}
		requests = append(requests, wire.Request{Command: c})
	}
	return requests, nil
}

// cutAnswers does the same for responses.
func cutAnswers(message []byte, length int) ([]wire.Answer, error) {
	var answers []wire.Answer
	for at := 0; at < length && at+endStatus <= len(message); {
		b := message[at:]
		a := wire.Answer{Response: wire.Response{Tag: binary.BigEndian.Uint16(b), Status: wire.Status(b[2]), Flags: b[3]}}
		inline := a.Flags&wire.ResponseInline != 0
		if inline && len(b) >= endLength {
			a.Length = binary.BigEndian.Uint32(b[4:])
		} else if inline { // the only response: the rest is its data
			a.Length = uint32(max(0, length-at-wire.ResponseSize))
		}
		at += wire.ResponseSize
		if inline {
			if int64(a.Length) > int64(length-at) {
				return nil, fmt.Errorf("response with %d bytes in a message of %d", a.Length, length)
			}
			at += wire.Padded(int(a.Length))
		}
		answers = append(answers, a)
	}
	return answers, nil
}

func statusText(s wire.Status) string {
	names := []string{"OK", "IO", "CRC", "RANGE", "READ_ONLY", "NO_SPACE", "UNSUPPORTED", "INVALID"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("status %d", s)
}

func (block) access(_ *Dissector, c *conn, _ bool, o *op, addr uint64, key uint32) *IO {
	return c.byMemory(o, addr, key)
}

func (block) answered(*conn, int, *op, roce.Opcode) {}
