// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"krping/agent/measure"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"micros": func(ns int64) string { return fmt.Sprintf("%.1f", float64(ns)/1e3) },
}).Parse(pageText))

// chart plots a value of the reports over the number of connections.
type chart struct {
	title string
	value func(measure.Report) float64
}

func charts(reports []measure.Report) []chart {
	all := []chart{
		{"Gbit/s", func(r measure.Report) float64 { return r.GbitPerSecond }},
		{"operations/s", func(r measure.Report) float64 { return r.OpsPerSecond }},
	}
	if slices.ContainsFunc(reports, func(r measure.Report) bool { return r.Latency != nil }) {
		all = append(all, chart{"median latency, µs", func(r measure.Report) float64 {
			if r.Latency == nil {
				return 0
			}
			return float64(r.Latency.P50) / 1e3
		}})
	}
	return all
}

// line is a line of a chart, for a size and a number of connections per thread.
type line struct {
	size       uint32
	perThread  int
	xy         plotter.XYs
	lineNumber int
}

func linesOf(reports []measure.Report, value func(measure.Report) float64) []*line {
	var lines []*line
	for _, r := range reports {
		perThread := r.Connections / max(r.Threads, 1)
		i := slices.IndexFunc(lines, func(l *line) bool { return l.size == r.Size && l.perThread == perThread })
		if i < 0 {
			i = len(lines)
			lines = append(lines, &line{size: r.Size, perThread: perThread, lineNumber: i})
		}
		lines[i].xy = append(lines[i].xy, plotter.XY{X: float64(r.Connections), Y: value(r)})
	}
	for _, l := range lines {
		slices.SortFunc(l.xy, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
	}
	return lines
}

// draw writes one chart as SVG.
func draw(out io.Writer, reports []measure.Report, c chart) error {
	p := plot.New()
	p.Title.Text = c.title + " over connections"
	p.X.Label.Text, p.Y.Label.Text = "connections", c.title
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, countTicks(reports)
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	p.BackgroundColor = color.White
	p.Add(plotter.NewGrid())
	low, high := 1.0, 1.0
	for _, l := range linesOf(reports, c.value) {
		drawn, dots, err := plotter.NewLinePoints(l.xy)
		if err != nil {
			return fmt.Errorf("draw %s: %w", c.title, err)
		}
		drawn.Color, dots.Color, dots.Shape = plotutil.Color(l.lineNumber), plotutil.Color(l.lineNumber), plotutil.Shape(l.lineNumber)
		p.Add(drawn, dots)
		p.Legend.Add(fmt.Sprintf("%d bytes, %d connections per thread", l.size, l.perThread), drawn, dots)
		high = max(high, l.xy[len(l.xy)-1].X)
	}
	p.X.Min, p.X.Max = low, max(high, 2)
	p.Y.Max *= 1.25 // room for the legend
	w, err := p.WriterTo(20*vg.Centimeter, 11*vg.Centimeter, "svg")
	if err != nil {
		return fmt.Errorf("draw %s: %w", c.title, err)
	}
	_, err = w.WriteTo(out)
	return err
}

// countTicks returns a tick for each measured number of connections.
func countTicks(reports []measure.Report) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for _, r := range reports {
		x := float64(r.Connections)
		if !slices.ContainsFunc(ticks, func(t plot.Tick) bool { return t.Value == x }) {
			ticks = append(ticks, plot.Tick{Value: x, Label: fmt.Sprint(r.Connections)})
		}
	}
	return ticks
}

// WriteSVG draws the throughput over the number of connections.
func WriteSVG(out io.Writer, reports []measure.Report) error {
	return draw(out, reports, charts(reports)[0])
}

// WriteHTML writes a page with all charts and numbers. The page loads nothing.
func WriteHTML(out io.Writer, title string, reports []measure.Report) error {
	data := struct {
		Title   string
		Charts  []template.HTML
		Reports []measure.Report
	}{Title: title, Reports: reports}
	for _, c := range charts(reports) {
		var svg bytes.Buffer
		if err := draw(&svg, reports, c); err != nil {
			return err
		}
		_, picture, found := bytes.Cut(svg.Bytes(), []byte("<svg")) // without the XML declaration
		if !found {
			return fmt.Errorf("draw %s: no picture", c.title)
		}
		data.Charts = append(data.Charts, template.HTML("<svg"+string(picture)))
	}
	return page.Execute(out, data)
}
