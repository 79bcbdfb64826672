// SPDX-License-Identifier: Apache-2.0

// Package parallel runs many ping/pong commands at once, each in a kernel thread of its own, to
// their end or for a time.
package parallel

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/measure"
	"krping/proc"
)

// Options of Run.
type Options struct {
	// Duration, if it is not 0, is for how long is measured once all commands run; then they
	// are interrupted.
	Duration time.Duration
	// Progress, if it is not nil, is told now and then how much of the whole is done, 0 to 1.
	Progress func(done float64)
}

const tick = 100 * time.Millisecond

// Run runs the commands and returns what they measured, in their order. When one fails the
// others are interrupted; the error is the first failure's, and the results are what was measured
// until then.
func Run(ctx context.Context, fs proc.FS, commands []proc.Command, o Options) ([]proc.Outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := crowd{start: time.Now(), cancel: cancel, outcomes: make([]proc.Outcome, len(commands))}
	for i, command := range commands {
		c.awaitRoom(ctx)
		r, err := fs.Start(ctx, command)
		if err != nil {
			cancel(err)
			break
		}
		c.running, c.connecting = append(c.running, r), append(c.connecting, r)
		c.waits.Go(func() { c.wait(i, r) })
	}
	done := make(chan struct{})
	go func() {
		c.waits.Wait()
		close(done)
	}()
	var measured []proc.Result
	if o.Duration > 0 {
		measured = c.measure(ctx, done, o)
	} else {
		c.watch(done, o)
	}
	<-done
	for i, r := range measured {
		c.outcomes[i].Result = r
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errEnough) {
		return c.outcomes[:len(c.running)], cause
	}
	return c.outcomes, nil
}

// errEnough is why commands are interrupted that ran for their time.
var errEnough = errors.New("the time is over")

type crowd struct {
	start   time.Time
	cancel  context.CancelCauseFunc
	running []*proc.Running
	// connecting are those that did not run yet when last looked at.
	connecting []*proc.Running
	waits      sync.WaitGroup
	outcomes   []proc.Outcome // each written by its goroutine
}

// connecting is how many commands connect at once: the connection manager's messages are
// datagrams, of which a burst loses some, and each loss costs seconds.
const connecting = 32

// awaitRoom waits while too many clients connect. Servers wait for theirs, and do not count.
func (c *crowd) awaitRoom(ctx context.Context) {
	for c.settle(); len(c.connecting) >= connecting; c.settle() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(tick / 10):
		}
	}
}

// settle takes those that run out of connecting. Of many, a thread that runs gives way to all
// others from then on, so that many busy ones leave room for those that connect, watch and stop
// them; not before, as connecting holds locks of the kernel.
func (c *crowd) settle() {
	c.connecting = slices.DeleteFunc(c.connecting, func(r *proc.Running) bool {
		result, err := r.Result()
		runs := err == nil && result.State == "running" && result.Ops > 0
		if runs && len(c.outcomes) > runtime.NumCPU() {
			// Without the right to, or of a thread that has ended: it was worth a try.
			_ = unix.SchedSetAttr(r.Thread(), &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
		}
		return runs || err != nil || result.Role == proc.Server || result.State == "done"
	})
}

func (c *crowd) wait(i int, r *proc.Running) {
	var err error
	if c.outcomes[i], err = r.Wait(); err != nil {
		c.cancel(err) // the first cause stays: interrupted ones follow it
	}
}

// watch reports progress by operations.
func (c *crowd) watch(done <-chan struct{}, o Options) {
	for o.Progress != nil {
		select {
		case <-done:
			return
		case <-time.After(tick):
		}
		var ops, wanted float64
		for _, r := range c.running {
			if result, err := r.Result(); err == nil {
				ops += float64(result.Ops)
				wanted += float64(result.Count) * float64(max(result.QPs, 1))
			}
		}
		if wanted > 0 {
			o.Progress(min(ops/wanted, 1))
		}
	}
}

// measure waits until all run, and returns what they measure in the time from then.
func (c *crowd) measure(ctx context.Context, done <-chan struct{}, o Options) []proc.Result {
	var before []measure.Reading
	for before == nil {
		select {
		case <-done:
			return nil
		case <-time.After(tick):
		}
		c.settle()
		before = c.snapshot()
	}
	end := time.Now().Add(o.Duration)
	for time.Now().Before(end) {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return nil
		case <-time.After(min(tick, time.Until(end))):
		}
		if o.Progress != nil {
			o.Progress(1 - max(time.Until(end).Seconds(), 0)/o.Duration.Seconds())
		}
	}
	after := c.snapshot()
	c.cancel(errEnough)
	var results []proc.Result
	for i := range after {
		results = append(results, measure.Between(before[i], after[i]))
	}
	return results
}

// snapshot returns what all have measured so far, or nil if not all run.
func (c *crowd) snapshot() []measure.Reading {
	readings := make([]measure.Reading, len(c.running))
	for i, r := range c.running {
		result, err := r.Result()
		if err != nil || result.State != "running" || result.Ops == 0 {
			return nil
		}
		readings[i] = measure.Reading{Result: result, At: time.Since(c.start)}
	}
	return readings
}

// Spread returns n commands like c; with more than one, on successive ports if ports says so.
func Spread(c proc.Command, n int, ports bool) ([]proc.Command, error) {
	if c.Port == 0 {
		c.Port = 9999
	}
	if ports && int(c.Port)+n-1 > 65535 {
		return nil, fmt.Errorf("%d threads from port %d on: the last port is 65535", n, c.Port)
	}
	commands := make([]proc.Command, n)
	for i := range commands {
		commands[i] = c
		if ports {
			commands[i].Port += uint16(i)
		}
	}
	return commands, nil
}
