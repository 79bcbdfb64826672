// SPDX-License-Identifier: Apache-2.0

//go:build lab

package bridge

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"krping/bridge/store"
	"krping/test/guest/internal/guest"
)

// half of the disk of 16 MiB is good.
const half = 8 << 20

// badDisk is a disk whose blocks of 4 KiB, too large for direct I/O in 512 bytes, fail from the middle on.
func badDisk(t *testing.T, writeback bool) store.Store {
	t.Helper()
	disk := guest.HalfBad(t, guest.NullDisk(t, "bad", map[string]string{"blocksize": "4096"}), 2*half)
	s, err := store.Open("file:"+disk, 0, writeback)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// The error of a write belongs to that write: none that the disk has refused succeeds because another one
// at the same time was told of it.
func TestWriteErrorsAreOfTheirWrites(t *testing.T) {
	const block = 4096
	s := badDisk(t, false)
	var taken, refused atomic.Int64
	var writers sync.WaitGroup
	end := time.Now().Add(5 * time.Second)
	for i := range int64(16) {
		writers.Go(func() {
			data := bytes.Repeat([]byte{byte(i + 1)}, block)
			for n := i; time.Now().Before(end); n += 16 {
				at := n * block % half
				if i%2 == 0 { // a bad one
					at += half
				}
				_, err := s.WriteAt(data, at)
				switch {
				case i%2 != 0: // it may fail with a bad one beside it
				case err == nil:
					taken.Add(1)
				default:
					refused.Add(1)
				}
			}
		})
	}
	writers.Wait()
	t.Logf("%d writes of bad blocks were refused", refused.Load())
	if taken.Load() > 0 || refused.Load() < 100 {
		t.Errorf("of bad blocks %d were written, %d refused: want none, 100 or more", taken.Load(), refused.Load())
	}
	if _, err := s.WriteAt(make([]byte, block), 0); err != nil {
		t.Errorf("when all is over a good block is refused: %v", err)
	}
}

// What is lost stays lost: the kernel tells it to one flush only.
func TestFlushFailsForEver(t *testing.T) {
	s := badDisk(t, true)
	if _, err := s.WriteAt(make([]byte, 4096), half); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := s.Flush(); err == nil {
			t.Errorf("flush %d of a write that the disk has refused succeeds", i+1)
		}
	}
}
