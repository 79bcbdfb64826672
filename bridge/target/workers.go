// SPDX-License-Identifier: Apache-2.0

package target

import (
	"slices"
	"sync"
)

// maxIdle is how many workers of a connection wait for the next command. A new goroutine costs more than
// one that waits: its stack grows first.
const maxIdle = 8

// workers execute the commands of a connection, in parallel where the store is slow. A worker that takes
// a command wakes another one if there are more, which runs when this one waits for the store: commands
// that do not wait are executed by one worker after each other.
type workers struct {
	do      func(task)
	running sync.WaitGroup

	mu     sync.Mutex // protects all below
	more   sync.Cond  // wakes an idle worker
	queue  []task
	idle   int
	waking bool // a worker is about to look at the queue
	closed bool
}

func newWorkers(do func(task)) *workers {
	w := &workers{do: do}
	w.more.L = &w.mu
	return w
}

// add has commands executed.
func (w *workers) add(tasks []task) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, tasks...)
	w.wake()
}

// wait returns when all commands have been executed. No more are added.
func (w *workers) wait() {
	w.mu.Lock()
	w.closed = true
	w.more.Broadcast()
	w.mu.Unlock()
	w.running.Wait()
}

// wake has an idle worker, or a new one, look at the queue. The caller holds mu.
func (w *workers) wake() {
	switch {
	case len(w.queue) == 0 || w.waking:
		return
	case w.idle > 0:
		w.more.Signal()
	default:
		w.running.Go(w.run)
	}
	w.waking = true
}

func (w *workers) run() {
	w.mu.Lock()
	for { // without a deferred unlock, which would hide a panic of do
		w.waking = false
		for len(w.queue) > 0 {
			t := w.queue[0]
			w.queue = slices.Delete(w.queue, 0, 1)
			w.wake()
			w.mu.Unlock()
			w.do(t)
			w.mu.Lock()
		}
		if w.closed || w.idle >= maxIdle {
			w.mu.Unlock()
			return
		}
		w.idle++
		w.more.Wait()
		w.idle--
	}
}
