// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"io"
	"math"

	"krping/agent/measure/chart"
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
	c := chart.Bars{Title: "throughput, relative to " + base + " (kernel " + r.Kernel + ")", Y: "times " + base, Labels: jobs, Line: 1}
	for _, contender := range r.Contenders {
		bars := chart.Series{Name: contender.Name}
		for _, job := range jobs {
			value := math.NaN()
			if mine, other := r.result(job, contender.Name), r.result(job, base); mine != nil && other != nil {
				value = mine.Median.IOPS / other.Median.IOPS
			}
			bars.Y = append(bars.Y, value)
		}
		c.Series = append(c.Series, bars)
	}
	return c.WriteSVG(out)
}
