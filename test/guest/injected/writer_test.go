// SPDX-License-Identifier: Apache-2.0

//go:build lab

package injected

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
)

// A writer that is lost keeps the volume for a while, so that it can come back: for a shorter time in this build. Then a
// client at another address may write, and the one that was lost is refused.
func TestLostWriterKeepsTheVolume(t *testing.T) {
	const hold = 5 * time.Second // HOLD_TIME of kmod/target/writer.c
	load(t)
	guest.Serve(t, "vol0", port, "backing=ram:8M")
	other := netip.MustParseAddr("192.168.77.201")
	guest.AddAddress(t, other.String()+"/24")
	attempt := func() (c *fakeclient.Client, refused bool) {
		t.Helper()
		c, err := fakeclient.DialFrom(t, other, port, fakeclient.Hello(2).Append(nil), fakeclient.Config)
		var rejected *verbs.RejectedError
		if !errors.As(err, &rejected) {
			return c, false
		}
		if inUse, err := wire.DecodeInUse(rejected.Private); err != nil || inUse.Holder.String() != guest.Addr(t) {
			t.Fatalf("a second writer: %+v, %v, want the writer %s", inUse, err, guest.Addr(t))
		}
		return nil, true
	}
	writer := fakeclient.Connect(t, port, fakeclient.Hello(1))
	writer.WantServed()
	guest.Eventually(t, patience, "the second address can be used", func() bool { _, refused := attempt(); return refused })
	lost := time.Now()
	writer.Close()
	var second *fakeclient.Client
	guest.Eventually(t, patience, "the volume is free", func() bool {
		time.Sleep(50 * time.Millisecond)
		second, _ = attempt()
		return second != nil
	})
	if took := time.Since(lost); took < hold-hold/10 {
		t.Errorf("the volume was free %v after the loss of its writer, want %v", took, hold)
	} else {
		t.Logf("free after %v", took)
	}
	if second.Welcome.Writer != 2 {
		t.Errorf("the second client is writer number %d, want 2", second.Welcome.Writer)
	}
	second.WantServed()
	fakeclient.Rejected(t, "the writer that was lost", port, fakeclient.Hello(1), wire.RejectInUse)
}
