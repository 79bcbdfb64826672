// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"testing"

	"krping/bridge/wire"
)

func message(size int, tag uint16, number uint32) []byte {
	b := make([]byte, size)
	fill(b, tag, number)
	return b
}

func TestFill(t *testing.T) {
	for size, want := range map[int]string{
		1: "06", 4: "03040506", 5: "0003040506", 8: "a1b2000003040506", 9: "06" + "a1b2000103040506", 16: "a1b2000003040506" + "a1b2000103040506",
	} {
		if got := hex.EncodeToString(message(size, 0xa1b2, 0x03040506)); got != want {
			t.Errorf("%d bytes: %s, want %s", size, got, want)
		}
	}
	if a, b := tagOf(0x1234, 3, false), tagOf(0x1234, 3, true); a != 0x1237 || b != ^a {
		t.Errorf("tags %#x and %#x", a, b)
	}
}

// A message of any size is intact, ends with its number, and is not once any byte differs.
func TestIsIntact(t *testing.T) {
	sizes := []int{1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 63, 64, 65, 100}
	for _, size := range sizes {
		data := message(size, 0xa1b2, 0xfffffffe)
		if !isIntact(data, 0xa1b2, 0xfffffffe) || numberOf(data) != 0xfffffffe&(1<<(8*min(size, 4))-1) {
			t.Errorf("%d bytes are not intact, or have number %#x", size, numberOf(data))
		}
		for i := range data {
			data[i] ^= 0x10
			if isIntact(data, 0xa1b2, 0xfffffffe) {
				t.Errorf("%d bytes of which byte %d is wrong are intact", size, i)
			}
			if m := examine(data, 0xa1b2, 0xfffffffe); m.offset != i || m.kind == wire.Intact || m.want == m.got {
				t.Errorf("%d bytes of which byte %d is wrong: %+v", size, i, m)
			}
			data[i] ^= 0x10
		}
	}
	for _, words := range []int{indexWords - 1, indexWords, indexWords + 1, 2*indexWords + 5} {
		data := message(8*words+3, 7, 9)
		if !isIntact(data, 7, 9) {
			t.Errorf("%d words are not intact", words)
		}
		for _, at := range []int{0, 3, len(data) / 2, len(data) - 1} {
			data[at] ^= 1
			if m := examine(data, 7, 9); isIntact(data, 7, 9) || m.offset != at {
				t.Errorf("%d words of which byte %d is wrong: %+v", words, at, m)
			}
			data[at] ^= 1
		}
	}
}

func TestExamine(t *testing.T) {
	const tag, number = 0x0a0b, 70
	for _, size := range []int{32, 35, 64, 4096} {
		whole := size % 8 // offset of the first whole word
		for name, tc := range map[string]struct {
			change func(data []byte)
			kind   wire.Damage
			offset int // -1: not checked
		}{
			"another queue pair's":   {func(d []byte) { fill(d, tag^1, number) }, wire.Foreign, -1},
			"of the other direction": {func(d []byte) { fill(d, 0xffff^tag, number) }, wire.Foreign, -1},
			"the message before":     {func(d []byte) { fill(d, tag, number-1) }, wire.Stale, -1},
			"a later message":        {func(d []byte) { fill(d, tag, number+64) }, wire.Stale, -1},
			"its end from before":    {func(d []byte) { copy(d[whole+16:], message(size, tag, number-1)[whole+16:]) }, wire.Torn, whole + 16 + 7},
			"its start from before":  {func(d []byte) { copy(d[:whole+16], message(size, tag, number-1)) }, wire.Torn, -1},
			"moved by a word":        {func(d []byte) { copy(d[whole:], d[whole+8:]) }, wire.Shifted, whole + 3},
			"never written":          {func(d []byte) { copy(d, bytes.Repeat([]byte{wiped}, size)) }, wire.Damaged, -1},
			"a bit of a tag flipped": {func(d []byte) { d[whole+8] ^= 4 }, wire.Damaged, whole + 8},
		} {
			data := message(size, tag, number)
			tc.change(data)
			if m := examine(data, tag, number); m.kind != tc.kind || tc.offset >= 0 && m.offset != tc.offset {
				t.Errorf("%d bytes, %s: %+v, want %v at %d", size, name, m, tc.kind, tc.offset)
			}
		}
	}
}

func TestIsMissing(t *testing.T) {
	const tag, number = 5, 70
	for name, tc := range map[string]struct {
		change        func(data []byte)
		want, written bool
	}{
		"never written":        {wipe, true, true},
		"an older message":     {func(d []byte) { fill(d, tag, number-64) }, true, true},
		"of another slot":      {func(d []byte) { fill(d, tag, number-63) }, false, true},
		"a newer message":      {func(d []byte) { fill(d, tag, number+64) }, false, true},
		"partly never written": {func(d []byte) { wipe(d[256:]) }, true, true},
		"partly older":         {func(d []byte) { copy(d[512:], message(len(d), tag, number-64)[512:]) }, true, true},
		"not a packet":         {func(d []byte) { wipe(d[300:]) }, false, true},
		"a bit of a number":    {func(d []byte) { d[(len(d)+7)%8+7] ^= 1 }, false, true},
		"a bit of the last":    {func(d []byte) { d[len(d)-2] ^= 1 }, false, true},
		"another queue pair's": {func(d []byte) { fill(d, tag+1, number) }, false, false},
		"another place":        {func(d []byte) { copy(d, d[8:]) }, false, false},
	} {
		for _, size := range []int{536, 539} { // words of a packet each, or of two
			data := message(size, tag, number)
			tc.change(data)
			f := examine(data, tag, number)
			if f.isMissing(64) != tc.want {
				t.Errorf("%d bytes, %s: missing is %v, want %v", size, name, !tc.want, tc.want)
			}
			if f.mayBeWritten() != tc.written {
				t.Errorf("%d bytes, %s: may be written is %v, want %v", size, name, !tc.written, tc.written)
			}
		}
	}
}

func BenchmarkIsIntact(b *testing.B) {
	for _, size := range []int{64, 4096, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			data := message(size, 1, 2)
			b.SetBytes(int64(size))
			for b.Loop() {
				if !isIntact(data, 1, 2) {
					b.Fatal("not intact")
				}
			}
		})
	}
}
