// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package doctor breaks one thing after the other in a VM, and tests that `krpingctl doctor`
// names it, and that the remedy that it prints mends it.
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

// examine runs krpingctl doctor. What comes before it starts it: a program such as setpriv.
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
			t.Errorf("has no cause, or no remedy: %+v", f)
		}
	}
	return r
}

// named returns the finding of a check that has all those words; it must have that level.
func named(t *testing.T, r doctor.Report, check string, level doctor.Level, words ...string) doctor.Finding {
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

// shell runs a command as a user does who has the build's programs in the path.
func shell(t *testing.T, command string) {
	t.Helper()
	t.Setenv("PATH", filepath.Dir(guest.Binary(t, "krpingctl"))+":"+os.Getenv("PATH"))
	guest.Run(t, "sh", "-c", command)
}

// first returns the first of the remedies of a finding.
func first(f doctor.Finding) string {
	fix, _, _ := strings.Cut(f.Fix, "; or")
	return fix
}

func mend(t *testing.T, f doctor.Finding) {
	t.Helper()
	shell(t, first(f))
}

// restore gives eth0 back what set-up gave it: less than 1280 bytes, or down, it has no IPv6.
func restore(t *testing.T) {
	guest.Run(t, "ip", "link", "set", "eth0", "mtu", "4300", "up")
	guest.Run(t, "ip", "-6", "addr", "replace", "fd77::1/64", "dev", "eth0", "nodad")
	healthy(t)
}

func healthy(t *testing.T) {
	t.Helper()
	guest.Eventually(t, 20*time.Second, "nothing is wrong", func() bool {
		return examine(t, "", "--addr", guest.Addr(t)).Problems == 0
	})
}

func TestNothingIsWrong(t *testing.T) {
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
		named(t, r, check, doctor.OK, word)
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
	named(t, r, "rdma devices", doctor.OK)
	named(t, r, "peer", doctor.Note, "was not pinged")
	f := named(t, r, "module", doctor.Problem, "not installed for kernel")
	f.Fix = strings.NewReplacer("make -C kmod modules", "true", "kmod/rdma_krping.ko", guest.Module(t)).Replace(f.Fix)
	mend(t, f)
	healthy(t)
}

func TestDriversNotLoaded(t *testing.T) {
	guest.Run(t, "rmmod", "rdma_ucm")
	mend(t, named(t, examine(t, ""), "drivers", doctor.Note, "rdma_ucm"))
	named(t, examine(t, ""), "drivers", doctor.OK)
}

func TestNoDevice(t *testing.T) {
	guest.Run(t, "rdma", "link", "del", "rxe0")
	r := examine(t, "", "--addr", guest.Addr(t))
	named(t, r, "address", doctor.Problem, "eth0, which has no RDMA device")
	mend(t, named(t, r, "rdma devices", doctor.Problem, "this host has no RDMA device", "--netdev eth0"))
	healthy(t)
}

// The network device is down while the packet is sent that withdraws a request to connect.
func TestBrokenGSI(t *testing.T) {
	defer restore(t)
	const away = "192.168.77.99"
	guest.Run(t, "ip", "neigh", "replace", away, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")
	client := guest.Start(t, guest.Binary(t, "krpingctl"), "client", "--addr", away, "--count", "1", "--timeout", "3s")
	time.Sleep(time.Second)
	guest.Run(t, "ip", "link", "set", "eth0", "down") // which forgets the neighbour, too
	if err := client.Wait(); err == nil {
		t.Error("a client of nobody succeeded")
	}
	guest.Run(t, "ip", "link", "set", "eth0", "up")
	words := "rxe0 on eth0 is ACTIVE, but makes no connections"
	if strings.HasPrefix(guest.Run(t, "uname", "-r"), "6.1.") { // the state does not say it there
		named(t, examine(t, ""), "rdma devices", doctor.OK)
		words = "rxe0 does not answer at " + guest.Addr(t)
	}
	mend(t, named(t, examine(t, "", "--addr", guest.Addr(t)), "rdma devices", doctor.Problem, words))
	healthy(t)
}

func TestNetdevDown(t *testing.T) {
	defer restore(t)
	guest.Run(t, "ip", "link", "set", "eth0", "down")
	mend(t, named(t, examine(t, ""), "rdma devices", doctor.Problem, "eth0", "down"))
	healthy(t)
}

func TestSmallMTU(t *testing.T) {
	defer restore(t)
	guest.Run(t, "ip", "link", "set", "eth0", "mtu", "300")
	mend(t, named(t, examine(t, ""), "mtu", doctor.Problem, "has MTU 300"))
	mend(t, named(t, examine(t, ""), "mtu", doctor.Note, "1024 bytes"))
	named(t, examine(t, ""), "mtu", doctor.OK)
}

func TestNetdevWithoutDevice(t *testing.T) {
	guest.Run(t, "ip", "link", "add", "dummy7", "type", "dummy")
	defer guest.Run(t, "ip", "link", "del", "dummy7")
	guest.Run(t, "ip", "addr", "add", "10.7.0.1/24", "dev", "dummy7")
	guest.Run(t, "ip", "link", "set", "dummy7", "up")
	r := examine(t, "", "--addr", "10.7.0.1", "--peer", "10.7.0.2")
	named(t, r, "route", doctor.Problem, "dummy7, which has no RDMA device")
	mend(t, named(t, r, "address", doctor.Problem, "dummy7, which has no RDMA device"))
	defer guest.Run(t, "rdma", "link", "del", "rxe1")
	named(t, examine(t, "", "--addr", "10.7.0.1"), "address", doctor.OK, "served by rxe1")
}

func TestNoAddress(t *testing.T) {
	named(t, examine(t, "", "--addr", "10.9.9.9"), "address", doctor.Problem, "not an address of this host")
	f := named(t, examine(t, "", "--addr", "192.168.77.77"), "address", doctor.Problem, "eth0")
	mend(t, f)
	defer guest.Run(t, "ip", "addr", "del", "192.168.77.77/24", "dev", "eth0")
	guest.Eventually(t, 5*time.Second, "the address is served", func() bool {
		return examine(t, "", "--addr", "192.168.77.77").Problems == 0
	})
}

func TestPort(t *testing.T) {
	bridge := guest.StartPingBridge(t, 9950)
	args := []string{"--addr", guest.Addr(t), "--port", "9950"}
	f := named(t, examine(t, "", args...), "port", doctor.Note, "krping-bridge listens on "+guest.Addr(t)+":9950")
	mend(t, f)
	_ = bridge.Cmd.Wait()
	named(t, examine(t, "", args...), "port", doctor.OK)
	done := guest.StartServer(t, "server,addr="+guest.Addr(t)+",port=9950")
	named(t, examine(t, "", args...), "port", doctor.Note, guest.Addr(t)+":9950")
	named(t, examine(t, "", append(args, "--peer", guest.Addr(t))...), "peer", doctor.OK, "answered a ping")
	if err := guest.Within(t, 20*time.Second, "the server has ended", done); err != nil {
		t.Errorf("server: %v", err)
	}
}

func TestPeer(t *testing.T) {
	args := []string{"--peer", guest.Addr(t), "--port", "9951"}
	named(t, examine(t, "", args...), "peer", doctor.Warning, "nothing listens on port 9951", "krping-bridge --ping")
	bridge := guest.StartBridge(t, 9951, guest.StorePath(t), "16MiB")
	named(t, examine(t, "", args...), "peer", doctor.OK, "speaks this version")
	bridge.Kill()
	guest.StartPingBridge(t, 9951)
	named(t, examine(t, "", args...), "peer", doctor.OK, "answered a ping")
	guest.NoThreads(t)

	done := guest.StartServer(t, "server,addr="+guest.Addr(t)+",port=9952,rlat")
	named(t, examine(t, "", "--peer", guest.Addr(t), "--port", "9952"), "peer", doctor.Warning, "refused", "the server runs another test")
	if err := guest.Within(t, 20*time.Second, "the server has ended", done); !errors.Is(err, unix.EPROTO) {
		t.Errorf("server: %v, want EPROTO", err)
	}
}

func TestPeerNotThere(t *testing.T) {
	r := examine(t, "", "--peer", "192.168.77.99")
	named(t, r, "route", doctor.OK, "eth0, RDMA device rxe0")
	named(t, r, "neighbour", doctor.Problem, "192.168.77.99 does not answer on eth0")
	named(t, r, "peer", doctor.Problem, "not reachable")
	named(t, examine(t, "", "--peer", "203.0.113.1"), "route", doctor.Problem, "no route to 203.0.113.1")
}

// A peer with a smaller MTU than ours loses our large packets, and says nothing.
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
	named(t, r, "neighbour", doctor.OK, "10.6.0.2")
	mend(t, named(t, r, "path", doctor.Problem, "with 4096 bytes of data do not get to 10.6.0.2", "those with 1024 do"))
	named(t, examine(t, "", "--peer", "10.6.0.2"), "path", doctor.OK, "1024")
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
			mend(t, named(t, examine(t, ""), "firewall", doctor.Problem, "drops RoCE", "table inet broken"))
			named(t, examine(t, ""), "firewall", doctor.OK)
		})
	}
}

// A ping that the firewall drops on its way out could not be ended: rxe sends it for ever.
func TestFirewallDropsWhatIsSent(t *testing.T) {
	guest.Run(t, "nft", "add table inet broken; add chain inet broken output { type filter hook output priority 0; }; add rule inet broken output udp dport 4791 drop")
	defer guest.Run(t, "nft", "delete", "table", "inet", "broken")
	r := examine(t, "", "--peer", "192.168.77.99")
	named(t, r, "firewall", doctor.Problem, "to other hosts")
	named(t, r, "peer", doctor.Note, "was not pinged")
	named(t, examine(t, "", "--peer", guest.Addr(t)), "peer", doctor.Warning, "nothing listens")
}

func TestNamespaces(t *testing.T) {
	guest.Run(t, "rdma", "system", "set", "netns", "exclusive")
	shared := func() bool {
		_, err := guest.TryRun("rdma", "system", "set", "netns", "shared")
		return err == nil
	}
	defer guest.Eventually(t, 20*time.Second, "the devices are shared again", shared)
	mend(t, named(t, examine(t, ""), "namespaces", doctor.Note, "netns exclusive"))
	named(t, examine(t, ""), "namespaces", doctor.OK, "shared")

	guest.Run(t, "rdma", "system", "set", "netns", "exclusive")
	guest.Run(t, "ip", "netns", "add", "blue")
	defer guest.Run(t, "ip", "netns", "del", "blue")
	r := examine(t, "ip netns exec blue", "--addr", guest.Addr(t))
	mend(t, named(t, r, "address", doctor.Problem, "first network namespace", "nsenter"))
	named(t, r, "rdma devices", doctor.Problem, "this network namespace has no RDMA device", "exclusive")
}

func TestAddressInAnotherNamespace(t *testing.T) {
	guest.Run(t, "ip", "netns", "add", "blue")
	defer guest.Run(t, "ip", "netns", "del", "blue")
	guest.Run(t, "ip", "-n", "blue", "addr", "add", "10.8.0.1/24", "dev", "lo")
	named(t, examine(t, "", "--addr", "10.8.0.1"), "address", doctor.Problem, "network namespace blue", "ip netns exec blue krpingctl doctor")
}

func TestMemlock(t *testing.T) {
	script := filepath.Join(t.TempDir(), "limited")
	limited := func(fix string) string {
		if err := os.WriteFile(script, []byte("ulimit -l 64\n"+fix+"\nexec \"$@\"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return "setpriv --bounding-set=-ipc_lock sh " + script
	}
	f := named(t, examine(t, limited("")), "memlock", doctor.Warning, "64 KiB")
	named(t, examine(t, limited(first(f))), "memlock", doctor.OK, "unlimited")
}

// What needs root says so, and hides nothing else.
func TestNotRoot(t *testing.T) {
	r := examine(t, "setpriv --reuid=65534 --regid=65534 --clear-groups", "--peer", guest.Addr(t))
	named(t, r, "firewall", doctor.Warning, "could not be checked", "sudo krpingctl doctor")
	named(t, r, "peer", doctor.Warning, "sudo krpingctl doctor")
	named(t, r, "rdma devices", doctor.OK, "rxe0")
	named(t, r, "module", doctor.OK)
}
