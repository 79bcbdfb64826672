// SPDX-License-Identifier: Apache-2.0

package biotrace

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Summary sums up bios by operation. Latencies are kept from 1 us to 10 minutes with
// three digits.
type Summary struct {
	ops map[string]*opSummary
}

type opSummary struct {
	queue, total *hdrhistogram.Histogram // microseconds
	bytes        uint64
	errors       uint64
}

const maxLatency = 10 * time.Minute

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, maxLatency.Microseconds(), 3)
}

// Add counts a bio.
func (s *Summary) Add(b Bio) {
	if s.ops == nil {
		s.ops = map[string]*opSummary{}
	}
	o := s.ops[b.Op]
	if o == nil {
		o = &opSummary{queue: newHistogram(), total: newHistogram()}
		s.ops[b.Op] = o
	}
	o.bytes += uint64(b.Bytes)
	if b.Status != 0 {
		o.errors++
	}
	record := func(h *hdrhistogram.Histogram, d time.Duration) {
		_ = h.RecordValue(min(max(d.Microseconds(), 1), maxLatency.Microseconds())) // in range
	}
	record(o.queue, b.Queue)
	record(o.total, b.Total)
}

// Bios returns how many were counted.
func (s *Summary) Bios() int64 {
	var n int64
	for _, o := range s.ops {
		n += o.total.TotalCount()
	}
	return n
}

// Write prints a table of percentiles and a histogram of the total latency for each
// operation.
func (s *Summary) Write(w io.Writer) error {
	out := &printer{w: w}
	out.print("%-12s %-6s %8s %10s %7s %9s %9s %9s %9s %9s\n", "operation", "stage", "bios", "bytes", "errors", "min", "p50", "p99", "p99.9", "max")
	names := slices.Sorted(maps.Keys(s.ops))
	for _, name := range names {
		o := s.ops[name]
		for _, stage := range []struct {
			name string
			h    *hdrhistogram.Histogram
		}{{"queue", o.queue}, {"total", o.total}} {
			out.print("%-12s %-6s %8d %10d %7d", name, stage.name, stage.h.TotalCount(), o.bytes, o.errors)
			for _, v := range []int64{stage.h.Min(), stage.h.ValueAtQuantile(50), stage.h.ValueAtQuantile(99), stage.h.ValueAtQuantile(99.9), stage.h.Max()} {
				out.print(" %9s", time.Duration(v)*time.Microsecond)
			}
			out.print("\n")
		}
	}
	for _, name := range names {
		out.print("\n%s, total latency\n", name)
		writeBars(out, s.ops[name].total)
	}
	return out.err
}

const barWidth = 40

// writeBars prints powers of two, as biolatency does.
func writeBars(out *printer, h *hdrhistogram.Histogram) {
	var counts []int64
	for _, bar := range h.Distribution() {
		if bar.Count == 0 {
			continue
		}
		slot := 0
		for v := bar.To; v > 1; v >>= 1 {
			slot++
		}
		for len(counts) <= slot {
			counts = append(counts, 0)
		}
		counts[slot] += bar.Count
	}
	first := slices.IndexFunc(counts, func(n int64) bool { return n > 0 })
	for slot := max(first, 0); slot < len(counts); slot++ {
		n := counts[slot]
		bar := int(n * barWidth / slices.Max(counts))
		if n > 0 && bar == 0 {
			bar = 1
		}
		low := time.Duration(1<<slot) * time.Microsecond
		out.print("%12s .. %-12s %8d |%-*s|\n", low, 2*low, n, barWidth, strings.Repeat("#", bar))
	}
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
