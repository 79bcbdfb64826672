// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"krping/proc"
)

const (
	rxeCounters = "/sys/class/infiniband/rxe0/ports/1/hw_counters"
	netCounters = "/sys/class/net/eth0/statistics"
	userHZ      = 100
)

// counters are what a VM has counted since it booted.
type counters struct {
	busy     float64           // seconds that CPUs were not idle
	ios      float64           // I/Os of the block device
	messages float64           // of the krping session of that device
	named    map[string]uint64 // of rxe0 and eth0
}

// readCounters returns a command that prints them, with those of the device unless it is "". It is a single
// process, as its own time is counted, too.
func readCounters(device string) string {
	files := []string{"/proc/stat", rxeCounters + "/*", netCounters + "/*_packets"}
	if device != "" {
		files = append(files, "/sys/block/"+path.Base(device)+"/stat", "/proc/krping_sessions")
	}
	return "grep -sH . " + strings.Join(files, " ")
}

// serverCounters reads the server's counters. The time matters little: before and after fio the server idles.
func (s *site) serverCounters(ctx context.Context) (counters, error) {
	out, err := s.run(ctx, s.server, readCounters(""))
	if err != nil {
		return counters{}, err
	}
	return parseCounters(out, "")
}

// countedScript returns a script that runs fio and reads the client's counters when the first of its jobs
// starts and when the last one ends: the start of fio itself takes longer than many I/Os.
func countedScript(device, fio string) string {
	return fmt.Sprintf(`mkdir -p /run/bench
cd /run/bench
rm -rf *
cat > count <<.
mkdir begun 2>/dev/null || exit 0
%[1]s > before
.
cat > recount <<.
%[1]s > after.\$\$
mv after.\$\$ after
.
%[2]s --exec_prerun='sh count' --exec_postrun='sh recount'`, readCounters(device), fio)
}

// parseCounters reads lines of "file:line of that file".
func parseCounters(text, disk string) (counters, error) {
	c := counters{named: map[string]uint64{}}
	found := false
	for line := range strings.Lines(text) {
		file, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		var err error
		switch {
		case file == "/proc/stat":
			if strings.HasPrefix(value, "cpu ") {
				found = true
				c.busy, err = parseBusy(value)
			}
		case file == "/proc/krping_sessions":
			var sessions []proc.Session
			if sessions, err = proc.ParseSessions(value); err == nil && len(sessions) == 1 && sessions[0].Dev == disk {
				c.messages = float64(sessions[0].Messages)
			}
		case strings.HasPrefix(file, "/sys/block/"):
			c.ios, err = parseBlockStat(value)
		case strings.HasPrefix(file, "/sys/class/"):
			c.named[path.Base(file)], err = strconv.ParseUint(value, 10, 64)
		}
		if err != nil {
			return c, fmt.Errorf("%s: %w", file, err)
		}
	}
	if !found {
		return c, errors.New("no line of all CPUs in /proc/stat")
	}
	return c, nil
}

// parseBusy reads the first line of /proc/stat: user nice system idle iowait irq softirq steal ...
func parseBusy(line string) (float64, error) {
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return 0, fmt.Errorf("%q has fewer than eight times", line)
	}
	var ticks uint64
	for i, field := range fields[1:9] {
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, err
		}
		if i != 3 && i != 4 { // idle, iowait
			ticks += n
		}
	}
	return float64(ticks) / userHZ, nil
}

// parseBlockStat reads /sys/block/X/stat. Column 1 is reads, column 5 writes.
func parseBlockStat(line string) (float64, error) {
	fields := strings.Fields(line)
	if len(fields) < 11 {
		return 0, fmt.Errorf("%q has fewer than eleven columns", line)
	}
	reads, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return 0, err
	}
	writes, err := strconv.ParseUint(fields[4], 10, 64)
	return float64(reads + writes), err
}

// Cost is what an I/O costs, on average.
type Cost struct {
	ServerCPU float64 `json:"server_cpu_us"` // of the whole VM
	ClientCPU float64 `json:"client_cpu_us"`
	// Sent and received by the client: of rxe0 with RDMA, else of eth0.
	Packets float64 `json:"packets"`
	// RDMA SENDs, sent and received by the client; 0 without RDMA.
	Messages float64 `json:"messages"`
	// What krping counts as messages; 0 for others.
	KrpingMessages float64 `json:"krping_messages,omitempty"`
}

// costOf computes the cost from the files that countedScript has left.
func (s *site) costOf(ctx context.Context, device string, serverBusy float64) (Cost, error) {
	var looks [2]counters
	for i, file := range []string{"/run/bench/before", "/run/bench/after"} {
		out, err := s.run(ctx, s.client, "cat "+file)
		if err != nil {
			return Cost{}, err
		}
		if looks[i], err = parseCounters(out, path.Base(device)); err != nil {
			return Cost{}, fmt.Errorf("%s: %w", file, err)
		}
	}
	return perIO(looks[0], looks[1], serverBusy)
}

func perIO(before, after counters, serverBusy float64) (Cost, error) {
	ios := after.ios - before.ios
	if ios <= 0 {
		return Cost{}, errors.New("the device counts no I/O")
	}
	delta := func(names ...string) (sum float64) {
		for _, name := range names {
			sum += float64(after.named[name] - before.named[name])
		}
		return sum / ios
	}
	c := Cost{
		ServerCPU:      serverBusy / ios * 1e6,
		ClientCPU:      (after.busy - before.busy) / ios * 1e6,
		Messages:       delta("rdma_sends", "rdma_recvs"),
		Packets:        delta("sent_pkts", "rcvd_pkts"),
		KrpingMessages: (after.messages - before.messages) / ios,
	}
	if c.Messages == 0 {
		c.Packets = delta("tx_packets", "rx_packets")
	}
	return c, nil
}
