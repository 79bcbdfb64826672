// SPDX-License-Identifier: Apache-2.0

// Package bench compares krping with its peers, in turn, in the same two VMs of the lab. Only ratios mean
// anything, as the VMs are emulated.
package bench

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"krping/test/lab"
)

// Verbs compares krping's bw and rlat with perftest's ib_write_bw and ib_read_lat.
type Verbs struct {
	Lab    *lab.Lab // two VMs with the module: VM 1 serves, VM 2 measures
	Log    io.Writer
	Rounds int   // of each measurement; the median counts
	Sizes  []int // bytes
}

// A measurement is a number that one program reaches for one size in one round.
type measurement struct {
	name   string
	server string // command on the serving VM
	client string // command on the measuring VM
	port   string // where the server listens
	parse  func(out string) (float64, error)
}

// Comparison is a row of the table, with medians of all rounds. Ratio is the median of the ratios of each
// round, not Ours / Peer: other load disturbs measurements that are close in time alike.
type Comparison struct {
	Test   string
	Size   int
	Unit   string
	Peer   float64 // perftest's
	Ours   float64 // krping's
	Ratio  float64 // krping's to perftest's
	Target string
	Met    bool
}

const (
	minBandwidth = 0.95 // of perftest's
	maxLatency   = 1.10
)

// Run measures all sizes.
func (v *Verbs) Run(ctx context.Context) ([]Comparison, error) {
	var rows []Comparison
	for _, size := range v.Sizes {
		bw := Comparison{Test: "ib_write_bw / bw", Size: size, Unit: "Gbit/s", Target: fmt.Sprintf(">= %.2f", minBandwidth)}
		if err := v.compare(ctx, v.writeBandwidth(size), &bw); err != nil {
			return rows, err
		}
		bw.Met = bw.Ratio >= minBandwidth
		lat := Comparison{Test: "ib_read_lat / rlat", Size: size, Unit: "µs", Target: fmt.Sprintf("<= %.2f", maxLatency)}
		if err := v.compare(ctx, v.readLatency(size), &lat); err != nil {
			return rows, err
		}
		lat.Met = lat.Ratio <= maxLatency
		rows = append(rows, bw, lat)
	}
	return rows, nil
}

// compare makes the two measurements in turn. Each round starts with the other one.
func (v *Verbs) compare(ctx context.Context, pair [2]measurement, c *Comparison) error {
	var peer, ours, ratios []float64
	for round := range v.Rounds {
		var values [2]float64
		for turn := range pair {
			i := (turn + round) % 2
			value, err := v.measure(ctx, pair[i])
			if err != nil {
				return fmt.Errorf("%s: %w", pair[i].name, err)
			}
			fmt.Fprintf(v.Log, "  %s: %.4g %s\n", pair[i].name, value, c.Unit)
			values[i] = value
		}
		peer, ours, ratios = append(peer, values[0]), append(ours, values[1]), append(ratios, values[1]/values[0])
	}
	c.Peer, c.Ours, c.Ratio = median(peer), median(ours), median(ratios)
	return nil
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

const listenTime = 20 * time.Second

func (v *Verbs) measure(ctx context.Context, m measurement) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	path := "PATH=" + lab.Build() + ":$PATH; "
	server, err := v.Lab.VM(0).Start(lab.Cmd{Argv: []string{"sh", "-c", path + "exec " + m.server + " >/run/server.log 2>&1"}})
	if err != nil {
		return 0, err
	}
	for deadline := time.Now().Add(listenTime); ; time.Sleep(100 * time.Millisecond) {
		if _, err := v.Lab.VM(0).Output(ctx, "rdma resource show cm_id | grep -q ':"+m.port+" '"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("%s does not listen within %v", m.server, listenTime)
		}
	}
	out, err := v.Lab.VM(1).Output(ctx, path+m.client)
	if err != nil {
		log, _ := v.Lab.VM(0).Output(ctx, "cat /run/server.log")
		return 0, fmt.Errorf("%s: %w\n%s\n%s", m.client, err, out, log)
	}
	if err := server.Wait(ctx); err != nil {
		return 0, fmt.Errorf("%s: %w", m.server, err)
	}
	return m.parse(out)
}

// reads and writes are the numbers of operations of one measurement: a few seconds in an emulated VM.
const reads = 2000

func writes(size int) int { return max(2000, min(20000, 128<<20/size)) }

const perftestPort, ourPort = "18515", "9970"

func (v *Verbs) writeBandwidth(size int) [2]measurement {
	return v.pair(size, writes(size), "ib_write_bw --report_gbits --tx-depth=128", "bw --txdepth 128", perftestColumn("BW average"), ourColumn("gbit_per_second", 1))
}

func (v *Verbs) readLatency(size int) [2]measurement {
	return v.pair(size, reads, "ib_read_lat", "rlat", perftestColumn("t_typical"), ourColumn("p50_ns", 1e-3))
}

// pair returns the two measurements. Both connect by rdma_cm and busy-poll for completions, as perftest does.
func (v *Verbs) pair(size, n int, perftest, test string, theirs, ours func(string) (float64, error)) [2]measurement {
	addr := v.Lab.VM(0).Addr()
	command := fmt.Sprintf("%s -R -F -d rxe0 -p %s -s %d -n %d", perftest, perftestPort, size, n)
	return [2]measurement{
		{
			name: fmt.Sprintf("%s, %d bytes", strings.Fields(perftest)[0], size), server: command, client: command + " " + addr,
			port: perftestPort, parse: theirs,
		},
		{
			name:   fmt.Sprintf("krping %s, %d bytes", test, size),
			server: fmt.Sprintf("krpingctl server --addr %s --port %s --%s --size %d", addr, ourPort, test, size),
			client: fmt.Sprintf("krpingctl client --addr %s --port %s --%s --size %d --count %d --csv --poll", addr, ourPort, test, size, n),
			port:   ourPort,
			parse:  ours,
		},
	}
}

// perftestColumn returns a function that reads the column with that head from perftest's table.
func perftestColumn(head string) func(string) (float64, error) {
	return func(out string) (float64, error) {
		lines := strings.Split(out, "\n")
		for i, line := range lines {
			if !strings.HasPrefix(strings.TrimSpace(line), "#bytes") || i+1 == len(lines) {
				continue
			}
			// Heads have spaces, but each ends with a unit in brackets.
			heads := strings.FieldsFunc(line, func(r rune) bool { return r == ']' })
			column := slices.IndexFunc(heads, func(h string) bool { return strings.Contains(h, head) })
			values := strings.Fields(lines[i+1])
			if column < 0 {
				break
			}
			column += 2 // the first head includes "#bytes" and "#iterations"
			if column >= len(values) {
				break
			}
			return strconv.ParseFloat(values[column], 64)
		}
		return 0, fmt.Errorf("perftest's output has no %s:\n%s", head, out)
	}
}

func ourColumn(name string, scale float64) func(string) (float64, error) {
	return func(out string) (float64, error) {
		rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
		if err != nil || len(rows) != 2 || !slices.Contains(rows[0], name) {
			return 0, fmt.Errorf("krpingctl's output has no %s:\n%s", name, out)
		}
		value, err := strconv.ParseFloat(rows[1][slices.Index(rows[0], name)], 64)
		return value * scale, err
	}
}

// WriteTable writes the comparison as a Markdown table.
func WriteTable(out io.Writer, rows []Comparison) error {
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	fmt.Fprintln(w, "| perftest / krping\t| bytes\t| unit\t| perftest\t| krping\t| ratio\t| target\t|")
	fmt.Fprintln(w, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, r := range rows {
		met := ""
		if !r.Met {
			met = " MISSED"
		}
		fmt.Fprintf(w, "| %s\t| %d\t| %s\t| %.4g\t| %.4g\t| %.2f\t| %s%s\t|\n", r.Test, r.Size, r.Unit, r.Peer, r.Ours, r.Ratio, r.Target, met)
	}
	return w.Flush()
}
