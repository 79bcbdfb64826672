// SPDX-License-Identifier: Apache-2.0

//go:build lab

package trace

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

// allocations counts what kmalloc traces about a number of bytes from now on: one event for each call, or two on 6.12.
func allocations(t *testing.T, bytes int) (count func() int) {
	t.Helper()
	dir := "/sys/kernel/tracing/instances/krping-test"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	set := func(file, value string) {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	set("events/kmem/kmalloc/filter", fmt.Sprintf("bytes_req == %d", bytes))
	set("events/kmem/kmalloc/enable", "1")
	t.Cleanup(func() { set("events/kmem/kmalloc/enable", "0") })
	return func() int {
		t.Helper()
		trace, err := os.ReadFile(filepath.Join(dir, "trace"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(trace), " kmalloc: ")
	}
}

// A reconnect allocates no scatterlists: some for the largest requests are kept, as memory may be short.
func TestScatterlistsAreKept(t *testing.T) {
	const (
		queues      = 2
		kept        = queues + 1
		scatterlist = 257 * 32 // bytes: 1 MiB that begins within a page; struct scatterlist has 32
	)
	served := targets.Bridge.ServeNew(t, volume, targets.Config{})
	count := allocations(t, scatterlist)
	dev := guest.OpenDirect(t, guest.Attach(t, served.Port, fmt.Sprintf(",queues=%d,depth=16", queues)))
	attached := count()
	if attached < kept {
		t.Errorf("attach allocated %d scatterlists, want %d", attached, kept)
	}
	for range 3 {
		served.Stop()
		guest.SessionBecomes(t, "reconnecting")
		served = served.Again(t)
		guest.SessionBecomes(t, "live")
	}
	guest.WriteAndSync(t, dev)
	if n := count() - attached; n != 0 {
		t.Errorf("three reconnects allocated scatterlists: %d events", n)
	}
}
