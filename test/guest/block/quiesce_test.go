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
	"krping/test/guest/internal/targets"
	"krping/test/internal/late"
	"krping/test/internal/needs"
)

// A request that is inserted into the block layer's queue while the session becomes live again is sent even if
// no other request follows.
func TestInsertedWhileReconnecting(t *testing.T) {
	needs.Test(t, needs.EBPF, needs.Long) // on a busy machine its moment hardly comes
	served, path := attach(t, targets.Bridge, 16*mib, targets.Config{}, "")
	dev := guest.OpenDirect(t, path)
	const tries = 10 // a reconnect that needs the CPU that is held up, for a timer or a worker, is too late
	for range tries {
		served.Stop()
		guest.SessionBecomes(t, "reconnecting")
		time.Sleep(time.Second) // until requests wait in the queue
		insertion := hold.Insertion(t, 5*time.Second)
		read := readOn(t, 1, dev)
		guest.Eventually(t, 10*time.Second, "the request is being inserted", insertion.Began)
		served = againOn(t, 0, served)
		guest.SessionBecomes(t, "live")
		meanwhile := insertion.Holds()
		if err := guest.Within(t, guest.Slow(30*time.Second), "the read ends", read); err != nil {
			t.Errorf("read: %v", err)
		}
		if meanwhile {
			return
		}
	}
	late.Errorf(t, "the session was never live before the request was inserted, in %d tries", tries)
}

// againOn starts a target again on a CPU: on the one that is held up, it would wait.
func againOn(t *testing.T, cpu int, served *targets.Served) *targets.Served {
	t.Helper()
	runtime.LockOSThread() // a program inherits the CPUs of the thread that starts it
	defer runtime.UnlockOSThread()
	var before, only unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	only.Set(cpu)
	if err := unix.SchedSetaffinity(0, &only); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.SchedSetaffinity(0, &before); err != nil {
			t.Error(err)
		}
	}()
	return served.Again(t)
}

// readOn starts a read from a device on a CPU. Direct reads are not plugged: the submitter issues the request
// itself.
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
