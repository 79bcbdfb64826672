// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// available returns how many bytes of memory a program can have.
func available(t *testing.T) int {
	t.Helper()
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		t.Fatal(err)
	}
	info, err := fs.Meminfo()
	if err != nil {
		t.Fatal(err)
	}
	return int(*info.MemAvailableBytes)
}

// attachMemory attaches a volume of 1 MiB in memory, until the end of the test.
func attachMemory(t *testing.T, name string, port int, options string) error {
	t.Helper()
	err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,block=%s%s", guest.Addr(t), port, name, options), guest.Limit)
	if err == nil {
		t.Cleanup(func() {
			if err := guest.Command("stop,block="+name, guest.Limit); err != nil {
				t.Error(err)
			}
		})
	}
	return err
}

// A session takes less memory on both hosts together than a controller of nvme-rdma with its admin queue and one of the
// same depth.
func TestMemoryOfASession(t *testing.T) {
	needs.Test(t, needs.Once, needs.StockKernel) // the debug kernel's allocations are larger
	guest.CheckResources(t)
	const sessions, most = 32, 7 * mib
	port := guest.NextPort()
	name := func(i int) string { return fmt.Sprintf("vol%d", i) }
	for i := range sessions {
		guest.Serve(t, name(i), port, "backing=ram:1M")
	}
	attach := func(i int) {
		t.Helper()
		if err := attachMemory(t, name(i), port, ",queues=1"); err != nil {
			t.Fatal(err)
		}
	}
	attach(0) // what is allocated for all
	before := available(t)
	for i := 1; i < sessions; i++ {
		attach(i)
	}
	each := (before - available(t)) / (sessions - 1)
	t.Logf("%d KiB a session", each>>10)
	if each > most {
		t.Errorf("a session takes %d KiB, want at most %d", each>>10, most>>10)
	}
}

// A session for whose queues there is no memory is refused, by the client or the target. No process is killed for it, and
// the others go on.
func TestMemoryForQueues(t *testing.T) {
	needs.Test(t, needs.Once, needs.StockKernel) // the debug kernel's VM has too much memory to use up; nomem fails allocations there
	guest.CheckResources(t)
	port := guest.NextPort()
	attach := func(n int) error {
		name := fmt.Sprintf("vol%d", n)
		guest.Serve(t, name, port, "backing=ram:1M")
		return attachMemory(t, name, port, ",queues=16")
	}
	other, err := unix.Mmap(-1, 0, available(t)-384*mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(other) })
	const most = 64 // more than fit
	n := 0
	for ; n < most && err == nil; n++ {
		err = attach(n)
	}
	t.Logf("session %d: %v", n, err)
	if n < 2 || !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the first %d sessions: %v, want ENOMEM or ECONNREFUSED, and not for the first", n, err)
	}
	log := guest.Run(t, "dmesg")
	if strings.Contains(log, "Out of memory") {
		t.Error("the kernel has killed a process for its memory")
	}
	if !strings.Contains(log, "queues of depth 128 take ") && !strings.Contains(log, "the target is out of memory") {
		t.Error("the log does not tell what the session lacks")
	}
	guest.WriteAndSync(t, guest.OpenDirect(t, "/dev/"+guest.Session(t, "vol0")["dev"]))
}
