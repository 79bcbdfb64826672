// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package cost tests that an I/O takes no more instructions than it did.
package cost

import (
	"math"
	"os"
	"slices"
	"testing"

	"krping/test/bench"
	"krping/test/hosts/internal/hosts"
)

// cost is what an I/O takes on both hosts, in instructions.
type cost struct {
	steady float64 // without the scheduler and interrupts, whose part depends on time
	all    float64
}

// The lowest of a few rounds counts: other work on this machine only adds.
const rounds = 2

// By how much a figure may exceed the recorded one. On a slow host an I/O meets more ticks of the clock: the
// same module took 5% more on one of half the speed. The bridge's figure depends on time, too, by Go's scheduler
// and garbage collector. With the kernel's scheduler, all depend on it a lot.
var steadyLimits = map[string]float64{"krping": 1.10, "krping-bridge": 1.15}

const limit = 1.30

// recorded are the figures by contender and job, of Linux 6.1. Whoever improves one records it here.
var recorded = map[string]map[string]cost{
	"krping": {
		"4k-randread-qd1":   {86937, 112411},
		"4k-randwrite-qd1":  {91268, 117558},
		"64k-randread-qd1":  {469666, 523780},
		"64k-randwrite-qd1": {469724, 536422},
	},
	"krping-bridge": {
		"4k-randread-qd1":   {120179, 176304},
		"4k-randwrite-qd1":  {122548, 178137},
		"64k-randread-qd1":  {497601, 596216},
		"64k-randwrite-qd1": {544342, 677395},
	},
}

func TestInstructionsOfAnIO(t *testing.T) {
	h := hosts.BootCounted(t)
	c := bench.Costs{Lab: h.Lab, Log: os.Stdout, Rounds: rounds, DiskSize: 64, FIO: bench.FIO{Engine: "io_uring"}}
	for _, j := range bench.CostJobs() {
		if _, found := recorded["krping"][j.Name]; found {
			c.Jobs = append(c.Jobs, j)
		}
	}
	for contender := range recorded {
		c.Contenders = append(c.Contenders, contender)
	}
	slices.Sort(c.Contenders)
	costs, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := len(c.Jobs) * len(c.Contenders); len(costs) != want {
		t.Fatalf("%d figures, want %d", len(costs), want)
	}
	for _, c := range costs {
		is, was := cost{math.Inf(1), math.Inf(1)}, recorded[c.Contender][c.Job]
		for _, round := range c.Rounds {
			is = cost{min(is.steady, round.Steady()), min(is.all, round.All())}
		}
		t.Logf("%s, %s: {%.0f, %.0f}, recorded {%.0f, %.0f}", c.Contender, c.Job, is.steady, is.all, was.steady, was.all)
		if is.steady > was.steady*steadyLimits[c.Contender] || is.all > was.all*limit {
			t.Errorf("%s: an I/O of %s takes more instructions than recorded", c.Contender, c.Job)
		}
	}
}
