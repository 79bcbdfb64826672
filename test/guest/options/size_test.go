// SPDX-License-Identifier: Apache-2.0

//go:build lab

package options

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/proc"
	"krping/test/guest/internal/guest"
)

var activeMTU = regexp.MustCompile(`active_mtu:\s+(\d+)`)

// setMTU sets the MTU of eth0 for the test, and returns the resulting MTU of the RDMA device.
func setMTU(t *testing.T, netdev string) int {
	t.Helper()
	guest.Run(t, "ip", "link", "set", "eth0", "mtu", netdev)
	t.Cleanup(func() { guest.Run(t, "ip", "link", "set", "eth0", "mtu", "4300") })
	match := activeMTU.FindStringSubmatch(guest.Run(t, "ibv_devinfo", "-d", guest.Device(t)))
	if match == nil {
		t.Fatal("ibv_devinfo names no active_mtu")
	}
	mtu, _ := strconv.Atoi(match[1])
	return mtu
}

func TestSizesAcrossMTU(t *testing.T) {
	for _, mtu := range []struct {
		netdev string
		rdma   int
	}{{"1500", 1024}, {"4300", 4096}} {
		t.Run(strconv.Itoa(mtu.rdma), func(t *testing.T) {
			if active := setMTU(t, mtu.netdev); active != mtu.rdma {
				t.Fatalf("RDMA MTU %d, want %d", active, mtu.rdma)
			}
			sizes := []int{1, 2, 127, 131072, 131073, guest.RegionPages(t) * 4096}
			for k := 1; k <= 3; k++ {
				sizes = append(sizes, k*mtu.rdma-1, k*mtu.rdma, k*mtu.rdma+1)
			}
			for _, test := range []string{"validate", "rlat", "bw", "wlat"} {
				for _, size := range sizes {
					pair(t, fmt.Sprintf("addr=%s,port=9988,count=3,size=%d,%s", guest.Addr(t), size, test))
				}
			}
		})
	}
}

func TestSizeBeyondTheDevice(t *testing.T) {
	fs := procFS(t)
	limit := fmt.Sprintf("%s allows %d", guest.Device(t), guest.RegionPages(t))
	for _, test := range []proc.Test{proc.Ping, proc.ReadLatency, proc.Bandwidth, proc.WriteLatency} {
		t.Run(string(test), func(t *testing.T) {
			command := proc.Command{
				Role: proc.Client, Addr: netip.MustParseAddr(guest.Addr(t)), Port: 9988, Test: test,
				Count: new(uint32(1)), Size: uint32(guest.RegionPages(t)*4096 + 1),
			}
			tooLarge := func(role proc.Role, err error) {
				t.Helper()
				if !errors.Is(err, unix.EINVAL) || !strings.Contains(reasons(err), limit) {
					t.Errorf("%s: %v, want EINVAL and the limit", role, err)
				}
			}
			_, err := fs.Run(t.Context(), command)
			tooLarge(proc.Client, err)

			command.Role = proc.Server
			server, err := fs.Start(t.Context(), command)
			if err != nil {
				t.Fatal(err)
			}
			guest.Eventually(t, guest.Limit, "the server ends with its first client", func() bool {
				command.Role, command.Size = proc.Client, 1
				if _, err := fs.Run(t.Context(), command); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("client of a server that cannot register its memory: %v, want ECONNREFUSED", err)
				}
				select {
				case <-server.Done():
					return true
				default:
					return false
				}
			})
			_, err = server.Wait()
			tooLarge(proc.Server, err)
		})
	}
}
