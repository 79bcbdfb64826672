// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addresses that the host gets within settle are reported once, after it.
func TestFollowAddresses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("makes a network namespace, which needs root")
	}
	runtime.LockOSThread() // and not unlocked: thread and namespace end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE) // in the new namespace, whichever thread uses it
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	lo, err := host.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	added := make(chan int)
	go func() {
		n := 0
		defer func() { added <- n }()
		for ctx.Err() == nil && n < 250 {
			n++
			addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 0, 0, byte(n)), Mask: net.CIDRMask(24, 32)}}
			if err := host.AddrAdd(lo, addr); err != nil {
				t.Error(err)
				return
			}
			time.Sleep(settle / 10)
		}
	}()
	calls := 0
	err = followAddresses(ctx, func() {
		if calls++; calls == 3 {
			cancel()
		}
	})
	if err != nil {
		t.Error(err)
	}
	if n := <-added; calls != 3 || n < 3*calls {
		t.Errorf("%d calls for %d addresses, want 3 for many", calls, n)
	}
}
