// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"fmt"
	"time"

	"krping/bridge/wire"
)

// Result is what one side has measured and counted.
type Result struct {
	Test wire.VerbsHello

	Sent     uint64        // messages
	Took     time.Duration // from the first post until the last message had completed
	Peak     float64       // messages a second in the best 100 ms; 0 if it took less than two of these
	Arrived  *Arrived      // of what this side sent, says the peer; nil without a REPORT
	Received *Arrived      // of what the peer sent, as far as this side sees it; nil if it sends nothing
	Damage   *Damage       // the first, that either side has found

	Posts       uint64 // send work requests posted
	Completions uint64 // polled, also of receives

	latencies *latencies // nil without LAT
}

// Arrived is what has arrived of the messages of one side.
type Arrived struct {
	Received  uint64 `json:"received"` // different messages
	Lost      uint64 `json:"lost"`
	Repeated  uint64 `json:"repeated"`
	Reordered uint64 `json:"reordered"` // also received
	Damaged   uint64 `json:"damaged"`   // also received
}

func arrivedOf(r wire.VerbsReportBody) *Arrived {
	return &Arrived{r.Received, r.Lost, r.Repeated, r.Reordered, r.Damaged}
}

// result returns what is known so far.
func (s *side) result() Result {
	r := Result{Test: s.VerbsHello, Completions: s.polled, Damage: s.damage()}
	if s.out != nil {
		r.Sent, r.Posts = s.out.total, s.out.posts
		end := s.workDone
		if end.IsZero() {
			end = time.Now()
		}
		if !s.out.start.IsZero() {
			r.Took = end.Sub(s.out.start)
		}
		r.Peak = s.peak.rate()
		if s.isLatency() && !s.isServer {
			r.latencies = &s.latency
		}
	}
	if s.report != nil {
		r.Arrived = arrivedOf(s.report.Report)
	}
	if s.in != nil {
		sent := s.peerSent
		if s.peerDone.IsZero() {
			sent = max(s.in.highest(), s.in.sum()) // atomic operations have no numbers here
		}
		m, err := s.in.report(sent)
		if err == nil {
			r.Received = arrivedOf(m.Report)
		}
	}
	return r
}

// String describes the test, and what has arrived at this side.
func (r Result) String() string {
	h := r.Test
	text := fmt.Sprintf("%s %s %s, %d bytes", h.Verb, h.Measure, h.QPType, h.Size)
	if r.Sent > 0 {
		text += fmt.Sprintf(", %d sent", r.Sent)
	}
	if a := r.Received; a != nil {
		text += fmt.Sprintf(", %d received, %d lost, %d repeated, %d reordered, %d damaged", a.Received, a.Lost, a.Repeated, a.Reordered, a.Damaged)
	}
	return text
}

// Rate returns the messages a second.
func (r Result) Rate() float64 {
	if r.Took <= 0 {
		return 0
	}
	return float64(r.Sent) / r.Took.Seconds()
}

// Latency is how long messages took, in nanoseconds: from the post of one until it, or its answer, had
// arrived. Percentiles are upper bounds, at most 1/64 too high.
type Latency struct {
	Count uint64  `json:"count"`
	Min   int64   `json:"min_ns"`
	Avg   float64 `json:"avg_ns"`
	P50   int64   `json:"p50_ns"`
	P90   int64   `json:"p90_ns"`
	P99   int64   `json:"p99_ns"`
	P999  int64   `json:"p99_9_ns"`
	Max   int64   `json:"max_ns"`
	// Half is half of the average: one way of a message and its answer. 0 if there is no answer.
	Half float64 `json:"half_rtt_ns,omitempty"`
}

// Latency returns how long messages took, nil if that was not measured.
func (r Result) Latency() *Latency {
	l := r.latencies
	if l == nil || l.count == 0 {
		return nil
	}
	at := func(q float64) int64 { return l.quantile(q).Nanoseconds() }
	out := &Latency{
		Count: l.count, Min: l.min.Nanoseconds(), Avg: float64(l.sum.Nanoseconds()) / float64(l.count),
		P50: at(0.5), P90: at(0.9), P99: at(0.99), P999: at(0.999), Max: l.max.Nanoseconds(),
	}
	if !r.Test.Verb.Fetches() {
		out.Half = out.Avg / 2
	}
	return out
}
