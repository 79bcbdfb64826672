// SPDX-License-Identifier: Apache-2.0

// Package verbs wraps librdmacm and libibverbs: it listens, connects, and implements one
// reliable connection with registered memory. It is the project's only package with cgo. Of
// messages it interprets only commands that it executes in C: see executor.h.
//
// The file descriptors of event channels are non-blocking, so the Go runtime polls them.
// Registered memory is outside the Go heap.
package verbs

/*
#cgo LDFLAGS: -lrdmacm -libverbs -l:liburing.a
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrClosed is returned by calls on a closed connection or listener.
var ErrClosed = errors.New("connection is closed")

// pollable wraps a duplicate of a library's file descriptor so that the Go runtime polls it.
func pollable(fd C.int, name string) (*os.File, syscall.RawConn, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("duplicate the %s: %w", name, err)
	}
	if err := unix.SetNonblock(dup, true); err != nil { // also applies to fd
		_ = unix.Close(dup)
		return nil, nil, fmt.Errorf("make the %s non-blocking: %w", name, err)
	}
	f := os.NewFile(uintptr(dup), name)
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("poll the %s: %w", name, err)
	}
	return f, raw, nil
}

// event is a copy of a CM event.
type event struct {
	id, listener                       *C.struct_rdma_cm_id
	kind                               C.enum_rdma_cm_event_type
	status                             int
	initiatorDepth, responderResources uint8
	private                            []byte
}

type cmID = *C.struct_rdma_cm_id

// channel delivers the CM events of its ids in order, from one goroutine.
type channel struct {
	c    *C.struct_rdma_event_channel
	file *os.File
	raw  syscall.RawConn
	done chan struct{}

	taking sync.Mutex // held while librdmacm takes an event, for which it may use the id's queue pair

	handling sync.Mutex // held while a handler runs
	mu       sync.Mutex // protects handlers
	handlers map[cmID]func(event)
}

var prepare = sync.OnceFunc(func() { C.shim_prepare() })

func newChannel() (*channel, error) {
	prepare()
	c, err := C.rdma_create_event_channel()
	if c == nil {
		if errors.Is(err, unix.ENODEV) {
			return nil, ErrNoDevice
		}
		return nil, ErrNoManager
	}
	file, raw, err := pollable(c.fd, "RDMA event channel")
	if err != nil {
		C.rdma_destroy_event_channel(c)
		return nil, err
	}
	ch := &channel{c: c, file: file, raw: raw, done: make(chan struct{}), handlers: map[cmID]func(event){}}
	go ch.loop()
	return ch, nil
}

func (ch *channel) loop() {
	defer close(ch.done)
	var out C.struct_shim_event
	for {
		var errno C.int
		err := ch.raw.Read(func(uintptr) bool {
			ch.taking.Lock()
			defer ch.taking.Unlock()
			errno = C.shim_next_event(ch.c, &out)
			return errno != C.EAGAIN
		})
		if err != nil || errno != 0 {
			return // closed
		}
		e := event{
			id: out.id, listener: out.listen_id, kind: C.enum_rdma_cm_event_type(out.event),
			status: int(out.status), initiatorDepth: uint8(out.initiator_depth), responderResources: uint8(out.responder_resources),
			private: C.GoBytes(unsafe.Pointer(&out.private_data), C.int(out.private_len)),
		}
		key := e.id
		if e.kind == C.RDMA_CM_EVENT_CONNECT_REQUEST {
			key = e.listener
		}
		if !ch.deliver(key, e) && e.kind == C.RDMA_CM_EVENT_CONNECT_REQUEST { // the listener is being closed
			deviceOf(e.id).destroyID(e.id)
		}
	}
}

// deliver calls the handler of an id. It returns false if there is none.
func (ch *channel) deliver(id *C.struct_rdma_cm_id, e event) bool {
	ch.handling.Lock()
	defer ch.handling.Unlock()
	ch.mu.Lock()
	handler := ch.handlers[id]
	ch.mu.Unlock()
	if handler != nil {
		handler(e)
	}
	return handler != nil
}

// handle sets the handler of an id's events.
func (ch *channel) handle(id *C.struct_rdma_cm_id, handler func(event)) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	ch.handlers[id] = handler
}

// unhandle waits until no handler runs, and removes that of an id's events. A handler must not call it.
func (ch *channel) unhandle(id *C.struct_rdma_cm_id) {
	ch.handling.Lock()
	defer ch.handling.Unlock()
	ch.mu.Lock()
	defer ch.mu.Unlock()
	delete(ch.handlers, id)
}

// close ends the loop. The channel's ids have been destroyed.
func (ch *channel) close() {
	_ = ch.file.Close()
	<-ch.done
	C.rdma_destroy_event_channel(ch.c)
}

func eventName(kind C.enum_rdma_cm_event_type) string { return C.GoString(C.rdma_event_str(kind)) }

// sockaddr returns the address in C memory that the caller frees.
func sockaddr(addr netip.AddrPort) (*C.struct_sockaddr, error) {
	p := C.calloc(1, C.sizeof_struct_sockaddr_storage)
	port := addr.Port()<<8 | addr.Port()>>8
	ip := addr.Addr().Unmap()
	if ip.Is4() {
		in := (*unix.RawSockaddrInet4)(p)
		in.Family, in.Port, in.Addr = unix.AF_INET, port, ip.As4()
		return (*C.struct_sockaddr)(p), nil
	}
	in := (*unix.RawSockaddrInet6)(p)
	in.Family, in.Port, in.Addr = unix.AF_INET6, port, ip.As16()
	if zone := ip.Zone(); zone != "" {
		index, err := interfaceIndex(zone)
		if err != nil {
			C.free(p)
			return nil, err
		}
		in.Scope_id = index
	}
	return (*C.struct_sockaddr)(p), nil
}
