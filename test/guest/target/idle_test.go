// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// The target probes an idle client now and then, not all the time.
func TestIdleClient(t *testing.T) {
	needs.Test(t, needs.Ends)
	needs.Test(t, needs.RoCE)
	served := targets.Module.Serve(t, targets.Config{Store: "ram:16M"})
	guest.Attach(t, served.Port, ",queues=2")
	time.Sleep(22 * time.Second) // each queue but the first was probed
	before := guest.SentPackets(t)
	time.Sleep(3 * time.Second)
	if n := guest.SentPackets(t) - before; n > 50 {
		t.Errorf("an idle session sent %d packets in 3 s, want at most 50", n)
	}
	guest.NoReconnects(t, "vol0")
	served.WantVolume(t, "queues", "2")
}
