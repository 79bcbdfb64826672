// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"sync"
)

// Operations and flags of version 1.
const (
	opRead        = 1
	opWrite       = 2
	opFlush       = 3
	opDiscard     = 4
	opWriteZeroes = 5
	opDigest      = 6
	opKeepAlive   = 7

	flagFUA    = 1
	flagInline = 2
	flagSHA256 = 4
)

// allowedFlags are those that version 1 knows, by operation.
var allowedFlags = [...]byte{
	opRead: flagInline, opWrite: flagFUA | flagInline, opFlush: 0, opDiscard: 0, opWriteZeroes: flagFUA,
	opDigest: flagInline | flagSHA256, opKeepAlive: flagInline,
}

// Lent is the client's memory, which RDMA reaches.
type Lent interface {
	Fetch(addr uint64, rkey uint32, n int) ([]byte, error)
	Put(addr uint64, rkey uint32, data []byte) error
}

// Reply is a message of one response.
type Reply struct {
	Message    []byte
	Invalidate uint32 // the rkey for SEND_WITH_INV, 0 for SEND
}

// Volume answers commands as a target of version 1 did, and refuses what it did not know.
type Volume struct {
	mu     sync.Mutex
	memory []byte
}

// NewVolume returns a volume of that many zeros.
func NewVolume(size int) *Volume { return &Volume{memory: make([]byte, size)} }

// Load returns n bytes of the volume.
func (v *Volume) Load(offset, n int) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	return bytes.Clone(v.memory[offset:][:n])
}

// Answer carries out the commands of a message. An error is a break of version 1, or of Lent.
func (v *Volume) Answer(msg []byte, lent Lent) ([]Reply, error) {
	if len(msg) == 0 {
		return nil, fmt.Errorf("empty message")
	}
	var replies []Reply
	for len(msg) > 0 {
		r, size, err := v.answer(msg, lent)
		if err != nil {
			return nil, err
		}
		replies, msg = append(replies, r), msg[size:]
	}
	return replies, nil
}

// command is one of version 1.
type command struct {
	op, flags byte
	tag       uint16
	length    uint32
	offset    uint64
	addr      uint64
	rkey, crc uint32
	data      []byte
}

// answer carries out the first command of a message and returns its size in bytes.
func (v *Volume) answer(msg []byte, lent Lent) (Reply, int, error) {
	c, size, err := v.decode(msg)
	if err != nil {
		return Reply{}, 0, fmt.Errorf("%w: %x", err, short(msg))
	}
	if c.op == opWrite && c.rkey != 0 {
		if c.data, err = lent.Fetch(c.addr, c.rkey, int(c.length)); err != nil {
			return Reply{}, 0, err
		}
	}
	rsp := make([]byte, ResponseSize) // tag, status, flags, length, CRC, reserved
	binary.BigEndian.PutUint16(rsp, c.tag)
	data, err := v.carryOut(c)
	if err != nil {
		return Reply{}, 0, err
	}
	switch c.op {
	case opRead, opWrite:
		binary.BigEndian.PutUint32(rsp[4:], c.length)
	case opDigest, opKeepAlive:
		binary.BigEndian.PutUint32(rsp[4:], uint32(len(data)))
	}
	if c.op == opRead {
		binary.BigEndian.PutUint32(rsp[8:], crc(data))
	}
	if c.rkey != 0 {
		if c.op == opRead {
			err = lent.Put(c.addr, c.rkey, data)
		}
		return Reply{rsp, c.rkey}, size, err
	}
	if data != nil {
		rsp[3] = 1 // inline
	}
	rsp = append(rsp, data...)
	return Reply{append(rsp, make([]byte, -len(data)&7)...), 0}, size, nil
}

// decode decodes the first command of a message. Its fields are checked as far as a client of a
// later version might use them otherwise.
func (v *Volume) decode(msg []byte) (c command, size int, err error) {
	if len(msg) < CommandSize {
		return c, 0, fmt.Errorf("message ends in a command")
	}
	c = command{
		op: msg[0], flags: msg[1], tag: binary.BigEndian.Uint16(msg[2:]), length: binary.BigEndian.Uint32(msg[4:]),
		offset: binary.BigEndian.Uint64(msg[8:]), addr: binary.BigEndian.Uint64(msg[16:]),
		rkey: binary.BigEndian.Uint32(msg[24:]), crc: binary.BigEndian.Uint32(msg[28:]),
	}
	size = CommandSize
	capacity := uint64(len(v.memory))
	switch {
	case c.op < opRead || c.op > opKeepAlive:
		return c, 0, fmt.Errorf("version 1 has no op %d", c.op)
	case c.flags&^allowedFlags[c.op] != 0:
		return c, 0, fmt.Errorf("version 1 has no flags %#x for op %d", c.flags, c.op)
	case c.op == opKeepAlive && (c.tag != 0xffff || c.length != 0 || c.offset != 0 || c.addr != 0 || c.rkey != 0 || c.crc != 0):
		return c, 0, fmt.Errorf("a KEEP_ALIVE of version 1 has no fields")
	case c.op == opFlush && (c.length != 0 || c.offset != 0):
		return c, 0, fmt.Errorf("FLUSH with a range")
	case c.rkey != 0 && (c.flags&flagInline != 0 || c.op != opRead && c.op != opWrite), c.rkey == 0 && c.addr != 0:
		return c, 0, fmt.Errorf("memory with op %d", c.op)
	case c.offset > capacity || uint64(c.length) > capacity-c.offset:
		return c, 0, fmt.Errorf("outside the volume")
	}
	if c.op == opWrite && c.rkey == 0 {
		if int(c.length) > len(msg)-CommandSize {
			return c, 0, fmt.Errorf("inline data ends after the message")
		}
		c.data = msg[CommandSize:][:c.length]
		size += int(c.length) // a multiple of 8
	}
	return c, size, nil
}

// carryOut returns the data of the response, nil for none.
func (v *Volume) carryOut(c command) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	place := v.memory[c.offset:][:c.length]
	switch c.op {
	case opRead:
		return bytes.Clone(place), nil
	case opWrite:
		if crc(c.data) != c.crc {
			return nil, fmt.Errorf("WRITE at %d: the data does not match its CRC", c.offset)
		}
		copy(place, c.data)
	case opDiscard, opWriteZeroes:
		clear(place)
	case opDigest:
		if c.flags&flagSHA256 != 0 {
			sum := sha256.Sum256(place)
			return sum[:], nil
		}
		return binary.BigEndian.AppendUint32(nil, crc(place)), nil
	case opKeepAlive:
		return binary.BigEndian.AppendUint64(nil, uint64(len(v.memory))), nil
	}
	return nil, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crc(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }
