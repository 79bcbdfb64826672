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

const half = 8 * mib // the good part of the disk

// badDisk opens a disk of 16 MiB whose second half fails. Its blocks have 4 KiB, too large for direct I/O in units
// of 512 bytes.
func badDisk(t *testing.T, writeback bool) store.Store {
	t.Helper()
	disk := guest.HalfBad(t, guest.NullDisk(t, "bad", map[string]string{"blocksize": "4096"}), 2*half)
	s, err := store.Open("file:"+disk, store.Options{Writeback: writeback})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Among concurrent writes, each that the disk failed gets its error: none succeeds because the error was reported
// to another.
func TestEachFailedWriteGetsItsError(t *testing.T) {
	const block = 4096
	s := badDisk(t, false)
	var stored, failed atomic.Int64
	var writers sync.WaitGroup
	end := time.Now().Add(5 * time.Second)
	for i := range int64(16) {
		writers.Go(func() {
			data := bytes.Repeat([]byte{byte(i + 1)}, block)
			for n := i; time.Now().Before(end); n += 16 {
				at := n * block % half
				if i%2 == 0 { // a bad block
					at += half
				}
				_, err := s.WriteAt(data, at)
				switch {
				case i%2 != 0: // may fail together with a bad one
				case err == nil:
					stored.Add(1)
				default:
					failed.Add(1)
				}
			}
		})
	}
	writers.Wait()
	t.Logf("%d writes to bad blocks failed", failed.Load())
	if stored.Load() > 0 || failed.Load() < 100 {
		t.Errorf("%d writes to bad blocks succeeded, %d failed: want 0, and 100 or more", stored.Load(), failed.Load())
	}
	if _, err := s.WriteAt(make([]byte, block), 0); err != nil {
		t.Errorf("a later write to a good block: %v", err)
	}
}

// The kernel reports a lost write to one flush only. The store remembers it: all later flushes fail.
func TestFlushKeepsFailing(t *testing.T) {
	s := badDisk(t, true)
	if _, err := s.WriteAt(make([]byte, 4096), half); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := s.Flush(); err == nil {
			t.Errorf("flush %d succeeded after a write that the disk had failed", i+1)
		}
	}
}
