// SPDX-License-Identifier: Apache-2.0

package target

import (
	"sync"
	"time"
)

// maxIdleThreads is how many are kept: as many as a session may have connections.
const maxIdleThreads = MaxQueues

// threadTimeout is how long a connection waits for a new thread. It is ready within a millisecond, unless a CPU goes
// offline: see threads.
const threadTimeout = time.Second

// threads run the connections of a volume, whose Executor binds itself to a thread, one after the other. The first use
// of io_uring by a thread waits while a CPU goes offline, and that waits for I/O of this host's disks. If one of them
// is served by this volume, its new connection must not wait for that. Volumes share no threads, as io_uring has workers
// for each.
type threads struct {
	mu     sync.Mutex
	closed bool
	idle   []chan func()
}

// run calls f in one of the threads and waits for it. It returns false, and does not call f, if no thread is ready in
// time. prepare makes a new one ready.
func (t *threads) run(prepare, f func()) bool {
	calls, ready := t.take()
	if !ready {
		prepared := make(chan struct{})
		go func() {
			prepare()
			close(prepared)
			for f := range calls {
				f()
			}
		}()
		timeout := time.NewTimer(threadTimeout)
		defer timeout.Stop()
		select {
		case <-prepared:
		case <-timeout.C:
			go func() { // others may have it
				<-prepared
				t.give(calls)
			}()
			return false
		}
	}
	done := make(chan struct{})
	calls <- func() { f(); close(done) }
	<-done
	t.give(calls)
	return true
}

// take returns an idle thread, or the calls of a new one that is not ready.
func (t *threads) take() (calls chan func(), ready bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := len(t.idle) - 1
	if last < 0 {
		return make(chan func()), false
	}
	calls = t.idle[last]
	t.idle = t.idle[:last]
	return calls, true
}

func (t *threads) give(calls chan func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.idle) == maxIdleThreads {
		close(calls)
		return
	}
	t.idle = append(t.idle, calls)
}

// close ends the threads that are idle, and others when they have nothing to do.
func (t *threads) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, calls := range t.idle {
		close(calls)
	}
	t.idle = nil
}
