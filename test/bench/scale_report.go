// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"krping/agent/measure/chart"
)

// WriteScaleTable writes the rows as a Markdown table. What grows is "sessions" or "queues".
func WriteScaleTable(out io.Writer, what string, rows []Scaled) error {
	t := newTable(out)
	t.head("contender", what, "IOPS", "median µs", "99% µs", "attach s", "server MiB each", "client MiB each")
	for _, r := range rows {
		t.row(r.Contender, strconv.Itoa(r.Number), fmt.Sprintf("%.0f", r.Sample.IOPS), fmt.Sprintf("%.0f", r.Sample.P50), fmt.Sprintf("%.0f", r.Sample.P99),
			fmt.Sprintf("%.2f", r.Attach.Seconds()), fmt.Sprintf("%.1f", r.Server), fmt.Sprintf("%.1f", r.Client))
	}
	return t.Flush()
}

// WriteChurnTable writes the rows as a Markdown table.
func WriteChurnTable(out io.Writer, rows []Churn) error {
	t := newTable(out)
	t.head("contender", "cycles", "first tenth s", "last tenth s", "left KiB: server", "client")
	for _, c := range rows {
		t.row(c.Contender, strconv.Itoa(c.Cycles), fmt.Sprintf("%.2f", c.First), fmt.Sprintf("%.2f", c.Last), fmt.Sprintf("%.1f", c.Server), fmt.Sprintf("%.1f", c.Client))
	}
	return t.Flush()
}

// WriteScaleSVG draws how each figure grows with the sessions or queues, relative to the contender's first row.
func WriteScaleSVG(out io.Writer, kernel, what string, rows []Scaled) error {
	figures := []struct {
		name string
		of   func(r Scaled) float64
	}{
		{"throughput", func(r Scaled) float64 { return r.Sample.IOPS }},
		{"99% latency", func(r Scaled) float64 { return r.Sample.P99 }},
		{"memory of each", func(r Scaled) float64 { return r.Server + r.Client }},
		{"time to attach", func(r Scaled) float64 { return r.Attach.Seconds() }},
	}
	c := chart.Lines{Title: "what grows with the " + what + " (kernel " + kernel + ")", X: what, Y: "times the first"}
	for _, contender := range ScaleContenders() {
		first := slices.IndexFunc(rows, func(r Scaled) bool { return r.Contender == contender })
		if first < 0 {
			continue
		}
		for _, f := range figures {
			line := chart.Series{Name: contender + ": " + f.name}
			for _, r := range rows {
				// Memory that others free meanwhile may exceed what a small session takes.
				if times := f.of(r) / f.of(rows[first]); r.Contender == contender && f.of(rows[first]) > 0 && times >= 0 {
					line.X, line.Y = append(line.X, float64(r.Number)), append(line.Y, times)
				}
			}
			c.Series = append(c.Series, line)
		}
	}
	return c.WriteSVG(out)
}
