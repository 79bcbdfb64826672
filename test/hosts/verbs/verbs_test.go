// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package verbs tests the test of every verb on queue pairs that lose messages, between two hosts whose network does, or
// whose addresses change.
package verbs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"krping/proc"
	"krping/test/hosts/internal/hosts"
	"krping/test/lab"
)

// What the network loses, repeats and reorders is counted and is no failure: every message that was sent is received or
// lost, none is damaged, and the test ends.
func TestBadNetwork(t *testing.T) {
	h := hosts.Boot(t)
	server, client := h.Lab.VM(0), h.Lab.VM(1)
	h.Sh(client, "modprobe sch_netem && tc qdisc add dev eth0 root netem delay 0ms")
	for i, tc := range []struct {
		netem string
		lost  bool // messages must have been lost
	}{{"loss 10%", true}, {"duplicate 10%", false}, {"delay 2ms reorder 90% gap 3", false}} {
		for j, test := range []string{"verb=send,qp=uc", "verb=write,qp=uc", "verb=write_imm,qp=uc", "verb=send,qp=ud"} {
			for k, measure := range []string{"bw,txdepth=16", "lat"} {
				if testing.Short() && (i+j+k)%3 != 0 {
					continue // each test meets one network with bw, another one with lat
				}
				t.Run(tc.netem+"/"+test+"/"+measure, func(t *testing.T) {
					h := &hosts.Hosts{T: t, Lab: h.Lab}
					port := 9800 + 20*i + 2*j + k
					options := fmt.Sprintf("client,addr=%s,port=%d,%s,%s,validate,size=1000,count=300", server.Addr(), port, test, measure)
					c, s := run(h, server, client, port, options, tc.netem, true)
					if c.Damaged != 0 || s.Damaged != 0 {
						t.Errorf("damaged: %d, %d", c.Damaged, s.Damaged)
					}
					if k == 0 && (c.Sent != 300 || s.Received+s.Lost != c.Sent || c.Lost != s.Lost) {
						t.Errorf("of %d messages %d were received and %d lost; the client says %d", c.Sent, s.Received, s.Lost, c.Lost)
					}
					if k == 1 && c.Received+c.Lost != 300 {
						t.Errorf("of 300 answers the client has received %d and lost %d", c.Received, c.Lost)
					}
					if tc.lost && c.Lost == 0 {
						t.Error("nothing was lost")
					}
				})
			}
		}
	}
	t.Run("bridge", func(t *testing.T) { badNetworkToTheBridge(&hosts.Hosts{T: t, Lab: h.Lab}, server, client) })
	t.Run("address", func(t *testing.T) { changedAddress(&hosts.Hosts{T: t, Lab: h.Lab}, server, client) })
}

// badNetworkToTheBridge has a server in user space: it counts the same.
func badNetworkToTheBridge(h *hosts.Hosts, server, client *lab.VM) {
	h.Spawn(server, "krping-bridge --ping "+server.Addr()+":9900 >/run/pings.log 2>&1")
	h.Eventually(20*time.Second, "the bridge listens", func() bool {
		return strings.Contains(h.Sh(server, "cat /run/pings.log 2>/dev/null; true"), "answering pings")
	})
	for _, netem := range []string{"loss 10%", "duplicate 10%", "delay 2ms reorder 90% gap 3"} {
		for _, test := range []string{"verb=send,qp=uc", "verb=write,qp=uc", "verb=write_imm,qp=uc", "verb=send,qp=ud"} {
			for _, validate := range []string{"", ",validate"} {
				if testing.Short() && validate == "" {
					continue
				}
				h.Sh(client, "tc qdisc change dev eth0 root netem "+netem)
				options := fmt.Sprintf("client,addr=%s,port=9900,%s,bw,size=1000,count=300,txdepth=16%s", server.Addr(), test, validate)
				out, err := h.Try(client, "echo "+options+" >/proc/krping")
				h.Sh(client, "tc qdisc change dev eth0 root netem delay 0ms")
				if err != nil {
					h.T.Errorf("%s, %s: %v\n%s\n%s", netem, options, err, out, logOf(h, client))
					continue
				}
				if c := last(h, client); c.Damaged != 0 || c.Sent != 300 || strings.HasPrefix(netem, "loss") && validate != "" && c.Lost == 0 || c.Lost > 300 {
					h.T.Errorf("%s, %s: %+v", netem, options, c)
				}
			}
		}
	}
	h.Sh(server, "pkill -x krping-bridge")
}

// changedAddress takes the address of a client away while it sends datagrams. Both sides end, and say what has happened.
// With the address, tests work as before.
func changedAddress(h *hosts.Hosts, server, client *lab.VM) {
	const options = ",verb=send,qp=ud,bw,validate,rate=500,timeout=4"
	serve := func(port int) *lab.Process {
		p := h.Spawn(server, fmt.Sprintf("sh -c 'echo server,verbs,timeout=4,addr=%s,port=%d >/proc/krping'", server.Addr(), port))
		h.Eventually(20*time.Second, "the server listens", func() bool {
			return strings.Contains(h.Sh(server, "cat /proc/krping"), "listen")
		})
		return p
	}
	served := serve(9950)
	sent := h.Spawn(client, fmt.Sprintf("sh -c 'echo client,addr=%s,port=9950%s >/proc/krping'", server.Addr(), options))
	h.Eventually(20*time.Second, "datagrams arrive", func() bool {
		fields := strings.Fields(h.Sh(server, "cat /proc/krping"))
		return len(fields) > 4 && len(fields[4]) > 2 // a hundred messages received
	})
	address := strings.Fields(h.Sh(client, "ip -o -4 addr show dev eth0 | awk '{print $4}'"))[0]
	changed := time.Now()
	h.Sh(client, "ip addr add 10.77.77.7/24 dev eth0 && ip addr del "+address+" dev eth0")
	for side, p := range map[string]*lab.Process{"client": sent, "server": served} {
		if err := p.Wait(h.T.Context()); err == nil {
			h.T.Errorf("the %s has succeeded", side)
		}
		if took := time.Since(changed); took > 60*time.Second {
			h.T.Errorf("the %s ended %v after the address had changed", side, took)
		}
	}
	for side, vm := range map[string]*lab.VM{"client": client, "server": server} {
		log := logOf(h, vm)
		says := func(reason string) bool { return strings.Contains(log, reason) }
		if !slices.ContainsFunc([]string{"did not go on", "failed", "was lost before the test had ended"}, says) {
			h.T.Errorf("the log of the %s does not say why:\n%s", side, log)
		}
	}
	h.Sh(client, "ip addr add "+address+" dev eth0 && ip addr del 10.77.77.7/24 dev eth0")
	served = serve(9951)
	if out, err := h.Try(client, fmt.Sprintf("echo client,addr=%s,port=9951,count=500%s >/proc/krping", server.Addr(), options)); err != nil {
		h.T.Errorf("with its address, the client: %v\n%s", err, out)
	}
	if err := served.Wait(h.T.Context()); err != nil {
		h.T.Errorf("and its server: %v", err)
	}
}

// run runs a test while the client's network is bad. The control connection, which is reliable, suffers too.
// With again, a server that loses its client at the end is run once more.
func run(h *hosts.Hosts, server, client *lab.VM, port int, options, netem string, again bool) (c, s proc.Result) {
	h.T.Helper()
	served := h.Spawn(server, fmt.Sprintf("sh -c 'echo server,verbs,addr=%s,port=%d >/proc/krping'", server.Addr(), port))
	h.Eventually(20*time.Second, "the server listens", func() bool {
		return strings.Contains(h.Sh(server, "cat /proc/krping"), "listen")
	})
	h.Sh(client, "tc qdisc change dev eth0 root netem "+netem)
	out, err := h.Try(client, "echo "+options+" >/proc/krping")
	h.Sh(client, "tc qdisc change dev eth0 root netem delay 0ms")
	if err != nil {
		h.T.Fatalf("client: %v\n%s\n%s\nthe server:\n%s", err, out, logOf(h, client), logOf(h, server))
	}
	if err := served.Wait(h.T.Context()); err != nil {
		log := logOf(h, server)
		// The client ends when it has the REPORT. If the network loses both the acknowledgement of that and the request to
		// disconnect, one time in a hundred, nobody repeats them, and the server's time-out ends it.
		if again && strings.HasPrefix(netem, "loss") && strings.Contains(log, "the peer did not go on") {
			h.T.Logf("once more: server: %v\n%s", err, log)
			return run(h, server, client, port, options, netem, false)
		}
		h.T.Fatalf("server: %v\n%s", err, log)
	}
	return last(h, client), last(h, server)
}

func logOf(h *hosts.Hosts, vm *lab.VM) string { return h.Sh(vm, "dmesg | grep krping | tail -n 5") }

// last returns the result of the last command of a host.
func last(h *hosts.Hosts, vm *lab.VM) proc.Result {
	h.T.Helper()
	results, err := proc.ParseResults(h.Sh(vm, "tail -n 1 /proc/krping_results"))
	if err != nil || len(results) != 1 {
		h.T.Fatalf("results: %v, %v", results, err)
	}
	return results[0]
}
