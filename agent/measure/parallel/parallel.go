// SPDX-License-Identifier: Apache-2.0

// Package parallel runs many ping/pong commands at once, each in its own kernel thread, until they
// end or for a given time.
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
	// Duration, if not 0, limits the measurement: it begins when all commands are running, and then
	// they are interrupted.
	Duration time.Duration
	// Progress, if not nil, is called repeatedly with the completed fraction, 0 to 1.
	Progress func(done float64)
}

const tick = 100 * time.Millisecond

// Run runs the commands and returns their outcomes in the same order. When a command fails, the
// others are interrupted; Run returns the first error and the outcomes until then.
func Run(ctx context.Context, fs proc.FS, commands []proc.Command, o Options) ([]proc.Outcome, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	g := group{start: time.Now(), cancel: cancel, outcomes: make([]proc.Outcome, len(commands)), first: make([]measure.Reading, len(commands)), last: make([]measure.Reading, len(commands))}
	for i, command := range commands {
		g.limitConnecting(ctx)
		r, err := fs.Start(ctx, command)
		if err != nil {
			cancel(err)
			break
		}
		g.running, g.connecting = append(g.running, r), append(g.connecting, r)
		g.waits.Go(func() { g.wait(i, r) })
	}
	done := make(chan struct{})
	go func() {
		g.waits.Wait()
		close(done)
	}()
	var measured []proc.Result
	if o.Duration > 0 {
		measured = g.measure(ctx, done, o)
	} else {
		g.watch(done, o)
	}
	<-done
	for i, r := range measured {
		g.outcomes[i].Result = r
	}
	if measured == nil {
		g.correctCPU()
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errTimeUp) {
		return g.outcomes[:len(g.running)], cause
	}
	return g.outcomes, nil
}

// errTimeUp is the cause for interrupting commands at the end of Options.Duration.
var errTimeUp = errors.New("the duration is over")

// group is a set of commands that run at once.
type group struct {
	start      time.Time
	cancel     context.CancelCauseFunc
	running    []*proc.Running
	connecting []*proc.Running // those that the last call of settle found not running yet
	waits      sync.WaitGroup
	outcomes   []proc.Outcome    // each written by its own goroutine
	first      []measure.Reading // of each command that watch found running
	last       []measure.Reading
}

// maxConnecting limits how many commands connect at once. The connection manager's messages are
// datagrams: a burst loses some, and each loss costs seconds.
const maxConnecting = 32

// limitConnecting waits until fewer than maxConnecting clients are connecting. Servers, which wait
// for their clients, do not count.
func (g *group) limitConnecting(ctx context.Context) {
	for g.settle(); len(g.connecting) >= maxConnecting; g.settle() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(tick / 10):
		}
	}
}

// settle removes commands that no longer connect from g.connecting. With more commands than CPUs,
// it moves each running thread to SCHED_IDLE, so that busy ones leave CPU time to those that
// connect, and to this process. It does not do so earlier, because connecting holds kernel locks.
func (g *group) settle() {
	g.connecting = slices.DeleteFunc(g.connecting, func(r *proc.Running) bool {
		result, err := r.Result()
		runs := err == nil && result.State == "running" && result.Ops > 0
		if runs && len(g.outcomes) > runtime.NumCPU() {
			// Best effort: fails without permission, or if the thread has ended.
			_ = unix.SchedSetAttr(r.Thread(), &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
		}
		return runs || err != nil || result.Role == proc.Server || result.State == "done"
	})
}

func (g *group) wait(i int, r *proc.Running) {
	var err error
	if g.outcomes[i], err = r.Wait(); err != nil {
		g.cancel(err) // keeps the first cause; errors of interrupted commands follow it
	}
}

// watch reports progress by completed operations, and keeps readings of commands that are running.
func (g *group) watch(done <-chan struct{}, o Options) {
	for {
		select {
		case <-done:
			return
		case <-time.After(tick):
		}
		var ops, wanted float64
		for i, r := range g.running {
			result, err := r.Result()
			if err != nil {
				continue
			}
			ops += float64(result.Ops)
			wanted += float64(result.Count) * float64(max(result.QPs, 1))
			if result.State == "running" && result.Ops > 0 {
				g.last[i] = measure.Reading{Result: result, At: time.Since(g.start)}
				if g.first[i].ID == 0 {
					g.first[i] = g.last[i]
				}
			}
		}
		if wanted > 0 && o.Progress != nil {
			o.Progress(min(ops/wanted, 1))
		}
	}
}

// correctCPU replaces the CPU time of each command, which includes set-up and tear-down, by that of its
// operations: the part between two readings, extrapolated.
func (g *group) correctCPU() {
	for i := range g.outcomes {
		r := &g.outcomes[i].Result
		if between := g.last[i].At - g.first[i].At; between > tick {
			r.CPU = time.Duration(float64(g.last[i].CPU-g.first[i].CPU) * float64(r.Elapsed) / float64(between))
		}
	}
}

// measure waits until all commands are running, and returns what they measure in o.Duration.
func (g *group) measure(ctx context.Context, done <-chan struct{}, o Options) []proc.Result {
	var before []measure.Reading
	for before == nil {
		select {
		case <-done:
			return nil
		case <-time.After(tick):
		}
		g.settle()
		before = g.snapshot()
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
	after := g.snapshot()
	g.cancel(errTimeUp)
	var results []proc.Result
	for i := range after {
		results = append(results, measure.Between(before[i], after[i]))
	}
	return results
}

// snapshot reads the results of all commands. It returns nil unless all are running.
func (g *group) snapshot() []measure.Reading {
	readings := make([]measure.Reading, len(g.running))
	for i, r := range g.running {
		result, err := r.Result()
		if err != nil || result.State != "running" || result.Ops == 0 {
			return nil
		}
		readings[i] = measure.Reading{Result: result, At: time.Since(g.start)}
	}
	return readings
}

// Spread returns n copies of a command; on successive ports, if ports is true.
func Spread(c proc.Command, n int, ports bool) ([]proc.Command, error) {
	if c.Port == 0 {
		c.Port = 9999
	}
	if ports && int(c.Port)+n-1 > 65535 {
		return nil, fmt.Errorf("%d threads from port %d: the last port would exceed 65535", n, c.Port)
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
