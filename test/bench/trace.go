// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"krping/test/lab"
)

// Trace measures what tracing costs the I/O of a krping device. Each measurement with a tracer is paired with
// one without.
type Trace struct {
	Lab    *lab.Lab // two VMs with the module: VM 1 serves, VM 2 measures
	Log    io.Writer
	Jobs   []Job
	Rounds int // pairs of measurements of each tracer; the median of their ratios counts
	FIO    FIO
}

// Tracing is what a tracer costs a job.
type Tracing struct {
	Tracer  string
	Ours    bool
	Job     string
	Without float64 // IOPS, median
	With    float64 // IOPS, median
	Ratio   float64 // With / Without, median of the ratios of each pair
	Failure string  // why it was not measured
}

// LeastTraced is the wanted part of the IOPS that is left while tracing.
const LeastTraced = 0.95

// Missed reports whether a tracer of ours costs more than the goal allows.
func (t Tracing) Missed() bool { return t.Ours && (t.Failure != "" || t.Ratio < LeastTraced) }

// tracer is a program that traces the I/O of a device, and the output that shows that it has started.
type tracer struct {
	name    string
	command func(device string) string
	ready   string
	ours    bool
	lines   bool // it prints one for each I/O
}

func tracers() []tracer {
	trace := func(how string) tracer {
		return tracer{"krpingctl trace" + how, func(device string) string { return "krpingctl trace " + device + how }, "tracing", true, how == ""}
	}
	always := func(command string) func(string) string { return func(string) string { return command } }
	return []tracer{
		trace(" --summary"), trace(" --slow 1h"), trace(""),
		{"krpingctl top (histograms)", always("krpingctl top --json"), "interval", true, false},
		{"biosnoop of bpftrace", always("bpftrace " + filepath.Join(lab.Repo(), "test/bench/biosnoop.bt")), "TIME", false, true},
	}
}

// Run measures all tracers with all jobs.
func (b *Trace) Run(ctx context.Context) (rows []Tracing, err error) {
	s := &site{server: b.Lab.VM(0), client: b.Lab.VM(1), log: b.Log}
	disks, err := s.disksOf(ctx, "brd", 1, 64)
	if err != nil {
		return nil, err
	}
	krping := newContender(kernelTarget)
	device, err := krping.attach(ctx, s, disks[0])
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, krping.detach(ctx, s)) }()
	for _, j := range b.Jobs {
		for _, tr := range tracers() {
			row, err := b.measure(ctx, s, j, tr, device)
			if ctx.Err() != nil {
				return rows, ctx.Err()
			}
			if err != nil {
				row.Failure = err.Error()
				fmt.Fprintf(b.Log, "%s: %v\n", tr.name, err)
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

func (b *Trace) measure(ctx context.Context, s *site, j Job, tr tracer, device string) (Tracing, error) {
	row := Tracing{Tracer: tr.name, Ours: tr.ours, Job: j.Name}
	var without, with, ratios []float64
	for round := range b.Rounds {
		var pair [2]float64 // without, with
		for turn := range pair {
			i := (turn + round) % 2
			var stop func() (lines int, err error)
			if i == 1 {
				var err error
				if stop, err = startTracer(ctx, s, tr, device); err != nil {
					return row, err
				}
			}
			sample, err := measureDisk(ctx, s, j, device, b.FIO)
			if stop != nil {
				lines, stopErr := stop()
				// The cost of a tracer that sees nothing does not count.
				if least := int(sample.IOPS * b.FIO.Runtime.Seconds() / 2); stopErr == nil && tr.lines && lines < least {
					stopErr = fmt.Errorf("%s has shown %d I/Os, want at least %d", tr.name, lines, 2*least)
				}
				err = errors.Join(err, stopErr)
			}
			if err != nil {
				return row, err
			}
			pair[i] = sample.IOPS
		}
		fmt.Fprintf(b.Log, "  %s, %s, round %d: %.0f IOPS without, %.0f with\n", j.Name, tr.name, round+1, pair[0], pair[1])
		without, with, ratios = append(without, pair[0]), append(with, pair[1]), append(ratios, pair[1]/pair[0])
	}
	row.Without, row.With, row.Ratio = median(without), median(with), median(ratios)
	return row, nil
}

// traced is the file of a tracer's output, in the VM's memory.
const traced = "/run/traced"

// startTracer starts a tracer that writes to a file, and waits until it is ready.
func startTracer(ctx context.Context, s *site, tr tracer, device string) (stop func() (lines int, err error), err error) {
	const run = `%s >%s 2>&1 &
tracer=$!
trap 'kill $tracer' TERM
until grep -q %s %[2]s; do kill -0 $tracer && sleep 0.1 || { cat %[2]s; exit 1; }; done
echo traces
wait $tracer; wait $tracer || true`
	p, out, err := s.spawn(ctx, s.client, "sh -c '"+strings.ReplaceAll(fmt.Sprintf(run, tr.command(device), traced, tr.ready), "'", `'\''`)+"'", "traces")
	if err != nil {
		return nil, err
	}
	return func() (lines int, err error) {
		ctx, cancel := context.WithTimeout(ctx, commandTime)
		defer cancel()
		if err := p.Signal(unix.SIGTERM); err != nil {
			return 0, err
		}
		if err := p.Wait(ctx); err != nil {
			return 0, failure(s.client, tr.name, out.String(), err)
		}
		text, err := s.run(ctx, s.client, "wc -l <"+traced)
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(text))
	}, nil
}

// WriteTraceTable writes the rows as a Markdown table.
func WriteTraceTable(out io.Writer, rows []Tracing) error {
	t := newTable(out)
	t.head("job", "tracer", "IOPS without", "with", "ratio")
	for _, r := range rows {
		if r.Failure != "" {
			t.row(r.Job, r.Tracer, "", "", "failed")
			continue
		}
		t.row(r.Job, r.Tracer, fmt.Sprintf("%.0f", r.Without), fmt.Sprintf("%.0f", r.With), fmt.Sprintf("%.2f", r.Ratio))
	}
	return t.Flush()
}
