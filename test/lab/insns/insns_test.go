// SPDX-License-Identifier: Apache-2.0

package insns

import (
	"encoding/binary"
	"maps"
	"testing"
)

// table makes a plugin's file: lost blocks, then address, instructions and runs of each block.
func table(fields ...uint64) []byte {
	var data []byte
	for _, f := range fields {
		data = binary.NativeEndian.AppendUint64(data, f)
	}
	return data
}

func TestParse(t *testing.T) {
	early, err := parse(table(0, 0xffffffff81000000, 60, 6, 0, 0, 0, 0x400000, 40, 8))
	if err != nil {
		t.Fatal(err)
	}
	late, err := parse(table(0, 0xffffffff81000000, 60, 6, 0x500000, 20, 5, 0x400000, 90, 18))
	if err != nil {
		t.Fatal(err)
	}
	d := late.Sub(early)
	if want := (Counts{0x400000: {50, 10}, 0x500000: {20, 5}}); !maps.Equal(d, want) {
		t.Errorf("%v, want %v", d, want)
	}
	for name, data := range map[string][]byte{"empty": nil, "cut": table(0, 2, 3), "full": table(1, 2, 3, 4)} {
		if c, err := parse(data); err == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestBuild(t *testing.T) {
	if _, err := Build(t.TempDir()); err != nil {
		t.Error(err)
	}
}
