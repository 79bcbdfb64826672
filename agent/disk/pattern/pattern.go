// SPDX-License-Identifier: Apache-2.0

// Package pattern generates reproducible test data: every byte depends only on the pattern, the seed and
// the offset.
package pattern

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Pattern is a named pattern with its seed.
type Pattern struct {
	name string
	seed uint64
	word func(seed, index uint64) uint64 // returns the 8 bytes at offset 8*index, little-endian
}

// text returns words between runs of NUL bytes, like file system metadata: data that code which treats
// it as a string would truncate.
func text(seed, index uint64) uint64 {
	if mix(seed, index)%4 != 0 {
		return 0
	}
	return binary.LittleEndian.Uint64([]byte("krping\x00\x00"))
}

// mix returns element index of the SplitMix64 sequence (Steele, Lea, Flood: Fast splittable pseudorandom
// number generators, 2014).
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

// Names returns the names of all patterns.
func Names() []string {
	names := make([]string, 0, len(words))
	for name := range words {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// New returns the pattern with a name.
func New(name string, seed uint64) (Pattern, error) {
	word, ok := words[name]
	if !ok {
		return Pattern{}, fmt.Errorf("pattern %q: must be one of %s", name, strings.Join(Names(), ", "))
	}
	return Pattern{name, seed, word}, nil
}

// Fill fills data with the bytes at offset, which must be a multiple of 8.
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
