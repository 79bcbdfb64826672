// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// A session for whose queues there is no memory is refused, by the client or the target. No process is killed for it, and
// the others go on.
func TestMemoryForQueues(t *testing.T) {
	needs.Test(t, needs.Once, needs.StockKernel) // the debug kernel's VM has too much memory to use up; nomem fails allocations there
	guest.CheckResources(t)
	port := guest.NextPort()
	attach := func(n int) error {
		name := fmt.Sprintf("vol%d", n)
		guest.Serve(t, name, port, "backing=ram:1M")
		err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,block=%s,queues=16", guest.Addr(t), port, name), guest.Limit)
		if err == nil {
			t.Cleanup(func() {
				if err := guest.Command("stop,block="+name, guest.Limit); err != nil {
					t.Error(err)
				}
			})
		}
		return err
	}
	const most = 64 // 12 GiB of both ends
	n := 0
	var err error
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
