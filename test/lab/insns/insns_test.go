// SPDX-License-Identifier: Apache-2.0

package insns

import (
	"encoding/binary"
	"maps"
	"testing"
)

// table makes a plugin's file: lost blocks, then address and instructions of each block.
func table(fields ...uint64) []byte {
	var data []byte
	for _, f := range fields {
		data = binary.NativeEndian.AppendUint64(data, f)
	}
	return data
}

func TestParse(t *testing.T) {
	early, err := parse(table(0, 0xffffffff81000000, 60, 0, 0, 0x400000, 40))
	if err != nil {
		t.Fatal(err)
	}
	late, err := parse(table(0, 0xffffffff81000000, 60, 0x500000, 20, 0x400000, 90))
	if err != nil {
		t.Fatal(err)
	}
	d := late.Sub(early)
	if want := map[uint64]uint64{0x400000: 50, 0x500000: 20}; !maps.Equal(d, want) {
		t.Errorf("%v, want %v", d, want)
	}
	for name, data := range map[string][]byte{"empty": nil, "cut": table(0, 2), "full": table(1, 2, 3)} {
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
