// SPDX-License-Identifier: Apache-2.0

// Package soak repeats faults and tabulates the results.
package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"
)

// Duration returns how long to repeat faults, from KRPING_SOAK; 0 means one round.
func Duration(t testing.TB) time.Duration {
	t.Helper()
	value := os.Getenv("KRPING_SOAK")
	if value == "" {
		return 0
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		t.Fatalf("KRPING_SOAK: %v", err)
	}
	return d
}

// Plan calls do(i) times[i] times for each i, in random order, and repeats that until Duration has passed.
func Plan(t testing.TB, rnd *rand.Rand, times []int, do func(int)) {
	t.Helper()
	end := time.Now().Add(Duration(t))
	for first := true; first || time.Now().Before(end); first = false {
		var order []int
		for i, n := range times {
			for range n {
				order = append(order, i)
			}
		}
		rnd.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, i := range order {
			if !first && time.Now().After(end) {
				return
			}
			do(i)
		}
	}
}

// Row is the sum of all occurrences of one fault.
type Row struct {
	Fault         string
	Times         int
	Acked         int           // writes acknowledged around the fault
	Lost, Corrupt int           // blocks
	Hung          int           // operations
	Resumed       time.Duration // longest time from the end of the fault to the first I/O
}

// Table collects rows. It may be printed while rows are added.
type Table struct {
	mu   sync.Mutex
	rows []*Row
}

// Row returns the row of a fault and adds it if it is missing.
func (t *Table) Row(fault string) *Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.rows {
		if r.Fault == fault {
			return r
		}
	}
	r := &Row{Fault: fault}
	t.rows = append(t.rows, r)
	return r
}

// String returns the table with a line of totals.
func (t *Table) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "fault\ttimes\tacknowledged\tlost\tcorrupt\thung\tresumed s\t")
	sum := Row{Fault: "all"}
	line := func(r Row) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%.2f\t\n", r.Fault, r.Times, r.Acked, r.Lost, r.Corrupt, r.Hung, r.Resumed.Seconds())
	}
	for _, r := range t.rows {
		line(*r)
		sum.Times += r.Times
		sum.Acked += r.Acked
		sum.Lost += r.Lost
		sum.Corrupt += r.Corrupt
		sum.Hung += r.Hung
		sum.Resumed = max(sum.Resumed, r.Resumed)
	}
	line(sum)
	_ = w.Flush() // to memory
	return text.String()
}
