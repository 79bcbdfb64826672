// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// job is one suite on one machine.
type job struct {
	name   string // for reports
	places int    // of the pool that it takes: its VMs
	expect time.Duration
	run    func(ctx context.Context, out io.Writer) error // reports to out
}

// pool runs jobs at the same time, as many as there are places.
type pool struct {
	places int
	out    io.Writer

	mu     sync.Mutex // protects what follows, and what is printed
	free   *sync.Cond // signalled when a job ends
	taken  int
	failed []string
}

func newPool(places int) *pool {
	p := &pool{places: max(places, 1), out: os.Stdout}
	p.free = sync.NewCond(&p.mu)
	return p
}

// order sorts jobs: those with more places first, for which others would have to leave room later; then
// the longest, so that no long one is left alone at the end.
func order(jobs []job) {
	slices.SortStableFunc(jobs, func(a, b job) int {
		return cmp.Or(cmp.Compare(b.places, a.places), cmp.Compare(b.expect, a.expect))
	})
}

// run runs the jobs, and beside them the checks, one after the other. It returns when all have ended.
func (p *pool) run(ctx context.Context, jobs, checks []job) {
	order(jobs)
	var running sync.WaitGroup
	running.Go(func() {
		for _, check := range checks {
			p.do(ctx, check)
		}
	})
	for len(jobs) > 0 {
		i := p.take(jobs)
		next := jobs[i]
		jobs = slices.Delete(jobs, i, i+1)
		running.Go(func() {
			p.do(ctx, next)
			p.give(next)
		})
	}
	running.Wait()
}

// size is how many places a job takes: not more than there are.
func (p *pool) size(j job) int { return min(max(j.places, 1), p.places) }

// take waits until one of the jobs fits, takes its places and returns its index.
func (p *pool) take(jobs []job) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		i := slices.IndexFunc(jobs, func(j job) bool { return p.taken+p.size(j) <= p.places })
		if i >= 0 {
			p.taken += p.size(jobs[i])
			return i
		}
		p.free.Wait()
	}
}

func (p *pool) give(j job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken -= p.size(j)
	p.free.Broadcast()
}

// do runs a job. Alone it prints at once; beside others it prints all it has to say when it ends.
func (p *pool) do(ctx context.Context, j job) {
	p.print("STARTS  %s\n", j.name)
	var said bytes.Buffer
	var out io.Writer = &said
	if p.places == 1 {
		out = p.out
	}
	err := j.run(ctx, out)
	p.mu.Lock()
	if err != nil {
		p.failed = append(p.failed, j.name)
	}
	p.mu.Unlock()
	p.print("%s", said.String())
}

func (p *pool) print(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format, args...)
}
