// SPDX-License-Identifier: Apache-2.0

package bioview

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"krping/agent/trace/biotrace"
)

// Summary has the percentiles of bios by operation and stage, and a heat map. Latencies are kept from
// 1 us to 17 minutes with three digits.
type Summary struct {
	ops  map[string]*opSummary
	name string     // of the last bio's operation,
	last *opSummary // which most often is the next one's, too
	heat heatMap
}

type opSummary struct {
	stages        []*hdrhistogram.Histogram // microseconds; nil for a stage that no bio had
	bytes, errors uint64
}

const maxLatency = 1024 * time.Second

func (s *Summary) op(name string) *opSummary {
	if s.last != nil && name == s.name {
		return s.last
	}
	if s.ops == nil {
		s.ops = map[string]*opSummary{}
	}
	o := s.ops[name]
	if o == nil {
		o = &opSummary{stages: make([]*hdrhistogram.Histogram, len(biotrace.Stages()))}
		s.ops[name] = o
	}
	s.name, s.last = name, o
	return o
}

// Add counts a bio.
func (s *Summary) Add(b *biotrace.Bio) {
	o := s.op(b.Op)
	o.bytes += uint64(b.Bytes)
	if b.Status != 0 {
		o.errors++
	}
	for stage := range o.stages {
		latency := b.Stage(biotrace.Stage(stage))
		if latency == 0 {
			continue
		}
		if o.stages[stage] == nil {
			o.stages[stage] = hdrhistogram.New(1, maxLatency.Microseconds(), 3)
		}
		_ = o.stages[stage].RecordValue(min(max(latency.Microseconds(), 1), maxLatency.Microseconds())) // never out of range
	}
	s.heat.add(b.Time, b.Total)
}

// Bios returns the number of bios.
func (s *Summary) Bios() (n int64) {
	for _, o := range s.ops {
		if total := o.stages[biotrace.StageTotal]; total != nil {
			n += total.TotalCount()
		}
	}
	return n
}

// Quantile returns the latency that a fraction q, from 0 to 1, of an operation's bios did not exceed.
func (s *Summary) Quantile(op string, stage biotrace.Stage, q float64) time.Duration {
	o := s.ops[op]
	if o == nil || o.stages[stage] == nil {
		return 0
	}
	return time.Duration(o.stages[stage].ValueAtQuantile(100*q)) * time.Microsecond
}

// Ops returns the operations that occurred.
func (s *Summary) Ops() []string { return slices.Sorted(maps.Keys(s.ops)) }

// Write prints a table of percentiles by operation and stage, in milliseconds, and the heat map.
func (s *Summary) Write(w io.Writer) error {
	out := &printer{w: w}
	out.print("%-12s %-6s %8s %12s %7s %9s %9s %9s %9s %9s\n", "OPERATION", "STAGE", "BIOS", "BYTES", "ERRORS", "MIN ms", "P50", "P99", "P99.9", "MAX")
	for _, name := range s.Ops() {
		o := s.ops[name]
		for stage, h := range o.stages {
			if h == nil {
				continue
			}
			out.print("%-12s %-6s %8d %12d %7d", name, biotrace.Stage(stage), h.TotalCount(), o.bytes, o.errors)
			for _, us := range []int64{h.Min(), h.ValueAtQuantile(50), h.ValueAtQuantile(99), h.ValueAtQuantile(99.9), h.Max()} {
				out.print(" %9.3f", float64(us)/1000)
			}
			out.print("\n")
		}
	}
	if s.Bios() > 0 {
		out.print("\n")
		s.heat.write(out)
	}
	return out.err
}

type printer struct {
	w   io.Writer
	err error
}

func (p *printer) print(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}
