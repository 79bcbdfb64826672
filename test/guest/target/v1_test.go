// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"testing"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/guest/internal/v1peer"
	"krping/test/internal/needs"
)

const secret = "a-key-of-thirty-two-characters--"

// A recorded client of protocol version 1 gets the answers that it got then. It also reconnects, and is
// rejected as it was then.
func TestVersion1Client(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		for name, key := range map[string]string{"without a key": "", "with a key": secret} {
			t.Run(name, func(t *testing.T) {
				served := g.ServeNew(t, v1peer.Size, targets.Config{Writeback: true, Key: key})
				c := v1peer.NewClient(t, served.Port, key)
				c.Connect()
				c.Replay()
				c.Disconnect()
				c.Connect()
				c.WantFirstBlock()
				c.Connect() // while it is connected
				c.WantFirstBlock()
				if key != "" {
					v1peer.WantVersion1Rejects(t, served.Port)
				}
				served.WantVolume(t, "violations", "0", "crc_errors", "0", "errors", "0")
				c.Disconnect()
				if key == "" {
					verify(t, guest.Attach(t, served.Port, ""))
				}
			})
		}
	})
}
