// SPDX-License-Identifier: Apache-2.0

package target

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"krping/bridge/wire"
)

func tasksOf(n int) []task {
	tasks := make([]task, n)
	for i := range tasks {
		tasks[i].Request = wire.Request{Command: wire.Command{Tag: uint16(i)}}
	}
	return tasks
}

// However many commands wait for the store, the next one is executed, too. When all are done, few
// workers are left.
func TestWorkersDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var started, done atomic.Int32
		slow := make(chan struct{})
		w := newWorkers(func(task) {
			started.Add(1)
			<-slow
			done.Add(1)
		})
		w.add(tasksOf(100))
		synctest.Wait()
		w.add(tasksOf(28))
		synctest.Wait()
		if n := started.Load(); n != 128 {
			t.Errorf("%d commands were started, want 128", n)
		}
		close(slow)
		synctest.Wait()
		w.mu.Lock()
		if w.idle != maxIdle {
			t.Errorf("%d workers are idle, want %d", w.idle, maxIdle)
		}
		w.mu.Unlock()
		w.add(tasksOf(1)) // an idle one takes it
		w.wait()
		if n := done.Load(); n != 129 {
			t.Errorf("%d commands were executed, want 129", n)
		}
	})
}
