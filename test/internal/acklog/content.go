// SPDX-License-Identifier: Apache-2.0

package acklog

import (
	"bytes"
	"encoding/binary"

	"krping/agent/disk/pattern"
)

// Block is the unit of checks, in bytes. A device writes a block whole or not at all.
const Block = 512

// Each block of a write begins with a unique header: magic, seed, number of the write, offset of the block,
// all little-endian.
const (
	magic      = 0x676f6c6b6361706b
	headerSize = 32
)

// fill makes the data of a write at an offset.
func fill(data []byte, seed, seq uint64, offset int64) {
	body(data, seed, seq, offset)
	for i := 0; i < len(data); i += Block {
		header := data[i : i+headerSize]
		binary.LittleEndian.PutUint64(header, magic)
		binary.LittleEndian.PutUint64(header[8:], seed)
		binary.LittleEndian.PutUint64(header[16:], seq)
		binary.LittleEndian.PutUint64(header[24:], uint64(offset)+uint64(i))
	}
}

func body(data []byte, seed, seq uint64, offset int64) {
	p, err := pattern.New("random", seed^seq<<20)
	if err != nil {
		panic(err) // the name is a constant
	}
	p.Fill(data, offset)
}

// claim is what a block's header says. Trust it only if the block is whole.
type claim struct {
	seed, seq uint64
	offset    int64
	blank     bool // all zeros: never written
	signed    bool // has our magic
	whole     bool // all bytes are as written by the write it names
}

func inspect(block []byte) claim {
	var want [Block]byte
	if bytes.Equal(block, want[:]) {
		return claim{blank: true, whole: true}
	}
	c := claim{
		seed:   binary.LittleEndian.Uint64(block[8:]),
		seq:    binary.LittleEndian.Uint64(block[16:]),
		offset: int64(binary.LittleEndian.Uint64(block[24:])),
		signed: binary.LittleEndian.Uint64(block) == magic,
	}
	if !c.signed || c.offset%Block != 0 {
		return c
	}
	fill(want[:], c.seed, c.seq, c.offset)
	c.whole = bytes.Equal(block, want[:])
	return c
}
