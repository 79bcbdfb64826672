// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"

	"krping/agent/measure"
	"krping/agent/measure/chart"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"micros": func(ns int64) string { return fmt.Sprintf("%.1f", float64(ns)/1e3) },
}).Parse(pageText))

// quantity is a value of the reports, plotted over the number of connections.
type quantity struct {
	title string
	value func(measure.Report) float64
}

func quantities(reports []measure.Report) []quantity {
	all := []quantity{
		{"Gbit/s", func(r measure.Report) float64 { return r.GbitPerSecond }},
		{"operations/s", func(r measure.Report) float64 { return r.OpsPerSecond }},
	}
	if slices.ContainsFunc(reports, func(r measure.Report) bool { return r.Latency != nil }) {
		all = append(all, quantity{"median latency, µs", func(r measure.Report) float64 {
			if r.Latency == nil {
				return 0
			}
			return float64(r.Latency.P50) / 1e3
		}})
	}
	return all
}

// linesOf returns a line for each size and number of connections per thread.
func linesOf(reports []measure.Report, value func(measure.Report) float64) []chart.Series {
	var lines []chart.Series
	reports = slices.Clone(reports)
	slices.SortStableFunc(reports, func(a, b measure.Report) int { return cmp.Compare(a.Connections, b.Connections) })
	for _, r := range reports {
		name := fmt.Sprintf("%d bytes, %d connections per thread", r.Size, r.Connections/max(r.Threads, 1))
		i := slices.IndexFunc(lines, func(l chart.Series) bool { return l.Name == name })
		if i < 0 {
			i = len(lines)
			lines = append(lines, chart.Series{Name: name})
		}
		lines[i].X = append(lines[i].X, float64(r.Connections))
		lines[i].Y = append(lines[i].Y, value(r))
	}
	return lines
}

// draw writes one chart as SVG.
func draw(out io.Writer, reports []measure.Report, q quantity) error {
	return chart.Lines{Title: q.title + " over connections", X: "connections", Y: q.title, Series: linesOf(reports, q.value)}.WriteSVG(out)
}

// WriteSVG draws the throughput over the number of connections.
func WriteSVG(out io.Writer, reports []measure.Report) error {
	return draw(out, reports, quantities(reports)[0])
}

// WriteHTML writes a page with all charts and numbers. The page loads nothing.
func WriteHTML(out io.Writer, title string, reports []measure.Report) error {
	data := struct {
		Title   string
		Charts  []template.HTML
		Reports []measure.Report
	}{Title: title, Reports: reports}
	for _, q := range quantities(reports) {
		var svg bytes.Buffer
		if err := draw(&svg, reports, q); err != nil {
			return err
		}
		data.Charts = append(data.Charts, template.HTML(svg.String()))
	}
	return page.Execute(out, data)
}
