// SPDX-License-Identifier: Apache-2.0

package verbs

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors of Listen and Dial.
var (
	ErrNoManager = errors.New("cannot open the RDMA connection manager: is the module rdma_ucm loaded? (modprobe rdma_ucm)")
	ErrNoDevice  = errors.New("no RDMA device of this host has the address")
	ErrAddrInUse = errors.New("the port is in use")
)

// Errors of Accept. Listen may succeed again, at once or later.
var (
	ErrRemoved = errors.New("the RDMA device is being removed")
	ErrMoved   = errors.New("the address has moved to another RDMA device")
)

// Listener accepts connections.
type Listener struct {
	ch       *channel
	id       *C.struct_rdma_cm_id
	device   *device // nil if it listens on all devices
	requests chan *Request
	refuse   Refusal
	closed   chan struct{}
	once     sync.Once
	reason   error // written before closed is closed
}

// Refusal returns the private data of a reject for want of resources, for a request with the private
// data hello. Package verbs does not interpret either.
type Refusal func(hello []byte) []byte

// Listen binds to an address of an RDMA device. Requests that cannot be served are rejected with what
// refuse returns; nil for nothing.
func Listen(addr netip.AddrPort, refuse Refusal) (*Listener, error) {
	ch, err := newChannel()
	if err != nil {
		return nil, err
	}
	if refuse == nil {
		refuse = func([]byte) []byte { return nil }
	}
	l := &Listener{ch: ch, refuse: refuse, requests: make(chan *Request, 64), closed: make(chan struct{})}
	if ret, err := C.rdma_create_id(ch.c, &l.id, nil, C.RDMA_PS_TCP); ret != 0 {
		ch.close()
		return nil, fmt.Errorf("make a CM id: %w", err)
	}
	ch.handle(l.id, l.onEvent) // before the first request can arrive
	if err := l.listen(addr); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (l *Listener) listen(addr netip.AddrPort) error {
	sa, err := sockaddr(addr)
	if err != nil {
		return err
	}
	defer C.free(unsafe.Pointer(sa))
	if ret, err := C.rdma_bind_addr(l.id, sa); ret != 0 {
		return fmt.Errorf("bind to %s: %w", addr, explain(err))
	}
	l.device = deviceOf(l.id)
	if ret, err := C.rdma_listen(l.id, 64); ret != 0 {
		return fmt.Errorf("listen on %s: %w", addr, explain(err))
	}
	if addr.Addr().IsUnspecified() {
		return nil
	}
	if l.device == nil {
		return fmt.Errorf("bind to %s: %w", addr, ErrNoDevice)
	}
	go func() {
		select {
		case <-l.device.gone:
			l.stop(ErrRemoved)
		case <-l.closed:
		}
	}()
	return nil
}

func explain(err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return ErrAddrInUse
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EADDRNOTAVAIL):
		return ErrNoDevice
	case errors.Is(err, unix.EBADF): // the kernel still removes a device whose files are closed already
		return ErrNoDevice
	}
	return err
}

// Device returns the name of the RDMA device, or "" if the listener is on all devices.
func (l *Listener) Device() string {
	if l.id.verbs == nil {
		return ""
	}
	return C.GoString(C.ibv_get_device_name(l.id.verbs.device))
}

func (l *Listener) onEvent(e event) {
	switch e.kind {
	case C.RDMA_CM_EVENT_CONNECT_REQUEST:
		l.onRequest(e)
	case C.RDMA_CM_EVENT_DEVICE_REMOVAL:
		deviceRemoved(e.id)
	case C.RDMA_CM_EVENT_ADDR_CHANGE: // a bond has failed over to another device
		l.stop(ErrMoved)
	}
}

func (l *Listener) onRequest(e event) {
	r := &Request{ch: l.ch, refuse: l.refuse, id: e.id, device: deviceOf(e.id), Private: e.private, initiatorDepth: e.initiatorDepth, responderResources: e.responderResources}
	select {
	case l.requests <- r:
	default: // the backlog is full
		r.Reject(l.refuse(r.Private))
	}
}

// Accept returns the next connect request, or an error: ErrRemoved or ErrMoved, after which the owner
// releases all connections and calls Close, for which the kernel's removal waits; or ErrClosed. A
// listener on all devices goes on without the removed one.
func (l *Listener) Accept() (*Request, error) {
	select {
	case r := <-l.requests:
		return r, nil
	case <-l.closed:
		return nil, l.reason
	}
}

// StopAccepting makes Accept return ErrClosed. Connections stay open.
func (l *Listener) StopAccepting() { l.stop(ErrClosed) }

func (l *Listener) stop(reason error) {
	l.once.Do(func() {
		l.reason = reason
		close(l.closed)
	})
}

// Close stops listening. All its connections have been released.
func (l *Listener) Close() {
	l.StopAccepting()
	l.ch.unhandle(l.id)
	l.device.destroyID(l.id)
	for len(l.requests) > 0 {
		r := <-l.requests
		r.Reject(l.refuse(r.Private))
	}
	l.ch.close()
}

// Request is a client's connect request. The owner calls Accept or Reject.
type Request struct {
	Private []byte // private data, which some transports pad
	ch      *channel
	refuse  Refusal
	id      *C.struct_rdma_cm_id
	device  *device
	// RDMA READs and atomics that the client answers, and that it may have outstanding
	initiatorDepth, responderResources uint8
}

// Peer returns the client's address.
func (r *Request) Peer() string { return peerName(r.id) }

// Addr returns the client's address, invalid if it is neither IPv4 nor IPv6.
func (r *Request) Addr() netip.Addr { return peerAddr(r.id).Addr() }

// Reject rejects the client, with at most 148 bytes of private data.
func (r *Request) Reject(private []byte) {
	C.rdma_reject(r.id, unsafe.Pointer(unsafe.SliceData(private)), C.uint8_t(len(private)))
	r.device.destroyID(r.id)
}

// Accept accepts the client, with at most 196 bytes of private data. Receives are posted first. If that
// fails, it rejects the client.
func (r *Request) Accept(private []byte, config Config) (*Conn, error) {
	c, err := newConn(r.ch, r.id, r.device, config)
	if err != nil {
		r.Reject(r.refuse(r.Private))
		return nil, err
	}
	reads := C.shim_max_reads(r.id, C.uint8_t(r.initiatorDepth))
	if errno := C.shim_accept(r.id, unsafe.Pointer(unsafe.SliceData(private)), C.uint8_t(len(private)), reads, 1); errno != 0 {
		c.Release()
		return nil, fmt.Errorf("accept %s: %w", c.peer, syscall.Errno(errno))
	}
	return c, nil
}

func peerName(id *C.struct_rdma_cm_id) string {
	if addr := peerAddr(id); addr.IsValid() {
		return addr.String()
	}
	return "?"
}

// peerAddr returns the peer's address, invalid if it is neither IPv4 nor IPv6.
func peerAddr(id *C.struct_rdma_cm_id) netip.AddrPort {
	sa := C.rdma_get_peer_addr(id)
	if sa == nil {
		return netip.AddrPort{}
	}
	switch sa.sa_family {
	case C.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), in.Port<<8|in.Port>>8)
	case C.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom16(in.Addr), in.Port<<8|in.Port>>8)
	}
	return netip.AddrPort{}
}

func interfaceIndex(name string) (uint32, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return 0, fmt.Errorf("zone %%%s of the address: %w: %w", name, ErrNoDevice, err)
	}
	return uint32(ifi.Index), nil
}
