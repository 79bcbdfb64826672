// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"image/color"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
)

// WriteSVG draws the contenders' throughput in each job, relative to that of nvme-rdma or, without it, of the
// first contender that was measured.
func (r *Report) WriteSVG(out io.Writer) error {
	jobs := r.jobs()
	if len(jobs) == 0 {
		return errors.New("nothing was measured that could be drawn")
	}
	base := nvmeRDMA
	if r.result(jobs[0], base) == nil {
		base = r.Results[0].Contender
	}
	p := plot.New()
	p.Title.Text = "throughput, relative to " + base + " (kernel " + r.Kernel + ")"
	p.Y.Label.Text, p.Y.Min = "times "+base, 0
	p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = -0.6, text.XLeft, text.YTop
	p.Legend.Top = true
	p.BackgroundColor = color.White
	p.Add(plotter.NewGrid())
	const barWidth = vg.Length(7)
	for i, c := range r.Contenders {
		values := make(plotter.Values, len(jobs))
		for k, job := range jobs {
			if mine, other := r.result(job, c.Name), r.result(job, base); mine != nil && other != nil {
				values[k] = mine.Median.IOPS / other.Median.IOPS
			}
		}
		bars, err := plotter.NewBarChart(values, barWidth)
		if err != nil {
			return fmt.Errorf("draw %s: %w", c.Name, err)
		}
		bars.Color, bars.LineStyle.Width = plotutil.Color(i), 0
		bars.Offset = barWidth * (vg.Length(i) - vg.Length(len(r.Contenders)-1)/2)
		p.Add(bars)
		p.Legend.Add(c.Name, bars)
	}
	one := plotter.NewFunction(func(float64) float64 { return 1 })
	one.Dashes = []vg.Length{3, 3}
	p.Add(one)
	p.NominalX(jobs...)
	p.Y.Max *= 1.3 // room for the legend
	width := vg.Length(len(jobs)*(len(r.Contenders)+2))*barWidth + 5*vg.Centimeter
	w, err := p.WriterTo(max(width, 16*vg.Centimeter), 13*vg.Centimeter, "svg")
	if err != nil {
		return fmt.Errorf("draw: %w", err)
	}
	_, err = w.WriteTo(out)
	return err
}
