// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// An idle client is looked for now and then, not all the time.
func TestIdleClient(t *testing.T) {
	needs.Test(t, needs.RoCE)
	guest.Serve(t, "vol0", port, "backing=ram:16M")
	guest.Attach(t, port, ",queues=2")
	time.Sleep(22 * time.Second) // each queue but the first was looked for
	before := guest.SentPackets(t)
	time.Sleep(3 * time.Second)
	if n := guest.SentPackets(t) - before; n > 50 {
		t.Errorf("%d packets in 3 s of an idle session", n)
	}
	wants(t, guest.Session(t, "vol0"), "reconnects", "0")
	wants(t, guest.Volume(t, "vol0"), "queues", "2")
}
