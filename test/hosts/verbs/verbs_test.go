// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package verbs tests the test of every verb on queue pairs that lose messages, between two hosts whose network does.
package verbs

import (
	"fmt"
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
				t.Run(tc.netem+"/"+test+"/"+measure, func(t *testing.T) {
					h := &hosts.Hosts{T: t, Lab: h.Lab}
					port := 9800 + 20*i + 2*j + k
					options := fmt.Sprintf("client,addr=%s,port=%d,%s,%s,validate,size=1000,count=300", server.Addr(), port, test, measure)
					c, s := run(h, server, client, port, options, tc.netem)
					if c.Damaged != 0 || s.Damaged != 0 {
						t.Errorf("damaged: %d, %d", c.Damaged, s.Damaged)
					}
					if k == 0 && (c.Sent != 300 || s.Received+s.Lost != c.Sent || c.Lost != s.Lost) {
						t.Errorf("of %d messages %d were received and %d lost; the client says %d", c.Sent, s.Received, s.Lost, c.Lost)
					}
					if tc.lost && c.Lost == 0 {
						t.Error("nothing was lost")
					}
				})
			}
		}
	}
}

// run runs a test while the client's network is bad. The control connection, which is reliable, suffers too.
func run(h *hosts.Hosts, server, client *lab.VM, port int, options, netem string) (c, s proc.Result) {
	h.T.Helper()
	served := h.Spawn(server, fmt.Sprintf("sh -c 'echo server,verbs,addr=%s,port=%d >/proc/krping'", server.Addr(), port))
	h.Eventually(20*time.Second, "the server listens", func() bool {
		return strings.Contains(h.Sh(server, "cat /proc/krping"), "listen")
	})
	h.Sh(client, "tc qdisc change dev eth0 root netem "+netem)
	out, err := h.Try(client, "echo "+options+" >/proc/krping")
	h.Sh(client, "tc qdisc change dev eth0 root netem delay 0ms")
	if err != nil {
		h.T.Fatalf("client: %v\n%s", err, out)
	}
	if err := served.Wait(h.T.Context()); err != nil {
		h.T.Fatalf("server: %v", err)
	}
	return last(h, client), last(h, server)
}

// last returns the result of the last command of a host.
func last(h *hosts.Hosts, vm *lab.VM) proc.Result {
	h.T.Helper()
	results, err := proc.ParseResults(h.Sh(vm, "tail -n 1 /proc/krping_results"))
	if err != nil || len(results) != 1 {
		h.T.Fatalf("results: %v, %v", results, err)
	}
	return results[0]
}
