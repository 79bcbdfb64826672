// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"os"
	"strings"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/noio"
	"krping/test/internal/needs"
)

// What the module does for a disk that memory may be written to, allocates without I/O: it would wait for
// itself. What a process does to make one, may.
func TestAllocatesWithoutIO(t *testing.T) {
	needs.Test(t, needs.EBPF)
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9829, store, "16MiB")
	queues, grown := noio.Watch(t, "krping_conn_alloc"), noio.Watch(t, "set_capacity_and_notify")
	dev := guest.Attach(t, 9829, ",queues=2,heartbeat=2")
	if n := queues.WithIO(); n != 2 || queues.WithoutIO() != 0 {
		t.Errorf("attach made %d queues with I/O, %d without: want 2, 0", n, queues.WithoutIO())
	}

	before := grown.WithIO()
	if err := os.Truncate(store, 24<<20); err != nil {
		t.Fatal(err)
	}
	guest.Eventually(t, 10*time.Second, "the device has grown", func() bool {
		return strings.TrimSpace(guest.Run(t, "blockdev", "--getsize64", dev)) == "25165824"
	})
	if with := grown.WithIO() - before; with != 0 || grown.WithoutIO() != 1 {
		t.Errorf("the disk grew %d times with I/O, %d without: want 0, 1", with, grown.WithoutIO())
	}

	bridge.Kill()
	guest.SessionBecomes(t, "reconnecting")
	guest.StartBridge(t, 9829, store, "24MiB")
	guest.SessionBecomes(t, "live")
	if n := queues.WithoutIO(); n < 2 || queues.WithIO() != 2 {
		t.Errorf("reconnecting made %d queues with I/O, %d without: want 0, at least 2", queues.WithIO()-2, n)
	}
}
