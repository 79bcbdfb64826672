// SPDX-License-Identifier: Apache-2.0

// Package sweep measures over the values of options, such as sizes, threads and connections, and shows the
// results as table, CSV and charts. Experiments are sweeps with a purpose.
package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"krping/agent/measure"
	"krping/agent/measure/parallel"
	"krping/proc"
)

// MaxConnections limits the connections of one point: krping-bridge serves no more.
const MaxConnections = 16384

// Plan describes a sweep: all points of its grids.
type Plan struct {
	Command  proc.Command // role, address, port, test and other options that all points have
	Grids    []Grid
	Duration time.Duration // of each point
}

// Grid is all combinations of the values of its axes. The last axis varies first.
type Grid struct {
	Name string // of its lines in charts; "" if the plan has one grid
	Axes []Axis
}

// inFlight limits the messages in flight on all connections of a point, unless the plan sets TxDepth: a
// thousand full queues would measure the NIC's buffers.
const inFlight = 1024

// Point is one measurement of a plan.
type Point struct {
	Settings    []Setting // of the axes, in their order
	Threads     int
	Connections int          // per thread
	Command     proc.Command // of each thread
	grid        string
}

// String returns what is measured, such as "4096 bytes, 2 threads of 10 connections, mtu 256".
func (p Point) String() string {
	text := fmt.Sprintf("%d threads of %d connections", p.Threads, p.Connections)
	if p.Command.Size != 0 {
		text = fmt.Sprintf("%d bytes, %s", p.Command.Size, text)
	}
	for _, s := range p.Settings {
		if !slices.Contains([]string{"size", "threads", "connections"}, s.Option) {
			text += ", " + s.String()
		}
	}
	return text
}

// total returns the connections or queue pairs of all threads.
func (p Point) total() int { return p.Threads * p.Connections }

// Points returns the plan's points, or an error if the plan is invalid.
func (p Plan) Points() ([]Point, error) {
	if p.Duration < 100*time.Millisecond {
		return nil, fmt.Errorf("duration %v: must be 100ms or more", p.Duration)
	}
	var points []Point
	for _, grid := range p.Grids {
		combinations, err := grid.combinations(Point{Threads: 1, Connections: 1, Command: p.Command, grid: grid.Name})
		if err != nil {
			return nil, err
		}
		for _, point := range combinations {
			if err := p.complete(&point); err != nil {
				return nil, fmt.Errorf("%s: %w", point, err)
			}
			points = append(points, point)
		}
	}
	if len(points) == 0 {
		return nil, errors.New("a sweep needs at least one value of each option")
	}
	return points, nil
}

func (g Grid) combinations(first Point) ([]Point, error) {
	points := []Point{first}
	for _, axis := range g.Axes {
		var next []Point
		for _, point := range points {
			for _, value := range axis.Values {
				one := point
				one.Settings = slices.Clone(point.Settings)
				if err := one.set(Setting{axis.Option, value}); err != nil {
					return nil, err
				}
				next = append(next, one)
			}
		}
		points = next
	}
	return points, nil
}

// complete sets what follows from the point's options, and checks it.
func (p Plan) complete(point *Point) error {
	c := &point.Command
	if point.total() > MaxConnections {
		return fmt.Errorf("must be at most %d connections in all", MaxConnections)
	}
	if point.Connections > 1 && !point.hasQueues() {
		return errors.New("only bw can have several connections per thread")
	}
	if c.Test == proc.Verbs {
		c.Duration = p.Duration // the module ends the test on both sides
	}
	if point.hasQueues() {
		c.QPs = uint32(point.Connections)
		if c.TxDepth == 0 {
			c.TxDepth = uint32(max(min(64, inFlight/point.total()), 1))
		}
	}
	return c.Check()
}

// hasQueues reports whether a thread may have several connections, each with many operations in flight.
func (p Point) hasQueues() bool {
	return p.Command.Test == proc.Bandwidth || p.Command.Test == proc.Verbs && p.Command.Measure == "bw"
}

// AllSizes returns the powers of two from 2 bytes to 1 MiB, or to what a packet holds if an axis has queue
// pairs whose message is a packet.
func AllSizes(axes []Axis) Axis {
	most, packet := uint64(1<<20), uint64(1024)
	datagrams := false
	for _, axis := range axes {
		datagrams = datagrams || axis.Option == "qp" && slices.Contains(axis.Values, "ud")
		for i, value := range axis.Values {
			if n, err := strconv.ParseUint(value, 10, 32); axis.Option == "mtu" && err == nil && (i == 0 || n < packet) {
				packet = n
			}
		}
	}
	if datagrams {
		most = packet
	}
	sizes := Axis{Option: "size"}
	for size := uint64(2); size <= most; size *= 2 {
		sizes.Values = append(sizes.Values, strconv.FormatUint(size, 10))
	}
	return sizes
}

// Row is the result of a point.
type Row struct {
	Point
	Report  measure.Report
	Packets uint64 // that the device has sent meanwhile, for whomever; 0: not known
}

// Run tries the most demanding points, then measures all, one after another. It calls progress, if not nil,
// with the completed fraction, 0 to 1. With an error, it returns the rows before it.
func (p Plan) Run(ctx context.Context, fs proc.FS, progress func(done float64)) ([]Row, error) {
	points, err := p.Points()
	if err != nil {
		return nil, err
	}
	last, err := p.rehearse(ctx, fs, points)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for i, point := range points {
		last.rest(ctx)
		last = point
		var part func(float64)
		if progress != nil {
			part = func(done float64) { progress((float64(i) + done) / float64(len(points))) }
		}
		row, err := p.measure(ctx, fs, point, len(points) > 1, part)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", point, err)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

func (p Plan) measure(ctx context.Context, fs proc.FS, point Point, again bool, progress func(float64)) (Row, error) {
	options := parallel.Options{Duration: p.Duration, Progress: progress}
	if point.Command.Test == proc.Verbs {
		options.Duration = 0
	}
	before := packets()
	results, err := runPoint(ctx, fs, point, again, options)
	if err != nil {
		return Row{}, err
	}
	report, err := measure.Of(results...)
	if err != nil {
		return Row{}, err
	}
	row := Row{Point: point, Report: report}
	if after := packets(); point.Command.Test == proc.Verbs { // else only a part of the operations is in the report
		row.Packets = after[report.Device] - before[report.Device]
	}
	return row, nil
}

// freeing is how long the peer may take to free the connections of the point before.
const freeing = 5 * time.Second

// rest waits after a point: while the peer frees a thousand connections, the next one would be slower.
func (p Point) rest(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(min(time.Duration(p.total())*2*time.Millisecond, freeing)):
	}
}

// runPoint runs the commands of a point. If another point was run just before, a peer that refuses gets time.
func runPoint(ctx context.Context, fs proc.FS, point Point, again bool, o parallel.Options) ([]proc.Result, error) {
	commands, err := parallel.Spread(point.Command, point.Threads, false)
	if err != nil {
		return nil, err
	}
	outcomes, err := parallel.Run(ctx, fs, commands, o)
	for deadline := time.Now().Add(freeing); again && isRefused(err) && time.Now().Before(deadline); {
		time.Sleep(freeing / 10)
		outcomes, err = parallel.Run(ctx, fs, commands, o)
	}
	var results []proc.Result
	for _, outcome := range outcomes {
		results = append(results, outcome.Result)
	}
	return results, err
}

// describe joins the settings for messages.
func describe(settings []Setting) string {
	var parts []string
	for _, s := range settings {
		parts = append(parts, s.String())
	}
	return strings.Join(parts, ", ")
}
