// SPDX-License-Identifier: Apache-2.0

// Package chart draws line and bar charts as SVG.
package chart

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Series is one line, or the bars of one color. Values that are NaN are not drawn.
type Series struct {
	Name string
	X    []float64 // of a line, ascending and above 0
	Y    []float64 // 0 or more
}

// Lines is a chart of lines over a logarithmic X axis with a tick at each value of X.
type Lines struct {
	Title, X, Y string
	Series      []Series
}

// Bars is a chart with a group of bars for each label. Line, if not 0, is the height of a dashed line.
type Bars struct {
	Title, Y string
	Labels   []string
	Series   []Series // Y has one value for each label
	Line     float64
}

// Sizes and positions, in pixels.
const (
	lineWidth  = 760
	left       = 64 // of the Y axis
	right      = 20
	top        = 34
	plotHeight = 330
	legendRow  = 18
	barWidth   = 9
	labelRoom  = 110 // below bars, for the slanted labels
)

const style = `svg{background:#fff}text{font:12px ui-sans-serif,sans-serif;fill:#1f2328}
.title{font-weight:600;font-size:14px}.grid{stroke:#d1d9e0}.axis{stroke:#59636e}.one{stroke:#59636e;stroke-dasharray:4 4}
.line{fill:none;stroke-width:2}`

// colors are told apart by color-blind readers, too: Okabe and Ito's.
var colors = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"}

func color(i int) string { return colors[i%len(colors)] }

// canvas collects the elements of a picture.
type canvas struct {
	strings.Builder
	width, height, bottom float64
	high                  float64 // value at the top of the Y axis
}

// newCanvas draws the title, the Y axis and the legend.
func newCanvas(width, below float64, title, y string, series []Series) *canvas {
	c := &canvas{width: width, bottom: top + plotHeight}
	c.height = c.bottom + below + float64(len(series))*legendRow
	high := 0.0
	for _, s := range series {
		for _, v := range s.Y {
			if !math.IsNaN(v) {
				high = max(high, v)
			}
		}
	}
	step := niceStep(high)
	c.high = max(math.Ceil(high/step-1e-9), 1) * step
	c.text("title", width/2, 20, "middle", title)
	for v := 0.0; v <= c.high+step/2; v += step {
		c.line("grid", left, c.at(v), width-right, c.at(v))
		c.text("", left-8, c.at(v)+4, "end", fmt.Sprintf("%g", math.Round(v/step)*step))
	}
	fmt.Fprintf(c, `<text transform="translate(14 %.1f) rotate(-90)" text-anchor="middle">%s</text>`+"\n", c.bottom-plotHeight/2, escape(y))
	for i, s := range series {
		at := c.bottom + below + float64(i)*legendRow
		fmt.Fprintf(c, `<rect x="%d" y="%.1f" width="14" height="10" fill="%s"/>`+"\n", left, at-9, color(i))
		c.text("", left+22, at, "start", s.Name)
	}
	return c
}

// niceStep returns a distance of 1, 2 or 5 times a power of ten, for 4 to 8 ticks up to high.
func niceStep(high float64) float64 {
	if high <= 0 {
		return 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(high/4)))
	for _, n := range []float64{5, 2} {
		if high/(unit*n) >= 4 {
			return unit * n
		}
	}
	return unit
}

// at returns the y of a value.
func (c *canvas) at(value float64) float64 { return c.bottom - value/c.high*plotHeight }

func (c *canvas) text(class string, x, y float64, anchor, text string) {
	fmt.Fprintf(c, `<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", class, x, y, anchor, escape(text))
}

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(c, `<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

func (c *canvas) write(out io.Writer) error {
	_, err := fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%.0f" viewBox="0 0 %[1]g %[2]g">
<style>%s</style>
%s</svg>
`, c.width, c.height, style, c.String())
	return err
}

// WriteSVG draws the chart.
func (l Lines) WriteSVG(out io.Writer) error {
	c := newCanvas(lineWidth, 66, l.Title, l.Y, l.Series)
	var all []float64
	for _, s := range l.Series {
		if len(s.X) != len(s.Y) {
			return fmt.Errorf("draw %s: %d values of X, %d of Y", s.Name, len(s.X), len(s.Y))
		}
		all = append(all, s.X...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if len(all) == 0 || all[0] <= 0 {
		return fmt.Errorf("draw %s: values of X must be above 0", l.Title)
	}
	low, high := all[0], max(all[len(all)-1], 2*all[0])
	x := func(v float64) float64 {
		return left + 10 + math.Log(v/low)/math.Log(high/low)*(lineWidth-left-right-20)
	}
	written := -math.MaxFloat64
	for _, v := range all {
		c.line("grid", x(v), top, x(v), c.bottom)
		if x(v)-written > 30 { // else the numbers would overlap
			written = x(v)
			c.text("", x(v), c.bottom+18, "middle", fmt.Sprintf("%g", v))
		}
	}
	c.text("", left+(lineWidth-left-right)/2, c.bottom+38, "middle", l.X)
	c.line("axis", left, c.bottom, lineWidth-right, c.bottom)
	for i, s := range l.Series {
		fmt.Fprintf(c, `<polyline class="line" stroke="%s" points="`, color(i))
		for k := range s.X {
			fmt.Fprintf(c, "%.1f,%.1f ", x(s.X[k]), c.at(s.Y[k]))
		}
		c.WriteString(`"/>` + "\n")
		for k := range s.X {
			fmt.Fprintf(c, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"/>`+"\n", x(s.X[k]), c.at(s.Y[k]), color(i))
		}
	}
	return c.write(out)
}

// WriteSVG draws the chart.
func (b Bars) WriteSVG(out io.Writer) error {
	group := float64((len(b.Series) + 2) * barWidth)
	width := max(left+right+group*float64(len(b.Labels)), 480)
	c := newCanvas(width, labelRoom, b.Title, b.Y, b.Series)
	for k, label := range b.Labels {
		middle := left + group*(float64(k)+0.5)
		for i, s := range b.Series {
			if len(s.Y) != len(b.Labels) {
				return fmt.Errorf("draw %s: %d values for %d labels", s.Name, len(s.Y), len(b.Labels))
			}
			if v := s.Y[k]; !math.IsNaN(v) {
				fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%d" height="%.1f" fill="%s"/>`+"\n",
					middle+barWidth*(float64(i)-float64(len(b.Series))/2), c.at(v), barWidth, c.bottom-c.at(v), color(i))
			}
		}
		fmt.Fprintf(c, `<text transform="translate(%.1f %.1f) rotate(-35)" text-anchor="end">%s</text>`+"\n", middle+4, c.bottom+14, escape(label))
	}
	c.line("axis", left, c.bottom, width-right, c.bottom)
	if b.Line > 0 && b.Line <= c.high {
		c.line("one", left, c.at(b.Line), width-right, c.at(b.Line))
	}
	return c.write(out)
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder does not fail
	return b.String()
}
