// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"bytes"
	"errors"
	"testing"

	"krping/agent/disk/pattern"
)

// memoryAsker answers from a byte slice, as a target would.
type memoryAsker struct {
	data  []byte
	asked int
}

func (m *memoryAsker) SHA256(r Range) (string, error) {
	m.asked++
	return digest(m.data[r.Offset : r.Offset+r.Length]), nil
}

const size = 1 << 20

func written(t *testing.T) (pattern.Pattern, []byte) {
	t.Helper()
	p, err := pattern.New("random", 42)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, size)
	p.Fill(data, 0)
	return p, data
}

func TestAllAgree(t *testing.T) {
	p, data := written(t)
	r, err := Run(t.Context(), bytes.NewReader(data), &memoryAsker{data: data},
		Options{Range: Range{4096, size - 8192}, Pattern: &p, Block: 512, Step: 65536})
	if err != nil {
		t.Fatal(err)
	}
	if want := digest(data[4096 : size-4096]); r.SHA256 != want || r.Bytes != size-8192 || !r.Target || !r.Known {
		t.Errorf("%+v, want sha256 %s", r, want)
	}
}

func TestMismatchNamesBlock(t *testing.T) {
	for _, at := range []int{0, 511, 512, 65535, 65536, 777777, size - 1} {
		p, data := written(t)
		damaged := bytes.Clone(data)
		damaged[at] ^= 1
		for _, tc := range []struct {
			name           string
			device, target []byte
			pattern        *pattern.Pattern
		}{
			{"store and device", damaged, damaged, &p},
			{"device only", damaged, data, &p},
			{"target only", data, damaged, &p},
			{"target only, data unknown", data, damaged, nil},
		} {
			asker := &memoryAsker{data: tc.target}
			_, err := Run(t.Context(), bytes.NewReader(tc.device), asker, Options{Range: Range{0, size}, Pattern: tc.pattern, Block: 512, Step: 262144})
			var m *Mismatch
			if !errors.As(err, &m) {
				t.Fatalf("%s, byte %d: %v, want a mismatch", tc.name, at, err)
			}
			if m.Offset != int64(at/512*512) || m.Length != 512 || m.Want == m.Got {
				t.Errorf("%s, byte %d: %+v", tc.name, at, m)
			}
			if asker.asked > 4+2*10 {
				t.Errorf("%s, byte %d: the target was asked %d times", tc.name, at, asker.asked)
			}
		}
	}
}

func TestTruncatedDevice(t *testing.T) {
	_, data := written(t)
	if _, err := Run(t.Context(), bytes.NewReader(data[:1000]), nil, Options{Range: Range{0, 4096}, Block: 512, Step: 4096}); err == nil {
		t.Error("accepted")
	}
}
