// SPDX-License-Identifier: Apache-2.0

//go:build lab

package options

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/proc"
	"krping/test/guest/internal/guest"
)

func reload(t *testing.T, parameters ...string) {
	t.Helper()
	guest.NoThreads(t)
	guest.Run(t, "rmmod", "rdma_krping")
	guest.Run(t, append([]string{"insmod", guest.Module(t)}, parameters...)...)
}

func TestUnsafeGlobalKey(t *testing.T) {
	reload(t, "unsafe_global_rkey=1")
	t.Cleanup(func() { reload(t) })
	for _, test := range []string{"validate", "rlat", "bw", "wlat"} {
		for _, size := range []int{1, 4096, 1 << 20} {
			pair(t, fmt.Sprintf("addr=%s,port=9981,count=20,mem_mode=dma,size=%d,%s", guest.Addr(t), size, test))
		}
	}
	// Without a registration the limit is the kernel's, not the device's.
	_, err := procFS(t).Run(t.Context(), proc.Command{
		Role: proc.Client, Addr: netip.MustParseAddr(guest.Addr(t)), Port: 9981, MemMode: "dma", Size: 4<<20 + 1,
	})
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(reasons(err), "4194304") {
		t.Errorf("more than the kernel allocates in one piece: %v, want EINVAL and the limit", err)
	}
	// Memory that is registered still has its own key.
	pair(t, fmt.Sprintf("addr=%s,port=9981,count=20,mem_mode=reg,validate,size=4096", guest.Addr(t)))
}
