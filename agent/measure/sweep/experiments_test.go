// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"krping/proc"
)

var peer = proc.Command{Addr: netip.MustParseAddr("10.0.0.1"), Port: 9900}

func experiment(t *testing.T, name string) Experiment {
	t.Helper()
	i := slices.IndexFunc(Experiments, func(e Experiment) bool { return e.Name == name })
	if i < 0 {
		t.Fatalf("there is no experiment %s", name)
	}
	return Experiments[i]
}

// Each experiment has points that the module takes, says in two sentences what it shows, and is drawn.
func TestExperiments(t *testing.T) {
	for _, e := range Experiments {
		plan := e.Plan(peer, nil, 2*time.Second)
		points, err := plan.Points()
		if err != nil || len(points) < 2 {
			t.Errorf("%s: %d points, %v", e.Name, len(points), err)
			continue
		}
		for _, p := range points {
			if p.Command.Port != 9900 || p.Command.Addr != peer.Addr {
				t.Errorf("%s: %s", e.Name, p.Command)
			}
		}
		if n := strings.Count(e.Text+" ", ". "); n != 2 || !strings.HasSuffix(e.Text, ".") {
			t.Errorf("%s has %d sentences: %s", e.Name, n, e.Text)
		}
		var page bytes.Buffer
		if err := e.WriteHTML(&page, rowsOf(t, plan)); err != nil {
			t.Errorf("%s: %v", e.Name, err)
		}
		if !strings.Contains(page.String(), "<svg") || !strings.Contains(page.String(), e.Title) {
			t.Errorf("%s: the page has no chart or no title", e.Name)
		}
		for _, name := range slices.Concat(e.Columns, e.Charts) {
			if !slices.ContainsFunc(quantities, func(q quantity) bool { return q.name == name }) {
				t.Errorf("%s: there is no quantity %s", e.Name, name)
			}
		}
	}
}

// What is given replaces the experiment's values, in the grids that vary them.
func TestReplacedAxes(t *testing.T) {
	count := func(name string, axes ...Axis) (n int, last Point) {
		t.Helper()
		points, err := experiment(t, name).Plan(peer, axes, time.Second).Points()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return len(points), points[len(points)-1]
	}
	if n, last := count("threads", axis("connections", "1", "500")); n != 4+2 || last.Connections != 500 {
		t.Errorf("threads with connections: %d points, the last is %s", n, last)
	}
	if n, last := count("srq", axis("qp", "uc"), axis("connections", "1000")); n != 2 || last.Command.QPType != "uc" || !last.Command.SRQ || last.Receives() != 1024 {
		t.Errorf("srq: %d points, the last is %s", n, last.Command)
	}
	if n, _ := count("mtu"); n != 15 {
		t.Errorf("after others were changed, mtu has %d points, want 15", n)
	}
	_, err := experiment(t, "srq").Plan(peer, []Axis{axis("rxdepth", "64")}, time.Second).Points()
	if err == nil || !strings.Contains(err.Error(), "rxdepth 64: with srq it must be at least qps, which is 100") {
		t.Errorf("a shared receive queue with fewer receives than queue pairs: %v", err)
	}
}

// 1000 queue pairs need far fewer receives with a shared receive queue.
func TestReceivesOfTheExperiment(t *testing.T) {
	receives := map[bool]int{}
	points, err := experiment(t, "srq").Plan(peer, nil, time.Second).Points()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range points {
		if p.Connections == 1000 {
			receives[p.Command.SRQ] = p.Receives()
		}
	}
	if receives[false] != 64000 || receives[true] != 1024 {
		t.Errorf("%v", receives)
	}
}
