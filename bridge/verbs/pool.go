// SPDX-License-Identifier: Apache-2.0

package verbs

import "sync"

// buffer is a data buffer. At most one RDMA operation at a time uses it.
type buffer struct {
	*memory
	slot int
	done chan bool // whether the operation succeeded
}

// bufferPool has data buffers. It allocates them on first use, and frees those that were not used for
// some time. Memory for one is always reserved in the budget, so a pool is never without any for ever.
type bufferPool struct {
	size     int // of a buffer, in bytes
	budget   *Budget
	register func() (*memory, error)

	beforeWait func() // called before get waits for an idle buffer

	idle  chan *buffer
	spare chan int // slots without a buffer

	mu     sync.Mutex        // protects all below
	byAddr map[*byte]*buffer // by the address of its data
	bySlot []*buffer
	unused int // fewest idle buffers at a time since the last trim
}

// init reserves memory for one of at most n buffers, until free.
func (p *bufferPool) init(n, size int, budget *Budget, register func() (*memory, error)) error {
	if err := budget.take(size); err != nil {
		return err
	}
	p.size, p.budget, p.register, p.beforeWait = size, budget, register, func() {}
	p.idle = make(chan *buffer, n)
	p.spare = make(chan int, n)
	p.byAddr = map[*byte]*buffer{}
	p.bySlot = make([]*buffer, n)
	for i := range n {
		p.spare <- i
	}
	return nil
}

// get returns an idle buffer, or allocates one. If that fails, it waits until one is idle.
func (p *bufferPool) get(closed <-chan struct{}) (*buffer, error) {
	b, err := p.take(closed)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unused = min(p.unused, len(p.idle))
	return b, err
}

func (p *bufferPool) take(closed <-chan struct{}) (*buffer, error) {
	select {
	case b := <-p.idle:
		return b, nil
	default:
	}
	if len(p.spare) == 0 {
		p.beforeWait()
	}
	select {
	case b := <-p.idle:
		return b, nil
	case slot := <-p.spare:
		if b, err := p.allocate(slot); err == nil || p.isEmpty() {
			return b, err
		}
	case <-closed:
		return nil, ErrClosed
	}
	p.beforeWait()
	select {
	case b := <-p.idle:
		return b, nil
	case <-closed:
		return nil, ErrClosed
	}
}

// hasPlenty reports whether at least half of the buffers are free.
func (p *bufferPool) hasPlenty() bool { return len(p.idle)+len(p.spare) >= cap(p.idle)/2 }

func (p *bufferPool) isEmpty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byAddr) == 0
}

func (p *bufferPool) allocate(slot int) (*buffer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, err := p.allocateLocked(slot)
	if err != nil {
		p.spare <- slot
	}
	return b, err
}

func (p *bufferPool) allocateLocked(slot int) (*buffer, error) {
	first := len(p.byAddr) == 0 // memory for it is reserved
	if !first {
		if err := p.budget.take(p.size); err != nil {
			return nil, err
		}
	}
	m, err := p.register()
	if err != nil {
		if !first {
			p.budget.give(p.size)
		}
		return nil, err
	}
	b := &buffer{m, slot, make(chan bool, 1)}
	p.byAddr[&m.data[0]], p.bySlot[slot] = b, b
	return b, nil
}

// trim frees the buffers that were idle all the time since the last trim.
func (p *bufferPool) trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bySlot == nil {
		return // freed
	}
	for range p.unused {
		select {
		case b := <-p.idle:
			p.release(b)
			p.spare <- b.slot
		default:
		}
	}
	p.unused = len(p.idle)
}

// release frees a buffer. mu is locked.
func (p *bufferPool) release(b *buffer) {
	delete(p.byAddr, &b.data[0])
	p.bySlot[b.slot] = nil
	b.memory.free()
	if len(p.byAddr) > 0 {
		p.budget.give(p.size)
	}
}

func (p *bufferPool) find(data []byte) *buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(data) == 0 {
		return nil
	}
	return p.byAddr[&data[0]]
}

func (p *bufferPool) put(data []byte) {
	if b := p.find(data); b != nil {
		p.idle <- b
	}
}

func (p *bufferPool) at(slot int) *buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bySlot[slot]
}

func (p *bufferPool) complete(slot int, ok bool) { p.at(slot).done <- ok }

// free frees all buffers. None is in use. A pool without init has none.
func (p *bufferPool) free() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bySlot == nil {
		return
	}
	for _, b := range p.bySlot {
		if b != nil {
			p.release(b)
		}
	}
	p.budget.give(p.size)
	p.bySlot = nil
}
