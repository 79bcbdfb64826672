// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

// A disk of a volume with a key works, also after its target restarts.
func TestDiskWithKey(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		s := serve(t, target, secret)
		port := s.Port
		dev := attach(t, port, "--key-file", targets.KeyFile(t, secret), "--queues", "2")
		writeAndVerify(t, dev)
		s.Stop()
		guest.SessionBecomes(t, "reconnecting")
		s.Again(t)
		guest.SessionBecomes(t, "live")
		writeAndVerify(t, dev)
		guest.MustKrpingctl(t, "stop", "vol0")
	})
}

// If the target comes back with another key or without one, the session waits for the right key.
func TestTargetRestartsWithAnotherKey(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		s := serve(t, target, secret)
		port := s.Port
		dev := attach(t, port, "--key-file", targets.KeyFile(t, secret), "--queues", "1")
		for _, key := range []string{another, ""} {
			s.Stop()
			guest.SessionBecomes(t, "reconnecting")
			s = serveAgain(t, target, s, key, "")
			guest.Eventually(t, 20*time.Second, "the target rejects two connection attempts", func() bool { return s.Rejected() >= 2 })
			if state := guest.Session(t, "vol0")["state"]; state != "reconnecting" {
				t.Fatalf("with key %q the session is %s", key, state)
			}
		}
		serveAgain(t, target, s, secret, "")
		guest.SessionBecomes(t, "live")
		writeAndVerify(t, dev)
	})
}

// No key appears in logs, /proc or command lines, whether it is the right one or not.
func TestKeysAreNotPrinted(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		s := serve(t, target, secret)
		port := s.Port
		attach(t, port, "--key-file", targets.KeyFile(t, secret), "--queues", "1")
		texts := map[string]string{}
		search := func() {
			t.Helper()
			texts["the target's log"], texts["the kernel's log"] = s.Log(), guest.Run(t, "dmesg")
			for _, pattern := range []string{"/proc/krping*", "/proc/[0-9]*/cmdline"} {
				files, _ := filepath.Glob(pattern) // fails for bad patterns only
				for _, file := range files {
					if text, err := os.ReadFile(file); err == nil { // else the process has ended
						texts[file] = string(text)
					}
				}
			}
			for name, text := range texts {
				for _, key := range []string{secret[:10], another[:10]} {
					for _, form := range []string{key, hex.EncodeToString([]byte(key))} {
						if strings.Contains(strings.ToLower(text), form) {
							t.Errorf("%s contains a key", name)
						}
					}
				}
			}
		}
		search()
		if !strings.Contains(texts["/proc/krping_sessions"], "name=vol0") || !strings.Contains(texts[fmt.Sprintf("/proc/%d/cmdline", os.Getpid())], "-test.") {
			t.Error("/proc/krping_sessions or this command line was not searched")
		}
		guest.MustKrpingctl(t, "stop", "vol0")
		r := guest.Krpingctl(t, "client", "--addr", guest.Addr(t), "--port", strconv.Itoa(port), "--block", "vol0", "--key-file", targets.KeyFile(t, another))
		if r.Code == 0 {
			t.Error("a client with another key was accepted")
		}
		texts["the client's output"] = r.Stdout + r.Stderr
		wrong, _ := fakeclient.Answer(fakeclient.Hello(1), fakeclient.Challenge(t, port, fakeclient.Hello(1)), another)
		fakeclient.Rejected(t, "another key", port, wrong, wire.RejectKey)
		search()
		if !strings.Contains(texts["the target's log"], "rejected") {
			t.Error("the target's log has no rejected client")
		}
	})
}

// All rejected clients are counted, and a few of many are logged.
func TestManyRejectedClients(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 20
	}
	line := regexp.MustCompile(`rejected(:| \()`)
	for _, tc := range []struct {
		name, key, allow string
		hello            func(t *testing.T, port int) wire.Hello
		want             wire.Reason
	}{
		{"another key", secret, "", func(t *testing.T, port int) wire.Hello {
			h, _ := fakeclient.Answer(fakeclient.Hello(1), fakeclient.Challenge(t, port, fakeclient.Hello(1)), another)
			return h
		}, wire.RejectKey},
		{"address that is not allowed", "", "10.0.0.0/8", func(*testing.T, int) wire.Hello { return fakeclient.Hello(1) }, wire.RejectNotAllowed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			targets.Each(t, func(t *testing.T, target targets.Target) {
				s := target.ServeNew(t, size, targets.Config{Key: tc.key, Allow: tc.allow, Shared: true})
				port := s.Port
				before, start := len(line.FindAllString(s.Log(), -1)), time.Now()
				for range n {
					fakeclient.Rejected(t, tc.name, port, tc.hello(t, port), tc.want)
				}
				if got := s.Rejected(); got != n {
					t.Errorf("%d clients are counted, want %d", got, n)
				}
				// Both log ten lines in five seconds, of all clients: earlier tests may have used these up.
				lines, most := len(line.FindAllString(s.Log(), -1))-before, 10*(int(time.Since(start)/(5*time.Second))+2)
				t.Logf("%d rejected clients in %v, %d in the log", n, time.Since(start).Round(time.Millisecond), lines)
				if lines > most { // on a slow machine, all of them may be
					t.Errorf("%d of %d rejected clients are in the log, want %d at most", lines, n, most)
				}
				time.Sleep(5*time.Second + 100*time.Millisecond)
				fakeclient.Rejected(t, tc.name, port, tc.hello(t, port), tc.want)
				guest.Eventually(t, 5*time.Second, "a rejected client is logged again", func() bool {
					return len(line.FindAllString(s.Log(), -1))-before > lines
				})
				s.Stop()
			})
		})
	}
}

// The errors of clients in the kernel without the right key or address.
func TestRejectedDisks(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		const key = ",queues=1,key=krping:k"
		s := serve(t, target, secret)
		port := s.Port
		wantError(t, "no key", commandWith("", "", clientCommand(t, port, ",queues=1")), unix.ENOKEY)
		wantError(t, "another key", commandWith("krping:k", another, clientCommand(t, port, key)), unix.EKEYREJECTED)
		wantError(t, "a part of the key", commandWith("krping:k", secret[:16], clientCommand(t, port, key)), unix.EKEYREJECTED)
		if s.Rejected() != 3 {
			t.Errorf("rejected=%d, want 3", s.Rejected())
		}
		r := guest.Krpingctl(t, "client", "--addr", guest.Addr(t), "--port", strconv.Itoa(port), "--block", "vol0")
		if r.Code != 5 || !strings.Contains(r.Stderr, "the client needs key=") || !strings.Contains(r.Stderr, "--key-file") {
			t.Errorf("krpingctl: %+v", r)
		}
		s = serveAgain(t, target, s, "", "")
		wantError(t, "a target without a key", commandWith("krping:k", secret, clientCommand(t, port, key)), unix.EKEYREJECTED)
		s = serveAgain(t, target, s, "", "10.0.0.0/8,fd77::1")
		wantError(t, "an address that is not allowed", commandWith("", "", clientCommand(t, port, ",queues=1")), unix.ECONNREFUSED)
		if s.Rejected() != 1 {
			t.Errorf("rejected=%d, want 1", s.Rejected())
		}
		serveAgain(t, target, s, secret, "10.0.0.0/8,"+guest.Addr(t)+"/24")
		wantError(t, "a key and an address", commandWith("krping:k", secret, clientCommand(t, port, key)), nil)
		guest.MustKrpingctl(t, "stop", "vol0")
	})
}

// Keys that are missing or invalid fail the command before it connects.
func TestInvalidKeys(t *testing.T) {
	guest.CheckResources(t)
	for _, tc := range []struct {
		name, key string
		want      error
	}{
		{"none", "", unix.ENOKEY},
		{"15 bytes", secret[:15], unix.EINVAL},
		{"65 bytes", strings.Repeat("k", 65), unix.EINVAL},
		{"64 bytes", strings.Repeat("k", 64), unix.ECONNREFUSED}, // nobody listens
	} {
		port := guest.NextPort()
		wantError(t, tc.name+", client", commandWith("krping:k", tc.key, clientCommand(t, port, ",key=krping:k")), tc.want)
		if tc.want != unix.ECONNREFUSED {
			command := "server,addr=" + guest.Addr(t) + ",port=" + strconv.Itoa(port) + ",block=vol0,backing=ram:8M,key=krping:k"
			wantError(t, tc.name+", server", commandWith("krping:k", tc.key, command), tc.want)
		}
	}
	wantError(t, "another subsystem's", commandWith("other:k", secret, clientCommand(t, 1, ",key=other:k")), unix.EINVAL)
	if guest.Session(t, "vol0") != nil || guest.Volume(t, "vol0") != nil {
		t.Error("a session or volume is left")
	}
}

func TestKeyFileThatOthersMayRead(t *testing.T) {
	file := targets.KeyFile(t, secret)
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

// Ping servers have no key but a list of addresses. A client that is not on it does not end the server.
func TestPingServersAllow(t *testing.T) {
	guest.CheckResources(t)
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
			port := guest.NextPort()
			end := func() {}
			if server == "bridge" {
				guest.StartPingBridge(t, port, "--ping", netip.AddrPortFrom(netip.MustParseAddr(tc.addr), uint16(port)).String(), "--allow", tc.allow)
			} else {
				cmd := guest.Start(t, guest.Binary(t, "krpingctl"), "server", "--addr", tc.addr, "--port", strconv.Itoa(port), "--allow", tc.allow)
				guest.Eventually(t, 20*time.Second, "the server listens", func() bool {
					return len(guest.Threads(t)) > 0
				})
				end = func() { guest.Signal(t, cmd, unix.SIGINT); _ = cmd.Wait() }
			}
			for range 3 {
				err := guest.Command("client,"+tc.option+"="+tc.addr+",port="+strconv.Itoa(port)+",count=3,validate", guest.Limit)
				wantError(t, server+", "+tc.allow, err, tc.want)
				if server == "module" && tc.want == nil { // it ends after its one client
					break
				}
			}
			if server == "module" && tc.want != nil && len(guest.Threads(t)) != 1 {
				t.Error("a client that is not allowed ended the server")
			}
			end()
		}
	}
	guest.NoThreads(t)
}
