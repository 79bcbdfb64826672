// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// VerbsReport is the result of a run.
type VerbsReport struct {
	Kernel     string       `json:"kernel"`
	CPUs       int          `json:"vm_cpus"` // of each VM
	Rounds     int          `json:"rounds"`
	Sleep      bool         `json:"sleep"`  // for completions, instead of busy-polling
	Waited     float64      `json:"waited"` // while Rows were measured: seconds of the VMs' waiting for a CPU of the host, for each that they ran
	Contenders []string     `json:"contenders"`
	Rows       []VerbsRow   `json:"rows"`
	Counts     []VerbsCount `json:"counts,omitempty"`
}

// WriteJSON writes the whole report.
func (r *VerbsReport) WriteJSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// WriteMarkdown writes the report as Markdown.
func (r *VerbsReport) WriteMarkdown(out io.Writer) error {
	if err := errors.Join(r.writeRows(out), r.writeCounts(out)); err != nil {
		return err
	}
	for _, line := range r.failures() {
		fmt.Fprintf(out, "\n- FAILED: %s\n", strings.ReplaceAll(line, "\n", "\n    "))
	}
	return nil
}

func (r *VerbsReport) writeRows(out io.Writer) error {
	if len(r.Rows) == 0 {
		return nil
	}
	_, confidence := medianInterval(r.Rounds)
	fmt.Fprintf(out, "Kernel %s, two emulated VMs of %d CPUs: only ratios mean anything. Programs %s. %d rounds; medians, and the medians of the rounds' own\n"+
		"ratios to perftest, with their confidence intervals of %.0f%%. For each second that the VMs ran, they waited %.1f for a CPU of the host:\n"+
		"above 0.2 other work has disturbed the times, latencies most.\n\n", r.Kernel, r.CPUs, map[bool]string{true: "sleep for completions", false: "busy-poll"}[r.Sleep], r.Rounds, confidence*100, r.Waited)
	t := newTable(out)
	head := []string{"test", "type", "size", "unit"}
	head = append(head, r.Contenders...)
	for _, name := range r.Contenders {
		if goal, ok := verbsGoals[name]; ok {
			head = append(head, fmt.Sprintf("%s / perftest (>= %.2g; lat <= %.2g)", name, goal.bandwidth, goal.latency))
		} else if name != perftest {
			head = append(head, name+" / perftest")
		}
	}
	t.head(head...)
	for _, row := range r.Rows {
		t.row(row.cells()...)
	}
	return t.Flush()
}

func (r *VerbsReport) writeCounts(out io.Writer) error {
	if len(r.Counts) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\nA message, counted, with programs that sleep for completions (perftest's of WRITE cannot); server + client where there are two\n"+
		"figures. Posts and completions are the client's; those with * follow from perftest's options. Steady: without scheduler and\n"+
		"interrupts, whose part depends on time. Of processes the bridge's alone is counted: perftest's busy-waits before it starts,\n"+
		"and krpingctl only prints the result.\n\n")
	t := newTable(out)
	t.head("test", "type", "size", "contender", "packets", "posts", "completions", "context switches", "instructions: kernel", "process", "sum", "steady", "perftest's sum, steady / this")
	for _, c := range r.Counts {
		t.row(append(c.cells(), r.ofPerftest(c))...)
	}
	return t.Flush()
}

// ofPerftest returns perftest's instructions divided by a contender's.
func (r *VerbsReport) ofPerftest(c VerbsCount) string {
	i := slices.IndexFunc(r.Counts, func(p VerbsCount) bool {
		return p.Contender == perftest && p.Test == c.Test && p.QP == c.QP && p.Verb == c.Verb && p.Size == c.Size
	})
	if i < 0 || r.Counts[i].Failure != "" || c.Failure != "" || c.Contender == perftest {
		return ""
	}
	peer := r.Counts[i]
	return fmt.Sprintf("%.2f, %.2f", peer.Instructions()/c.Instructions(), peer.steady()/c.steady())
}

func (r *VerbsReport) failures() (lines []string) {
	for _, row := range r.Rows {
		for _, s := range row.Series {
			if s.Failure != "" {
				lines = append(lines, fmt.Sprintf("%s %s, %d bytes, %s: %s", row.Test, verbsType(row.QP, row.Verb), row.Size, s.Contender, s.Failure))
			}
		}
	}
	for _, c := range r.Counts {
		if c.Failure != "" {
			lines = append(lines, fmt.Sprintf("%s %s, %d bytes, %s, counted: %s", c.Test, verbsType(c.QP, c.Verb), c.Size, c.Contender, c.Failure))
		}
	}
	return lines
}

// Missed returns how many goals were missed, and how many measurements failed.
func (r *VerbsReport) Missed() (missed, failed int) {
	for _, row := range r.Rows {
		for _, s := range row.Series {
			if s.Ratio != nil && s.Ratio.Missed {
				missed++
			}
		}
	}
	return missed, len(r.failures())
}
