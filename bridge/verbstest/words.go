// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"encoding/binary"
	"math/bits"

	"krping/bridge/wire"
)

// The data of a message is words of 8 bytes, big-endian: 16 bits tag, 16 bits index of the word in the
// message, 32 bits number of the message. Of a size that is no multiple of 8 the first word lacks its first
// bytes, so each message ends with its number.
const (
	wordSize   = 8
	indexWords = 1 << 16 // after so many words the index is 0 again
)

// tagOf returns the tag of the data that a side sends by a queue pair.
func tagOf(group uint16, queue int, fromServer bool) uint16 {
	tag := group ^ uint16(queue)
	if fromServer {
		return ^tag
	}
	return tag
}

func word(tag uint16, index int, number uint32) uint64 {
	return uint64(tag)<<48 | uint64(index%indexWords)<<32 | uint64(number)
}

// head returns how many bytes of the first word data has, 0 if it has all.
func head(data []byte) int { return len(data) % wordSize }

// tail returns the last n bytes of a word.
func tail(w uint64, n int) []byte {
	var b [wordSize]byte
	binary.BigEndian.PutUint64(b[:], w)
	return b[wordSize-n:]
}

// fill writes the data of a message.
func fill(data []byte, tag uint16, number uint32) {
	index := 0
	if n := head(data); n > 0 {
		copy(data, tail(word(tag, 0, number), n))
		data = data[n:]
		index = 1
	}
	for ; len(data) >= wordSize; index++ {
		binary.BigEndian.PutUint64(data, word(tag, index, number))
		data = data[wordSize:]
	}
}

// isIntact reports whether data is that of a message.
func isIntact(data []byte, tag uint16, number uint32) bool {
	index := 0
	if n := head(data); n > 0 {
		if string(data[:n]) != string(tail(word(tag, 0, number), n)) {
			return false
		}
		data = data[n:]
		index = 1
	}
	for len(data) >= wordSize {
		n := min(len(data)/wordSize, indexWords-index%indexWords) // up to where the index is 0 again
		if !areIntact(data[:n*wordSize], word(tag, index, number)) {
			return false
		}
		data = data[n*wordSize:]
		index += n
	}
	return true
}

// areIntact reports whether the words in data have ascending indices, the first one being want.
func areIntact(data []byte, want uint64) bool {
	const step = 1 << 32
	var diff uint64
	for len(data) >= 4*wordSize {
		diff |= binary.BigEndian.Uint64(data) ^ want
		diff |= binary.BigEndian.Uint64(data[8:]) ^ (want + step)
		diff |= binary.BigEndian.Uint64(data[16:]) ^ (want + 2*step)
		diff |= binary.BigEndian.Uint64(data[24:]) ^ (want + 3*step)
		want += 4 * step
		data = data[4*wordSize:]
	}
	for ; len(data) >= wordSize; data = data[wordSize:] {
		diff |= binary.BigEndian.Uint64(data) ^ want
		want += step
	}
	return diff == 0
}

// numberOf returns the last 4 bytes of a message, which are its number. A shorter one has its lower bytes.
func numberOf(data []byte) uint32 {
	var b [4]byte
	n := min(len(data), len(b))
	copy(b[len(b)-n:], data[len(data)-n:])
	return binary.BigEndian.Uint32(b[:])
}

// finding is the first wrong word of a message. It is the same as the module's (kmod/verbs/message.c).
type finding struct {
	kind   wire.Damage
	offset int    // of its first wrong byte in the message
	number uint32 // message number in it, as far as it is one
	own    bool   // it is of this place in another message of the queue pair, or a mix of such ones
	lone   bool   // the word after it is right: a change on the way, not another message
	edge   bool   // a packet may begin at it or in it
	split  bool   // it may be of two packets
	blank  bool   // nothing was written there
	want   uint64 // what it should be
	got    uint64 // what it is; bytes before the message are those of want
}

// examine finds the first wrong word of a message that is not intact.
func examine(data []byte, tag uint16, number uint32) finding {
	last := (len(data)+wordSize-1)/wordSize - 1
	for i := 0; i <= last; i++ {
		want := word(tag, i, number)
		got, bytes := wordAt(data, i, want)
		if got == want {
			continue
		}
		f := finding{number: uint32(got), want: want, got: got}
		f.own = got>>32 == want>>32 && isNear(f.number, number)
		mask := ^uint64(0) >> (8 * (wordSize - bytes))
		f.blank = got&mask == mask
		start := i*wordSize - (last+1)*wordSize + len(data)
		f.split = i > 0 && start%packet > packet-wordSize
		f.edge = i == 0 || start%packet == 0 || f.split
		f.offset = start + bits.LeadingZeros64(want^got)/8
		f.lone = i < last && isRight(data, i+1, tag, number)
		f.kind = f.classify(data, tag, number, i, last)
		return f
	}
	return finding{}
}

// wordAt returns a word, with the bytes of want before the message, and how many bytes of it are in the
// message.
func wordAt(data []byte, i int, want uint64) (got uint64, bytes int) {
	start := i * wordSize
	if n := head(data); n > 0 {
		if i == 0 {
			b := tail(want, wordSize)
			copy(b[wordSize-n:], data[:n])
			return binary.BigEndian.Uint64(b), n
		}
		start -= wordSize - n
	}
	return binary.BigEndian.Uint64(data[start:]), wordSize
}

func isRight(data []byte, i int, tag uint16, number uint32) bool {
	want := word(tag, i, number)
	got, _ := wordAt(data, i, want)
	return got == want
}

// near is how far apart the numbers of two messages may be, for one to be taken for the other.
const near = 1000000

func isNear(a, b uint32) bool { return a-b < near || b-a < near }

// areRelated reports whether two tags can be of one test.
func areRelated(a, b uint16) bool {
	difference := a ^ b
	return difference < wire.VerbsQPsMax || ^difference < wire.VerbsQPsMax
}

// classify says what the first wrong word, of index i, is.
func (f finding) classify(data []byte, tag uint16, number uint32, i, last int) wire.Damage {
	isTag, isIndex := uint16(f.got>>48) == tag, uint16(f.got>>32) == uint16(i)
	switch {
	case f.lone:
		return wire.Damaged
	case f.own:
		if i == 0 && !isRight(data, last, tag, number) {
			return wire.Stale
		}
		return wire.Torn
	case isTag && !isIndex && f.number == number:
		return wire.Shifted
	case !isTag && isIndex && areRelated(uint16(f.got>>48), tag) && isNear(f.number, number):
		return wire.Foreign
	}
	return wire.Damaged
}

// packet is what the length of a packet is a multiple of that is not the last one of its message.
const packet = 256

// mayBeWritten reports whether a slot is wrong as one is that is being written: it has a part of a message. Which part that
// is depends on how the device copies.
func (f finding) mayBeWritten() bool { return f.own || isPartlyBlank(f.want, f.got) }

// isPartlyBlank reports whether bytes of a word are right, and the others were never written.
func isPartlyBlank(want, got uint64) bool {
	for ; want|got != 0; want, got = want>>8, got>>8 {
		if byte(got) != byte(want) && byte(got) != wiped {
			return false
		}
	}
	return true
}

// isMissing reports whether packets that were lost explain a slot that UC writes to. It has what it held before from the
// first packet on that was lost. Every slots-th message is written there, and none ahead of its time; with 0 any may be.
func (f finding) isMissing(slots int) bool {
	behind := int32(uint32(f.want) - f.number)
	switch {
	case !f.edge || f.lone:
		return false
	case f.blank || f.kind == wire.Damaged && f.split:
		return true
	case f.kind != wire.Stale && f.kind != wire.Torn:
		return false
	}
	return slots == 0 || behind > 0 && int(behind)%slots == 0
}

// wiped is the byte that memory holds before anything is written to it.
const wiped = 0xff
