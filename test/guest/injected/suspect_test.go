// SPDX-License-Identifier: Apache-2.0

//go:build lab

package injected

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/bridge/wire"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
)

// A write that alone is never answered fails after five losses, long before timeout=; those beside it succeed. A build
// with faults waits 3 s for an answer, not 30.
func TestRequestIsNeverAnswered(t *testing.T) {
	load(t)
	guest.CheckResources(t)
	const at, size = 64 << 10, 4096
	g := faketarget.Start(t, "")
	dev := guest.OpenDirect(t, guest.Attach(t, g.Port, fmt.Sprintf(",queues=1,depth=%d,timeout=600", faketarget.Welcome.Depth)))
	t.Cleanup(func() {
		_ = dev.Close()
		if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
			t.Error(err)
		}
	})
	g.Misbehave(faketarget.Misbehaviour{Op: wire.OpWrite, N: size, Do: func(c *faketarget.Conn, r wire.Request) bool {
		if r.Offset != at {
			c.Answer(r)
		}
		return false
	}})
	before := guest.Run(t, "dmesg")
	guilty := make(chan error, 1)
	go func() {
		_, err := dev.WriteAt(guest.Aligned(t, size), at)
		guilty <- err
	}()
	block, others := guest.Aligned(t, size), 0
	guest.Eventually(t, patience, "the write fails", func() bool {
		if _, err := dev.WriteAt(block, 0); err != nil {
			t.Fatalf("a write beside it: %v", err)
		}
		others++
		return len(guilty) > 0
	})
	if err := <-guilty; !errors.Is(err, unix.EIO) {
		t.Errorf("the write that is not answered: %v, want EIO", err)
	}
	if said := strings.TrimPrefix(guest.Run(t, "dmesg"), before); !strings.Contains(said, "its connection was lost 5 times in a row") {
		t.Errorf("the log does not say why:\n%s", said)
	}
	t.Logf("%d writes beside it", others)
}
