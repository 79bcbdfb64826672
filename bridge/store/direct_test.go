// SPDX-License-Identifier: Apache-2.0

package store

import "testing"

func TestAlignedBytes(t *testing.T) {
	for n := 512; n <= 1<<20; n += 3 * 512 {
		b, done := alignedBytes(n)
		if len(b) != n || !isAligned(b) {
			t.Fatalf("alignedBytes(%d) has %d bytes and is misaligned by %d", n, len(b), misalignment(b))
		}
		done()
	}
	if b, _ := alignedBytes(1024); isAligned(b[32:]) {
		t.Error("an address 32 bytes after an aligned one counts as aligned")
	}
}
