// SPDX-License-Identifier: Apache-2.0

package target

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A call that follows another has its thread; those at the same time have their own.
func TestThreads(t *testing.T) {
	var all threads
	thread := func() (id int) {
		if !all.run(runtime.LockOSThread, func() { id = unix.Gettid() }) {
			t.Error("no thread is ready")
		}
		return id
	}
	first := thread()
	for range 10 {
		if id := thread(); id != first {
			t.Fatalf("thread %d, want %d again", id, first)
		}
	}

	var calls sync.WaitGroup
	inside, leave := make(chan int), make(chan struct{})
	const most = maxIdleThreads + 2
	for range most {
		calls.Go(func() {
			all.run(runtime.LockOSThread, func() {
				inside <- unix.Gettid()
				<-leave
			})
		})
	}
	seen := map[int]bool{}
	for range most {
		seen[<-inside] = true
	}
	close(leave)
	calls.Wait()
	if len(seen) != most || !seen[first] || len(all.idle) != maxIdleThreads {
		t.Errorf("%d threads for %d calls, the first one %t; %d are kept, want %d", len(seen), most, seen[first], len(all.idle), maxIdleThreads)
	}

	all.close()
	if thread(); len(all.idle) != 0 {
		t.Errorf("%d threads are kept after the end", len(all.idle))
	}
}

// A thread that does not become ready holds nobody up. It is used once it is.
func TestThreadThatIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all threads
		defer all.close()
		hotplug, began := make(chan struct{}), time.Now()
		if all.run(func() { <-hotplug }, func() { t.Error("called") }) || time.Since(began) != threadTimeout {
			t.Errorf("it took %v, want %v", time.Since(began), threadTimeout)
		}
		close(hotplug)
		synctest.Wait()
		if !all.run(func() { t.Error("a new thread") }, func() {}) {
			t.Error("the thread is not ready")
		}
	})
}
