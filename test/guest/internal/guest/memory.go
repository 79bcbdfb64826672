// SPDX-License-Identifier: Apache-2.0

//go:build lab

package guest

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// Slab returns the kernel's unreclaimable memory in KiB.
func Slab(t testing.TB) int {
	t.Helper()
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "SUnreclaim:"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatal("/proc/meminfo has no SUnreclaim")
	return 0
}

// NoSlabGrowth fails if the unreclaimable memory has grown in n cycles, each of which attached and stopped a session. A
// leaked session is 100 KiB and more. Partly used slabs make the memory grow and shrink by up to 350 KiB in 20 cycles on
// stock kernels, and by 1 MiB on the debug kernel, which delays freeing.
func NoSlabGrowth(t testing.TB, before, n int) {
	t.Helper()
	grown := Slab(t) - before
	t.Logf("unreclaimable slab grew by %d KiB in %d cycles", grown, n)
	if limit := 1024 + 16*n; grown > limit {
		t.Errorf("unreclaimable slab grew by %d KiB in %d cycles, want less than %d", grown, n, limit)
	}
}
