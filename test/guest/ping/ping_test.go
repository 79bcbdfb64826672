// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package ping tests ping/pong of rdma_krping inside one VM: server and client share the VM's Soft-RoCE device.
package ping

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
)

func TestClientAgainstRping(t *testing.T) {
	guest.StartRping(t, guest.Addr(t), 9999, "-C", "1000", "-S", "4096")
	if err := guest.Command("client,addr="+guest.Addr(t)+",port=9999,count=1000,size=4096,validate", guest.Limit); err != nil {
		t.Errorf("client: %v", err)
	}
}

func TestServerAgainstRping(t *testing.T) {
	for _, size := range []string{"32", "64", "4096", "65535"} { // rping refuses 16
		t.Run(size, func(t *testing.T) {
			done := guest.StartServer(t, "server,addr="+guest.Addr(t)+",port=9998,validate")
			guest.Run(t, "rping", "-c", "-a", guest.Addr(t), "-p", "9998", "-C", "1000", "-S", size)
			if err := <-done; err != nil {
				t.Fatalf("server: %v", err)
			}
		})
	}
}

func TestSizesBothWays(t *testing.T) {
	largest := guest.RegionPages(t) * 4096
	for _, size := range []int{1, 2, 15, 16, 17, 1023, 4095, 4096, 4097, 8191, 65536, largest/2 + 1, largest} {
		for _, addr := range []string{"addr=" + guest.Addr(t), "addr6=fd77::1"} {
			t.Run(fmt.Sprintf("%d/%s", size, addr), func(t *testing.T) {
				done := guest.StartServer(t, fmt.Sprintf("server,%s,port=9997,validate,size=%d", addr, size))
				err := guest.Command(fmt.Sprintf("client,%s,port=9997,count=5,validate,size=%d", addr, size), guest.Limit)
				if err != nil {
					t.Errorf("client: %v", err)
				}
				if err := <-done; err != nil {
					t.Errorf("server: %v", err)
				}
			})
		}
	}
}

// The server's nine columns after a client's 7 pings of 100 bytes.
func TestStatistics(t *testing.T) {
	guest.NoThreads(t)
	addr := guest.Addr(t)
	done := guest.StartServer(t, "server,addr="+addr+",port=9996")
	if threads := guest.Threads(t); len(threads) != 1 || threads[0] != "1 listen" {
		t.Errorf("threads before the client: %q, want [\"1 listen\"]", threads)
	}
	client := make(chan error, 1)
	go func() { client <- guest.Command("client,addr="+addr+",port=9996,size=100,count=0", 2*time.Second) }()
	var server string
	guest.Eventually(t, 20*time.Second, "both threads count", func() bool {
		for _, line := range guest.Threads(t) {
			fields := strings.Fields(line)
			if len(fields) == 9 && fields[8] != "0" && fields[6] != "0" {
				server = line
			}
		}
		return server != "" && len(guest.Threads(t)) == 2
	})
	if !strings.Contains(server, "-"+guest.Device(t)+" ") {
		t.Errorf("server's line %q does not name the device", server)
	}
	if err := <-client; !errors.Is(err, unix.EINTR) {
		t.Errorf("endless client that got a signal: %v, want EINTR", err)
	}
	<-done
	guest.NoThreads(t)
}

func TestManyThreads(t *testing.T) {
	const pairs = 20
	var wg sync.WaitGroup
	var servers [pairs]<-chan error
	for i := range servers {
		servers[i] = guest.StartServer(t, fmt.Sprintf("server,addr=%s,port=%d,validate", guest.Addr(t), 11000+i))
	}
	for i, done := range servers {
		port := 11000 + i
		wg.Go(func() {
			if err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,count=50,size=5000,validate", guest.Addr(t), port), guest.Limit); err != nil {
				t.Errorf("client %d: %v", port, err)
			}
			if err := <-done; err != nil {
				t.Errorf("server %d: %v", port, err)
			}
		})
	}
	wg.Wait()
}

func TestErrors(t *testing.T) {
	addr := guest.Addr(t)
	busy := guest.StartServer(t, "server,addr="+addr+",port=9990")
	for _, tc := range []struct {
		command string
		want    error
	}{
		{"", unix.EINVAL},
		{"client", unix.EINVAL},
		{"client,addr=" + addr + ",por=1", unix.EINVAL},
		{"client,addr=" + addr + ",port=0", unix.EINVAL},
		{"client,addr=" + addr + ",port=65536", unix.EINVAL},
		{"client,addr=" + addr + ",size=0", unix.EINVAL},
		{"client,addr=" + addr + ",count=-1", unix.EINVAL},
		{"client,,addr=" + addr + ",count=x,count=1", unix.EINVAL},
		{"client,,addr=" + addr + ",port=1,port=011,count=0x1", unix.ECONNREFUSED}, // as upstream's krping
		{"client,server,addr=" + addr, unix.EINVAL},
		{"client,addr=" + addr + ",addr6=::1", unix.EINVAL},
		{"client,addr=300.1.1.1", unix.EINVAL},
		{"client,addr=" + addr + "\x00", unix.EINVAL},
		{strings.Repeat("a", 600), unix.EINVAL},
		{"stop,block=nosuch", unix.ENOENT},
		{"client,addr=" + addr + ",port=9", unix.ECONNREFUSED},
		{"client,addr=" + addr + ",port=9,block=vol0", unix.ECONNREFUSED},
		{"server,addr=" + addr + ",port=9990", unix.EADDRINUSE},
		{"server,addr=1.2.3.4", unix.EADDRNOTAVAIL},
		{"client,addr6=fe80::1%nosuch0", unix.ENODEV},
	} {
		if err := guest.Command(tc.command, guest.Limit); !errors.Is(err, tc.want) {
			t.Errorf("%.60q: %v, want %v", tc.command, err, tc.want)
		}
	}
	// The log names the limit of the device's regions.
	err := guest.Command("client,addr="+addr+",port=9990,size=1073741824", guest.Limit)
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("size beyond the device: %v, want EINVAL", err)
	}
	if log := guest.Run(t, "dmesg"); !strings.Contains(log, fmt.Sprintf("%s allows %d", guest.Device(t), guest.RegionPages(t))) {
		t.Error("the kernel log does not name the device's limit")
	}
	go func() { _ = guest.Command("client,addr="+addr+",port=9990,count=1", guest.Limit) }()
	<-busy
}

// A signal arrives at any moment of the set-up: the connection manager's handlers may be running. An oops fails the
// suite.
func TestInterruptedSetUp(t *testing.T) {
	ended := map[error]int{}
	for i := range 400 {
		err := guest.Command("client,addr="+guest.Addr(t)+",port=9989,count=1", time.Duration(i)*50*time.Microsecond)
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("interrupted after %d x 50 µs: %v, want EINTR or ECONNREFUSED", i, err)
		}
		ended[err]++
	}
	t.Logf("%v", ended)
	if len(ended) != 2 {
		t.Errorf("%v: want some attempts interrupted and some refused", ended)
	}
	guest.NoThreads(t)
}

// silence returns an address where connect requests are neither answered nor refused.
func silence(t *testing.T) string {
	t.Helper()
	if !guest.IWARP(t) {
		nobody := guest.Addr(t)[:strings.LastIndexByte(guest.Addr(t), '.')] + ".99"
		guest.Run(t, "ip", "neigh", "replace", nobody, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")
		t.Cleanup(func() { guest.Run(t, "ip", "neigh", "del", nobody, "dev", "eth0") })
		return "addr=" + nobody + ",port=9988"
	}
	// TCP does not answer while the listener's backlog is full.
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(l) })
	at := netip.AddrPortFrom(netip.MustParseAddr(guest.Addr(t)), 9988)
	if err := errors.Join(unix.Bind(l, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}), unix.Listen(l, 0)); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return fmt.Sprintf("addr=%s,port=%d", at.Addr(), at.Port())
}

// Over siw the kernel waits for TCP while it connects. A signal ends that wait, too, and does not restart the command.
func TestInterruptedWhileConnecting(t *testing.T) {
	ended := make(chan error, 1)
	start := time.Now()
	command := "client," + silence(t) + ",count=1,timeout=60"
	go func() { ended <- guest.Command(command, time.Second) }()
	if err := guest.Within(t, 10*time.Second, "the command ends", ended); !errors.Is(err, unix.EINTR) {
		t.Errorf("interrupted: %v, want EINTR", err)
	}
	if took := time.Since(start); took < time.Second {
		t.Errorf("the command ended after %v, without a signal", took)
	}
}

// A server rejects a client whose pings are larger than its own size.
func TestServerRejectsOversizedPing(t *testing.T) {
	done := guest.StartServer(t, "server,addr="+guest.Addr(t)+",port=9995,size=64")
	err := guest.Command("client,addr="+guest.Addr(t)+",port=9995,count=1,size=65", guest.Limit)
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("client: %v, want ECONNREFUSED", err)
	}
	if err := <-done; !errors.Is(err, unix.EPROTO) {
		t.Errorf("server: %v, want EPROTO", err)
	}
}

// SIGKILL of the writer, in each of its waits, leaves nothing behind.
func TestKilledWriter(t *testing.T) {
	guest.NoThreads(t)
	addr := guest.Addr(t)
	resources := guest.Run(t, "rdma", "resource", "show", guest.Device(t))
	write := func(command string) *exec.Cmd {
		return guest.Start(t, "sh", "-c", "echo "+command+" > /proc/krping")
	}
	t.Run("waiting server", func(t *testing.T) {
		server := write("server,addr=" + addr + ",port=9994")
		guest.Eventually(t, 20*time.Second, "the server listens", func() bool { return len(guest.Threads(t)) == 1 })
		killAndReap(t, server)
	})
	t.Run("both during pings", func(t *testing.T) {
		server := write("server,addr=" + addr + ",port=9994,validate")
		guest.Eventually(t, 20*time.Second, "the server listens", func() bool { return len(guest.Threads(t)) == 1 })
		time.Sleep(100 * time.Millisecond)
		client := write("client,addr=" + addr + ",port=9994,validate,size=50000")
		guest.Eventually(t, 20*time.Second, "both run", func() bool { return len(guest.Threads(t)) == 2 })
		time.Sleep(500 * time.Millisecond)
		killAndReap(t, client)
		guest.Eventually(t, 20*time.Second, "the server ends with its client", func() bool {
			return len(guest.Threads(t)) == 0
		})
		_ = server
	})
	t.Run("client of a suspended server", func(t *testing.T) {
		rping := guest.StartRping(t, guest.Addr(t), 9993)
		client := write("client,addr=" + addr + ",port=9993")
		guest.Eventually(t, 20*time.Second, "the client runs", func() bool { return len(guest.Threads(t)) == 1 })
		guest.Signal(t, rping, unix.SIGSTOP)
		time.Sleep(200 * time.Millisecond)
		killAndReap(t, client)
	})
	guest.NoThreads(t)
	guest.Eventually(t, 20*time.Second, "no RDMA resource is left", func() bool {
		return guest.Run(t, "rdma", "resource", "show", guest.Device(t)) == resources
	})
}

// If the server stops responding, the client ends with ETIMEDOUT.
func TestUnresponsiveServer(t *testing.T) {
	guest.NoThreads(t)
	addr := guest.Addr(t)
	rping := guest.StartRping(t, guest.Addr(t), 9992)
	done := make(chan error, 1)
	go func() { done <- guest.Command("client,addr="+addr+",port=9992,timeout=2", guest.Limit) }()
	guest.Eventually(t, 20*time.Second, "the client runs", func() bool { return len(guest.Threads(t)) == 1 })
	guest.Signal(t, rping, unix.SIGSTOP)
	if err := guest.Within(t, 10*time.Second, "the client ends", done); !errors.Is(err, unix.ETIMEDOUT) {
		t.Errorf("client: %v, want ETIMEDOUT", err)
	}
}

func killAndReap(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	start := time.Now()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	guest.Within(t, 10*time.Second, "the writer ends", done)
	t.Logf("ended after %v", time.Since(start).Round(time.Millisecond))
}

func TestNoUnloadDuringCommand(t *testing.T) {
	guest.NoThreads(t)
	done := guest.StartServer(t, "server,addr="+guest.Addr(t)+",port=9991")
	if out, err := guest.TryRun("rmmod", "rdma_krping"); err == nil {
		t.Fatalf("rmmod succeeded while a server was running: %s", out)
	}
	if err := guest.Command("client,addr="+guest.Addr(t)+",port=9991,count=1", guest.Limit); err != nil {
		t.Errorf("client: %v", err)
	}
	<-done
	guest.NoThreads(t)
	guest.Run(t, "rmmod", "rdma_krping")
	guest.Run(t, "insmod", guest.Module(t))
}

func TestModeOfProcFile(t *testing.T) {
	info, err := os.Stat("/proc/krping")
	if err != nil {
		t.Fatal(err)
	}
	if mode := info.Mode().Perm(); mode != 0o600 {
		t.Errorf("/proc/krping has mode %o, want 600", mode)
	}
}
