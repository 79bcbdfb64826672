// SPDX-License-Identifier: Apache-2.0

// Package sweep measures over sizes, threads and connections, and draws the results.
package sweep

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"krping/agent/measure"
	"krping/agent/measure/parallel"
	"krping/proc"
)

// MaxConnections limits the connections of one point.
const MaxConnections = 1000

// Plan describes a sweep over all combinations of sizes, threads and connections.
type Plan struct {
	Command     proc.Command  // role, address, port, test and other fixed options
	Sizes       []uint32      // bytes per operation
	Threads     []int         // numbers of kernel threads
	Connections []int         // connections per thread
	Duration    time.Duration // of each point
}

// inFlight limits the RDMA WRITEs in flight on all connections of a point, unless the plan sets
// TxDepth: a thousand full queues would measure the NIC's buffers.
const inFlight = 1024

// Point is one measurement of a plan.
type Point struct {
	Size        uint32
	Threads     int
	Connections int // per thread
}

func (p Point) String() string {
	return fmt.Sprintf("%d bytes, %d threads of %d connections", p.Size, p.Threads, p.Connections)
}

// Points returns the plan's points, or an error if the plan is invalid.
func (p Plan) Points() ([]Point, error) {
	if len(p.Sizes) == 0 || len(p.Threads) == 0 || len(p.Connections) == 0 {
		return nil, errors.New("a sweep needs at least one size, number of threads, and number of connections")
	}
	if p.Duration < 100*time.Millisecond {
		return nil, fmt.Errorf("duration %v: must be 100ms or more", p.Duration)
	}
	var points []Point
	for _, size := range p.Sizes {
		for _, threads := range p.Threads {
			for _, connections := range p.Connections {
				point := Point{size, threads, connections}
				if threads < 1 || connections < 1 || threads*connections > MaxConnections {
					return nil, fmt.Errorf("%s: must be 1 to %d connections in all", point, MaxConnections)
				}
				if connections > 1 && !p.HasQueues() {
					return nil, fmt.Errorf("%s: only bw can have several connections per thread", point)
				}
				if err := p.command(point).Check(); err != nil {
					return nil, fmt.Errorf("%s: %w", point, err)
				}
				points = append(points, point)
			}
		}
	}
	return points, nil
}

// HasQueues reports whether a thread may have several connections, each with many operations in flight.
func (p Plan) HasQueues() bool {
	return p.Command.Test == proc.Bandwidth || p.Command.Test == proc.Verbs && p.Command.Measure == "bw"
}

// AllSizes returns the powers of two from 2 bytes to 1 MiB, or to what a packet of the command holds if a
// message is a packet.
func AllSizes(c proc.Command) []uint32 {
	most := uint32(1 << 20)
	if c.QPType == "ud" {
		most = cmp.Or(c.MTU, 1024)
	}
	var sizes []uint32
	for size := uint32(2); size <= most; size *= 2 {
		sizes = append(sizes, size)
	}
	return sizes
}

func (p Plan) command(point Point) proc.Command {
	c := p.Command
	c.Size = point.Size
	if c.Test == proc.Verbs {
		c.Duration = p.Duration // the module ends the test on both sides
	}
	if p.HasQueues() {
		c.QPs = uint32(point.Connections)
		if c.TxDepth == 0 {
			c.TxDepth = uint32(max(min(64, inFlight/(point.Threads*point.Connections)), 1))
		}
	}
	return c
}

// Run measures the points one after another. It calls progress, if not nil, with the completed
// fraction, 0 to 1. With an error, it returns the reports of the points before it.
func (p Plan) Run(ctx context.Context, fs proc.FS, progress func(done float64)) ([]measure.Report, error) {
	points, err := p.Points()
	if err != nil {
		return nil, err
	}
	var reports []measure.Report
	for i, point := range points {
		var part func(float64)
		if progress != nil {
			part = func(done float64) { progress((float64(i) + done) / float64(len(points))) }
		}
		commands, err := parallel.Spread(p.command(point), point.Threads, false)
		if err != nil {
			return reports, err
		}
		duration := p.Duration
		if p.Command.Test == proc.Verbs {
			duration = 0
		}
		outcomes, err := parallel.Run(ctx, fs, commands, parallel.Options{Duration: duration, Progress: part})
		if err != nil {
			return reports, fmt.Errorf("%s: %w", point, err)
		}
		var results []proc.Result
		for _, o := range outcomes {
			results = append(results, o.Result)
		}
		report, err := measure.Of(results...)
		if err != nil {
			return reports, fmt.Errorf("%s: %w", point, err)
		}
		reports = append(reports, report)
	}
	return reports, nil
}
