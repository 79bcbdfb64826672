// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"fmt"

	"krping/agent/packets/roce"
)

// nvme is NVMe over RDMA: each SEND is a capsule (NVM Express RDMA Transport Specification).
type nvme struct{ queue nvmeQueue }

func (*nvme) name() Protocol { return NVMeRDMA }

func (n *nvme) message(d *Dissector, c *conn, fromHost bool, o *op) []part {
	if fromHost {
		cmd, err := readCommand(o.message, o.length, &n.queue)
		if err != nil {
			return []part{{note: err.Error()}}
		}
		io := d.begin(c, cmd.io())
		said := part{io: io, note: cmd.text()}
		if cmd.inline {
			said.from, said.to = sqeSize, sqeSize+cmd.bytes
		}
		return []part{said}
	}
	done, err := readCompletion(o.message)
	note, io := done.text(), c.byTag(uint32(done.cid))
	if err != nil {
		note, done.status, io = err.Error(), "status not captured", nil
		if o.cut {
			io = c.byKey(o.key)
		}
	}
	if o.key != 0 {
		note += fmt.Sprintf(", invalidates key %#x", o.key)
	}
	if io != nil {
		io.Status = done.status
	}
	return []part{{io: io, note: note, ends: true}}
}

func (c command) io() *IO {
	return &IO{
		Name: c.name, Bytes: c.bytes, Inline: c.inline, Detail: c.detail, tag: uint32(c.cid), addr: c.addr, rkey: c.key,
		blind: c.cut, unsized: c.cut && !c.inline,
	}
}

func (*nvme) access(_ *Dissector, c *conn, _ bool, o *op, addr uint64, key uint32) *IO {
	return c.byMemory(o, addr, key)
}

func (*nvme) answered(*conn, int, *op, roce.Opcode) {}
