// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"krping/agent/trace/biotrace"
)

var (
	latencySeconds = desc("latency_seconds", "Latency of the bios of a krping disk by stage: queue, send, peer, finish, device, total.", "device", "op", "stage")
	latencyUp      = desc("latency_up", "Whether latencies are measured, which needs a kernel with BTF.")
	latencyLost    = desc("latency_lost_total", "Bios that were not measured, or not in every stage.")
)

func (c *collector) latency(e emitter) error {
	histograms, lost, err := c.Meter.Read()
	e.gauge(latencyUp, truth(err == nil))
	if errors.Is(err, ErrNotMeasured) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the latencies: %w", err)
	}
	e.counter(latencyLost, float64(lost.Total()))
	for _, h := range histograms {
		m, err := newHistogram(h)
		if err != nil {
			return fmt.Errorf("latencies of %s: %w", h.Device, err)
		}
		e.ch <- m
	}
	return nil
}

// The buckets of classic histograms end at the powers of two from 2^-20 s, about 1 us, to 64 s.
// Each consists of eight native buckets, so its count is exact.
const (
	lowestPower   = -20
	highestPower  = 6
	perPowerOfTwo = 1 << biotrace.Schema
)

// histogram is a native and a classic histogram at once; the scraper chooses.
type histogram struct{ native, classic prometheus.Metric }

func newHistogram(h biotrace.Histogram) (prometheus.Metric, error) {
	native := make(map[int]int64, len(h.Buckets))
	classic := make(map[float64]uint64, highestPower-lowestPower+1)
	for power := lowestPower; power <= highestPower; power++ {
		classic[math.Ldexp(1, power)] = 0
	}
	for bucket, n := range h.Buckets {
		native[bucket] = int64(n)
		for power := lowestPower; power <= highestPower; power++ {
			if bucket <= power*perPowerOfTwo {
				classic[math.Ldexp(1, power)] += n
			}
		}
	}
	labels := []string{h.Device, h.Op, h.Stage.String()}
	var m histogram
	var err error
	m.native, err = prometheus.NewConstNativeHistogram(latencySeconds, h.Count, h.Sum.Seconds(), native, nil, 0, biotrace.Schema, 0, time.Time{}, labels...)
	if err != nil {
		return nil, err
	}
	m.classic, err = prometheus.NewConstHistogram(latencySeconds, h.Count, h.Sum.Seconds(), classic, labels...)
	return m, err
}

// Desc implements prometheus.Metric.
func (h histogram) Desc() *prometheus.Desc { return h.native.Desc() }

// Write implements prometheus.Metric.
func (h histogram) Write(out *dto.Metric) error {
	var classic dto.Metric
	if err := h.classic.Write(&classic); err != nil {
		return err
	}
	if err := h.native.Write(out); err != nil {
		return err
	}
	out.Histogram.Bucket = classic.Histogram.Bucket
	out.Histogram.CreatedTimestamp = nil // unknown
	return nil
}
