// SPDX-License-Identifier: Apache-2.0

//go:build lab

package guest

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// WriteOddData fills the first size bytes of a device with many NUL bytes, from many segments at odd offsets in memory:
// earlier modules lost such data. It reads each write back at once and returns all that it wrote. After each MiB it calls
// eachMiB, which may be nil.
func WriteOddData(t testing.TB, dev *os.File, size int, eachMiB func()) []byte {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, size)
	for i := range want {
		if rnd.IntN(3) == 0 {
			want[i] = byte(rnd.Uint32())
		}
	}
	memory := Aligned(t, 2<<20)
	for offset := 0; offset < size; {
		// Up to 300 segments, each at any multiple of 4 bytes in its page, 512 bytes or more.
		var vectors [][]byte
		length := 0
		for page := 0; page < 1+rnd.IntN(300) && offset+length < size; page++ {
			n := min(512*(1+rnd.IntN(7)), size-offset-length)
			at := page*4096 + 4*rnd.IntN((4096-n)/4+1)
			vectors = append(vectors, memory[at:at+n])
			copy(memory[at:at+n], want[offset+length:])
			length += n
		}
		if n, err := unix.Pwritev(int(dev.Fd()), vectors, int64(offset)); err != nil || n != length {
			t.Fatalf("write %d bytes in %d segments at %d: %d, %v", length, len(vectors), offset, n, err)
		}
		clear(memory) // the write has ended: this does not change it
		if n, err := unix.Preadv(int(dev.Fd()), vectors, int64(offset)); err != nil || n != length {
			t.Fatalf("read %d bytes in %d segments at %d: %d, %v", length, len(vectors), offset, n, err)
		}
		if !bytes.Equal(bytes.Join(vectors, nil), want[offset:offset+length]) {
			t.Fatalf("%d bytes in %d segments at %d: read other data than was written", length, len(vectors), offset)
		}
		offset += length
		if eachMiB != nil && offset%(1<<20) < length {
			eachMiB()
		}
	}
	return want
}
