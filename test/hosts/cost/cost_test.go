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
	steady float64 // of the layers whose part repeats from run to run
	all    float64
}

// The lowest of a few rounds counts: other work on this machine only adds.
const rounds = 2

// By how much the steady part may exceed the recorded one. With two busy loops beside the VMs it differed by 2%,
// the bridge's by 6%: Go's scheduler and garbage collector depend on time.
var steadyLimits = map[string]float64{"krping": 1.05, "krping-bridge": 1.10}

// All instructions differ by a third between fast and slow hosts: the kernel's scheduler, interrupts and fio are
// among them. This limit is for what the steady part has not, such as one more hand-off between threads.
const limit = 1.40

// recorded are the figures by contender and job, of Linux 6.1. Whoever improves one records it here.
var recorded = map[string]map[string]cost{
	"krping": {
		"4k-randread-qd1":   {81005, 126869},
		"4k-randwrite-qd1":  {82568, 128276},
		"64k-randread-qd1":  {443692, 554397},
		"64k-randwrite-qd1": {444720, 566442},
	},
	"krping-bridge": {
		"4k-randread-qd1":   {105548, 206646},
		"4k-randwrite-qd1":  {111991, 211204},
		"64k-randread-qd1":  {471767, 643223},
		"64k-randwrite-qd1": {504726, 728367},
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
