// SPDX-License-Identifier: Apache-2.0

package target

import "sync"

// operations counts the calls of the store that a connection runs. Whoever waits for the end of the
// connection waits for them, but not for its RDMA, which a peer may hold up.
type operations struct {
	stopped chan struct{} // closed by stop: no call starts
	done    chan struct{} // closed when, in addition, none runs
	tell    func()        // called by stop, unless it is nil

	mu      sync.Mutex // protects all below
	ended   bool
	running int
}

func newOperations() *operations {
	return &operations{stopped: make(chan struct{}), done: make(chan struct{})}
}

// begin reports whether a call may start. If so, the caller calls end in the end.
func (o *operations) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return false
	}
	o.running++
	return true
}

func (o *operations) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running--
	if o.ended && o.running == 0 {
		close(o.done)
	}
}

// stop may be called more than once.
func (o *operations) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return
	}
	o.ended = true
	close(o.stopped)
	if o.running == 0 {
		close(o.done)
	}
	if o.tell != nil {
		o.tell()
	}
}

func (o *operations) isStopped() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ended
}
