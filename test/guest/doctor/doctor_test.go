// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package doctor breaks one thing after another inside a VM, and tests that `krpingctl doctor` reports it and
// that the fix that it prints works.
package doctor

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/doctor"
	"krping/test/guest/internal/guest"
)

// examine runs krpingctl doctor, by way of another program such as setpriv if before is not "".
func examine(t *testing.T, before string, args ...string) doctor.Report {
	t.Helper()
	argv := append(strings.Fields(before), guest.Binary(t, "krpingctl"), "doctor", "--json")
	argv = append(argv, args...)
	ran := guest.Exec(t, argv...)
	var r doctor.Report
	if err := json.Unmarshal([]byte(ran.Stdout), &r); err != nil {
		t.Fatalf("%v: %v\n%s%s", argv, err, ran.Stdout, ran.Stderr)
	}
	if ran.Code != min(r.Problems, 1) {
		t.Errorf("exit code %d with %d problems\n%s", ran.Code, r.Problems, ran.Stderr)
	}
	for _, f := range r.Findings {
		if f.Level != doctor.OK && (f.Cause == "" || f.Fix == "") {
			t.Errorf("a finding without a cause or a fix: %+v", f)
		}
	}
	return r
}

// findingOf returns the finding of a check that has the level and contains all words.
func findingOf(t *testing.T, r doctor.Report, check string, level doctor.Level, words ...string) doctor.Finding {
	t.Helper()
next:
	for _, f := range r.Findings {
		if f.Check != check || f.Level != level {
			continue
		}
		for _, word := range words {
			if !strings.Contains(f.Found+"\n"+f.Cause+"\n"+f.Fix, word) {
				continue next
			}
		}
		return f
	}
	t.Fatalf("no finding %q of level %s with %q in %+v", check, level, words, r.Findings)
	return doctor.Finding{}
}

// shell runs a command with the build's programs in PATH.
func shell(t *testing.T, command string) {
	t.Helper()
	t.Setenv("PATH", filepath.Dir(guest.Binary(t, "krpingctl"))+":"+os.Getenv("PATH"))
	guest.Run(t, "sh", "-c", command)
}

// firstFix returns the first of a finding's fixes, without the condition in front of it.
func firstFix(f doctor.Finding) string {
	fix, _, _ := strings.Cut(f.Fix, "; or")
	if _, command, has := strings.Cut(fix, ": "); has {
		return command
	}
	return fix
}

func fix(t *testing.T, f doctor.Finding) {
	t.Helper()
	shell(t, firstFix(f))
}

// restore configures eth0 again as the lab did. With an MTU below 1280, or down, it loses its IPv6 addresses.
func restore(t *testing.T) {
	guest.Run(t, "ip", "link", "set", "eth0", "mtu", "4300", "up")
	guest.Run(t, "ip", "-6", "addr", "replace", "fd77::1/64", "dev", "eth0", "nodad")
	healthy(t)
}

func healthy(t *testing.T) {
	t.Helper()
	guest.Eventually(t, 20*time.Second, "doctor finds no problem", func() bool {
		return examine(t, "", "--addr", guest.Addr(t)).Problems == 0
	})
}

func TestNoProblems(t *testing.T) {
	out, err := guest.TryRun(guest.Binary(t, "krpingctl"), "doctor", "--addr", guest.Addr(t))
	if err != nil || !strings.Contains(out, " 0 problems, 0 warnings\n") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Log("\n" + out)
	r := examine(t, "", "--addr", guest.Addr(t))
	for check, word := range map[string]string{
		"module": "rdma_krping 0.1.0", "drivers": "rdma_ucm", "rdma devices": "rxe0 on eth0 is ACTIVE", "gids": guest.Addr(t),
		"mtu": "4096 bytes", "namespaces": "shared", "address": "served by rxe0", "memlock": "unlimited", "btf": "BTF", "firewall": "passes",
		"port": "nothing listens",
	} {
		findingOf(t, r, check, doctor.OK, word)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"--peer", "1.2.3"}, {"--addr", "host"}, {"more"}, {"--port", "70000"}} {
		if ran := guest.Krpingctl(t, append([]string{"doctor"}, args...)...); ran.Code != 2 {
			t.Errorf("%v: exit code %d, want 2\n%s%s", args, ran.Code, ran.Stdout, ran.Stderr)
		}
	}
}

func TestModule(t *testing.T) {
	guest.Run(t, "rmmod", "rdma_krping")
	r := examine(t, "", "--peer", guest.Addr(t))
	findingOf(t, r, "rdma devices", doctor.OK)
	findingOf(t, r, "peer", doctor.Note, "was not pinged")
	f := findingOf(t, r, "module", doctor.Problem, "not installed for kernel")
	f.Fix = strings.NewReplacer("make -C kmod modules", "true", "kmod/rdma_krping.ko", guest.Module(t)).Replace(f.Fix)
	fix(t, f)
	healthy(t)
}

func TestDriversNotLoaded(t *testing.T) {
	guest.Run(t, "rmmod", "rdma_ucm")
	fix(t, findingOf(t, examine(t, ""), "drivers", doctor.Note, "rdma_ucm"))
	findingOf(t, examine(t, ""), "drivers", doctor.OK)
}

func TestNoDevice(t *testing.T) {
	bridge := guest.StartPingBridge(t, 9950)
	guest.Serve(t, "vol0", 9951, "backing=ram:1M")
	healthy(t)
	bridge.RemoveDevice(t)
	r := examine(t, "", "--addr", guest.Addr(t))
	findingOf(t, r, "address", doctor.Problem, "eth0, which has no RDMA device")
	findingOf(t, r, "targets", doctor.Problem, "krping-bridge (process", "does not listen on "+bridge.Addr, "eth0, which has no RDMA device")
	findingOf(t, r, "targets", doctor.Problem, "volume vol0 does not listen on "+guest.Addr(t)+":9951")
	fix(t, findingOf(t, r, "rdma devices", doctor.Problem, "this host has no RDMA device", "--netdev eth0"))
	healthy(t)
}

// The network device is down while the packet is sent that cancels a connect request.
func TestBrokenGSI(t *testing.T) {
	defer restore(t)
	const away = "192.168.77.99"
	guest.Run(t, "ip", "neigh", "replace", away, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")
	sent := guest.SentPackets(t)
	client := guest.Start(t, guest.Binary(t, "krpingctl"), "client", "--addr", away, "--count", "1", "--timeout", "10s")
	guest.Eventually(t, guest.Limit, "the client has sent its request", func() bool { return guest.SentPackets(t) > sent })
	guest.Run(t, "ip", "link", "set", "eth0", "down") // the neighbour entry is dropped, too
	if err := client.Wait(); err == nil {
		t.Error("a client without a server succeeded")
	}
	guest.Run(t, "ip", "link", "set", "eth0", "up")
	words := "rxe0 on eth0 is ACTIVE, but makes no connections"
	if strings.HasPrefix(guest.Run(t, "uname", "-r"), "6.1.") { // the device's state does not show it there
		findingOf(t, examine(t, ""), "rdma devices", doctor.OK)
		words = "rxe0 does not answer at " + guest.Addr(t)
	}
	fix(t, findingOf(t, examine(t, "", "--addr", guest.Addr(t)), "rdma devices", doctor.Problem, words))
	healthy(t)
}

func TestNetdevDown(t *testing.T) {
	defer restore(t)
	guest.Run(t, "ip", "link", "set", "eth0", "down")
	fix(t, findingOf(t, examine(t, ""), "rdma devices", doctor.Problem, "eth0", "down"))
	healthy(t)
}

func TestSmallMTU(t *testing.T) {
	defer restore(t)
	guest.Run(t, "ip", "link", "set", "eth0", "mtu", "300")
	fix(t, findingOf(t, examine(t, ""), "mtu", doctor.Problem, "has MTU 300"))
	fix(t, findingOf(t, examine(t, ""), "mtu", doctor.Note, "1024 bytes"))
	findingOf(t, examine(t, ""), "mtu", doctor.OK)
}

func TestNetdevWithoutDevice(t *testing.T) {
	guest.Run(t, "ip", "link", "add", "dummy7", "type", "dummy")
	defer guest.Run(t, "ip", "link", "del", "dummy7")
	guest.Run(t, "ip", "addr", "add", "10.7.0.1/24", "dev", "dummy7")
	guest.Run(t, "ip", "link", "set", "dummy7", "up")
	r := examine(t, "", "--addr", "10.7.0.1", "--peer", "10.7.0.2")
	findingOf(t, r, "route", doctor.Problem, "dummy7, which has no RDMA device")
	fix(t, findingOf(t, r, "address", doctor.Problem, "dummy7, which has no RDMA device"))
	defer guest.Run(t, "rdma", "link", "del", "rxe1")
	findingOf(t, examine(t, "", "--addr", "10.7.0.1"), "address", doctor.OK, "served by rxe1")
}

// Soft-RoCE cannot be added to a VLAN, and on a port of a bridge it receives nothing.
func TestStackedNetdevs(t *testing.T) {
	for _, command := range []string{
		"ip link add veth8 type veth peer name eth8", "ip link set veth8 up", "ip link set eth8 up",
		"ip link add link veth8 name veth8.5 type vlan id 5", "ip addr add 10.5.0.1/24 dev veth8.5", "ip link set veth8.5 up",
	} {
		guest.Run(t, "sh", "-c", command)
	}
	defer guest.Run(t, "ip", "link", "del", "veth8")
	if ran := guest.Krpingctl(t, "link", "add", "rxe8", "--netdev", "veth8.5"); ran.Code == 0 || strings.Contains(ran.Stderr, "root") || !strings.Contains(ran.Stderr, "krpingctl link add rxe8 --netdev veth8") {
		t.Errorf("exit code %d: %s", ran.Code, ran.Stderr)
	}
	fix(t, findingOf(t, examine(t, "", "--addr", "10.5.0.1"), "address", doctor.Problem, "veth8.5, which has no RDMA device", "--netdev veth8"))
	findingOf(t, examine(t, "", "--addr", "10.5.0.1"), "address", doctor.OK, "served by rxe1")

	guest.Run(t, "ip", "link", "del", "veth8.5")
	for _, command := range []string{"ip link add br8 type bridge", "ip link set veth8 master br8", "ip addr add 10.6.0.1/24 dev br8", "ip link set br8 up"} {
		guest.Run(t, "sh", "-c", command)
	}
	defer guest.Run(t, "ip", "link", "del", "br8") // and with it rxe1
	r := examine(t, "", "--addr", "10.6.0.1")
	findingOf(t, r, "address", doctor.Problem, "br8, which has no RDMA device")
	fix(t, findingOf(t, r, "gids", doctor.Problem, "rxe1 has 10.6.0.1 of br8, but receives no packets for it"))
	r = examine(t, "", "--addr", "10.6.0.1")
	findingOf(t, r, "address", doctor.OK, "br8, served by rxe1")
	findingOf(t, r, "gids", doctor.OK, "10.6.0.1")
}

func TestNoAddress(t *testing.T) {
	findingOf(t, examine(t, "", "--addr", "10.9.9.9"), "address", doctor.Problem, "not an address of this host")
	f := findingOf(t, examine(t, "", "--addr", "192.168.77.77"), "address", doctor.Problem, "eth0")
	fix(t, f)
	defer guest.Run(t, "ip", "addr", "del", "192.168.77.77/24", "dev", "eth0")
	guest.Eventually(t, 5*time.Second, "the address is served", func() bool {
		return examine(t, "", "--addr", "192.168.77.77").Problems == 0
	})
}

func TestPort(t *testing.T) {
	bridge := guest.StartPingBridge(t, 9950)
	args := []string{"--addr", guest.Addr(t), "--port", "9950"}
	findingOf(t, examine(t, "", args...), "port", doctor.Note, "krping-bridge listens on "+guest.Addr(t)+":9950", "start another server with another --port")
	bridge.Kill()
	findingOf(t, examine(t, "", args...), "port", doctor.OK)
	done := guest.StartServer(t, "server,addr="+guest.Addr(t)+",port=9950")
	findingOf(t, examine(t, "", args...), "port", doctor.Note, guest.Addr(t)+":9950")
	findingOf(t, examine(t, "", append(args, "--peer", guest.Addr(t))...), "peer", doctor.OK, "answered a ping")
	if err := guest.Within(t, 20*time.Second, "the server has ended", done); err != nil {
		t.Errorf("server: %v", err)
	}
}

func TestPeer(t *testing.T) {
	args := []string{"--peer", guest.Addr(t), "--port", "9951"}
	findingOf(t, examine(t, "", args...), "peer", doctor.Warning, "nothing listens on port 9951", "krping-bridge --ping")
	bridge := guest.StartBridge(t, 9951, guest.StorePath(t), "16MiB")
	findingOf(t, examine(t, "", args...), "peer", doctor.OK, "speaks this version")
	bridge.Kill()
	guest.StartPingBridge(t, 9951)
	findingOf(t, examine(t, "", args...), "peer", doctor.OK, "answered a ping")
	guest.NoThreads(t)

	done := guest.StartServer(t, "server,addr="+guest.Addr(t)+",port=9952,rlat")
	findingOf(t, examine(t, "", "--peer", guest.Addr(t), "--port", "9952"), "peer", doctor.Warning, "refused", "the server runs another test")
	if err := guest.Within(t, 20*time.Second, "the server has ended", done); !errors.Is(err, unix.EPROTO) {
		t.Errorf("server: %v, want EPROTO", err)
	}
}

func TestPeerNotThere(t *testing.T) {
	r := examine(t, "", "--peer", "192.168.77.99")
	findingOf(t, r, "route", doctor.OK, "eth0, RDMA device rxe0")
	findingOf(t, r, "neighbour", doctor.Problem, "192.168.77.99 does not answer on eth0")
	findingOf(t, r, "peer", doctor.Problem, "not reachable")
	findingOf(t, examine(t, "", "--peer", "203.0.113.1"), "route", doctor.Problem, "no route to 203.0.113.1")
}

// A peer with a smaller MTU drops our large packets silently.
func TestSmallerMTUOfThePeer(t *testing.T) {
	for _, command := range []string{
		"ip netns add blue", "ip link add veth7 mtu 4300 type veth peer name eth7 netns blue",
		"ip addr add 10.6.0.1/24 dev veth7", "ip link set veth7 up", "krpingctl link add rxe7 --netdev veth7",
		"ip -n blue addr add 10.6.0.2/24 dev eth7", "ip -n blue link set eth7 mtu 1500 up",
	} {
		shell(t, command)
	}
	defer guest.Run(t, "ip", "netns", "del", "blue")
	defer guest.Run(t, "ip", "link", "del", "veth7")
	defer guest.Run(t, "rdma", "link", "del", "rxe7")
	r := examine(t, "", "--peer", "10.6.0.2")
	findingOf(t, r, "neighbour", doctor.OK, "10.6.0.2")
	fix(t, findingOf(t, r, "path", doctor.Problem, "with 4096 bytes of data do not get to 10.6.0.2", "those with 1024 do"))
	findingOf(t, examine(t, "", "--peer", "10.6.0.2"), "path", doctor.OK, "1024")
}

func TestFirewall(t *testing.T) {
	for _, rules := range []string{
		"add chain inet broken input { type filter hook input priority 0; }; add rule inet broken input udp dport 4791 drop",
		"add chain inet broken input { type filter hook input priority 0; policy drop; }; add rule inet broken input ct state established,related accept; add rule inet broken input tcp dport { 22, 80 } accept",
		"add chain inet broken output { type filter hook output priority 0; }; add rule inet broken output meta l4proto udp reject",
		"add chain inet broken input { type filter hook input priority 0; policy drop; }; add rule inet broken input ct state vmap { established : accept, invalid : drop }",
	} {
		t.Run(rules, func(t *testing.T) {
			guest.Run(t, "nft", "add table inet broken; "+rules)
			defer guest.Run(t, "nft", "delete", "table", "inet", "broken")
			fix(t, findingOf(t, examine(t, ""), "firewall", doctor.Problem, "drops RoCE", "table inet broken"))
			findingOf(t, examine(t, ""), "firewall", doctor.OK)
		})
	}
}

// No ping runs here: rxe would resend the dropped packets for ever, and the ping could not be stopped.
func TestFirewallDropsOutput(t *testing.T) {
	guest.Run(t, "nft", "add table inet broken; add chain inet broken output { type filter hook output priority 0; }; add rule inet broken output udp dport 4791 drop")
	defer guest.Run(t, "nft", "delete", "table", "inet", "broken")
	r := examine(t, "", "--peer", "192.168.77.99")
	findingOf(t, r, "firewall", doctor.Problem, "to other hosts")
	findingOf(t, r, "peer", doctor.Note, "was not pinged")
	findingOf(t, examine(t, "", "--peer", guest.Addr(t)), "peer", doctor.Warning, "nothing listens")
}

func TestNamespaces(t *testing.T) {
	guest.Run(t, "rdma", "system", "set", "netns", "exclusive")
	shared := func() bool {
		_, err := guest.TryRun("rdma", "system", "set", "netns", "shared")
		return err == nil
	}
	defer guest.Eventually(t, 20*time.Second, "the devices are shared again", shared)
	fix(t, findingOf(t, examine(t, ""), "namespaces", doctor.Note, "netns exclusive"))
	findingOf(t, examine(t, ""), "namespaces", doctor.OK, "shared")

	guest.Run(t, "rdma", "system", "set", "netns", "exclusive")
	guest.Run(t, "ip", "netns", "add", "blue")
	defer guest.Run(t, "ip", "netns", "del", "blue")
	r := examine(t, "ip netns exec blue", "--addr", guest.Addr(t))
	fix(t, findingOf(t, r, "address", doctor.Problem, "first network namespace", "nsenter"))
	findingOf(t, r, "rdma devices", doctor.Problem, "this network namespace has no RDMA device", "exclusive")
}

func TestAddressInAnotherNamespace(t *testing.T) {
	guest.Run(t, "ip", "netns", "add", "blue")
	defer guest.Run(t, "ip", "netns", "del", "blue")
	guest.Run(t, "ip", "-n", "blue", "addr", "add", "10.8.0.1/24", "dev", "lo")
	findingOf(t, examine(t, "", "--addr", "10.8.0.1"), "address", doctor.Problem, "network namespace blue", "ip netns exec blue krpingctl doctor")
}

func TestMemlock(t *testing.T) {
	script := filepath.Join(t.TempDir(), "limited")
	limited := func(fix string) string {
		if err := os.WriteFile(script, []byte("ulimit -l 64\n"+fix+"\nexec \"$@\"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return "setpriv --bounding-set=-ipc_lock sh " + script
	}
	f := findingOf(t, examine(t, limited("")), "memlock", doctor.Warning, "64 KiB")
	findingOf(t, examine(t, limited(firstFix(f))), "memlock", doctor.OK, "unlimited")
}

// Checks that need root say so. All others still run.
func TestNotRoot(t *testing.T) {
	r := examine(t, "setpriv --reuid=65534 --regid=65534 --clear-groups", "--peer", guest.Addr(t))
	findingOf(t, r, "firewall", doctor.Warning, "could not be checked", "sudo krpingctl doctor")
	findingOf(t, r, "peer", doctor.Warning, "sudo krpingctl doctor")
	findingOf(t, r, "rdma devices", doctor.OK, "rxe0")
	findingOf(t, r, "module", doctor.OK)
}
