// SPDX-License-Identifier: Apache-2.0

// Package measure computes reports from the results of ping/pong commands: latency percentiles,
// bandwidth and rates, of one command or of several that ran at once.
package measure

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"krping/proc"
)

// Version is the version of a Report's JSON (report.schema.json). Adding a field does not change
// it; removing a field or changing its meaning does.
const Version = 1

// Report is the result of one command, or of several of the same kind that ran at once.
type Report struct {
	Version     int    `json:"version"`
	Role        string `json:"role"`
	Test        string `json:"test"`
	Peer        string `json:"peer"`
	Device      string `json:"device"`
	Size        uint32 `json:"size"` // bytes per operation
	Threads     int    `json:"threads"`
	Connections int    `json:"connections"` // of all threads together
	TxDepth     uint32 `json:"txdepth,omitempty"`
	Poll        bool   `json:"poll"`
	Duplex      bool   `json:"duplex"`
	Operations  uint64 `json:"operations"`
	ElapsedNs   int64  `json:"elapsed_ns"` // from the first operation of any thread to the last
	// Rates of all threads together; GbitPerSecond is of data in one direction.
	GbitPerSecond float64 `json:"gbit_per_second"`
	OpsPerSecond  float64 `json:"ops_per_second"`
	CPUNs         int64   `json:"cpu_ns"` // CPU time of the threads, without that of interrupts and the device's own threads
	// Latency is nil if no single operations were timed.
	Latency *Latency `json:"latency,omitempty"`
	// Messages is nil unless one verb was measured.
	Messages *Messages `json:"messages,omitempty"`
}

// Messages are those of a measurement of one verb, of all threads together. What is received is seen by
// the client with Duplex, otherwise by the server, which tells the client.
type Messages struct {
	Verb        string `json:"verb"`
	QueuePair   string `json:"qp"` // type: rc, uc or ud
	Sent        uint64 `json:"sent"`
	Received    uint64 `json:"received"` // 0 if the receiver cannot see them: kmod/PROTOCOL.md section 1.3
	Lost        uint64 `json:"lost"`
	Repeated    uint64 `json:"repeated"`
	Reordered   uint64 `json:"reordered"`
	Damaged     uint64 `json:"damaged"`
	PeakRate    uint64 `json:"peak_ops_per_second"` // best 100 ms of each thread, added up; 0: not known
	Posts       uint64 `json:"posts"`               // work requests
	Completions uint64 `json:"completions"`
}

// Title returns what was measured, like "rlat" or "send bw uc".
func (r Report) Title() string {
	switch {
	case r.Messages == nil:
		return r.Test
	case r.Latency != nil:
		return r.Messages.Verb + " lat " + r.Messages.QueuePair
	}
	return r.Messages.Verb + " bw " + r.Messages.QueuePair
}

// Latency of single operations in nanoseconds. Percentiles are upper bounds, at most 1/64 too high.
type Latency struct {
	Count  uint64  `json:"count"`
	Min    int64   `json:"min_ns"`
	Avg    float64 `json:"avg_ns"`
	P50    int64   `json:"p50_ns"`
	P90    int64   `json:"p90_ns"`
	P99    int64   `json:"p99_ns"`
	P999   int64   `json:"p99_9_ns"`
	Max    int64   `json:"max_ns"`
	HalfNs float64 `json:"half_rtt_ns"` // Avg / 2, the one-way time of a round trip
}

// maxLatency is about the lower limit of the module's last bucket.
const maxLatency = int64(time.Duration(1<<36) * time.Nanosecond)

// Of returns the report of results of the same test.
func Of(results ...proc.Result) (Report, error) {
	if len(results) == 0 {
		return Report{}, errors.New("no results")
	}
	first := results[0]
	r := Report{
		Version: Version, Role: string(first.Role), Test: string(first.Test), Peer: first.Peer, Device: first.Device,
		Size: first.Size, Threads: len(results), Poll: first.Poll, Duplex: first.Duplex,
	}
	switch {
	case first.Test == proc.Bandwidth:
		r.TxDepth = first.TxDepth
	case first.Test == proc.Verbs:
		r.TxDepth = first.TxDepth
		r.Messages = &Messages{Verb: first.Verb, QueuePair: first.QPType}
	}
	start, end := time.Duration(math.MaxInt64), time.Duration(0)
	for _, one := range results {
		if one.Test != first.Test || one.Size != first.Size || one.Verb != first.Verb || one.QPType != first.QPType {
			return Report{}, fmt.Errorf("results of %s with %d bytes and of %s with %d: must be of the same test and size", first.Test, first.Size, one.Test, one.Size)
		}
		r.Messages.add(one)
		r.Connections += int(one.QPs)
		r.Operations += one.Ops
		r.CPUNs += one.CPU.Nanoseconds()
		if one.Ops > 0 {
			start, end = min(start, one.Start), max(end, one.Start+one.Elapsed)
		}
	}
	if end > start {
		r.ElapsedNs = (end - start).Nanoseconds()
		r.OpsPerSecond = float64(r.Operations) / (end - start).Seconds()
		r.GbitPerSecond = r.OpsPerSecond * float64(r.Size) * 8 / 1e9
	}
	r.Latency = latencyOf(results)
	return r, nil
}

// add adds a result's messages. Without messages it does nothing.
func (m *Messages) add(r proc.Result) {
	if m == nil {
		return
	}
	m.Sent += r.Sent
	m.Received += r.Received
	m.Lost += r.Lost
	m.Repeated += r.Repeated
	m.Reordered += r.Reordered
	m.Damaged += r.Damaged
	m.PeakRate += r.PeakOps
	m.Posts += r.Posts
	m.Completions += r.Completions
}

func latencyOf(results []proc.Result) *Latency {
	all := hdrhistogram.New(1, maxLatency, 3)
	l := Latency{Min: -1}
	var sum float64 // in ns; in an integer, thousands of threads overflow it within days
	for _, one := range results {
		if one.Timed == 0 {
			continue
		}
		l.Count += one.Timed
		sum += float64(one.Sum.Nanoseconds())
		l.Max = max(l.Max, one.Max.Nanoseconds())
		if l.Min < 0 || one.Min.Nanoseconds() < l.Min {
			l.Min = one.Min.Nanoseconds()
		}
		for _, b := range one.Histogram {
			_ = all.RecordValues(min(b.Upper.Nanoseconds(), maxLatency), int64(b.Count)) // in range
		}
	}
	if l.Count == 0 {
		return nil
	}
	l.Avg = sum / float64(l.Count)
	l.HalfNs = l.Avg / 2
	at := func(percentile float64) int64 { return min(all.ValueAtPercentile(percentile), l.Max) }
	l.P50, l.P90, l.P99, l.P999 = at(50), at(90), at(99), at(99.9)
	return &l
}

// Reading is a result that was read while its command was running.
type Reading struct {
	proc.Result
	At time.Duration // time of the reading, by a clock common to all readings
}

// Between returns the measurement between two readings of a command's result. Min and Max are only
// as exact as the histogram.
func Between(before, after Reading) proc.Result {
	d := after.Result
	d.Ops -= before.Ops
	d.Start, d.Elapsed = before.At, after.At-before.At
	d.Timed -= before.Timed
	d.Sum -= before.Sum
	d.CPU -= before.CPU
	earlier := map[time.Duration]uint64{}
	for _, b := range before.Histogram {
		earlier[b.Upper] = b.Count
	}
	d.Histogram, d.Min, d.Max = nil, 0, 0
	for _, b := range after.Histogram {
		if b.Count -= earlier[b.Upper]; b.Count == 0 {
			continue
		}
		if d.Histogram == nil {
			d.Min = max(b.Upper, after.Min)
		}
		d.Max = min(b.Upper, after.Max)
		d.Histogram = append(d.Histogram, b)
	}
	return d
}
