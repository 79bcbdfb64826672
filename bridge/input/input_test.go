// SPDX-License-Identifier: Apache-2.0

package input

import (
	"testing"
	"time"
)

// k, M and G are powers of 1024, as in fio, dd and qemu; KB is what it spells.
func TestSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "512": 512, "4096B": 4096, "4k": 4096, "4K": 4096, "64k": 65536, "1m": 1 << 20, "1M": 1 << 20, "64KiB": 65536, "64kib": 65536,
		"64Ki": 65536, "1KB": 1000, "1kB": 1000, "1MB": 1000000, "2GiB": 2 << 30, "1G": 1 << 30, "1GB": 1e9, "1T": 1 << 40, "1TiB": 1 << 40,
		"0x1000": 4096, "1.5k": 1536, ".5M": 512 << 10, "64 KiB": 65536, "7E": 7 << 60, "9223372036854775807": 9223372036854775807,
	} {
		if n, err := Size(text); err != nil || n != want {
			t.Errorf("%q: %d, %v, want %d", text, n, err, want)
		}
	}
	for _, text := range []string{
		"", "k", "x", "-1", "-4k", "4kk", "4b", "4iB", "4i", "1,000", "1.3k", "9E", "99999999999999999999", "4kib s", " 4k", "4k ", "1e3", "0xk", "1.2.3k",
	} {
		if n, err := Size(text); err == nil {
			t.Errorf("%q: accepted as %d", text, n)
		}
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30": 30 * time.Second, "30s": 30 * time.Second, "0": 0, "1.5": 1500 * time.Millisecond, "5m": 5 * time.Minute, "100ms": 100 * time.Millisecond,
		"1h30m": 90 * time.Minute, "-1s": -time.Second, "-1": -time.Second,
	} {
		if d, err := Duration(text); err != nil || d != want {
			t.Errorf("%q: %v, %v, want %v", text, d, err, want)
		}
	}
	for _, text := range []string{"", "s", "ten", "1 s", "inf", "0x10", "1e3", "1-2", "99999999999999999999", "5 minutes"} {
		if d, err := Duration(text); err == nil {
			t.Errorf("%q: accepted as %v", text, d)
		}
	}
}
