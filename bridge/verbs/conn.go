// SPDX-License-Identifier: Apache-2.0

package verbs

/*
#include <stdlib.h>
#include "executor.h"
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"krping/bridge/transport"
)

// Config sets the sizes of a connection, in bytes, and how many buffers it has.
type Config struct {
	Receives   int // posted receives, of MaxMessage each
	MaxMessage int
	// Head is how many bytes of each message are in front of a page, so that data behind them is aligned. With 0 they are packed.
	Head    int
	Buffers int // data buffers for RDMA, of MaxData each, allocated on first use
	MaxData int
	Budget  *Budget // of this and other connections; nil for no limit
	// Polls says that Recv is called again soon after each message. Recv then handles all completions
	// itself, also those that other calls wait for, instead of a goroutine that does only that.
	Polls bool
}

// receive returns where the receive of a slot begins in the memory for receives, which ends where the next one would.
func (c *Config) receive(slot int) int {
	const page = 4096
	if c.Head == 0 {
		return slot * c.MaxMessage
	}
	return page - c.Head + slot*((c.MaxMessage+page-1)/page*page)
}

const sendBuffers = 32

// Conn is one reliable connection. It implements transport.Transport. It has its own
// protection domain, so its keys are invalid on every other connection.
type Conn struct {
	ch         *channel
	ownChannel bool
	id         *C.struct_rdma_cm_id
	device     *device
	peer       string
	config     Config
	queue      *C.struct_shim_queue   // of C's memory
	signalsAll bool                   // each SEND and RDMA WRITE has a completion
	poller     atomic.Pointer[poller] // of the completion channel; nil while C waits for it
	disconnect func()                 // moves the queue pair to the error state

	reserved   int // bytes of the budget for recv, send and lent
	recv, send *memory
	received   chan int // slots of recv that hold a message, or given
	lengths    []int    // by slot of recv, with SHIM_TAKEN; written before the slot is sent to received
	freeSends  chan int // free slots of send
	data       bufferPool
	probed     chan bool // whether a probe succeeded
	lent       []*memory // to the peer, until Release
	executor   atomic.Pointer[executor]

	ended   atomic.Bool   // set before closed is closed, and before the next CM event is handled
	closed  chan struct{} // nothing more is posted
	once    sync.Once
	drained chan struct{} // closed when no completion will follow

	polling sync.Mutex // held while completions are taken; protects queue.wc. Taken before mu

	mu      sync.Mutex   // protects all below, and queue.wr
	posted  int          // work requests that will have a completion
	quiet   int          // SENDs since the last signalled work request
	sendQ   []C.uint64_t // ids of the send queue's work requests that have not completed, in order
	sends   progress     // of the signalled work requests of the send queue
	reason  error        // why the connection was closed, nil while it is open
	abandon bool         // do not wait for completions: the device does not flush the queue pair
}

// A work request's id has its kind in the upper 32 bits and the slot it uses in the lower.
const (
	kindRecv  = iota + 1
	kindQuiet // SEND of a message that has a completion only if it fails
	kindSend  // of a message
	kindData  // RDMA; await waits for it
	kindFree  // RDMA WRITE; nobody waits, the completion of a SEND behind it frees its buffer
	kindOwn   // the same, but its own completion frees it
	kindProbe // empty RDMA WRITE
	kindLast  // empty RDMA WRITE behind quiet SENDs; nobody waits
)

// maxQuiet is how many SENDs in a row may have no completion, as each completion wakes the program. Their
// slots are freed by the completion of a later work request.
const maxQuiet = sendBuffers/4 - 1

// trimIntervals is after how many watchIntervals memory that was not used is freed: 10 s.
const trimIntervals = 5

func wrID(kind, slot int) C.uint64_t { return C.uint64_t(kind)<<32 | C.uint64_t(slot) }

func splitID(id C.uint64_t) (kind, slot int) { return int(id >> 32), int(id & 0xffffffff) }

// sendEntries returns how many work requests of a connection can be outstanding: an RDMA READ or WRITE for each buffer, also
// those of an executor, the SENDs, behind each of them an empty WRITE (confirm), and a probe.
func sendEntries(buffers int) int { return buffers + C.SHIM_RDMA_BUFFERS + 2*sendBuffers + 1 }

// newConn makes a connection of an id, which it owns unless it fails.
func newConn(ch *channel, id *C.struct_rdma_cm_id, device *device, config Config) (*Conn, error) {
	c := &Conn{
		ch: ch, id: id, device: device, peer: peerName(id), config: config,
		received:  make(chan int, config.Receives+C.SHIM_BUFFERS),
		lengths:   make([]int, config.Receives),
		freeSends: make(chan int, sendBuffers),
		closed:    make(chan struct{}),
		drained:   make(chan struct{}),
		probed:    make(chan bool, 1),
		queue:     (*C.struct_shim_queue)(C.calloc(1, C.sizeof_struct_shim_queue)), // never nil: see cgo
	}
	sends, receives := C.uint32_t(sendEntries(config.Buffers)), C.uint32_t(config.Receives)
	if errno := C.shim_queue_create(id, sends, receives, c.queue); errno != 0 {
		C.free(unsafe.Pointer(c.queue))
		return nil, fmt.Errorf("make a queue pair for %s: %w", c.peer, syscall.Errno(errno))
	}
	// Over iWARP a SEND completes when TCP has it. siw passes the pages of unsignalled work requests to TCP without a
	// copy: they would be used again while TCP sends them.
	c.signalsAll = isIWARP(c.queue.pd)
	if err := c.alloc(); err != nil {
		c.free()
		return nil, fmt.Errorf("set up the connection of %s: %w", c.peer, err)
	}
	c.disconnect = func() {
		C.rdma_disconnect(id)
		C.shim_error_state(c.queue.qp)
	}
	ch.handle(id, c.onEvent)
	if !config.Polls {
		go c.completions()
	}
	go c.watch()
	return c, nil
}

func (c *Conn) alloc() error {
	receives, sends := c.config.receive(c.config.Receives), sendBuffers*c.config.MaxMessage
	if err := c.config.Budget.take(receives + sends); err != nil {
		return err
	}
	c.reserved = receives + sends
	err := c.data.init(c.config.Buffers, c.config.MaxData, c.config.Budget, func() (*memory, error) {
		return register(c.queue.pd, c.config.MaxData, readAccess(c.queue.pd))
	})
	if err != nil {
		return err
	}
	c.data.beforeWait = c.confirm
	if _, err := c.usePoller(); err != nil {
		return err
	}
	if c.recv, err = register(c.queue.pd, receives, localAccess); err != nil {
		return err
	}
	if c.send, err = register(c.queue.pd, sends, localAccess); err != nil {
		return err
	}
	for slot := range sendBuffers {
		c.freeSends <- slot
	}
	for slot := range c.config.Receives {
		if err := c.postRecv(slot); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) freeMemory() {
	c.dropPoller()
	c.freeExecutor()
	c.recv.free()
	c.send.free()
	c.data.free()
	c.config.Budget.give(c.reserved)
	for _, m := range c.lent {
		m.free()
	}
}

// free destroys the queue pair before the memory regions: rxe of Linux 6.1 may hold a reference to a
// region as long as its failed queue pair exists, and deregistering would wait 50 s for it.
func (c *Conn) free() {
	c.ch.taking.Lock()
	C.shim_queue_detach(c.id)
	c.ch.taking.Unlock()
	C.shim_qp_destroy(c.queue)
	c.freeMemory()
	C.shim_queue_destroy(c.queue)
	C.free(unsafe.Pointer(c.queue))
}

func (c *Conn) onEvent(e event) {
	if e.kind == C.RDMA_CM_EVENT_DEVICE_REMOVAL {
		deviceRemoved(e.id)
	}
	switch e.kind {
	case C.RDMA_CM_EVENT_DISCONNECTED, C.RDMA_CM_EVENT_REJECTED, C.RDMA_CM_EVENT_CONNECT_ERROR,
		C.RDMA_CM_EVENT_UNREACHABLE, C.RDMA_CM_EVENT_DEVICE_REMOVAL, C.RDMA_CM_EVENT_ADDR_CHANGE:
		c.ended.Store(true)
		go c.fail(errors.New(eventName(e.kind))) // waits for the flush, which the event loop must not
	}
}

// Peer returns the peer's address.
func (c *Conn) Peer() string { return c.peer }

// Ended reports whether the connection has ended or is about to.
func (c *Conn) Ended() bool { return c.ended.Load() }

// Done returns a channel that is closed when the connection is closed.
func (c *Conn) Done() <-chan struct{} { return c.closed }

func (c *Conn) postRecv(slot int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != nil {
		return c.reason
	}
	addr, size := c.recv.addr(c.config.receive(slot)), C.uint32_t(c.config.MaxMessage)
	errno := C.shim_post_recv(c.handle(), wrID(kindRecv, slot), addr, size, c.recv.lkey())
	if errno != 0 {
		return fmt.Errorf("post a receive: %w", syscall.Errno(errno))
	}
	c.posted++
	return nil
}

// handle returns the queue as calls take it: see shim.h.
func (c *Conn) handle() C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(c.queue))) }

// post posts work requests in one call. If it fails, some may have been posted, and the connection ends.
// A SEND is quiet if few are, and if there are enough buffers while the one of an RDMA WRITE before it is
// not free yet.
func (c *Conn) post(wrs ...C.struct_shim_wr) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason != nil {
		return c.reason
	}
	last := &wrs[len(wrs)-1]
	if kind, slot := splitID(last.wr_id); kind == kindSend && !c.signalsAll && c.quiet < maxQuiet && (len(wrs) == 1 || c.data.hasPlenty()) {
		last.wr_id = wrID(kindQuiet, slot)
		c.quiet++
	} else {
		last.flags = C.IBV_SEND_SIGNALED
		c.quiet = 0
	}
	copy(c.queue.wr[:], wrs)
	errno := C.shim_post_send(c.handle(), C.int(len(wrs)))
	now := time.Now()
	for _, wr := range wrs[:c.queue.posted] {
		c.sendQ = append(c.sendQ, wr.wr_id)
		if wr.flags&C.IBV_SEND_SIGNALED != 0 {
			c.posted++
			c.sends.posted(1, now)
		}
	}
	if errno != 0 {
		c.reason = fmt.Errorf("post a work request: %w", syscall.Errno(errno))
		go c.fail(c.reason)
	}
	return c.reason
}

// Recv returns the next message. Only one call at a time is allowed.
func (c *Conn) Recv() (transport.Message, error) {
	if c.config.Polls {
		c.pollMessage()
	}
	select {
	case slot := <-c.received:
		return c.message(slot), nil
	case <-c.closed:
	}
	if !c.config.Polls { // what has arrived before the end, in order
		<-c.drained
		select {
		case slot := <-c.received:
			return c.message(slot), nil
		default:
		}
	}
	return transport.Message{}, c.err()
}

func (c *Conn) message(slot int) transport.Message {
	if slot == given {
		return c.executor.Load().message()
	}
	start, length := c.config.receive(slot), c.lengths[slot]
	return transport.Message{
		Data:    c.recv.data[start : start+length&^C.SHIM_TAKEN],
		Taken:   length&C.SHIM_TAKEN != 0,
		Release: func() error { return c.postRecv(slot) },
	}
}

// pollMessage polls until there is a message or the connection is closed.
func (c *Conn) pollMessage() {
	c.polling.Lock()
	defer c.polling.Unlock()
	for len(c.received) == 0 && !c.isClosed() {
		if _, err := c.poll(); err != nil {
			c.giveUp(err)
			return
		}
	}
}

// poll waits for completions and handles them. It returns how many: none at the read deadline.
func (c *Conn) poll() (int, error) {
	n, err := c.next()
	if err != nil {
		return 0, fmt.Errorf("completion queue: %w", err)
	}
	for i := range n {
		c.complete(&c.queue.wc[i])
	}
	if err := c.executor.Load().err(); err != nil {
		c.setReason(err)
		go c.fail(err)
	}
	return n, nil
}

// Send sends a copy of msg, by SEND_WITH_INV if the key to invalidate is not 0.
func (c *Conn) Send(msg []byte, invalidate uint32) error {
	wr, err := c.sendRequest(msg, invalidate)
	if err != nil {
		return err
	}
	return c.post(wr)
}

// WriteAndSend writes p to the peer's memory and then sends a copy of msg, by SEND_WITH_INV of
// to's key. It waits for neither. p is from Buffer and is freed when it has been written.
func (c *Conn) WriteAndSend(p []byte, to transport.Remote, msg []byte) error {
	b, err := c.bufferOf(p)
	if err != nil {
		return err
	}
	wr, err := c.sendRequest(msg, to.Rkey)
	if err != nil {
		return err
	}
	data := rdmaRequest(kindFree, C.IBV_WR_RDMA_WRITE, b, len(p), to)
	if c.signalsAll {
		data.wr_id, data.flags = wrID(kindOwn, b.slot), C.IBV_SEND_SIGNALED
	}
	return c.post(data, wr)
}

// sendRequest waits for a free slot, copies msg into it and returns a work request for it.
func (c *Conn) sendRequest(msg []byte, invalidate uint32) (C.struct_shim_wr, error) {
	if len(msg) > c.config.MaxMessage {
		return C.struct_shim_wr{}, fmt.Errorf("message of %d bytes, at most %d", len(msg), c.config.MaxMessage)
	}
	var slot int
	select {
	case slot = <-c.freeSends:
	case <-c.closed:
		return C.struct_shim_wr{}, c.err()
	}
	offset := slot * c.config.MaxMessage
	copy(c.send.data[offset:], msg)
	wr := C.struct_shim_wr{
		wr_id: wrID(kindSend, slot), opcode: C.IBV_WR_SEND,
		addr: c.send.addr(offset), length: C.uint32_t(len(msg)), lkey: c.send.lkey(),
	}
	if invalidate != 0 {
		wr.opcode, wr.rkey = C.IBV_WR_SEND_WITH_INV, C.uint32_t(invalidate)
	}
	return wr, nil
}

func rdmaRequest(kind int, opcode C.uint32_t, b *buffer, n int, remote transport.Remote) C.struct_shim_wr {
	return C.struct_shim_wr{
		wr_id: wrID(kind, b.slot), opcode: opcode, addr: b.addr(0), length: C.uint32_t(n), lkey: b.lkey(),
		remote_addr: C.uint64_t(remote.Addr), rkey: C.uint32_t(remote.Rkey),
	}
}

// Flush waits until the peer's device has acknowledged every message of Send. Only one call at
// a time is allowed, and none of Probe meanwhile.
func (c *Conn) Flush() error {
	if err := c.Probe(); err != nil { // its completion is also that of all before it
		return err
	}
	slots := sendBuffers
	if c.executor.Load() != nil {
		slots -= C.SHIM_SLOTS
	}
	for range slots {
		select {
		case slot := <-c.freeSends:
			defer func() { c.freeSends <- slot }()
		case <-c.closed:
			return c.err()
		}
	}
	return nil
}

// Read fills p from the peer's memory. p is from Buffer.
func (c *Conn) Read(p []byte, from transport.Remote) error {
	return c.rdma(C.IBV_WR_RDMA_READ, p, from)
}

// Write writes p to the peer's memory. p is from Buffer.
func (c *Conn) Write(p []byte, to transport.Remote) error { return c.rdma(C.IBV_WR_RDMA_WRITE, p, to) }

// Probe sends an RDMA WRITE of 0 bytes, which the peer's device acknowledges whatever its program
// does. Only one call at a time is allowed.
func (c *Conn) Probe() error {
	return c.await(c.emptyWrite(kindProbe), c.probed)
}

func (c *Conn) emptyWrite(kind int) C.struct_shim_wr {
	return C.struct_shim_wr{wr_id: wrID(kind, 0), opcode: C.IBV_WR_RDMA_WRITE, addr: c.send.addr(0), lkey: c.send.lkey()}
}

func (c *Conn) rdma(opcode C.uint32_t, p []byte, remote transport.Remote) error {
	b, err := c.bufferOf(p)
	if err != nil {
		return err
	}
	return c.await(rdmaRequest(kindData, opcode, b, len(p), remote), b.done)
}

func (c *Conn) bufferOf(p []byte) (*buffer, error) {
	b := c.data.find(p)
	if b == nil {
		return nil, fmt.Errorf("%d bytes that are not from Buffer", len(p))
	}
	return b, nil
}

// await posts a work request and waits until it uses no memory any more.
func (c *Conn) await(wr C.struct_shim_wr, done <-chan bool) error {
	if err := c.post(wr); err != nil {
		<-c.drained
		return err
	}
	select {
	case ok := <-done:
		if ok {
			return nil
		}
	case <-c.drained:
	}
	return c.err()
}

// Buffer returns n bytes of registered memory, at most MaxData.
func (c *Conn) Buffer(n int) ([]byte, error) {
	b, err := c.data.get(c.closed)
	if err != nil {
		return nil, err
	}
	return b.data[:n], nil
}

// Free returns a buffer; nil is allowed.
func (c *Conn) Free(p []byte) { c.data.put(p) }

// Lend returns n bytes of memory that the peer may read and write until Release. Only one call
// at a time is allowed.
func (c *Conn) Lend(n int) (transport.Remote, error) {
	if err := c.config.Budget.take(n); err != nil {
		return transport.Remote{}, err
	}
	c.reserved += n
	m, err := register(c.queue.pd, n, peerAccess)
	if err != nil {
		return transport.Remote{}, err
	}
	c.lent = append(c.lent, m)
	return transport.Remote{Addr: uint64(m.addr(0)), Rkey: uint32(m.mr.rkey)}, nil
}

// completions polls until the connection is closed and nothing is posted.
func (c *Conn) completions() {
	defer close(c.drained)
	c.polling.Lock()
	defer c.polling.Unlock()
	for {
		n, err := c.poll()
		if err != nil {
			c.giveUp(err)
			return
		}
		if n == 0 && c.idle() {
			return
		}
	}
}

// next waits for completions, which are in queue.wc then, or for the read deadline that drain sets.
func (c *Conn) next() (int, error) {
	if n, may, err := c.executed(); may {
		return n, err
	}
	var n C.int
	p, err := c.usePoller()
	if err == nil {
		err = p.raw.Read(func(uintptr) bool {
			n = C.shim_next(c.handle())
			return n != -C.EAGAIN
		})
	} else { // for want of file descriptors: it looks now and then
		time.Sleep(10 * time.Millisecond)
		n, err = C.shim_next(c.handle()), nil
	}
	if os.IsTimeout(err) {
		n, err = C.shim_next(c.handle()), nil
	}
	switch {
	case err != nil:
		return 0, err
	case n == -C.EAGAIN:
		return 0, nil
	case n < 0:
		return 0, syscall.Errno(-n)
	}
	return int(n), nil
}

// poller has the Go runtime wait for events of the completion channel.
type poller struct {
	file *os.File
	raw  syscall.RawConn
}

// usePoller returns the poller, and makes it if there is none. Only the poll loop, and what is before it, calls it.
func (c *Conn) usePoller() (*poller, error) {
	if p := c.poller.Load(); p != nil {
		return p, nil
	}
	file, raw, err := pollable(c.queue.completions.channel.fd, "completion channel")
	if err != nil {
		return nil, err
	}
	p := &poller{file, raw}
	c.poller.Store(p)
	return p, nil
}

// dropPoller ends the poller: each event would wake the Go runtime, also if nobody waits for it there.
func (c *Conn) dropPoller() {
	if p := c.poller.Swap(nil); p != nil {
		_ = p.file.Close()
	}
}

func (c *Conn) setPollDeadline(t time.Time) {
	if p := c.poller.Load(); p != nil {
		_ = p.file.SetReadDeadline(t)
	}
}

// giveUp closes a connection whose completions cannot be read.
func (c *Conn) giveUp(reason error) {
	c.setReason(reason) // before drained is closed
	go c.fail(reason)
}

// confirm makes sure that there will be a completion of the last SENDs.
func (c *Conn) confirm() {
	c.mu.Lock()
	quiet := false
	if n := len(c.sendQ); n > 0 {
		kind, _ := splitID(c.sendQ[n-1])
		quiet = kind == kindQuiet
	}
	c.mu.Unlock()
	if quiet {
		_ = c.post(c.emptyWrite(kindLast)) // fails if the connection has ended
	}
}

// watch closes a connection whose device is removed or whose send queue is stuck, and frees memory that
// it does not use.
func (c *Conn) watch() {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for n := 1; ; n++ {
		select {
		case <-c.closed:
			return
		case <-c.device.gone:
			c.fail(ErrRemoved)
			return
		case <-ticker.C:
		}
		c.mu.Lock()
		stuck := c.sends.isStuck(time.Now()) || c.executor.Load().isStuck(time.Now())
		c.mu.Unlock()
		if stuck {
			c.fail(errStuck)
			return
		}
		c.confirm()
		if n%trimIntervals == 0 {
			c.data.trim()
			c.trimExecutor()
		}
	}
}

// idle reports whether the connection is closed and nothing is posted. drain sets read deadlines,
// so that the poll loop calls it again.
func (c *Conn) idle() bool {
	if !c.isClosed() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.posted+c.executor.Load().posted() == 0 || c.abandon
}

func (c *Conn) isClosed() bool {
	select {
	case <-c.closed:
		return true
	default:
		return false
	}
}

var errImmediate = errors.New("the peer sent an RDMA WRITE with immediate data instead of a message")

// complete handles a completion. An RDMA WRITE with immediate data completes a receive, too, with
// the length of what was written elsewhere.
func (c *Conn) complete(wc *C.struct_shim_wc) {
	ok := wc.status == C.IBV_WC_SUCCESS
	kind, slot := splitID(wc.wr_id)
	reason := ErrClosed
	if ok && kind == kindRecv && (wc.opcode != C.IBV_WC_RECV || int(wc.byte_len&^C.SHIM_TAKEN) > c.config.MaxMessage) {
		ok, reason = false, errImmediate
	}
	if !ok {
		if wc.status != C.IBV_WC_SUCCESS && wc.status != C.IBV_WC_WR_FLUSH_ERR {
			reason = fmt.Errorf("work request failed: %s", C.GoString(C.ibv_wc_status_str(C.enum_ibv_wc_status(wc.status))))
		}
		c.setReason(reason) // before anyone is told about this completion
		go c.fail(reason)
	}
	if owns(kind) {
		c.executor.Load().completed(wc.wr_id)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if kind == kindRecv {
		c.posted--
		if ok {
			c.lengths[slot] = int(wc.byte_len)
			c.received <- slot
		}
		return
	}
	c.sent(wc.wr_id, ok)
}

// isSignalled reports whether a work request of the send queue has a completion also if it succeeds.
func isSignalled(kind int) bool { return kind != kindQuiet && kind != kindFree }

// sent handles the completion of a work request of the send queue. Those before it that are not signalled have
// succeeded, too. One that is signalled waits for its own completion: siw completes a SEND when TCP has taken it,
// while the data of an earlier RDMA READ is still to come. mu is locked; the channels have room.
func (c *Conn) sent(id C.uint64_t, ok bool) {
	at := slices.Index(c.sendQ, id)
	left := c.sendQ[:0]
	for i, posted := range c.sendQ {
		kind, slot := splitID(posted)
		if i > at || i < at && isSignalled(kind) {
			left = append(left, posted)
			continue
		}
		if isSignalled(kind) {
			c.signalled()
		}
		switch kind {
		case kindQuiet, kindSend:
			c.freeSends <- slot
		case kindFree, kindOwn:
			c.data.idle <- c.data.at(slot)
		case kindData:
			c.data.complete(slot, ok)
		case kindProbe:
			c.probed <- ok
		}
	}
	c.sendQ = left
}

// signalled counts the completion of a signalled work request of the send queue.
func (c *Conn) signalled() {
	c.posted--
	c.sends.completed(time.Now())
}

func (c *Conn) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reason
}

// setReason sets why the connection is closed. The first reason stays.
func (c *Conn) setReason(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reason == nil {
		c.reason = reason
	}
}

// Close moves the queue pair to the error state and waits until nothing is posted. Then the
// peer's memory is out of reach, and every other call returns. It may be called more than once;
// the owner calls Release, too.
func (c *Conn) Close() { c.fail(ErrClosed) }

const drainTime = 5 * time.Second

// fail closes the connection with the reason that other calls return.
func (c *Conn) fail(reason error) {
	c.once.Do(func() {
		c.ended.Store(true)
		c.setReason(reason)
		c.disconnect()
		close(c.closed)
		if c.config.Polls {
			go c.completions() // Recv returns
		}
		c.drain()
	})
}

// drain waits for the flush of posted work requests, at most drainTime.
func (c *Conn) drain() {
	deadline := time.After(drainTime)
	for {
		c.setPollDeadline(time.Now()) // wakes the poll loop
		c.Interrupt()
		select {
		case <-c.drained:
			return
		case <-deadline:
			c.mu.Lock()
			c.abandon = true
			c.mu.Unlock()
			deadline = nil
		case <-time.After(10 * time.Millisecond):
			c.setPollDeadline(time.Time{})
		}
	}
}

// Release closes the connection and frees its memory. No other call is running, and none of its
// messages and buffers is in use.
func (c *Conn) Release() {
	c.Close()
	c.ch.unhandle(c.id)
	c.free()
	c.device.destroyID(c.id)
	if c.ownChannel {
		c.ch.close()
	}
}
