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
	"io/fs"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors that a caller may want to explain.
var (
	ErrNoDevice  = errors.New("the address is on no RDMA device of this host")
	ErrAddrInUse = errors.New("the port is in use")
	ErrRemoved   = errors.New("the RDMA device is being removed")
)

// Listener accepts connections.
type Listener struct {
	ch       *channel
	id       *C.struct_rdma_cm_id
	requests chan *Request
	closed   chan struct{}
	once     sync.Once
	reason   error           // written before closed is closed
	watched  map[string]bool // devices, by their paths in sysfs; by who listens, then by the channel's loop
}

// Listen binds to an address of an RDMA device.
func Listen(addr netip.AddrPort) (*Listener, error) {
	ch, err := newChannel()
	if err != nil {
		return nil, err
	}
	l := &Listener{ch: ch, requests: make(chan *Request, 64), closed: make(chan struct{}), watched: map[string]bool{}}
	if ret, err := C.rdma_create_id(ch.c, &l.id, nil, C.RDMA_PS_TCP); ret != 0 {
		ch.close()
		return nil, fmt.Errorf("make a CM id: %w", err)
	}
	ch.handle(l.id, l.onEvent) // before the first request can come
	if err := l.listen(addr); err != nil {
		ch.handle(l.id, nil)
		C.rdma_destroy_id(l.id)
		ch.close()
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
	if ret, err := C.rdma_listen(l.id, 64); ret != 0 {
		return fmt.Errorf("listen on %s: %w", addr, explain(err))
	}
	if addr.Addr().IsUnspecified() {
		return nil
	}
	if l.id.verbs == nil {
		return fmt.Errorf("bind to %s: %w", addr, ErrNoDevice)
	}
	l.watchDevice(l.id)
	return nil
}

// watchDevice watches the device of an id that is bound to one.
func (l *Listener) watchDevice(id *C.struct_rdma_cm_id) {
	path := C.GoString(&id.verbs.device.dev_path[0])
	if l.watched[path] {
		return
	}
	l.watched[path] = true
	go l.watch(path)
}

// watch stops the listener when its device has gone from sysfs. The kernel tells its clients one after
// the other that a device is to go. If the connection manager's turn comes after that of the device
// files, which waits until nobody has one open, there is no event: it depends on which was loaded first.
func (l *Listener) watch(path string) {
	began, err := os.Stat(path)
	if err != nil {
		return // not known there: the event has to do
	}
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-l.closed:
			return
		case <-look.C:
		}
		if now, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(began, now) {
			l.stop(ErrRemoved)
			return
		}
	}
}

func explain(err error) error {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return ErrAddrInUse
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EADDRNOTAVAIL):
		return ErrNoDevice
	}
	return err
}

// Device returns the name of the RDMA device, "" for all.
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
		l.stop(ErrRemoved)
	}
}

func (l *Listener) onRequest(e event) {
	if l.id.verbs == nil { // of a listener on all devices
		l.watchDevice(e.id)
	}
	r := &Request{ch: l.ch, id: e.id, Private: e.private, initiatorDepth: e.initiatorDepth}
	select {
	case l.requests <- r:
	default: // more than a backlog of clients that nobody takes
		r.Reject(nil)
	}
}

// Accept returns the next request to connect; ErrRemoved when the device goes away: the
// kernel waits until this process has released everything of it.
func (l *Listener) Accept() (*Request, error) {
	select {
	case r := <-l.requests:
		return r, nil
	case <-l.closed:
		return nil, l.reason
	}
}

// StopAccepting ends Accept with ErrClosed; connections go on.
func (l *Listener) StopAccepting() { l.stop(ErrClosed) }

func (l *Listener) stop(reason error) {
	l.once.Do(func() {
		l.reason = reason
		close(l.closed)
	})
}

// Close stops listening. The connections are released before.
func (l *Listener) Close() {
	l.StopAccepting()
	l.ch.handle(l.id, nil)
	C.rdma_destroy_id(l.id)
	for len(l.requests) > 0 {
		(<-l.requests).Reject(nil)
	}
	l.ch.close()
}

// Request is a client that asks to connect: Accept or Reject it.
type Request struct {
	Private        []byte // at least what the client sent; some transports pad it
	ch             *channel
	id             *C.struct_rdma_cm_id
	initiatorDepth uint8
}

// Peer returns the client's address.
func (r *Request) Peer() string { return peerName(r.id) }

// Addr returns the client's address without its port, not valid if it is neither IPv4 nor IPv6.
func (r *Request) Addr() netip.Addr { return peerAddr(r.id).Addr() }

// Reject refuses the client, with private data of at most 148 bytes.
func (r *Request) Reject(private []byte) {
	C.rdma_reject(r.id, unsafe.Pointer(unsafe.SliceData(private)), C.uint8_t(len(private)))
	C.rdma_destroy_id(r.id)
}

// Accept takes the client, with private data of at most 196 bytes. Receives are posted
// before.
func (r *Request) Accept(private []byte, config Config) (*Conn, error) {
	c, err := newConn(r.ch, r.id, config)
	if err != nil {
		r.Reject(nil)
		return nil, err
	}
	reads := C.shim_max_reads(r.id, C.uint8_t(r.initiatorDepth))
	if errno := C.shim_accept(r.id, unsafe.Pointer(unsafe.SliceData(private)), C.uint8_t(len(private)), reads); errno != 0 {
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

// peerAddr returns the peer's address, which is not valid if it is neither IPv4 nor IPv6.
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
		return 0, fmt.Errorf("scope %%%s of the address: %w", name, err)
	}
	return uint32(ifi.Index), nil
}
