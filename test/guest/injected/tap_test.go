// SPDX-License-Identifier: Apache-2.0

//go:build lab

package injected

import (
	"os"
	"strconv"
	"testing"

	"krping/test/guest/internal/guest"
)

// A copy for which a tap has no memory is dropped. A flush is made up for: the target is flushed before its next change.
// What a write would have changed is dirty.
func TestTapWithoutMemory(t *testing.T) {
	const fault = "tap_alloc_fail"
	load(t)
	disk := guest.NullDisk(t, "injected", map[string]string{"cache_size": "1"})
	guest.Serve(t, "vol0", port, "backing="+disk+",writeback")
	dev := guest.OpenDirect(t, guest.Attach(t, port, ",mode=tap,backing=ram:16M,heartbeat=0"))
	data := guest.Aligned(t, 4096)
	write := func() {
		t.Helper()
		if _, err := dev.WriteAt(data, 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	without := func(do func()) {
		t.Helper()
		faults.set(t, setting{name: fault, rate: 1})
		defer faults.clear(t, fault)
		do()
	}
	forwarded := func(want ...string) {
		t.Helper()
		guest.Eventually(t, patience, "all copies are forwarded", func() bool { return guest.Session(t, "vol0")["queued"] == "0" })
		guest.WantFields(t, guest.Session(t, "vol0"), want...)
	}
	guest.WriteAndSync(t, dev)
	forwarded("dropped", "0")
	before, err := strconv.Atoi(guest.Session(t, "vol0")["flushes"])
	if err != nil {
		t.Fatal(err)
	}
	flushes := func(more int) string { return strconv.Itoa(before + more) }
	without(func() { sync(t, dev) })
	forwarded("flushes", flushes(0), "drops_memory", "1", "dropped_bytes", "0", "dirty_bytes", "0")
	write()
	forwarded("flushes", flushes(1), "dropped", "1")
	write()
	forwarded("flushes", flushes(1), "dropped", "1", "dirty_bytes", "0")
	without(write)
	forwarded("flushes", flushes(1), "drops_memory", "2", "dropped_bytes", "4096")
	if guest.Session(t, "vol0")["dirty_bytes"] == "0" {
		t.Error("nothing is dirty after a write was dropped")
	}
	write()
	forwarded("flushes", flushes(1), "dropped", "2")
}

func sync(t *testing.T, dev *os.File) {
	t.Helper()
	if err := dev.Sync(); err != nil {
		t.Fatal(err)
	}
}
