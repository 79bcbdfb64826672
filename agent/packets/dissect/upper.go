// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"fmt"
	"slices"

	"krping/agent/packets/roce"
)

// upper is the upper-layer protocol of an RDMA connection.
type upper interface {
	name() Protocol
	// message reads a SEND of the host or of the target.
	message(d *Dissector, c *conn, fromHost bool, o *op) []part
	// access returns the I/O that an RDMA READ, WRITE or atomic operation belongs to, or nil.
	access(d *Dissector, c *conn, fromHost bool, o *op, addr uint64, key uint32) *IO
	// answered is called for each response to an operation that end has requested.
	answered(c *conn, end int, o *op, opcode roce.Opcode)
}

// maxTries is the number of messages after which an unrecognised protocol counts as verbs.
const maxTries = 8

// recognise sets the protocol by a message, if the set-up was not captured or did not reveal it.
func (c *conn) recognise(from int, o *op, assumed Protocol) {
	switch {
	case assumed != "":
		c.upper = newUpper(assumed)
	case isCapsule(o.message, o.length):
		c.upper = &nvme{}
	case isBlockMessage(o):
		c.upper = block{}
	case isPingMessage(o.message):
		c.upper = &ping{}
	default:
		if c.tries++; c.tries == maxTries {
			c.upper = verbs{}
		}
		return
	}
	c.host = from
}

func newUpper(p Protocol) upper {
	switch p {
	case NVMeRDMA:
		return &nvme{}
	case Block:
		return block{}
	case Ping:
		return &ping{}
	}
	return verbs{}
}

// protocol returns the connection's protocol, or verbs while it is not known.
func (c *conn) protocol() upper {
	if c.upper == nil {
		return verbs{}
	}
	return c.upper
}

// verbs is an unknown application: each operation is an I/O, and the end that requests it is its host.
type verbs struct{}

func (verbs) name() Protocol { return Verbs }

func (verbs) message(d *Dissector, c *conn, fromHost bool, o *op) []part {
	return []part{{io: verbsIO(d, c, fromHost, o, "SEND", o.length), to: o.length}}
}

func (verbs) access(d *Dissector, c *conn, fromHost bool, o *op, _ uint64, _ uint32) *IO {
	name := "RDMA WRITE"
	switch {
	case o.opcode == roce.ReadRequest:
		name = "RDMA READ"
	case o.opcode.IsAtomic():
		name = o.opcode.String()
	}
	return verbsIO(d, c, fromHost, o, name, o.bytes)
}

func (verbs) answered(c *conn, end int, o *op, opcode roce.Opcode) {
	if opcode.IsReadResponse() && !opcode.Ends() {
		return
	}
	for _, io := range slices.Clone(c.open) {
		if io.answerEnd == end && after(o.first, io.answer) >= 0 {
			io.Status = "acknowledged"
			if opcode.Service() == roce.UC {
				io.Status = "sent"
			}
			c.finish(io, end, io.answer)
		}
	}
}

// verbsIO begins the I/O of an operation. Its tag and its answer are the operation's first PSN.
func verbsIO(d *Dissector, c *conn, fromHost bool, o *op, name string, bytes int) *IO {
	end := c.host
	if !fromHost {
		end = 1 - c.host
	}
	io := d.begin(c, &IO{Name: name, Bytes: bytes, unsized: o.blind && !o.opcode.IsAtomic(), tag: verbsTag(end, o.first), answer: o.first, answerEnd: end})
	io.Host, io.Target = c.ends[end].addr, c.ends[1-end].addr
	return io
}

func verbsTag(end int, psn uint32) uint32 { return psn | uint32(end)<<31 }

// memory formats a range of remote memory.
func memory(bytes uint32, addr uint64, key uint32) string {
	return fmt.Sprintf("%d bytes at %#x, key %#x", bytes, addr, key)
}
