// SPDX-License-Identifier: Apache-2.0

package verbs

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memory is registered memory outside the Go heap.
type memory struct {
	data []byte
	mr   *C.struct_ibv_mr
}

const (
	localAccess = C.IBV_ACCESS_LOCAL_WRITE
	peerAccess  = C.IBV_ACCESS_LOCAL_WRITE | C.IBV_ACCESS_REMOTE_READ | C.IBV_ACCESS_REMOTE_WRITE
)

// readAccess returns the access flags of memory that RDMA READs fill. With iWARP, the responses are
// RDMA WRITEs by the peer (RFC 5040, 5.2), which may write there while the READ is running.
func readAccess(pd *C.struct_ibv_pd) C.int {
	if pd.context.device.transport_type == C.IBV_TRANSPORT_IWARP {
		return C.IBV_ACCESS_LOCAL_WRITE | C.IBV_ACCESS_REMOTE_WRITE
	}
	return localAccess
}

func register(pd *C.struct_ibv_pd, size int, access C.int) (*memory, error) {
	data, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	mr, err := C.ibv_reg_mr(pd, unsafe.Pointer(&data[0]), C.size_t(size), access)
	if mr == nil {
		_ = unix.Munmap(data)
		return nil, fmt.Errorf("register %d bytes of memory (is `ulimit -l` large enough?): %w", size, err)
	}
	return &memory{data, mr}, nil
}

func (m *memory) addr(offset int) C.uint64_t {
	return C.uint64_t(uintptr(unsafe.Pointer(&m.data[offset])))
}

func (m *memory) lkey() C.uint32_t { return m.mr.lkey }

func (m *memory) free() {
	if m == nil {
		return
	}
	C.ibv_dereg_mr(m.mr)
	_ = unix.Munmap(m.data)
}

// buffer is a data buffer. At most one RDMA operation at a time uses it.
type buffer struct {
	*memory
	slot int
	done chan bool // whether the operation succeeded
}

// bufferPool has data buffers, which it allocates on first use.
type bufferPool struct {
	register func() (*memory, error)

	idle  chan *buffer
	spare chan int // slots without a buffer

	mu     sync.Mutex        // protects all below
	byAddr map[*byte]*buffer // by the address of its data
	bySlot []*buffer
}

func (p *bufferPool) init(n int, register func() (*memory, error)) {
	p.register = register
	p.idle = make(chan *buffer, n)
	p.spare = make(chan int, n)
	p.byAddr = map[*byte]*buffer{}
	p.bySlot = make([]*buffer, n)
	for i := range n {
		p.spare <- i
	}
}

// get returns an idle buffer, or allocates one. If that fails, it waits until one is idle.
func (p *bufferPool) get(closed <-chan struct{}) (*buffer, error) {
	select {
	case b := <-p.idle:
		return b, nil
	default:
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
	select {
	case b := <-p.idle:
		return b, nil
	case <-closed:
		return nil, ErrClosed
	}
}

func (p *bufferPool) isEmpty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byAddr) == 0
}

func (p *bufferPool) allocate(slot int) (*buffer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := p.register()
	if err != nil {
		p.spare <- slot
		return nil, err
	}
	b := &buffer{m, slot, make(chan bool, 1)}
	p.byAddr[&m.data[0]], p.bySlot[slot] = b, b
	return b, nil
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

func (p *bufferPool) free() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range p.byAddr {
		b.memory.free()
	}
	p.byAddr = nil
}
