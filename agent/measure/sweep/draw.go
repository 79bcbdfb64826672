// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"krping/agent/measure/chart"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// View is how the rows of a sweep are shown.
type View struct {
	Title   string
	Text    string   // what it shows
	Columns []string // names of quantities, of the table
	Charts  []string // of these, the ones that are drawn; the first is the picture
}

// DefaultView is the view of a sweep that has no purpose of its own.
var DefaultView = View{
	Columns: []string{
		"ops", "seconds", "Gbit/s", "ops/s", "min µs", "avg µs", "p50 µs", "p99 µs", "p99.9 µs", "max µs", "CPU %", "peak ops/s",
		"sent", "received", "lost", "damaged",
	},
	Charts: []string{"Gbit/s", "ops/s", "p50 µs"},
}

// horizontal returns what the X axis of charts shows: connections if their number varies, else the first number
// that does.
func horizontal(rows []Row) (name string, value func(Row) float64) {
	options := varying(rows)
	for _, name := range options {
		if o, _ := optionOf(name); name != "threads" && name != "connections" && o.isNumber() && !slices.Contains(options, "threads") && !slices.Contains(options, "connections") {
			return name, func(r Row) float64 {
				n, _ := strconv.ParseFloat(r.value(name), 64) // a row without the option is not drawn
				return n
			}
		}
	}
	return "connections", func(r Row) float64 { return float64(r.total()) }
}

// linesOf returns a line for each combination of what the X axis does not show.
func linesOf(rows []Row, q quantity) (x string, lines []chart.Series) {
	x, at := horizontal(rows)
	options := slices.DeleteFunc(varying(rows), func(name string) bool { return name == x || name == "threads" })
	if o := varying(rows); x == "connections" && slices.Contains(o, "threads") && slices.Contains(o, "connections") {
		options = append(options, "connections")
	}
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(at(a), at(b)) })
	for _, r := range rows {
		if at(r) <= 0 || math.IsNaN(q.value(r)) {
			continue
		}
		name := nameOf(r, options)
		i := slices.IndexFunc(lines, func(l chart.Series) bool { return l.Name == name })
		if i < 0 {
			i = len(lines)
			lines = append(lines, chart.Series{Name: name})
		}
		lines[i].X = append(lines[i].X, at(r))
		lines[i].Y = append(lines[i].Y, q.value(r))
	}
	return x, lines
}

// nameOf returns the name of the line that a row is on. The name of a grid says how many connections it has.
func nameOf(r Row, options []string) string {
	var parts []string
	if r.grid != "" {
		parts = append(parts, r.grid)
	}
	for _, s := range r.Settings {
		if slices.Contains(options, s.Option) && (r.grid == "" || s.Option != "connections") {
			parts = append(parts, s.String())
		}
	}
	return cmp.Or(strings.Join(parts, ", "), r.Report.Title())
}

// draw writes one chart as SVG.
func draw(out io.Writer, rows []Row, name string) error {
	x, lines := linesOf(rows, quantityOf(name))
	title := fmt.Sprintf("%s over %s", name, x)
	if x == "size" {
		x = "bytes"
	}
	return chart.Lines{Title: title, X: x, Y: name, Series: lines}.WriteSVG(out)
}

// drawn returns the charts that have values.
func (v View) drawn(rows []Row) []string {
	return slices.DeleteFunc(slices.Clone(v.Charts), func(name string) bool {
		_, lines := linesOf(rows, quantityOf(name))
		return len(lines) == 0
	})
}

// WriteSVG draws the first chart that has values.
func (v View) WriteSVG(out io.Writer, rows []Row) error {
	charts := v.drawn(rows)
	if len(charts) == 0 {
		return fmt.Errorf("draw %s: there are no values", strings.Join(v.Charts, ", "))
	}
	return draw(out, rows, charts[0])
}

// WriteHTML writes a page with all charts and numbers. The page loads nothing.
func (v View) WriteHTML(out io.Writer, rows []Row) error {
	data := struct {
		View
		Pictures []template.HTML
		Head     []string
		Lines    [][]string
	}{View: v}
	for _, name := range v.drawn(rows) {
		var svg bytes.Buffer
		if err := draw(&svg, rows, name); err != nil {
			return err
		}
		data.Pictures = append(data.Pictures, template.HTML(svg.String()))
	}
	data.Head, data.Lines = table(rows, v.Columns)
	return page.Execute(out, data)
}
