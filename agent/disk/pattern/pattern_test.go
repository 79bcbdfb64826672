// SPDX-License-Identifier: Apache-2.0

package pattern

import (
	"bytes"
	"testing"
)

func TestFillDependsOnlyOnOffset(t *testing.T) {
	for _, name := range Names() {
		p, err := New(name, 7)
		if err != nil {
			t.Fatal(err)
		}
		whole := make([]byte, 4096)
		p.Fill(whole, 1<<40)
		for _, cut := range []int{8, 512, 4088} {
			part := make([]byte, 4096-cut)
			p.Fill(part, 1<<40+int64(cut))
			if !bytes.Equal(part, whole[cut:]) {
				t.Errorf("%s: data from %d on differs", name, cut)
			}
		}
		odd := make([]byte, 13)
		p.Fill(odd, 1<<40)
		if !bytes.Equal(odd, whole[:13]) {
			t.Errorf("%s: 13 bytes differ", name)
		}
	}
}

func TestSeedsDiffer(t *testing.T) {
	var a, b [64]byte
	for seed, data := range map[uint64][]byte{1: a[:], 2: b[:]} {
		p, _ := New("random", seed)
		p.Fill(data, 0)
	}
	if a == b {
		t.Error("seeds 1 and 2 generate the same data")
	}
}

func TestTextHasNULsAndWords(t *testing.T) {
	p, _ := New("text", 1)
	data := make([]byte, 4096)
	p.Fill(data, 0)
	if n := bytes.Count(data, []byte("krping\x00\x00")); n < 64 || n > 256 {
		t.Errorf("%d words in 512", n)
	}
}

func TestUnknownName(t *testing.T) {
	if _, err := New("noise", 0); err == nil {
		t.Error("accepted")
	}
}
