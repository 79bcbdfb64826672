// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/hold"
	"krping/test/internal/needs"
)

// A request that is inserted into the block layer's queue while the session becomes live again is sent,
// even if nothing comes after it.
func TestInsertedWhileReconnecting(t *testing.T) {
	needs.Test(t, needs.EBPF)
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9819, store, "16MiB")
	dev := guest.OpenDirect(t, guest.Attach(t, 9819, ""))
	const tries = 5
	for range tries {
		bridge.Kill()
		guest.SessionBecomes(t, "reconnecting")
		time.Sleep(time.Second) // until its requests wait
		insertion := hold.Insertion(t, 3*time.Second)
		read := readOn(t, 1, dev)
		guest.Eventually(t, 10*time.Second, "the request is being inserted", insertion.Began)
		bridge = guest.StartBridge(t, 9819, store, "16MiB")
		guest.SessionBecomes(t, "live")
		meanwhile := insertion.Holds()
		if err := guest.Within(t, guest.Slow(15*time.Second), "the read ends", read); err != nil {
			t.Errorf("read: %v", err)
		}
		if meanwhile {
			return
		}
	}
	t.Errorf("the session was never live before the request was inserted, in %d tries", tries)
}

// readOn begins to read from a device on a CPU. Of direct I/O, reads have no plug: the submitter issues
// the request itself.
func readOn(t *testing.T, cpu int, dev *os.File) <-chan error {
	t.Helper()
	data := guest.Aligned(t, 4096)
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		var cpus unix.CPUSet
		cpus.Set(cpu)
		err := unix.SchedSetaffinity(0, &cpus)
		if err == nil {
			_, err = dev.ReadAt(data, 0)
		}
		ended <- err
	}()
	return ended
}
