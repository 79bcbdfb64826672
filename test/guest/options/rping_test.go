// SPDX-License-Identifier: Apache-2.0

//go:build lab

package options

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"krping/test/guest/internal/guest"
)

var rpingSizes = []int{64, 4096, 65535}

func TestRpingMatrix(t *testing.T) {
	for family, addr := range map[string]string{"IPv4": guest.Addr(t), "IPv6": "fd77::1"} {
		option := addresses(t)[family]
		for _, size := range rpingSizes {
			t.Run(fmt.Sprintf("client/%s/%d", family, size), func(t *testing.T) {
				guest.StartRping(t, addr, 9987, "-S", fmt.Sprint(size))
				rpingServes(t, option, size)
			})
			t.Run(fmt.Sprintf("server/%s/%d", family, size), func(t *testing.T) {
				done := guest.StartServer(t, option+",server,port=9986,validate")
				guest.Run(t, "rping", "-c", "-V", "-a", addr, "-p", "9986", "-C", "20", "-S", fmt.Sprint(size))
				if err := <-done; err != nil {
					t.Errorf("server: %v", err)
				}
			})
		}
		// A server of rping accepts pings smaller than its own size, and even than its minimum.
		t.Run(fmt.Sprintf("client/%s/16", family), func(t *testing.T) {
			guest.StartRping(t, addr, 9987, "-S", "64")
			rpingServes(t, option, 16)
		})
	}
}

func rpingServes(t *testing.T, addr string, size int) {
	t.Helper()
	if err := guest.Command(fmt.Sprintf("client,%s,port=9987,count=20,validate,size=%d", addr, size), guest.Limit); err != nil {
		t.Errorf("client: %v", err)
	}
}

// rping refuses sizes outside those of the matrix above.
func TestRpingRefusesSizes(t *testing.T) {
	for _, size := range []string{"16", "1048576"} {
		for _, role := range []string{"-s", "-c"} {
			_, err := guest.TryRun("rping", role, "-a", guest.Addr(t), "-p", "9985", "-S", size)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() <= 0 { // -1: it hung and was killed
				t.Errorf("rping %s -S %s: %v, want it to refuse", role, size, err)
			}
		}
	}
}

func TestLinkLocal(t *testing.T) {
	for _, size := range append(rpingSizes, 16, 1<<20) {
		pair(t, fmt.Sprintf("addr6=%s%%eth0,port=9984,count=20,validate,size=%d", guest.LinkLocal(t), size))
	}
}
