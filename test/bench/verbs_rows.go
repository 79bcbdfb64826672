// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"strings"
)

// VerbsRow is what all contenders have reached in a test of one size.
type VerbsRow struct {
	Test    string        `json:"test"`
	QP      string        `json:"qp"`
	Verb    string        `json:"verb"`
	Size    int           `json:"size"`  // bytes of a message
	Count   int           `json:"count"` // messages of a measurement
	Unit    string        `json:"unit"`
	Latency bool          `json:"latency"` // less is better
	Series  []VerbsSeries `json:"contenders"`
}

// VerbsSeries is one contender's part of a row.
type VerbsSeries struct {
	Contender string      `json:"contender"`
	Values    []float64   `json:"values"` // of each round
	Median    float64     `json:"median"`
	Lost      []uint64    `json:"lost,omitempty"`    // messages of each round, where they are counted
	Waiting   int         `json:"waiting,omitempty"` // rounds in which the server waited on after its client, as perftest's does for lost messages
	Failure   string      `json:"failure,omitempty"`
	Ratio     *VerbsRatio `json:"ratio,omitempty"` // to perftest; nil for perftest, and after a failure of either
}

// VerbsRatio compares a contender with perftest. Median is the median of the ratios of each round, not the ratio of
// the medians: other load disturbs measurements that are close in time alike.
type VerbsRatio struct {
	Rounds []float64 `json:"rounds"`
	Median float64   `json:"median"`
	Low    float64   `json:"low"` // of medianInterval
	High   float64   `json:"high"`
	Goal   float64   `json:"goal"` // 0: none
	Missed bool      `json:"missed"`
}

// Goals: of bandwidth and rate at least, of latency at most.
var verbsGoals = map[string]struct{ bandwidth, latency float64 }{moduleVerbs: {1.2, 0.85}, bridgeVerbs: {1, 1}}

func (s *VerbsSeries) add(sample verbsSample) {
	s.Values = append(s.Values, sample.value)
	if sample.waiting {
		s.Waiting++
	}
	if sample.lost != nil {
		s.Lost = append(s.Lost, *sample.lost)
	}
}

// compare computes medians and ratios.
func (r *VerbsRow) compare() {
	var peer []float64
	for i := range r.Series {
		s := &r.Series[i]
		if s.Failure != "" {
			continue
		}
		s.Median = median(slices.Clone(s.Values))
		if s.Contender == perftest {
			peer = s.Values
		}
	}
	for i := range r.Series {
		if s := &r.Series[i]; s.Contender != perftest && s.Failure == "" && peer != nil {
			s.Ratio = newVerbsRatio(s.Contender, s.Values, peer, r.Latency)
		}
	}
}

func newVerbsRatio(contender string, ours, peer []float64, latency bool) *VerbsRatio {
	r := VerbsRatio{}
	for i := range ours {
		r.Rounds = append(r.Rounds, ours[i]/peer[i])
	}
	sorted := slices.Sorted(slices.Values(r.Rounds))
	index, _ := medianInterval(len(sorted))
	r.Median, r.Low, r.High = sorted[len(sorted)/2], sorted[index], sorted[len(sorted)-1-index]
	goal, has := verbsGoals[contender]
	if latency {
		r.Goal = goal.latency
		r.Missed = has && r.Median > r.Goal
	} else {
		r.Goal = goal.bandwidth
		r.Missed = r.Median < r.Goal
	}
	return &r
}

// String returns the row in one line.
func (r VerbsRow) String() string {
	return strings.Join(r.cells(), "  ")
}

// verbsType returns the column of the report that tells tests of the same program apart.
func verbsType(qp, verb string) string {
	if (VerbsTest{Verb: verb}).atomic() {
		return qp + " " + verb
	}
	return qp
}

// cells returns what the report shows of the row.
func (r VerbsRow) cells() []string {
	cells := []string{r.Test, verbsType(r.QP, r.Verb), fmt.Sprint(r.Size), r.Unit}
	for _, s := range r.Series {
		cells = append(cells, s.value())
	}
	for _, s := range r.Series {
		if s.Contender != perftest {
			cells = append(cells, s.ratio())
		}
	}
	return cells
}

func (s VerbsSeries) value() string {
	if s.Failure != "" {
		return "FAILED"
	}
	text := fmt.Sprintf("%.4g", s.Median)
	if s.Median >= 1000 {
		text = fmt.Sprintf("%.0f", s.Median)
	}
	if len(s.Lost) > 0 && slices.Max(s.Lost) > 0 {
		text += fmt.Sprintf(" (lost up to %d)", slices.Max(s.Lost))
	}
	if s.Waiting > 0 {
		text += " (server waits)"
	}
	return text
}

func (s VerbsSeries) ratio() string {
	if s.Ratio == nil {
		return "-"
	}
	text := fmt.Sprintf("%.2f (%.2f-%.2f)", s.Ratio.Median, s.Ratio.Low, s.Ratio.High)
	if s.Ratio.Missed {
		text += " MISSED"
	}
	return text
}
