// SPDX-License-Identifier: Apache-2.0

// Package pattern makes test data that can be made again: every byte depends on the
// pattern, the seed and its offset alone.
package pattern

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Pattern is a kind of test data with its seed.
type Pattern struct {
	name string
	seed uint64
	word func(seed, index uint64) uint64 // the 8 bytes at 8*index, little-endian
}

// text has long runs of NUL bytes around words, as file system metadata does: data that a
// string function would cut short.
func text(seed, index uint64) uint64 {
	if mix(seed, index)%4 != 0 {
		return 0
	}
	return binary.LittleEndian.Uint64([]byte("krping\x00\x00"))
}

// mix is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom
// number generators, 2014) at the place of the index in its sequence.
func mix(seed, index uint64) uint64 {
	z := seed + (index+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

var words = map[string]func(seed, index uint64) uint64{
	"random":  mix,
	"zero":    func(uint64, uint64) uint64 { return 0 },
	"ones":    func(uint64, uint64) uint64 { return ^uint64(0) },
	"counter": func(seed, index uint64) uint64 { return seed + index },
	"text":    text,
}

// Names returns the patterns that there are.
func Names() []string {
	names := make([]string, 0, len(words))
	for name := range words {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// New returns a pattern by its name.
func New(name string, seed uint64) (Pattern, error) {
	word, ok := words[name]
	if !ok {
		return Pattern{}, fmt.Errorf("pattern %q: must be one of %s", name, strings.Join(Names(), ", "))
	}
	return Pattern{name, seed, word}, nil
}

// Fill makes the data at a byte offset that is a multiple of 8.
func (p Pattern) Fill(data []byte, offset int64) {
	index := uint64(offset) / 8
	for len(data) >= 8 {
		binary.LittleEndian.PutUint64(data, p.word(p.seed, index))
		data, index = data[8:], index+1
	}
	if len(data) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], p.word(p.seed, index))
		copy(data, last[:])
	}
}
