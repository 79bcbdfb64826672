// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Report is the result of a run.
type Report struct {
	Kernel     string      `json:"kernel"`
	Backing    string      `json:"backing"`
	DiskMiB    int         `json:"disk_mib"`
	CPUs       int         `json:"vm_cpus"` // of each VM
	Rounds     int         `json:"rounds"`
	FIO        FIO         `json:"fio"`
	Contenders []Contender `json:"contenders"`
	Results    []Result    `json:"results"`
	Ratios     []Ratio     `json:"ratios"`
	TearDown   []string    `json:"tear_down_failures,omitempty"`
}

// Contender is a contender of the run.
type Contender struct {
	Name    string `json:"name"`
	About   string `json:"about"`
	Failure string `json:"failure,omitempty"` // why it was not measured, or not to the end
}

// Result is the throughput and the cost of a contender in a job.
type Result struct {
	Job       string   `json:"job"`
	Contender string   `json:"contender"`
	Rounds    []Sample `json:"rounds"`
	Median    Sample   `json:"median"` // of each number separately
}

// Sample is one measurement. Raw verbs have throughput only.
type Sample struct {
	IOPS           float64 `json:"iops"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	P50            float64 `json:"p50_us"`
	P99            float64 `json:"p99_us"`
	Cost           Cost    `json:"per_io"`
}

func medianSample(samples []Sample) Sample {
	of := func(number func(Sample) float64) float64 {
		values := make([]float64, len(samples))
		for i, s := range samples {
			values[i] = number(s)
		}
		return median(values)
	}
	return Sample{
		IOPS:           of(func(s Sample) float64 { return s.IOPS }),
		BytesPerSecond: of(func(s Sample) float64 { return s.BytesPerSecond }),
		P50:            of(func(s Sample) float64 { return s.P50 }),
		P99:            of(func(s Sample) float64 { return s.P99 }),
		Cost: Cost{
			ServerCPU:      of(func(s Sample) float64 { return s.Cost.ServerCPU }),
			ClientCPU:      of(func(s Sample) float64 { return s.Cost.ClientCPU }),
			Packets:        of(func(s Sample) float64 { return s.Cost.Packets }),
			Messages:       of(func(s Sample) float64 { return s.Cost.Messages }),
			KrpingMessages: of(func(s Sample) float64 { return s.Cost.KrpingMessages }),
		},
	}
}

// Ratio compares the throughput of two contenders in a job. Value is the median of the ratios of each round,
// not the ratio of the medians: other load disturbs measurements that are close in time alike.
type Ratio struct {
	Job    string    `json:"job"`
	Ours   string    `json:"ours"`
	Peer   string    `json:"peer"`
	Value  float64   `json:"value"`
	Rounds []float64 `json:"rounds"`
	Target float64   `json:"target,omitempty"` // 0: none
}

// Missed reports whether there is a target that was not reached.
func (r Ratio) Missed() bool { return r.Value < r.Target }

// The columns of the ratios' table.
var compared = []struct{ ours, peer string }{
	{kernelTarget, nvmeRDMA}, {kernelTarget, nvmeTCP}, {kernelTarget, nbd}, {kernelTarget, rawVerbs},
	{bridgeTarget, nvmeRDMA}, {bridgeTarget, nvmeTCP}, {bridgeTarget, nbd}, {bridgeTarget, rawVerbs},
}

func (r *Report) compare(jobs []Job) {
	for _, j := range jobs {
		for _, pair := range compared {
			ours, peer := r.result(j.Name, pair.ours), r.result(j.Name, pair.peer)
			if ours == nil || peer == nil || len(ours.Rounds) != len(peer.Rounds) {
				continue
			}
			ratio := Ratio{Job: j.Name, Ours: pair.ours, Peer: pair.peer}
			for i := range ours.Rounds {
				ratio.Rounds = append(ratio.Rounds, ours.Rounds[i].IOPS/peer.Rounds[i].IOPS)
			}
			ratio.Value = median(slices.Clone(ratio.Rounds))
			for _, t := range targets {
				if t.ours == pair.ours && t.peer == pair.peer && t.of(j) {
					ratio.Target = t.least
				}
			}
			r.Ratios = append(r.Ratios, ratio)
		}
	}
}

func (r *Report) result(job, contender string) *Result {
	i := slices.IndexFunc(r.Results, func(x Result) bool { return x.Job == job && x.Contender == contender })
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}

func (r *Report) ratio(job, ours, peer string) *Ratio {
	i := slices.IndexFunc(r.Ratios, func(x Ratio) bool { return x.Job == job && x.Ours == ours && x.Peer == peer })
	if i < 0 {
		return nil
	}
	return &r.Ratios[i]
}

func (r *Report) jobs() []string {
	var names []string
	for _, x := range r.Results {
		if !slices.Contains(names, x.Job) {
			names = append(names, x.Job)
		}
	}
	return names
}

// Shortcomings returns a line for each missed target and each contender that failed.
func (r *Report) Shortcomings() []string {
	var lines []string
	for _, x := range r.Ratios {
		if x.Missed() {
			lines = append(lines, fmt.Sprintf("%s: %s / %s is %.2f, target >= %.1f", x.Job, x.Ours, x.Peer, x.Value, x.Target))
		}
	}
	for _, c := range r.Contenders {
		if c.Failure != "" {
			lines = append(lines, c.Name+": "+c.Failure)
		}
	}
	for _, t := range r.TearDown {
		lines = append(lines, "tear down "+t)
	}
	return lines
}

// WriteJSON writes the whole report.
func (r *Report) WriteJSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// WriteMarkdown writes the report as Markdown.
func (r *Report) WriteMarkdown(out io.Writer) error {
	fmt.Fprintf(out, "Kernel %s, two emulated VMs of %d CPU: only ratios mean anything. Each contender's disk is %d MiB of %s.\nfio: %s.\n%d rounds, medians.\n\n",
		r.Kernel, r.CPUs, r.DiskMiB, r.Backing, r.FIO.About(), r.Rounds)
	for _, c := range r.Contenders {
		fmt.Fprintf(out, "- %s: %s\n", c.Name, c.About)
		if c.Failure != "" {
			fmt.Fprintf(out, "  - FAILED: %s\n", strings.ReplaceAll(strings.TrimSpace(c.Failure), "\n", "\n    "))
		}
	}
	_, confidence := medianInterval(r.Rounds)
	for _, section := range []struct {
		title string
		table func(*table)
	}{
		{"Throughput (more is better)", r.throughput},
		{fmt.Sprintf("Ratios of throughput, with their confidence intervals of %.0f%%, and targets. An interval with 1 in it does not tell which is faster", 100*confidence), r.ratios},
		{"What an I/O costs: CPU time of each whole VM, packets, messages (RDMA SENDs), latency", r.costs},
	} {
		fmt.Fprintf(out, "\n%s:\n\n", section.title)
		t := newTable(out)
		section.table(t)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, t := range r.TearDown {
		fmt.Fprintf(out, "\nFAILED to tear down %s\n", t)
	}
	return nil
}

// table writes a Markdown table with aligned columns.
type table struct{ *tabwriter.Writer }

func newTable(out io.Writer) *table { return &table{tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)} }

func (t *table) row(cells ...string) {
	fmt.Fprintf(t, "| %s\t|\n", strings.Join(cells, "\t| "))
}

func (t *table) head(cells ...string) {
	t.row(cells...)
	fmt.Fprintf(t, "|%s\n", strings.Repeat("---\t|", len(cells)))
}

func (r *Report) throughput(t *table) {
	head := []string{"job", "unit"}
	for _, c := range r.Contenders {
		head = append(head, c.Name)
	}
	t.head(head...)
	for _, job := range r.jobs() {
		unit := "MB/s"
		if strings.HasPrefix(job, "4k-") {
			unit = "IOPS"
		}
		cells := []string{job, unit}
		for _, c := range r.Contenders {
			cell := "-"
			if x := r.result(job, c.Name); x != nil {
				cell = fmt.Sprintf("%.1f", x.Median.BytesPerSecond/1e6)
				if unit == "IOPS" {
					cell = fmt.Sprintf("%.0f", x.Median.IOPS)
				}
			}
			cells = append(cells, cell)
		}
		t.row(cells...)
	}
}

func (r *Report) ratios(t *table) {
	head := []string{"job"}
	columns := slices.Clone(compared)
	columns = slices.DeleteFunc(columns, func(c struct{ ours, peer string }) bool {
		return !slices.ContainsFunc(r.Ratios, func(x Ratio) bool { return x.Ours == c.ours && x.Peer == c.peer })
	})
	for _, c := range columns {
		head = append(head, c.ours+" / "+c.peer)
	}
	t.head(head...)
	for _, job := range r.jobs() {
		cells := []string{job}
		for _, c := range columns {
			cell := "-"
			if x := r.ratio(job, c.ours, c.peer); x != nil {
				cell = x.cell()
			}
			cells = append(cells, cell)
		}
		t.row(cells...)
	}
}

func (r Ratio) cell() string {
	index, _ := medianInterval(len(r.Rounds))
	sorted := slices.Sorted(slices.Values(r.Rounds))
	text := fmt.Sprintf("%.2f (%.2f-%.2f)", r.Value, sorted[index], sorted[len(sorted)-1-index])
	switch {
	case r.Target == 0:
		return text
	case r.Missed():
		return fmt.Sprintf("%s >= %.1f MISSED", text, r.Target)
	}
	return fmt.Sprintf("%s >= %.1f", text, r.Target)
}

func (r *Report) costs(t *table) {
	t.head("job", "contender", "server CPU µs", "client CPU µs", "packets", "messages", "p50 µs", "p99 µs")
	for _, x := range r.Results {
		if x.Contender == rawVerbs {
			continue
		}
		m, messages := x.Median, "-"
		if m.Cost.Messages > 0 {
			messages = fmt.Sprintf("%.2f", m.Cost.Messages)
		}
		t.row(x.Job, x.Contender, fmt.Sprintf("%.0f", m.Cost.ServerCPU), fmt.Sprintf("%.0f", m.Cost.ClientCPU),
			fmt.Sprintf("%.2f", m.Cost.Packets), messages, fmt.Sprintf("%.0f", m.P50), fmt.Sprintf("%.0f", m.P99))
	}
}
