// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostileping

import (
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
)

// waitBusy waits until the module's thread has exchanged some messages or done some operations.
func waitBusy(t *testing.T) {
	t.Helper()
	guest.Eventually(t, 20*time.Second, "the module is busy", func() bool {
		for _, line := range guest.Threads(t) {
			fields := strings.Fields(line)
			for i := 2; i < len(fields); i += 2 { // numbers of messages and operations
				if n, err := strconv.Atoi(fields[i]); err == nil && n > 20 {
					return true
				}
			}
		}
		return false
	})
}

func startRping(t *testing.T, addr netip.AddrPort) *exec.Cmd {
	t.Helper()
	return guest.StartRping(t, addr.Addr().String(), int(addr.Port()))
}

func bridgeProcess(t *testing.T, addr netip.AddrPort) *exec.Cmd {
	t.Helper()
	return startBridge(t, addr).Cmd
}

func TestKilledServer(t *testing.T) {
	guest.CheckResources(t)
	for _, tc := range []struct {
		name, options string
		start         func(t *testing.T, addr netip.AddrPort) *exec.Cmd
		want          []error
	}{
		// The kernel frees the memory regions of a killed process before its queue pairs. What the client
		// sends or reads in between is refused (EPROTO); after that the connection is gone.
		{"rping", "", startRping, denied},
		{"krping-bridge", "", bridgeProcess, denied},
		{"krping-bridge at reg and server_inv", ",mem_mode=reg,server_inv", bridgeProcess, denied},
		{"krping-bridge at rlat", ",rlat", bridgeProcess, denied},
		{"krping-bridge at bw", ",bw", bridgeProcess, denied},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr := nextAddr(t)
			peer := tc.start(t, addr)
			guest.NoThreads(t)
			w := write("client,addr=%s,port=%d,timeout=2%s", addr.Addr(), addr.Port(), tc.options)
			waitBusy(t)
			guest.Signal(t, peer, unix.SIGKILL)
			w.ends(t, tc.want...)
		})
	}
}

func TestKilledClient(t *testing.T) {
	guest.CheckResources(t)
	for _, tc := range []struct {
		name   string
		signal unix.Signal
		want   []error
	}{
		// Between two pings or during one. What the server reads or writes once the client's memory regions are freed, and
		// its queue pair is not, is refused (EPROTO).
		{"killed", unix.SIGKILL, ends(nil, unix.ECONNRESET, unix.EPROTO)},
		{"stopped", unix.SIGSTOP, ends(unix.ETIMEDOUT)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			guest.NoThreads(t)
			w, addr := server(t, "")
			guest.Eventually(t, 20*time.Second, "the server listens", func() bool { return len(guest.Threads(t)) == 1 })
			peer := guest.Start(t, "rping", "-c", "-a", addr.Addr().String(), "-p", strconv.Itoa(int(addr.Port())))
			waitBusy(t)
			guest.Signal(t, peer, tc.signal)
			w.ends(t, tc.want...)
		})
	}
}

// A peer that is killed in a verbs test ends it, whatever is in flight: the module as its client, and as its server.
func TestKilledVerbsPeer(t *testing.T) {
	guest.CheckResources(t)
	for _, test := range []string{"send rc", "write rc", "write_imm rc", "read rc", "fetch_add rc", "cmp_swap rc", "send uc", "write uc", "write_imm uc", "send ud"} {
		verb, qp, _ := strings.Cut(test, " ")
		for _, measure := range []string{"bw", "lat"} {
			t.Run("server/"+verb+"/"+qp+"/"+measure, func(t *testing.T) {
				addr := nextAddr(t)
				peer := bridgeProcess(t, addr)
				guest.NoThreads(t)
				w := write("client,addr=%s,port=%d,timeout=2,verb=%s,qp=%s,%s,validate", addr.Addr(), addr.Port(), verb, qp, measure)
				waitBusy(t)
				guest.Signal(t, peer, unix.SIGKILL)
				w.ends(t, denied...)
			})
			t.Run("client/"+verb+"/"+qp+"/"+measure, func(t *testing.T) {
				addr := nextAddr(t)
				guest.NoThreads(t)
				w := write("server,verbs,addr=%s,port=%d,timeout=2", addr.Addr(), addr.Port())
				guest.Eventually(t, 20*time.Second, "the server listens", func() bool { return len(guest.Threads(t)) == 1 })
				peer := guest.Start(t, guest.Binary(t, "krping-bridge"), "client", "--timeout", "30s", "--addr", addr.String(), "--verb", verb, "--qp", qp, "--"+measure, "--validate")
				if verb == "send" {
					waitBusy(t)
				} else { // the server counts nothing
					guest.Eventually(t, 20*time.Second, "the client is connected", func() bool {
						return !strings.Contains(strings.Join(guest.Threads(t), ""), "listen")
					})
					time.Sleep(time.Second)
				}
				guest.Signal(t, peer, unix.SIGKILL)
				w.ends(t, denied...)
			})
		}
	}
}

// A peer that stops while its device goes on ends a test of the module's client after its timeout, also where the client
// waits for credit alone.
func TestStoppedVerbsPeer(t *testing.T) {
	guest.CheckResources(t)
	for _, options := range []string{"verb=write,qp=rc,validate", "verb=write,qp=rc,validate,rate=100", "verb=write_imm,qp=uc,validate,rate=100"} {
		t.Run(options, func(t *testing.T) {
			addr := nextAddr(t)
			peer := bridgeProcess(t, addr)
			guest.NoThreads(t)
			w := write("client,addr=%s,port=%d,timeout=2,bw,%s", addr.Addr(), addr.Port(), options)
			waitBusy(t)
			guest.Signal(t, peer, unix.SIGSTOP)
			w.ends(t, unix.ETIMEDOUT)
		})
	}
}
