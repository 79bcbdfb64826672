// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"os"
	"testing"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/noio"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// While a disk is in use, the module allocates memory with GFP_NOIO semantics: memory reclaim could wait for the
// same disk. While a process attaches the disk, allocations may do I/O.
func TestAllocatesWithoutIO(t *testing.T) {
	needs.Test(t, needs.EBPF)
	served := targets.Bridge.ServeNew(t, 16*mib, targets.Config{})
	queues, grown := noio.Watch(t, "krping_conn_alloc"), noio.Watch(t, "set_capacity_and_notify")
	dev := guest.Attach(t, served.Port, ",queues=2,heartbeat=2")
	if n := queues.WithIO(); n != 2 || queues.WithoutIO() != 0 {
		t.Errorf("attach made %d queues with I/O, %d without: want 2, 0", n, queues.WithoutIO())
	}

	before := grown.WithIO()
	if err := os.Truncate(served.Store, 24*mib); err != nil {
		t.Fatal(err)
	}
	waitForSize(t, dev, "25165824")
	if with := grown.WithIO() - before; with != 0 || grown.WithoutIO() != 1 {
		t.Errorf("the disk grew %d times with I/O, %d without: want 0, 1", with, grown.WithoutIO())
	}

	served.Stop()
	guest.SessionBecomes(t, "reconnecting")
	served.Again(t)
	guest.SessionBecomes(t, "live")
	if n := queues.WithoutIO(); n < 2 || queues.WithIO() != 2 {
		t.Errorf("reconnecting made %d queues with I/O, %d without: want 0, at least 2", queues.WithIO()-2, n)
	}
}
