// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"

	"krping/agent/measure"
	"krping/bridge/wire"
	"krping/proc"
)

// quantity is a column of the table that was measured. Its value is NaN if it is not known.
type quantity struct {
	name   string
	format string
	value  func(Row) float64
}

var quantities = []quantity{
	{"ops", "%.0f", func(r Row) float64 { return float64(r.Report.Operations) }},
	{"seconds", "%.3f", func(r Row) float64 { return float64(r.Report.ElapsedNs) / 1e9 }},
	{"Gbit/s", "%.4g", func(r Row) float64 { return r.Report.GbitPerSecond }},
	{"ops/s", "%.0f", func(r Row) float64 { return r.Report.OpsPerSecond }},
	{"min µs", "%.1f", micros(func(l measure.Latency) int64 { return l.Min })},
	{"avg µs", "%.1f", micros(func(l measure.Latency) int64 { return int64(l.Avg) })},
	{"p50 µs", "%.1f", micros(func(l measure.Latency) int64 { return l.P50 })},
	{"p99 µs", "%.1f", micros(func(l measure.Latency) int64 { return l.P99 })},
	{"p99.9 µs", "%.1f", micros(func(l measure.Latency) int64 { return l.P999 })},
	{"max µs", "%.1f", micros(func(l measure.Latency) int64 { return l.Max })},
	{"CPU %", "%.0f", func(r Row) float64 { return 100 * ratio(r.Report.CPUNs, r.Report.ElapsedNs) }},
	{"CPU µs/op", "%.2f", func(r Row) float64 { return ratio(r.Report.CPUNs, int64(r.Report.Operations)) / 1e3 }},
	{"peak ops/s", "%.0f", count(func(m measure.Messages) uint64 { return m.PeakRate })},
	{"sent", "%.0f", counted(func(m measure.Messages) float64 { return float64(m.Sent) })},
	{"received", "%.0f", counted(func(m measure.Messages) float64 { return float64(m.Received) })},
	{"lost", "%.0f", counted(func(m measure.Messages) float64 { return float64(m.Lost) })},
	{"lost %", "%.3g", counted(func(m measure.Messages) float64 { return 100 * ratio(int64(m.Lost), int64(m.Sent)) })},
	{"damaged", "%.0f", counted(func(m measure.Messages) float64 { return float64(m.Damaged) })},
	{"completions/message", "%.3f", func(r Row) float64 {
		if r.Report.Messages == nil {
			return math.NaN()
		}
		return ratio(int64(r.Report.Messages.Completions), int64(r.Report.Operations))
	}},
	{"packets/message", "%.2f", func(r Row) float64 {
		if r.Packets == 0 {
			return math.NaN()
		}
		return ratio(int64(r.Packets), int64(r.Report.Operations))
	}},
	{"receives", "%.0f", func(r Row) float64 { return orNaN(uint64(r.Receives())) }},
	{"receive KiB", "%.0f", func(r Row) float64 { return orNaN(uint64(r.ReceiveBytes())) / 1024 }},
}

func quantityOf(name string) quantity {
	return quantities[slices.IndexFunc(quantities, func(q quantity) bool { return q.name == name })]
}

func micros(value func(measure.Latency) int64) func(Row) float64 {
	return func(r Row) float64 {
		if r.Report.Latency == nil {
			return math.NaN()
		}
		return float64(value(*r.Report.Latency)) / 1e3
	}
}

func counted(value func(measure.Messages) float64) func(Row) float64 {
	return func(r Row) float64 {
		if r.Report.Messages == nil {
			return math.NaN()
		}
		return value(*r.Report.Messages)
	}
}

// count is counted for a number that is not known if it is 0.
func count(value func(measure.Messages) uint64) func(Row) float64 {
	return counted(func(m measure.Messages) float64 { return orNaN(value(m)) })
}

func orNaN(n uint64) float64 {
	if n == 0 {
		return math.NaN()
	}
	return float64(n)
}

func ratio(a, b int64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return float64(a) / float64(b)
}

// Receives returns how many receives the receiver of the point's messages has posted at a time, 0 if they take
// none.
func (p Point) Receives() int {
	c := p.Command
	if c.Test != proc.Verbs || c.Verb != proc.Send && c.Verb != proc.WriteImm {
		return 0
	}
	if c.SRQ {
		return p.Threads * max(int(cmp.Or(c.RxDepth, 128)), p.Connections)
	}
	return p.Threads * p.Connections * int(cmp.Or(c.RxDepth, 128))
}

// ReceiveBytes returns the memory for the data of these receives, 0 if they have none or share one buffer: a
// SEND that is not validated is not kept.
func (p Point) ReceiveBytes() int {
	c := p.Command
	if c.Verb != proc.Send || !c.Validate {
		return 0
	}
	size := int(cmp.Or(c.Size, 64))
	if c.QPType == "ud" {
		size += 40 // GRH
	}
	return p.Receives() * wire.VerbsSlot(size)
}

// inTitle are options that the first columns of a table show.
var inTitle = []string{"size", "threads", "connections", "verb", "measure", "qp"}

// varying returns the options that differ between rows, in the order of their axes.
func varying(rows []Row) []string {
	var names []string
	for _, r := range rows {
		for _, s := range r.Settings {
			differs := slices.ContainsFunc(rows, func(other Row) bool { return other.value(s.Option) != s.Value })
			if differs && !slices.Contains(names, s.Option) {
				names = append(names, s.Option)
			}
		}
	}
	return names
}

// table returns the header and the lines of a table with the columns that have values.
func table(rows []Row, columns []string) (head []string, lines [][]string) {
	head = []string{"test", "bytes", "threads", "conns"}
	own := slices.DeleteFunc(varying(rows), func(name string) bool { return slices.Contains(inTitle, name) })
	head = append(head, own...)
	var shown []quantity
	for _, name := range columns {
		q := quantityOf(name)
		if slices.ContainsFunc(rows, func(r Row) bool { return !math.IsNaN(q.value(r)) }) {
			shown, head = append(shown, q), append(head, name)
		}
	}
	for _, r := range rows {
		line := []string{r.Report.Title(), fmt.Sprint(r.Report.Size), fmt.Sprint(r.Report.Threads), fmt.Sprint(r.Report.Connections)}
		for _, name := range own {
			line = append(line, cmp.Or(r.value(name), "-"))
		}
		for _, q := range shown {
			text := "-"
			if v := q.value(r); !math.IsNaN(v) {
				text = fmt.Sprintf(q.format, v)
			}
			line = append(line, text)
		}
		lines = append(lines, line)
	}
	return head, lines
}

// WriteTable writes the rows as a table.
func (v View) WriteTable(out io.Writer, rows []Row) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	head, lines := table(rows, v.Columns)
	for _, line := range append([][]string{head}, lines...) {
		for _, cell := range line {
			fmt.Fprintf(w, "%s\t", cell)
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// WriteCSV writes the rows with all that is known of them: the columns of a report, then the other options
// that differ, and what is counted for a row alone.
func WriteCSV(out io.Writer, rows []Row) error {
	own := slices.DeleteFunc(varying(rows), func(name string) bool { return slices.Contains(measure.CSVHeader(), name) })
	w := csv.NewWriter(out)
	_ = w.Write(slices.Concat(measure.CSVHeader(), own, []string{"packets", "receives", "receive_bytes"})) // w.Error returns the error
	for _, r := range rows {
		line := r.Report.CSVRow()
		for _, name := range own {
			line = append(line, r.value(name))
		}
		_ = w.Write(append(line, strconv.FormatUint(r.Packets, 10), strconv.Itoa(r.Receives()), strconv.Itoa(r.ReceiveBytes())))
	}
	w.Flush()
	return w.Error()
}
