// SPDX-License-Identifier: Apache-2.0

package verbs

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
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
	if isIWARP(pd) {
		return C.IBV_ACCESS_LOCAL_WRITE | C.IBV_ACCESS_REMOTE_WRITE
	}
	return localAccess
}

func isIWARP(pd *C.struct_ibv_pd) bool {
	return pd.context.device.transport_type == C.IBV_TRANSPORT_IWARP
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
	if m.mr == nil { // of a test
		return
	}
	C.ibv_dereg_mr(m.mr)
	_ = unix.Munmap(m.data)
}
