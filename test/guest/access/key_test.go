// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
)

// A disk of a volume with a key, which also goes on when its target comes back.
func TestKeyedDisk(t *testing.T) {
	onBoth(t, func(t *testing.T, target target) {
		port := nextPort()
		s := target.serve(t, port, secret, "")
		dev := attach(t, port, "--key-file", keyFile(t, secret), "--queues", "2")
		writeAndVerify(t, dev)
		s.stop()
		guest.SessionBecomes(t, "reconnecting")
		target.serve(t, port, secret, "")
		guest.SessionBecomes(t, "live")
		writeAndVerify(t, dev)
		guest.MustKrpingctl(t, "stop", "vol0")
		log := guest.Run(t, "dmesg")
		for _, s := range []string{secret, "the-secret"} {
			if strings.Contains(log, s) {
				t.Error("the key is in the log")
			}
		}
		if sessions, err := os.ReadFile("/proc/krping_sessions"); err != nil || strings.Contains(string(sessions), secret) {
			t.Errorf("%s, %v", sessions, err)
		}
	})
}

// A session whose target comes back with another key, or with none, waits for the right one.
func TestTargetComesBackWithoutTheKey(t *testing.T) {
	onBoth(t, func(t *testing.T, target target) {
		port := nextPort()
		s := target.serve(t, port, secret, "")
		dev := attach(t, port, "--key-file", keyFile(t, secret), "--queues", "1")
		for _, key := range []string{another, ""} {
			s.stop()
			guest.SessionBecomes(t, "reconnecting")
			s = target.serve(t, port, key, "")
			time.Sleep(3 * time.Second) // some attempts to connect
			if state := guest.Session(t, "vol0")["state"]; state != "reconnecting" {
				t.Fatalf("with key %q the session is %s", key, state)
			}
		}
		s.stop()
		target.serve(t, port, secret, "")
		guest.SessionBecomes(t, "live")
		writeAndVerify(t, dev)
	})
}

func wants(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// What clients in the kernel hear that have not the key, or an address that is not allowed.
func TestClientsAreRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, target target) {
		const key = ",queues=1,key=krping:k"
		port := nextPort()
		s := target.serve(t, port, secret, "")
		wants(t, "no key", commandWith("", "", clientCommand(t, port, ",queues=1")), unix.ENOKEY)
		wants(t, "another key", commandWith("krping:k", another, clientCommand(t, port, key)), unix.EKEYREJECTED)
		wants(t, "a part of the key", commandWith("krping:k", secret[:16], clientCommand(t, port, key)), unix.EKEYREJECTED)
		if s.rejected != nil && s.rejected() != 3 {
			t.Errorf("rejected=%d, want 3", s.rejected())
		}
		r := guest.Krpingctl(t, "client", "--addr", guest.Addr(t), "--port", strconv.Itoa(port), "--block", "vol0")
		if r.Code != 5 || !strings.Contains(r.Stderr, "the client needs key=") || !strings.Contains(r.Stderr, "--key-file") {
			t.Errorf("krpingctl: %+v", r)
		}
		s.stop()
		s = target.serve(t, port, "", "")
		wants(t, "a target without a key", commandWith("krping:k", secret, clientCommand(t, port, key)), unix.EKEYREJECTED)
		s.stop()
		s = target.serve(t, port, "", "10.0.0.0/8,fd77::1")
		wants(t, "an address that is not allowed", commandWith("", "", clientCommand(t, port, ",queues=1")), unix.ECONNREFUSED)
		if s.rejected != nil && s.rejected() != 1 {
			t.Errorf("rejected=%d, want 1", s.rejected())
		}
		s.stop()
		target.serve(t, port, secret, "10.0.0.0/8,"+guest.Addr(t)+"/24")
		wants(t, "a key and an address", commandWith("krping:k", secret, clientCommand(t, port, key)), nil)
		guest.MustKrpingctl(t, "stop", "vol0")
	})
}

// Keys that are none, before anything is connected.
func TestKeysOfTheKeyring(t *testing.T) {
	leavesNothing(t)
	for _, tc := range []struct {
		name, key string
		want      error
	}{
		{"none", "", unix.ENOKEY},
		{"15 bytes", secret[:15], unix.EINVAL},
		{"65 bytes", strings.Repeat("k", 65), unix.EINVAL},
		{"64 bytes", strings.Repeat("k", 64), unix.ECONNREFUSED}, // nobody listens
	} {
		port := nextPort()
		wants(t, tc.name+", client", commandWith("krping:k", tc.key, clientCommand(t, port, ",key=krping:k")), tc.want)
		if tc.want != unix.ECONNREFUSED {
			command := "server,addr=" + guest.Addr(t) + ",port=" + strconv.Itoa(port) + ",block=vol0,backing=ram:8M,key=krping:k"
			wants(t, tc.name+", server", commandWith("krping:k", tc.key, command), tc.want)
		}
	}
	wants(t, "another subsystem's", commandWith("other:k", secret, clientCommand(t, 1, ",key=other:k")), unix.EINVAL)
	if guest.Session(t, "vol0") != nil || guest.Volume(t, "vol0") != nil {
		t.Error("something is left")
	}
}

func TestKeyFileThatOthersMayRead(t *testing.T) {
	file := keyFile(t, secret)
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	addr := guest.Addr(t)
	for _, args := range [][]string{
		{guest.Binary(t, "krpingctl"), "client", "--addr", addr, "--block", "vol0", "--key-file", file},
		{guest.Binary(t, "krpingctl"), "server", "--addr", addr, "--block", "vol0", "--backing", "ram:8M", "--key-file", file},
		{guest.Binary(t, "krping-bridge"), "--listen", addr + ":9999", "--store", "mem:", "--size", "8MiB", "--key-file", file},
		{guest.Binary(t, "krping-bridge"), "--listen", addr + ":9999", "--volume", "v=mem:,size=8MiB,key-file=" + file},
	} {
		r := guest.Exec(t, args...)
		if r.Code == 0 || !strings.Contains(r.Stderr, "chmod 600") || strings.Contains(r.Stderr, secret) {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// Servers of pings have no key, but a list of addresses: others do not end them.
func TestPingServersAllow(t *testing.T) {
	leavesNothing(t)
	const addr6 = "fd77::1"
	guest.Run(t, "ip", "-6", "addr", "replace", addr6+"/64", "dev", "eth0", "nodad")
	for _, tc := range []struct {
		addr, option, allow string
		want                error
	}{
		{guest.Addr(t), "addr", "10.0.0.0/8,::/0", unix.ECONNREFUSED},
		{guest.Addr(t), "addr", guest.Addr(t), nil},
		{addr6, "addr6", "fd77::2,0.0.0.0/0", unix.ECONNREFUSED},
		{addr6, "addr6", "fd77::/64", nil},
	} {
		for _, server := range []string{"module", "bridge"} {
			port := nextPort()
			end := func() {}
			if server == "bridge" {
				guest.StartPingBridge(t, port, "--ping", netip.AddrPortFrom(netip.MustParseAddr(tc.addr), uint16(port)).String(), "--allow", tc.allow)
			} else {
				cmd := guest.Start(t, guest.Binary(t, "krpingctl"), "server", "--addr", tc.addr, "--port", strconv.Itoa(port), "--allow", tc.allow)
				guest.Eventually(t, 20*time.Second, "the server listens", func() bool {
					return strings.Contains(guest.Run(t, "rdma", "resource", "show", "cm_id"), ":"+strconv.Itoa(port)+" ")
				})
				end = func() { guest.Signal(t, cmd, unix.SIGINT); _ = cmd.Wait() }
			}
			for range 3 {
				err := guest.Command("client,"+tc.option+"="+tc.addr+",port="+strconv.Itoa(port)+",count=3,validate", guest.Limit)
				wants(t, server+", "+tc.allow, err, tc.want)
				if server == "module" && tc.want == nil { // which served its one client
					break
				}
			}
			if server == "module" && tc.want != nil && len(guest.Threads(t)) != 1 {
				t.Error("a client that is not allowed ends the server")
			}
			end()
		}
	}
	guest.NoThreads(t)
}
