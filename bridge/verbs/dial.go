// SPDX-License-Identifier: Apache-2.0

package verbs

/*
#include <stdlib.h>
#include "pairs.h"
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

// Route is a way to a listener.
type Route struct {
	Addr   netip.AddrPort
	Source netip.Addr // this host's address; the zero value for any
	TOS    *uint8     // IP type of service of both sides' packets; nil for the default
}

// Dial connects to a listener with at most 56 bytes of private data, and returns the private data
// of its accept. The connection has its own event channel.
func Dial(ctx context.Context, addr netip.AddrPort, private []byte, config Config) (*Conn, []byte, error) {
	return Route{Addr: addr}.Dial(ctx, private, config)
}

// Dial is like the function Dial.
func (r Route) Dial(ctx context.Context, private []byte, config Config) (*Conn, []byte, error) {
	ch, err := newChannel()
	if err != nil {
		return nil, nil, err
	}
	id, events, err := r.resolve(ctx, ch)
	if err != nil {
		ch.close()
		return nil, nil, err
	}
	device := deviceOf(id)
	c, err := newConn(ch, id, device, config)
	if err != nil {
		ch.unhandle(id)
		device.destroyID(id)
		ch.close()
		return nil, nil, err
	}
	c.ownChannel = true
	e, err := r.connect(ctx, ch, id, events, c.onEvent, private, 16, 0)
	if err != nil {
		c.Release()
		return nil, nil, err
	}
	return c, e.private, nil
}

// DialQueue connects the RC queue pair of an index of NewQueues. The responder answers, and the initiator
// has outstanding, that many RDMA READs and atomics. It fails if that takes another device than the
// connection's.
func (r Route) DialQueue(ctx context.Context, q transport.Queues, index int, private []byte, responder, initiator int) error {
	p := pairsOf(q)
	if p.dialled == nil {
		ch, err := newChannel()
		if err != nil {
			return err
		}
		p.dialled = ch
	}
	id, events, err := r.resolve(ctx, p.dialled)
	if err != nil {
		return err
	}
	device := deviceOf(id)
	err = errOtherDevice
	if id.verbs == p.conn.id.verbs {
		err = p.createRC(index, id)
	}
	if err != nil {
		p.dialled.unhandle(id)
		device.destroyID(id)
		return err
	}
	p.adopt(p.dialled, id, device)
	if _, err = r.connect(ctx, p.dialled, id, events, p.onEvent, private, responder, initiator); err != nil {
		return err
	}
	return p.setRNRTimer(index)
}

// connect connects an id that has a queue pair. Its events go to handler, too. The responder answers, and
// the initiator has outstanding, that many RDMA READs and atomics.
func (r Route) connect(ctx context.Context, ch *channel, id *C.struct_rdma_cm_id, events chan event, handler func(event), private []byte, responder, initiator int) (event, error) {
	ch.handle(id, func(e event) { // for the set-up and for the connection
		select {
		case events <- e:
		default:
		}
		handler(e)
	})
	errno := C.shim_connect(id, unsafe.Pointer(unsafe.SliceData(private)), C.uint8_t(len(private)), C.uint8_t(responder), C.uint8_t(initiator))
	if errno != 0 {
		return event{}, fmt.Errorf("connect to %s: %w", r.Addr, syscall.Errno(errno))
	}
	e, err := await(ctx, events, C.RDMA_CM_EVENT_ESTABLISHED)
	if err != nil {
		return e, fmt.Errorf("connect to %s: %w", r.Addr, err)
	}
	return e, nil
}

// resolve returns a new id for which the route is known, and the channel of its events.
func (r Route) resolve(ctx context.Context, ch *channel) (id *C.struct_rdma_cm_id, events chan event, err error) {
	if ret, err := C.rdma_create_id(ch.c, &id, nil, C.RDMA_PS_TCP); ret != 0 {
		return nil, nil, fmt.Errorf("make a CM id: %w", err)
	}
	events = make(chan event, 8)
	ch.handle(id, func(e event) {
		select {
		case events <- e:
		default:
		}
	})
	if err := r.resolveID(ctx, id, events); err != nil {
		ch.unhandle(id)
		deviceOf(id).destroyID(id)
		return nil, nil, err
	}
	return id, events, nil
}

func (r Route) resolveID(ctx context.Context, id *C.struct_rdma_cm_id, events <-chan event) error {
	sa, err := sockaddr(r.Addr)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(sa))
	var source *C.struct_sockaddr
	if r.Source.IsValid() {
		if source, err = sockaddr(netip.AddrPortFrom(r.Source, 0)); err != nil {
			return err
		}
		defer C.free(unsafe.Pointer(source))
	}
	if r.TOS != nil {
		tos := C.uint8_t(*r.TOS)
		if ret, err := C.rdma_set_option(id, C.RDMA_OPTION_ID, C.RDMA_OPTION_ID_TOS, unsafe.Pointer(&tos), 1); ret != 0 {
			return fmt.Errorf("set the type of service: %w", err)
		}
	}
	if ret, err := C.rdma_resolve_addr(id, source, sa, resolveMS); ret != 0 {
		return fmt.Errorf("resolve %s: %w", r.Addr, explain(err))
	}
	if _, err := await(ctx, events, C.RDMA_CM_EVENT_ADDR_RESOLVED); err != nil {
		return fmt.Errorf("resolve %s: %w", r.Addr, err)
	}
	if ret, err := C.rdma_resolve_route(id, resolveMS); ret != 0 {
		return fmt.Errorf("find a route to %s: %w", r.Addr, err)
	}
	if _, err := await(ctx, events, C.RDMA_CM_EVENT_ROUTE_RESOLVED); err != nil {
		return fmt.Errorf("find a route to %s: %w", r.Addr, err)
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
