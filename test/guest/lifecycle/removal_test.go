// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lifecycle

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/proc"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

// endsWithin is the timeout of a step, and so the limit for the end of a command that has lost its device.
const endsWithin = 10 * time.Second

func pings(t *testing.T, role, options string) string {
	t.Helper()
	return fmt.Sprintf("%s,addr=%s,port=%d,timeout=%.0f,%s", role, guest.Addr(t), port+5, endsWithin.Seconds(), options)
}

// startClient starts an endless command, and waits until it and its server, if that is in this kernel, are connected
// and have exchanged messages.
func startClient(t *testing.T, options string, threads int) <-chan error {
	t.Helper()
	client := make(chan error, 1)
	go func() { client <- guest.Command(pings(t, "client", "count=0,"+options), guest.Limit) }()
	guest.Eventually(t, 20*time.Second, "the test runs", func() bool {
		running := 0
		for _, line := range guest.Threads(t) {
			if fields := strings.Fields(line); len(fields) == 9 && fields[4] != "0" { // messages received
				running++
			}
		}
		return running == threads
	})
	time.Sleep(guest.Slow(300 * time.Millisecond))
	return client
}

// ends returns the error of a command after the removal of the device.
func ends(t *testing.T, who string, command <-chan error) error {
	t.Helper()
	err := guest.Within(t, endsWithin, "the "+who+" ends", command)
	t.Logf("%s: %v", who, err)
	return err
}

// isLost says whether a command ended because its device was removed, or its peer, which noticed that earlier, gone.
func isLost(err error) bool { return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ECONNRESET) }

// wasRunning fails if the client had not begun before it ended.
func wasRunning(t *testing.T) {
	t.Helper()
	fs, err := proc.NewFS("/proc")
	if err != nil {
		t.Fatal(err)
	}
	results, err := fs.Results()
	if err != nil {
		t.Fatal(err)
	}
	for i := len(results) - 1; i >= 0; i-- {
		if r := results[i]; r.Role == proc.Client {
			t.Logf("%d operations", r.Ops)
			if r.Ops == 0 {
				late.Errorf(t, "the client had done nothing before the device was removed")
			}
			return
		}
	}
	t.Error("no result of a client")
}

// The RDMA device is removed during a ping or measurement, and added again. Both sides end. The one that is told first gets
// the reason; the other one sees its peer disconnect, as a server does at the end of each test.
func TestDeviceRemovedUnderCommand(t *testing.T) {
	for _, options := range []string{"validate", "size=8192,mem_mode=reg,server_inv", "rlat", "rlat,poll", "wlat", "wlat,poll", "bw,qps=3", "bw,duplex", "bw,poll", "fr"} {
		t.Run(options, func(t *testing.T) {
			server := guest.StartServer(t, pings(t, "server", options))
			client := startClient(t, options, 2)
			start := time.Now()
			guest.RemoveDevice(t)
			if took := time.Since(start); took > guest.Slow(endsWithin) {
				late.Errorf(t, "the removal of the device took %v", took)
			}
			guest.AddDevice(t)
			clients, servers := ends(t, "client", client), ends(t, "server", server)
			if !errors.Is(clients, unix.ENODEV) && !errors.Is(servers, unix.ENODEV) {
				t.Errorf("client: %v, server: %v, want %v of one", clients, servers, unix.ENODEV)
			}
			if !isLost(clients) || servers != nil && !isLost(servers) {
				t.Errorf("client: %v, server: %v, want ENODEV or a lost connection", clients, servers)
			}
			guest.NoThreads(t)
			wasRunning(t)
			server = guest.StartServer(t, pings(t, "server", "validate"))
			ping(t)
			if err := guest.Within(t, endsWithin, "the server ends", server); err != nil {
				t.Errorf("server after the device is back: %v", err)
			}
		})
	}
}

// The same with a bridge as the server, which goes on. The kernel may free a program's memory regions before its queue
// pairs: what the client sends, reads or writes in between is refused (EPROTO).
func TestDeviceRemovedUnderPingBridge(t *testing.T) {
	bridge := guest.StartPingBridge(t, port+5)
	for _, options := range []string{"validate", "rlat", "bw", "fr"} {
		t.Run(options, func(t *testing.T) {
			client := startClient(t, options, 1)
			bridge.RemoveDevice(t)
			guest.AddDevice(t)
			if err := ends(t, "client", client); !isLost(err) && !errors.Is(err, unix.EPROTO) {
				t.Errorf("client: %v, want ENODEV, a lost connection or a refused operation", err)
			}
			guest.NoThreads(t)
			wasRunning(t)
			bridge.Returns(t)
			ping(t)
		})
	}
}

// A server that has no client yet ends, too.
func TestDeviceRemovedUnderWaitingServer(t *testing.T) {
	server := guest.StartServer(t, pings(t, "server", "validate"))
	guest.RemoveDevice(t)
	guest.AddDevice(t)
	if err := ends(t, "server", server); !errors.Is(err, unix.ENODEV) {
		t.Errorf("server: %v, want %v", err, unix.ENODEV)
	}
	guest.NoThreads(t)
}

// ping checks that a ping succeeds.
func ping(t *testing.T) {
	t.Helper()
	if err := guest.Command(pings(t, "client", "count=10,validate"), guest.Limit); err != nil {
		t.Errorf("ping after the device is back: %v", err)
	}
}
