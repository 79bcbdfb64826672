// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"testing"
	"time"

	"krping/agent/measure"
	"krping/proc"
)

// CPU time is that of the operations, as far as two readings show it, not that of set-up and tear-down.
func TestCPUOfOperations(t *testing.T) {
	reading := func(cpu, at time.Duration) measure.Reading {
		return measure.Reading{Result: proc.Result{ID: 1, CPU: cpu}, At: at}
	}
	end := proc.Outcome{Result: proc.Result{CPU: 9 * time.Second, Elapsed: 4 * time.Second}}
	g := group{
		outcomes: []proc.Outcome{end, end, end},
		first:    []measure.Reading{reading(5*time.Second, time.Second), reading(time.Second, time.Second), {}},
		last:     []measure.Reading{reading(6*time.Second, 3*time.Second), reading(time.Second, time.Second), {}},
	}
	g.correctCPU()
	for i, want := range []time.Duration{2 * time.Second, 9 * time.Second, 9 * time.Second} {
		if got := g.outcomes[i].Result.CPU; got != want {
			t.Errorf("command %d took %v, want %v", i, got, want)
		}
	}
}
