// SPDX-License-Identifier: Apache-2.0

package verbs

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"unsafe"

	"krping/bridge/transport"
)

// RejectedError is a peer's rejection of a connection.
type RejectedError struct {
	Status  int    // from the CM
	Private []byte // the private data of the reject
}

func (e *RejectedError) Error() string { return fmt.Sprintf("rejected by the peer (%d)", e.Status) }

// WriteImmediate is Write with immediate data: like a message, it completes one of the peer's
// receives. The protocol does not use it; tests do.
func (c *Conn) WriteImmediate(p []byte, to transport.Remote) error {
	return c.rdma(C.IBV_WR_RDMA_WRITE_WITH_IMM, p, to)
}

const resolveMS = 2000 // timeout

// Dial connects to a listener with at most 56 bytes of private data, and returns the private data
// of its accept. The connection has its own event channel.
func Dial(ctx context.Context, addr netip.AddrPort, private []byte, config Config) (*Conn, []byte, error) {
	ch, err := newChannel()
	if err != nil {
		return nil, nil, err
	}
	var id *C.struct_rdma_cm_id
	if ret, err := C.rdma_create_id(ch.c, &id, nil, C.RDMA_PS_TCP); ret != 0 {
		ch.close()
		return nil, nil, fmt.Errorf("make a CM id: %w", err)
	}
	events := make(chan event, 8)
	ch.handle(id, func(e event) { events <- e })
	undo := func() {
		ch.handle(id, nil)
		deviceOf(id).destroyID(id)
		ch.close()
	}
	if err := resolve(ctx, id, addr, events); err != nil {
		undo()
		return nil, nil, err
	}
	device := deviceOf(id)
	c, err := newConn(ch, id, device, config)
	if err != nil {
		ch.handle(id, nil)
		device.destroyID(id)
		ch.close()
		return nil, nil, err
	}
	c.ownChannel = true
	ch.handle(id, func(e event) { // for the set-up below and for the connection
		select {
		case events <- e:
		default:
		}
		c.onEvent(e)
	})
	if errno := C.shim_connect(id, unsafe.Pointer(unsafe.SliceData(private)), C.uint8_t(len(private)), 16); errno != 0 {
		c.Release()
		return nil, nil, fmt.Errorf("connect to %s: %w", addr, syscall.Errno(errno))
	}
	e, err := await(ctx, events, C.RDMA_CM_EVENT_ESTABLISHED)
	if err != nil {
		c.Release()
		return nil, nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	return c, e.private, nil
}

func resolve(ctx context.Context, id *C.struct_rdma_cm_id, addr netip.AddrPort, events <-chan event) error {
	sa, err := sockaddr(addr)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(sa))
	if ret, err := C.rdma_resolve_addr(id, nil, sa, resolveMS); ret != 0 {
		return fmt.Errorf("resolve %s: %w", addr, explain(err))
	}
	if _, err := await(ctx, events, C.RDMA_CM_EVENT_ADDR_RESOLVED); err != nil {
		return fmt.Errorf("resolve %s: %w", addr, err)
	}
	if ret, err := C.rdma_resolve_route(id, resolveMS); ret != 0 {
		return fmt.Errorf("find a route to %s: %w", addr, err)
	}
	if _, err := await(ctx, events, C.RDMA_CM_EVENT_ROUTE_RESOLVED); err != nil {
		return fmt.Errorf("find a route to %s: %w", addr, err)
	}
	return nil
}

func await(ctx context.Context, events <-chan event, want C.enum_rdma_cm_event_type) (event, error) {
	select {
	case e := <-events:
		switch e.kind {
		case want:
			return e, nil
		case C.RDMA_CM_EVENT_REJECTED:
			return e, &RejectedError{e.status, e.private}
		}
		return e, fmt.Errorf("%s (%d)", eventName(e.kind), e.status)
	case <-ctx.Done():
		return event{}, ctx.Err()
	}
}
