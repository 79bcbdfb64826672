// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"krping/agent/measure"
	"krping/proc"
)

func plan() Plan {
	return Plan{
		Command:     proc.Command{Role: proc.Client, Addr: netip.MustParseAddr("192.168.77.1"), Test: proc.Bandwidth},
		Sizes:       []uint32{64, 4096},
		Threads:     []int{1, 2},
		Connections: []int{1, 10, 500},
		Duration:    time.Second,
	}
}

func TestPoints(t *testing.T) {
	points, err := plan().Points()
	if err != nil || len(points) != 12 || points[11] != (Point{4096, 2, 500}) {
		t.Errorf("%v, %v", points, err)
	}
	for name, change := range map[string]func(*Plan){
		"too many connections": func(p *Plan) { p.Threads = []int{3} },
		"no thread":            func(p *Plan) { p.Threads = []int{0} },
		"no sizes":             func(p *Plan) { p.Sizes = nil },
		"size too large":       func(p *Plan) { p.Sizes = []uint32{1<<30 + 1} },
		"connections of rlat":  func(p *Plan) { p.Command.Test = proc.ReadLatency },
		"no time":              func(p *Plan) { p.Duration = 0 },
		"no address":           func(p *Plan) { p.Command.Addr = netip.Addr{} },
	} {
		p := plan()
		change(&p)
		if points, err := p.Points(); err == nil {
			t.Errorf("%s: accepted, %v", name, points)
		}
	}
}

var reports = []measure.Report{
	{Test: "bw", Size: 64, Threads: 1, Connections: 1, GbitPerSecond: 0.5, OpsPerSecond: 1e4},
	{Test: "bw", Size: 64, Threads: 1, Connections: 1000, GbitPerSecond: 0.2, OpsPerSecond: 4e3, Latency: &measure.Latency{Count: 1, P50: 1500}},
	{Test: "bw", Size: 4096, Threads: 2, Connections: 2, GbitPerSecond: 5, OpsPerSecond: 1e5},
}

func TestPictureAndPage(t *testing.T) {
	var svg, html bytes.Buffer
	if err := WriteSVG(&svg, reports); err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(&svg)
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the picture is not XML: %v", err)
		}
	}
	if err := WriteHTML(&html, "a <sweep>", reports); err != nil {
		t.Fatal(err)
	}
	text := html.String()
	for _, want := range []string{"a &lt;sweep&gt;", "<td>1000", "Gbit/s", "1.5"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if n := strings.Count(text, "<svg"); n != 3 {
		t.Errorf("the page has %d pictures, want 3", n)
	}
	// The page works offline. XML namespace names are not loaded.
	if loads := regexp.MustCompile(`(src|href)="https?:|url\(http|@import`).FindString(text); loads != "" {
		t.Errorf("the page loads %s", loads)
	}
}

// A sweep of one verb ends each point in the module, and takes all sizes that a message may have.
func TestSweepOfOneVerb(t *testing.T) {
	c := proc.Command{Role: proc.Client, Addr: netip.MustParseAddr("10.0.0.1"), Test: proc.Verbs, Verb: proc.Send, Measure: "bw", QPType: "ud", MTU: 512}
	plan := Plan{Command: c, Sizes: AllSizes(c), Threads: []int{1}, Connections: []int{1, 4}, Duration: 2 * time.Second}
	points, err := plan.Points()
	if err != nil || len(points) != 2*9 { // 2 to 512 bytes
		t.Fatalf("%d points, %v", len(points), err)
	}
	got := plan.command(points[len(points)-1])
	if got.QPs != 4 || got.Duration != plan.Duration || got.Size != 512 || got.TxDepth != 64 {
		t.Errorf("the last command is %s", got)
	}
	plan.Duration = 1500 * time.Millisecond
	if _, err := plan.Points(); err == nil || !strings.Contains(err.Error(), "whole seconds") {
		t.Errorf("with a duration of 1.5 s: %v", err)
	}
}
