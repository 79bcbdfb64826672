// SPDX-License-Identifier: Apache-2.0

package dissect

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// Sizes in bytes of the queue entries in capsules (NVM Express Base Specification).
const (
	sqeSize = 64 // submission queue entry: a command
	cqeSize = 16 // completion queue entry
)

const (
	opcodeFabrics  = 0x7f
	fabricsConnect = 0x01

	fabricsPropertySet = 0x00
	fabricsPropertyGet = 0x04

	ioWrite       = 0x01
	ioRead        = 0x02
	ioWriteZeroes = 0x08
	ioCompare     = 0x05

	flagSGL   = 0x40 // in the flags byte: SGLs describe the data
	sglInline = 0x01 // descriptor: data block at an offset in the capsule
	sglKeyed  = 0x4  // descriptor type: address, length, key
)

var ioNames = map[uint8]string{
	0x00: "Flush", 0x01: "Write", 0x02: "Read", 0x04: "Write Uncorrectable", 0x05: "Compare", 0x08: "Write Zeroes",
	0x09: "Dataset Management", 0x0c: "Verify", 0x0d: "Reservation Register", 0x0e: "Reservation Report", 0x11: "Reservation Acquire",
	0x15: "Reservation Release", 0x19: "Copy", 0x79: "Zone Management Send", 0x7a: "Zone Management Receive", 0x7d: "Zone Append",
}

var adminNames = map[uint8]string{
	0x00: "Delete I/O Submission Queue", 0x01: "Create I/O Submission Queue", 0x02: "Get Log Page", 0x04: "Delete I/O Completion Queue",
	0x05: "Create I/O Completion Queue", 0x06: "Identify", 0x08: "Abort", 0x09: "Set Features", 0x0a: "Get Features",
	0x0c: "Asynchronous Event Request", 0x0d: "Namespace Management", 0x10: "Firmware Commit", 0x11: "Firmware Image Download",
	0x14: "Device Self-test", 0x15: "Namespace Attachment", 0x18: "Keep Alive", 0x19: "Directive Send", 0x1a: "Directive Receive",
	0x80: "Format NVM", 0x81: "Security Send", 0x82: "Security Receive", 0x84: "Sanitize", 0x86: "Get LBA Status",
}

var fabricsNames = map[uint8]string{
	0x00: "Property Set", 0x01: "Connect", 0x04: "Property Get", 0x05: "Authentication Send", 0x06: "Authentication Receive", 0x08: "Disconnect",
}

// nvmeQueue identifies a queue. Admin commands (queue 0) and I/O commands share opcodes.
type nvmeQueue struct {
	number int
	known  bool
}

// command is what a command capsule contains.
type command struct {
	name   string
	cid    uint16
	detail string
	bytes  int // of data, according to its SGL
	inline bool
	cut    bool // its SGL was not captured: the bytes may be unknown, the address and the key are
	addr   uint64
	key    uint32 // 0 if the SGL has none
}

// Ends of the fields of a command, in bytes.
const (
	endNSID   = 8
	endSGL    = 40
	endLBA    = 48
	endBlocks = 50
)

const allNamespaces = 0xffffffff

// isCapsule reports whether a message of length bytes, of which the first ones were captured, looks like a
// command capsule: it uses SGLs, is not fused, and has one of the descriptors that are used with RDMA.
func isCapsule(message []byte, length int) bool {
	if length < sqeSize || len(message) < endNSID || message[1] != flagSGL {
		return false
	}
	if len(message) < endSGL {
		nsid := binary.LittleEndian.Uint32(message[4:])
		return message[0] == opcodeFabrics || ioNames[message[0]] != "" && (nsid < 1<<16 || nsid == allNamespaces)
	}
	descriptor := message[endSGL-1]
	return descriptor == sglInline || descriptor>>4 == sglKeyed && descriptor&0xf != 1 || descriptor == 0
}

// readCommand reads the submission queue entry, which is little-endian, at the beginning of a capsule of
// length bytes. b is what was captured of it. A Connect command sets q.
func readCommand(b []byte, length int, q *nvmeQueue) (command, error) {
	captured := len(b)
	switch {
	case length < sqeSize:
		return command{}, fmt.Errorf("capsule of %d bytes is too short for a command of %d", length, sqeSize)
	case captured < endNSID:
		return command{}, fmt.Errorf("only %d bytes of a command were captured", captured)
	case captured < sqeSize:
		b = append(slices.Clone(b), make([]byte, sqeSize-captured)...)
	}
	opcode, kind := b[0], b[4]
	c := command{cid: binary.LittleEndian.Uint16(b[2:])}
	switch descriptor := b[endSGL-1]; {
	case captured < endSGL:
		c.cut, c.bytes, c.inline = true, length-sqeSize, true
	case descriptor>>4 == sglKeyed:
		c.addr = binary.LittleEndian.Uint64(b[24:])
		c.bytes = int(b[32]) | int(b[33])<<8 | int(b[34])<<16
		c.key = binary.LittleEndian.Uint32(b[35:])
	default:
		c.bytes, c.inline = int(binary.LittleEndian.Uint32(b[32:])), descriptor == sglInline
	}
	c.inline = c.inline && c.bytes > 0
	nsid := binary.LittleEndian.Uint32(b[4:])
	switch {
	case opcode == opcodeFabrics:
		c.name = nameOf(fabricsNames, kind, "Fabrics command")
		switch {
		case kind == fabricsPropertySet || kind == fabricsPropertyGet: // of an admin queue only
			q.number, q.known = 0, true
		case kind == fabricsConnect && captured >= endLBA:
			q.number, q.known = int(binary.LittleEndian.Uint16(b[42:])), true
			c.detail = fmt.Sprintf("queue %d", q.number)
		}
	case q.known && q.number == 0:
		c.name = nameOf(adminNames, opcode, "admin command")
		if nsid != 0 {
			c.detail = namespace(nsid)
		}
	default:
		c.name = nameOf(ioNames, opcode, "command")
		c.detail = namespace(nsid)
		switch opcode {
		case ioRead, ioWrite, ioWriteZeroes, ioCompare:
			if captured >= endLBA {
				c.detail += fmt.Sprintf(", lba %d", binary.LittleEndian.Uint64(b[40:]))
			}
		}
		if opcode == ioWriteZeroes && captured >= endBlocks { // has no SGL to tell the bytes
			c.detail += fmt.Sprintf(", %d blocks", int(binary.LittleEndian.Uint16(b[48:]))+1)
		}
	}
	return c, nil
}

func namespace(nsid uint32) string {
	if nsid == allNamespaces {
		return fmt.Sprintf("nsid %#x (all)", nsid)
	}
	return fmt.Sprintf("nsid %d", nsid)
}

func nameOf(names map[uint8]string, code uint8, what string) string {
	if name, ok := names[code]; ok {
		return name
	}
	return fmt.Sprintf("%s %#02x", what, code)
}

// text describes the command for a packet's line.
func (c command) text() string {
	text := fmt.Sprintf("%s cid %d", c.name, c.cid)
	if c.detail != "" {
		text += ", " + c.detail
	}
	switch {
	case c.key != 0:
		text += ", " + memory(uint32(c.bytes), c.addr, c.key)
	case c.inline:
		text += fmt.Sprintf(", %d bytes inline", c.bytes)
	case c.bytes > 0:
		text += fmt.Sprintf(", %d bytes", c.bytes)
	}
	return text
}

// completion is what a response capsule contains.
type completion struct {
	cid    uint16
	status string
}

// readCompletion reads a completion queue entry, which is little-endian.
func readCompletion(b []byte) (completion, error) {
	if len(b) < cqeSize {
		return completion{}, fmt.Errorf("only %d bytes of a completion of %d", len(b), cqeSize)
	}
	status := binary.LittleEndian.Uint16(b[14:]) >> 1
	c := completion{cid: binary.LittleEndian.Uint16(b[12:]), status: "success"}
	if code := status & 0xff; status&0x7ff != 0 {
		c.status = fmt.Sprintf("status %#02x of type %d", code, status>>8&7)
	}
	return c, nil
}

func (c completion) text() string { return fmt.Sprintf("completion cid %d: %s", c.cid, c.status) }
