// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"testing"

	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// The module counts a session as a writer with its first command. One that ends before that leaves the volume to the
// writer before, which keeps its number.
func TestUnservedWriter(t *testing.T) {
	needs.Test(t, needs.Ends)
	served := targets.Module.ServeNew(t, size, targets.Config{})
	attach := func(session byte, number uint32, uses bool) {
		t.Helper()
		c := fakeclient.Connect(t, served.Port, fakeclient.Hello(session))
		if c.Welcome.Writer != number {
			t.Errorf("session %d is writer number %d, want %d", session, c.Welcome.Writer, number)
		}
		if uses {
			c.WantServed()
		}
		c.Close()
		guest.Eventually(t, guest.Limit, "the connection is gone", func() bool { return guest.Volume(t, "vol0")["queues"] == "0" })
	}
	attach(1, 1, false)
	attach(2, 2, true)
	attach(3, 3, false)
	attach(2, 2, true)
	attach(4, 4, true)
	attach(2, 5, false)
	attach(4, 4, true)
}
