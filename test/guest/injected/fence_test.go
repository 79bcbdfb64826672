// SPDX-License-Identifier: Apache-2.0

//go:build lab

package injected

import (
	"bytes"
	"testing"
	"time"

	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

// The set-up or the end of a connection may hang in the RDMA device, or because of the peer. The volume's other clients
// wait for the store only, whatever the client had begun before it was lost.
func TestHangingConnections(t *testing.T) {
	const (
		hang   = 10 * time.Second
		within = 3 * time.Second
		large  = 1 << 20
	)
	load(t)
	disk := guest.NullDisk(t, "hanging", nil)
	if err := guest.Command(guest.ServeCommand(t, "vol0", port, "backing="+disk), guest.Limit); err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte{7}, large)
	for _, tc := range []struct {
		name  string
		hangs string // fault
		lose  func(t *testing.T)
	}{
		{"set-up", "target_setup_stall", func(t *testing.T) {
			// Its program waits for the accept until the end of the test.
			go func() {
				if conn, _, err := fakeclient.DialConn(t, port, fakeclient.Hello(1).Append(nil), fakeclient.Small); err == nil {
					conn.Release()
				}
			}()
		}},
		{"end of an idle client", "target_drain_stall", func(t *testing.T) {
			fakeclient.Connect(t, port, fakeclient.Hello(1)).Close()
		}},
		{"end with a READ in flight", "target_drain_stall", func(t *testing.T) {
			c := fakeclient.Connect(t, port, fakeclient.Hello(1))
			c.Post(fakeclient.Large(wire.OpRead, 0, data, c.LendData(data)))
			c.Close()
		}},
		{"end with a WRITE in flight", "target_drain_stall", func(t *testing.T) {
			c := fakeclient.Connect(t, port, fakeclient.Hello(1))
			c.Post(fakeclient.Large(wire.OpWrite, 0, data, c.LendData(data)))
			c.Close()
		}},
		{"end with a DIGEST in flight", "target_drain_stall", func(t *testing.T) {
			c := fakeclient.Connect(t, port, fakeclient.Hello(1))
			c.Post(fakeclient.Command(wire.OpDigest, wire.FlagInline, 8*large))
			c.Close()
		}},
		{"end by a violation", "target_drain_stall", func(t *testing.T) {
			c := fakeclient.Connect(t, port, fakeclient.Hello(1))
			c.PostMessage([]byte("not a command"))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := faults.fired(t, tc.hangs)
			faults.set(t, setting{name: tc.hangs, rate: 1, ms: int(hang.Milliseconds())})
			tc.lose(t)
			guest.Eventually(t, patience, "the connection hangs", func() bool { return faults.fired(t, tc.hangs) > before })
			faults.clear(t, tc.hangs)
			for _, who := range []struct {
				name    string
				session byte
			}{{"another client", 2}, {"the same client", 1}} {
				start := time.Now()
				c := fakeclient.Connect(t, port, fakeclient.Hello(who.session))
				c.WantServed()
				c.Close()
				if took := time.Since(start); took > guest.Slow(within) {
					late.Errorf(t, "%s was served after %v, want %v", who.name, took, within)
				}
			}
		})
	}
	stopping := make(chan error, 1)
	go func() { stopping <- guest.Command("stop,target,block=vol0", guest.Limit) }()
	if err := guest.Within(t, patience, "the volume is stopped", stopping); err != nil {
		t.Errorf("stop: %v", err)
	}
}
