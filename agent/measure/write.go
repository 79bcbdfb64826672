// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// formats are the formats of Write.
var formats = []string{"table", "json", "csv"}

// columns of the CSV in order. Their names are those of the JSON.
var columns = []struct {
	name  string
	value func(Report) string
}{
	{"test", func(r Report) string { return r.Test }},
	{"role", func(r Report) string { return r.Role }},
	{"device", func(r Report) string { return r.Device }},
	{"size", func(r Report) string { return strconv.FormatUint(uint64(r.Size), 10) }},
	{"threads", func(r Report) string { return strconv.Itoa(r.Threads) }},
	{"connections", func(r Report) string { return strconv.Itoa(r.Connections) }},
	{"operations", func(r Report) string { return strconv.FormatUint(r.Operations, 10) }},
	{"elapsed_ns", func(r Report) string { return strconv.FormatInt(r.ElapsedNs, 10) }},
	{"gbit_per_second", func(r Report) string { return strconv.FormatFloat(r.GbitPerSecond, 'f', 6, 64) }},
	{"ops_per_second", func(r Report) string { return strconv.FormatFloat(r.OpsPerSecond, 'f', 3, 64) }},
	{"min_ns", latency(func(l Latency) string { return strconv.FormatInt(l.Min, 10) })},
	{"avg_ns", latency(func(l Latency) string { return strconv.FormatFloat(l.Avg, 'f', 1, 64) })},
	{"p50_ns", latency(func(l Latency) string { return strconv.FormatInt(l.P50, 10) })},
	{"p90_ns", latency(func(l Latency) string { return strconv.FormatInt(l.P90, 10) })},
	{"p99_ns", latency(func(l Latency) string { return strconv.FormatInt(l.P99, 10) })},
	{"p99_9_ns", latency(func(l Latency) string { return strconv.FormatInt(l.P999, 10) })},
	{"max_ns", latency(func(l Latency) string { return strconv.FormatInt(l.Max, 10) })},
	{"half_rtt_ns", latency(func(l Latency) string { return strconv.FormatFloat(l.HalfNs, 'f', 1, 64) })},
	{"verb", messages(func(m Messages) string { return m.Verb })},
	{"qp", messages(func(m Messages) string { return m.QueuePair })},
	{"sent", messageCount(func(m Messages) uint64 { return m.Sent })},
	{"received", messageCount(func(m Messages) uint64 { return m.Received })},
	{"lost", messageCount(func(m Messages) uint64 { return m.Lost })},
	{"repeated", messageCount(func(m Messages) uint64 { return m.Repeated })},
	{"reordered", messageCount(func(m Messages) uint64 { return m.Reordered })},
	{"damaged", messageCount(func(m Messages) uint64 { return m.Damaged })},
	{"peak_ops_per_second", messageCount(func(m Messages) uint64 { return m.PeakRate })},
	{"posts", messageCount(func(m Messages) uint64 { return m.Posts })},
	{"completions", messageCount(func(m Messages) uint64 { return m.Completions })},
	{"cpu_ns", func(r Report) string { return strconv.FormatInt(r.CPUNs, 10) }},
}

func messages(value func(Messages) string) func(Report) string {
	return func(r Report) string {
		if r.Messages == nil {
			return ""
		}
		return value(*r.Messages)
	}
}

func messageCount(value func(Messages) uint64) func(Report) string {
	return messages(func(m Messages) string { return strconv.FormatUint(value(m), 10) })
}

func latency(value func(Latency) string) func(Report) string {
	return func(r Report) string {
		if r.Latency == nil {
			return ""
		}
		return value(*r.Latency)
	}
}

// Write writes reports as a table, as one JSON object per line, or as CSV with a header.
func Write(out io.Writer, format string, reports ...Report) error {
	switch format {
	case "json":
		encoder := json.NewEncoder(out)
		for _, r := range reports {
			if err := encoder.Encode(r); err != nil {
				return err
			}
		}
		return nil
	case "csv":
		return writeCSV(out, reports)
	case "table":
		return writeTable(out, reports)
	}
	return fmt.Errorf("format %q: must be one of %s", format, strings.Join(formats, ", "))
}

// CSVHeader returns the names of the columns of CSVRow.
func CSVHeader() []string {
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	return names
}

// CSVRow returns the report as a line of CSV.
func (r Report) CSVRow() []string {
	var row []string
	for _, c := range columns {
		row = append(row, c.value(r))
	}
	return row
}

func writeCSV(out io.Writer, reports []Report) error {
	w := csv.NewWriter(out)
	_ = w.Write(CSVHeader()) // w.Error returns the error
	for _, r := range reports {
		_ = w.Write(r.CSVRow())
	}
	w.Flush()
	return w.Error()
}

func writeTable(out io.Writer, reports []Report) error {
	timed := slices.ContainsFunc(reports, func(r Report) bool { return r.Latency != nil })
	counted := slices.ContainsFunc(reports, func(r Report) bool { return r.Messages != nil })
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "test\tbytes\tthreads\tconns\tops\tseconds\tGbit/s\tops/s\t")
	if timed {
		fmt.Fprint(w, "min µs\tavg\tp50\tp99\tp99.9\tmax\tRTT/2\t")
	}
	if counted {
		fmt.Fprint(w, "peak ops/s\tsent\treceived\tlost\tdamaged\t")
	}
	fmt.Fprintln(w)
	for _, r := range reports {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%.3f\t%.4g\t%.0f\t", r.Title(), r.Size, r.Threads, r.Connections, r.Operations,
			float64(r.ElapsedNs)/1e9, r.GbitPerSecond, r.OpsPerSecond)
		if l := r.Latency; l != nil {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t", micros(float64(l.Min)), micros(l.Avg), micros(float64(l.P50)), micros(float64(l.P99)),
				micros(float64(l.P999)), micros(float64(l.Max)), micros(l.HalfNs))
		} else if timed {
			fmt.Fprint(w, strings.Repeat("\t", 7))
		}
		if m := r.Messages; m != nil {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t", known(m.PeakRate), m.Sent, m.Received, m.Lost, m.Damaged)
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// known returns a number, or "-" if it is 0.
func known(n uint64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatUint(n, 10)
}

func micros(ns float64) string { return strconv.FormatFloat(ns/1e3, 'f', 1, 64) }
