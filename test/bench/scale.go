// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"krping/agent/measure/chart"
	"krping/test/lab"
)

// Scale measures how throughput, latency and memory change as the sessions of two hosts grow in number, and as
// sessions come and go.
type Scale struct {
	Lab    *lab.Lab // two VMs with the module: VM 1 serves, VM 2 measures
	Log    io.Writer
	Most   int // sessions at a time
	Cycles int // times that a session is attached and detached; 0: not measured
	FIO    FIO
}

// Scaled is what was measured with a number of sessions.
type Scaled struct {
	Contender      string
	Sessions       int
	Sample         Sample        // of random reads of 4 KiB, 32 at a time over all disks
	Attach         time.Duration // of the last session
	Server, Client float64       // MiB of memory of a session, on average
}

// Churn is what it takes when sessions come and go.
type Churn struct {
	Contender      string
	Cycles         int
	First, Last    float64 // seconds of a cycle, median of the first and of the last tenth
	Server, Client float64 // KiB of memory that a cycle leaves behind, on average
}

var scaleJob = Job{Name: "scale", Mode: "randread", Size: 4096, Depth: 32, Jobs: 1}

// numbered returns a contender of several that exist at once.
func numbered(name string, i int) contender {
	if name == nvmeRDMA {
		return &nvme{transport: "rdma", port: 4420, number: strconv.Itoa(i)}
	}
	return &krpingTarget{port: 9971, number: strconv.Itoa(i)}
}

// Run measures krping and nvme-rdma, one after the other.
func (b *Scale) Run(ctx context.Context) (rows []Scaled, churns []Churn, err error) {
	s := &site{server: b.Lab.VM(0), client: b.Lab.VM(1), log: b.Log}
	disks, err := s.disksOf(ctx, "brd", b.Most, 4)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range []string{kernelTarget, nvmeRDMA} {
		of, err := b.grow(ctx, s, name, disks)
		rows = append(rows, of...)
		if err != nil {
			return rows, churns, fmt.Errorf("%s: %w", name, err)
		}
		if b.Cycles == 0 {
			continue
		}
		churn, err := b.churn(ctx, s, name, disks[0])
		if err != nil {
			return rows, churns, fmt.Errorf("%s: %w", name, err)
		}
		churns = append(churns, churn)
	}
	return rows, churns, nil
}

// grow attaches the disks, and measures after each doubling of their number.
func (b *Scale) grow(ctx context.Context, s *site, name string, disks []string) (rows []Scaled, err error) {
	var devices []string
	defer func() {
		for i := range devices {
			err = errors.Join(err, numbered(name, i).detach(ctx, s))
		}
	}()
	// What the first session loads and allocates for all is not a session's.
	first := numbered(name, 0)
	if _, err := first.attach(ctx, s, disks[0]); err != nil {
		return nil, errors.Join(err, first.detach(ctx, s))
	}
	if err := first.detach(ctx, s); err != nil {
		return nil, err
	}
	before, err := s.memory(ctx)
	if err != nil {
		return nil, err
	}
	for n := 1; n <= len(disks); n *= 2 {
		row := Scaled{Contender: name, Sessions: n}
		for i := len(devices); i < n; i++ {
			begin := time.Now()
			device, err := numbered(name, i).attach(ctx, s, disks[i])
			devices = append(devices, device)
			if err != nil {
				return rows, err
			}
			row.Attach = time.Since(begin)
		}
		after, err := s.memory(ctx)
		if err != nil {
			return rows, err
		}
		row.Server, row.Client = (before[0]-after[0])/1024/float64(n), (before[1]-after[1])/1024/float64(n)
		out, err := s.run(ctx, s.client, b.FIO.measure(strings.Join(devices, ":"), scaleJob))
		if err != nil {
			return rows, err
		}
		result, err := parseFIO(out)
		if err != nil {
			return rows, err
		}
		row.Sample = result.sample()
		fmt.Fprintf(b.Log, "%s, %d sessions: %.0f IOPS, %.1f + %.1f MiB a session\n", name, n, row.Sample.IOPS, row.Server, row.Client)
		rows = append(rows, row)
	}
	return rows, nil
}

// churn attaches and detaches a disk again and again.
func (b *Scale) churn(ctx context.Context, s *site, name, disk string) (Churn, error) {
	churn := Churn{Contender: name, Cycles: b.Cycles}
	before, err := s.memory(ctx)
	if err != nil {
		return churn, err
	}
	times := make([]float64, b.Cycles)
	for i := range times {
		begin := time.Now()
		c := numbered(name, 0)
		_, err := c.attach(ctx, s, disk)
		if err := errors.Join(err, c.detach(ctx, s)); err != nil {
			return churn, err
		}
		times[i] = time.Since(begin).Seconds()
	}
	after, err := s.memory(ctx)
	if err != nil {
		return churn, err
	}
	tenth := max(1, b.Cycles/10)
	churn.First, churn.Last = median(times[:tenth]), median(times[b.Cycles-tenth:])
	churn.Server, churn.Client = (before[0]-after[0])/float64(b.Cycles), (before[1]-after[1])/float64(b.Cycles)
	return churn, nil
}

// memory returns the KiB of memory that are available on both hosts, the server first.
func (s *site) memory(ctx context.Context) (available [2]float64, err error) {
	for i, vm := range []*lab.VM{s.server, s.client} {
		out, err := s.run(ctx, vm, "sync; echo 3 >/proc/sys/vm/drop_caches; awk '/^MemAvailable/ {print $2}' /proc/meminfo")
		if err != nil {
			return available, err
		}
		if available[i], err = strconv.ParseFloat(strings.TrimSpace(out), 64); err != nil {
			return available, err
		}
	}
	return available, nil
}

// WriteScaleTables writes the rows as Markdown tables.
func WriteScaleTables(out io.Writer, rows []Scaled, churns []Churn) error {
	t := newTable(out)
	t.head("contender", "sessions", "IOPS", "median µs", "99% µs", "attach s", "server MiB", "client MiB")
	for _, r := range rows {
		t.row(r.Contender, strconv.Itoa(r.Sessions), fmt.Sprintf("%.0f", r.Sample.IOPS), fmt.Sprintf("%.0f", r.Sample.P50), fmt.Sprintf("%.0f", r.Sample.P99),
			fmt.Sprintf("%.2f", r.Attach.Seconds()), fmt.Sprintf("%.1f", r.Server), fmt.Sprintf("%.1f", r.Client))
	}
	if err := t.Flush(); err != nil || len(churns) == 0 {
		return err
	}
	fmt.Fprintln(out)
	t = newTable(out)
	t.head("contender", "cycles", "first tenth s", "last tenth s", "left KiB: server", "client")
	for _, c := range churns {
		t.row(c.Contender, strconv.Itoa(c.Cycles), fmt.Sprintf("%.2f", c.First), fmt.Sprintf("%.2f", c.Last), fmt.Sprintf("%.1f", c.Server), fmt.Sprintf("%.1f", c.Client))
	}
	return t.Flush()
}

// WriteScaleSVG draws how each figure grows with the sessions, relative to that of one session.
func WriteScaleSVG(out io.Writer, kernel string, rows []Scaled) error {
	figures := []struct {
		name string
		of   func(r Scaled) float64
	}{
		{"throughput", func(r Scaled) float64 { return r.Sample.IOPS }},
		{"99% latency", func(r Scaled) float64 { return r.Sample.P99 }},
		{"memory of a session", func(r Scaled) float64 { return r.Server + r.Client }},
		{"time to attach one", func(r Scaled) float64 { return r.Attach.Seconds() }},
	}
	c := chart.Lines{Title: "what grows with the sessions (kernel " + kernel + ")", X: "sessions", Y: "times that of one session"}
	for _, contender := range []string{kernelTarget, nvmeRDMA} {
		for _, f := range figures {
			line := chart.Series{Name: contender + ": " + f.name}
			one := 0.0
			for _, r := range rows {
				if r.Contender != contender {
					continue
				}
				if r.Sessions == 1 {
					one = f.of(r)
				}
				line.X, line.Y = append(line.X, float64(r.Sessions)), append(line.Y, f.of(r)/one)
			}
			c.Series = append(c.Series, line)
		}
	}
	return c.WriteSVG(out)
}
