// SPDX-License-Identifier: Apache-2.0

//go:build lab

package pair

import (
	"regexp"
	"strconv"
	"strings"
)

// testTOS counts, at the target, packets of a session that has a type of service: those with it, and others.
func testTOS(h *pair) {
	h.T.Helper()
	server, client := h.storage, h.client
	at := " --addr " + server.Addr() + " --port 9920 --block vol0"
	h.Sh(server, `set -e
modprobe -a sch_ingress cls_u32 act_gact
tc qdisc add dev eth0 clsact
tc filter add dev eth0 ingress protocol ip prio 1 u32 match ip protocol 17 0xff match ip dport 4791 0xffff match u8 104 0xff at 1 action pass
tc filter add dev eth0 ingress protocol ip prio 2 u32 match ip protocol 17 0xff match ip dport 4791 0xffff action pass
krpingctl server`+at+" --backing ram:16M")
	h.T.Cleanup(func() { h.Sh(server, "tc qdisc del dev eth0 clsact") })
	h.Sh(client, "krpingctl client"+at+" --tos 104 && krpingctl write /dev/krping0 --size 1MiB --direct && krpingctl verify /dev/krping0")
	if session := h.Sh(client, "cat /proc/krping_sessions"); !strings.Contains(session, " tos=104") {
		h.T.Errorf("the session: %s", session)
	}
	var packets []int
	for _, prio := range []string{"1", "2"} {
		out := h.Sh(server, "tc -s filter show dev eth0 ingress prio "+prio)
		m := regexp.MustCompile(`Sent \d+ bytes (\d+) pkt`).FindStringSubmatch(out)
		if m == nil {
			h.T.Fatalf("no count of packets:\n%s", out)
		}
		n, _ := strconv.Atoi(m[1])
		packets = append(packets, n)
	}
	if packets[0] < 1<<20/4096 || packets[1] != 0 {
		h.T.Errorf("%d packets have the type of service, %d another one", packets[0], packets[1])
	}
	h.Sh(client, "krpingctl stop vol0")
	h.Sh(server, "krpingctl stop --target vol0")
}
