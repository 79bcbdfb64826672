// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"encoding/hex"
	"errors"
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

// Nobody learns a key from what either side says, in the right or the wrong hands.
func TestKeysAreInNoOutput(t *testing.T) {
	onBoth(t, func(t *testing.T, target target) {
		port := nextPort()
		s := target.serve(t, port, secret, "")
		attach(t, port, "--key-file", keyFile(t, secret), "--queues", "1")
		texts := map[string]string{}
		search := func() {
			t.Helper()
			texts["the target's log"], texts["the kernel's log"] = s.log(), guest.Run(t, "dmesg")
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
							t.Errorf("a key is in %s", name)
						}
					}
				}
			}
		}
		search()
		if !strings.Contains(texts["/proc/krping_sessions"], "name=vol0") || !strings.Contains(texts[fmt.Sprintf("/proc/%d/cmdline", os.Getpid())], "-test.") {
			t.Error("what is searched is not there")
		}
		guest.MustKrpingctl(t, "stop", "vol0")
		r := guest.Krpingctl(t, "client", "--addr", guest.Addr(t), "--port", strconv.Itoa(port), "--block", "vol0", "--key-file", keyFile(t, another))
		if r.Code == 0 {
			t.Error("a client with another key is served")
		}
		texts["what the client says"] = r.Stdout + r.Stderr
		wrong, _ := answer(hello(1), challenge(t, port, hello(1)), another)
		refused(t, "another key", port, wrong, wire.RejectKey)
		search()
		if !strings.Contains(texts["the target's log"], "rejected") {
			t.Error("the target does not say that it has refused a client")
		}
	})
}

// Refused clients are all counted, and of many a few are told of.
func TestManyRefusals(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 50
	}
	line := regexp.MustCompile(`rejected(:| \()`)
	for _, tc := range []struct {
		name, key, allow string
		hello            func(t *testing.T, port int) wire.Hello
		want             wire.Reason
	}{
		{"another key", secret, "", func(t *testing.T, port int) wire.Hello {
			h, _ := answer(hello(1), challenge(t, port, hello(1)), another)
			return h
		}, wire.RejectKey},
		{"an address that is not allowed", "", "10.0.0.0/8", func(*testing.T, int) wire.Hello { return hello(1) }, wire.RejectNotAllowed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, target target) {
				port := nextPort()
				s := target.serve(t, port, tc.key, tc.allow)
				before, start := len(line.FindAllString(s.log(), -1)), time.Now()
				for range n {
					refused(t, tc.name, port, tc.hello(t, port), tc.want)
				}
				if got := s.rejected(); got != n {
					t.Errorf("%d clients are counted, want %d", got, n)
				}
				// Both tell of ten each five seconds, whichever client they are of: other tests have used these up.
				lines, most := len(line.FindAllString(s.log(), -1))-before, 10*(int(time.Since(start)/(5*time.Second))+2)
				t.Logf("%d refusals in %v, %d in the log", n, time.Since(start).Round(time.Millisecond), lines)
				if lines > min(most, n-1) {
					t.Errorf("%d of %d refusals are in the log, want %d at most", lines, n, min(most, n-1))
				}
				time.Sleep(5*time.Second + 100*time.Millisecond)
				refused(t, tc.name, port, tc.hello(t, port), tc.want)
				guest.Eventually(t, 5*time.Second, "the log tells of a refusal again", func() bool {
					return len(line.FindAllString(s.log(), -1))-before > lines
				})
				s.stop()
			})
		})
	}
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
		if s.rejected() != 3 {
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
		if s.rejected() != 1 {
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
					return guest.Listens(t, port)
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
