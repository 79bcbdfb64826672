// SPDX-License-Identifier: Apache-2.0

// Package bench compares krping with its peers, in turn, in the same two VMs of the lab. Only ratios mean
// anything, as the VMs are emulated.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"krping/test/lab"
)

// Verbs compares krping's tests of a verb with perftest's.
type Verbs struct {
	Lab        *lab.Lab // two VMs with the module: VM 1 serves, VM 2 measures
	Log        io.Writer
	Tests      []VerbsTest
	Sizes      []int    // bytes; each test takes those that it can have
	Contenders []string // of VerbsContenders
	Rounds     int      // of each row
	Sleep      bool     // for completions, instead of busy-polling, but for perftest in tests of WRITE
}

// Run measures all rows. A contender that fails has a failure in its row, and is not measured again there.
func (v *Verbs) Run(ctx context.Context) ([]VerbsRow, error) {
	site := &verbsSite{server: v.Lab.VM(0), client: v.Lab.VM(1)}
	var rows []VerbsRow
	for _, t := range v.Tests {
		for _, size := range t.sizes(v.Sizes) {
			row, err := v.row(ctx, site, t, size)
			if err != nil {
				return rows, fmt.Errorf("%s, %d bytes: %w", t.Name(), size, err)
			}
			fmt.Fprintf(v.Log, "%s\n", row)
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// row measures all contenders in turn. Each round starts with another one.
func (v *Verbs) row(ctx context.Context, site *verbsSite, t VerbsTest, size int) (VerbsRow, error) {
	row := VerbsRow{Test: t.Program, QP: t.QP, Verb: t.Verb, Size: size, Count: t.count(size), Unit: t.unit(size), Latency: t.Latency}
	for _, name := range v.Contenders {
		row.Series = append(row.Series, VerbsSeries{Contender: name})
	}
	for round := range v.Rounds {
		for turn := range row.Series {
			s := &row.Series[(turn+round)%len(row.Series)]
			if s.Failure != "" {
				continue
			}
			r := verbsRun{test: t, size: size, count: row.Count, poll: !v.Sleep || s.Contender == perftest && t.Verb == "write"}
			began := time.Now()
			sample, err := tryAgain(func() (verbsSample, error) { return site.measure(ctx, verbsContenders[s.Contender], r) })
			fmt.Fprintf(v.Log, "  %s, %s, %d bytes: %.4g %s, after %.1f s\n", s.Contender, t.Name(), size, sample.value, row.Unit, time.Since(began).Seconds())
			switch {
			case errors.Is(err, lab.ErrVMGone) || ctx.Err() != nil:
				return row, err
			case err != nil:
				fmt.Fprintln(v.Log, err)
				s.Failure = err.Error()
			default:
				s.add(sample)
			}
		}
	}
	row.compare()
	return row, nil
}
