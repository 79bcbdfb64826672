// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"
)

func TestParseCounters(t *testing.T) {
	text := read(t, "counters.txt")
	c, err := parseCounters(text, "krping0")
	if err != nil {
		t.Fatal(err)
	}
	if !near(c.busy, (203+1297+92)/100.) || c.ios != 135+124 || c.messages == 0 {
		t.Errorf("%+v", c)
	}
	for name, want := range map[string]uint64{"sent_pkts": 618, "rcvd_pkts": 628, "rdma_sends": 261, "rdma_recvs": 234, "tx_packets": 629} {
		if c.named[name] != want {
			t.Errorf("%s is %d, want %d", name, c.named[name], want)
		}
	}
	if c, err := parseCounters(text, "krping1"); err != nil || c.messages != 0 {
		t.Errorf("messages of another device: %v, %v", c.messages, err)
	}
	for name, bad := range map[string]string{
		"nothing":          "",
		"no CPUs":          strings.ReplaceAll(text, "stat:cpu ", "stat:gpu "),
		"few CPU times":    "/proc/stat:cpu 1 2 3\n",
		"no number":        "/proc/stat:cpu 1 2 3 4 5 six 7 8\n",
		"short block stat": "/proc/stat:cpu 1 2 3 4 5 6 7 8\n/sys/block/x/stat: 1 2 3\n",
		"text of counters": "/proc/stat:cpu 1 2 3 4 5 6 7 8\n/sys/class/net/eth0/statistics/rx_packets:many\n",
	} {
		if c, err := parseCounters(bad, "krping0"); err == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestPerIO(t *testing.T) {
	counted := func(ios, busy float64, named map[string]uint64) counters {
		return counters{ios: ios, busy: busy, messages: 2 * ios, named: named}
	}
	before := counted(100, 1, map[string]uint64{"rdma_sends": 10, "rdma_recvs": 10, "sent_pkts": 100, "rcvd_pkts": 100, "tx_packets": 5, "rx_packets": 5})
	rdma := counted(300, 2, map[string]uint64{"rdma_sends": 210, "rdma_recvs": 110, "sent_pkts": 500, "rcvd_pkts": 300, "tx_packets": 5000, "rx_packets": 5})
	tcp := counted(300, 2, map[string]uint64{"rdma_sends": 10, "rdma_recvs": 10, "sent_pkts": 101, "rcvd_pkts": 100, "tx_packets": 205, "rx_packets": 405})
	for _, tc := range []struct {
		after counters
		want  Cost
	}{
		{rdma, Cost{ServerCPU: 15000, ClientCPU: 5000, Packets: 3, Messages: 1.5, KrpingMessages: 2}},
		{tcp, Cost{ServerCPU: 15000, ClientCPU: 5000, Packets: 3, KrpingMessages: 2}},
	} {
		if got, err := perIO(before, tc.after, 3); err != nil || got != tc.want {
			t.Errorf("%+v, %v, want %+v", got, err, tc.want)
		}
	}
	if c, err := perIO(before, before, 1); err == nil {
		t.Errorf("no I/O: %+v", c)
	}
}
