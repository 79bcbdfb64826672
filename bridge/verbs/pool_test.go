// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"sync"
	"testing"
)

// When no more memory can be registered, callers wait for the buffers that exist.
func TestBufferPoolWithoutMemory(t *testing.T) {
	errLocked := errors.New("no more memory can be locked")
	left := 1
	var p bufferPool
	mustInit(t, &p, 3, nil, func() (*memory, error) {
		if left--; left < 0 {
			return nil, errLocked
		}
		return &memory{data: make([]byte, 8)}, nil
	})
	first, err := p.get(nil)
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		b   *buffer
		err error
	}
	second := make(chan result)
	go func() {
		b, err := p.get(nil)
		second <- result{b, err}
	}()
	p.put(first.data)
	if r := <-second; r.err != nil || r.b != first {
		t.Errorf("the second get: %v, want the returned buffer", r.err)
	}
	closed := make(chan struct{})
	close(closed)
	if _, err := p.get(closed); !errors.Is(err, ErrClosed) {
		t.Errorf("closed connection: %v, want %v", err, ErrClosed)
	}
	left = 1
	if b, err := p.get(nil); err != nil || b == first {
		t.Errorf("with memory again: %v, want a new buffer", err)
	}

	var empty bufferPool
	mustInit(t, &empty, 3, nil, func() (*memory, error) { return nil, errLocked })
	if _, err := empty.get(nil); !errors.Is(err, errLocked) {
		t.Errorf("a pool without any buffer: %v, want %v", err, errLocked)
	}
}

const bufferSize = 8

func mustInit(t *testing.T, p *bufferPool, n int, budget *Budget, register func() (*memory, error)) {
	t.Helper()
	if err := p.init(n, bufferSize, budget, register); err != nil {
		t.Fatal(err)
	}
}

// fakeMemory is not registered.
func fakeMemory() (*memory, error) { return &memory{data: make([]byte, bufferSize)}, nil }

func mustGet(t *testing.T, p *bufferPool) *buffer {
	t.Helper()
	b, err := p.get(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wantUsed(t *testing.T, what string, budget *Budget, buffers int64) {
	t.Helper()
	if used := budget.Used(); used != buffers*bufferSize {
		t.Errorf("%s: %d bytes are reserved, want those of %d buffers", what, used, buffers)
	}
}

// Pools share a budget. Each has one buffer in any case, and waits for its own ones when the budget is
// used up.
func TestBufferPoolsOfOneBudget(t *testing.T) {
	budget := NewBudget(3 * bufferSize)
	var a, b, c, late bufferPool
	mustInit(t, &a, 4, budget, fakeMemory)
	first, second := mustGet(t, &a), mustGet(t, &a)
	wantUsed(t, "two of one pool", budget, 2)
	mustInit(t, &b, 4, budget, fakeMemory)
	wantUsed(t, "and one for another pool", budget, 3)
	if err := c.init(4, bufferSize, budget, fakeMemory); !errors.Is(err, ErrNoMemory) {
		t.Errorf("a third pool: %v, want %v", err, ErrNoMemory)
	}
	c.free()
	mustGet(t, &b)
	third := make(chan *buffer)
	waits := make(chan struct{})
	a.beforeWait = sync.OnceFunc(func() { close(waits) })
	go func() { x, _ := a.get(nil); third <- x }()
	<-waits
	a.put(second.data)
	if x := <-third; x != second {
		t.Error("a pool did not wait for its own buffer")
	}
	wantUsed(t, "all in use", budget, 3)
	a.put(first.data)
	a.put(second.data)
	b.free()
	wantUsed(t, "after the end of a pool", budget, 2)
	a.free()
	wantUsed(t, "after the end of both", budget, 0)
	mustInit(t, &late, 4, budget, fakeMemory)
}

// Buffers that were idle all the time between two trims are freed.
func TestUnusedBuffersAreFreed(t *testing.T) {
	budget := NewBudget(100 * bufferSize)
	var p bufferPool
	mustInit(t, &p, 4, budget, fakeMemory)
	var all []*buffer
	for range 4 {
		all = append(all, mustGet(t, &p))
	}
	for _, b := range all {
		p.put(b.data)
	}
	p.trim()
	wantUsed(t, "used since the start", budget, 4)
	x := mustGet(t, &p)
	y := mustGet(t, &p)
	p.put(x.data)
	p.put(y.data)
	p.trim()
	wantUsed(t, "two of four were used", budget, 2)
	p.trim()
	wantUsed(t, "none was used", budget, 1) // reserved
	if len(p.byAddr) != 0 {
		t.Errorf("%d buffers are allocated", len(p.byAddr))
	}
	mustGet(t, &p)
	mustGet(t, &p)
	wantUsed(t, "two are used again", budget, 2)
	p.free()
	p.trim()
	wantUsed(t, "at the end", budget, 0)
}
