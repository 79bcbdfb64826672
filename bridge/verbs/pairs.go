// SPDX-License-Identifier: Apache-2.0

package verbs

/*
#include <stdlib.h>
#include "exchange.h"
#include "pairs.h"
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
	"unsafe"

	"krping/bridge/transport"
)

// Pairs are queue pairs on a connection's device and in its protection domain. They implement
// transport.Queues. UC and UD queue pairs go the way of the connection.
type Pairs struct {
	conn    *Conn
	config  transport.QueueConfig
	c       *C.struct_shim_pairs // of C's memory
	psn     []uint32             // of the first packet from a queue pair
	ids     []pairID             // of RC queue pairs
	dialled *channel             // of the ids that Dial made
	lent    []*memory
	taken   int // bytes of the budget
}

// pairID is the CM id of an RC queue pair.
type pairID struct {
	id     *C.struct_rdma_cm_id
	ch     *channel
	device *device
}

func abilityOf(id *C.struct_rdma_cm_id) (transport.Ability, error) {
	var a C.struct_shim_ability
	if errno := C.shim_ability(id, &a); errno != 0 {
		return transport.Ability{}, fmt.Errorf("query the RDMA device: %w", syscall.Errno(errno))
	}
	return transport.Ability{
		IWARP: a.iwarp != 0, PortMTU: int(a.port_mtu), Depth: int(a.max_qp_wr), Completions: int(a.max_cqe), SharedDepth: int(a.max_srq_wr),
		Reads: int(a.max_reads), ReadResources: int(a.max_read_resources), Queues: int(a.max_qp), Atomics: a.atomics != 0,
	}, nil
}

// Ability returns what the device can do at which the request arrived.
func (r *Request) Ability() (transport.Ability, error) { return abilityOf(r.id) }

// Ability returns what the connection's device can do.
func (c *Conn) Ability() (transport.Ability, error) { return abilityOf(c.id) }

// PathMTU returns the MTU of the connection's path, in bytes.
func (c *Conn) PathMTU() (int, error) {
	var mtu C.uint32_t
	if errno := C.shim_path_mtu(c.queue.qp, &mtu); errno != 0 {
		return 0, fmt.Errorf("query the path to %s: %w", c.peer, syscall.Errno(errno))
	}
	return int(mtu), nil
}

// NewQueues makes what the queue pairs share, and those of UC and UD. The caller closes them before it
// releases the connection.
func (c *Conn) NewQueues(config transport.QueueConfig) (transport.Queues, error) {
	taken := workBytes(config)
	if err := c.config.Budget.take(taken); err != nil {
		return nil, err
	}
	p := &Pairs{conn: c, config: config, taken: taken, c: (*C.struct_shim_pairs)(C.calloc(1, C.sizeof_struct_shim_pairs))} // never nil: see cgo
	limits := C.struct_shim_pair_limits{
		send_wr: C.uint32_t(config.Sends), recv_wr: C.uint32_t(config.Receives), inline_data: C.uint32_t(config.Inline),
	}
	if config.Shared {
		limits.srq = 1
	}
	queues, entries := config.CompletionQueues()
	if errno := C.shim_pairs_create(p.c, c.queue.pd, C.uint32_t(config.Queues), C.uint32_t(queues), C.uint32_t(entries), &limits); errno != 0 {
		p.Close()
		return nil, fmt.Errorf("make %d completion queues of %d entries, or a shared receive queue: %w", queues, entries, syscall.Errno(errno))
	}
	p.psn = make([]uint32, config.Queues)
	if config.Service == transport.RC {
		return p, nil
	}
	for i := range config.Queues {
		p.psn[i] = rand.Uint32() & 0xffffff
		errno := C.shim_pair_create(p.c, C.uint32_t(i), pairTypes[config.Service], c.queue.qp, C.uint32_t(config.QKey))
		if errno != 0 {
			p.Close()
			return nil, p.makeError(i, errno)
		}
	}
	return p, nil
}

// workBytes returns about how many bytes the queues take: with Soft-RoCE they are in this host's memory.
func workBytes(config transport.QueueConfig) int {
	const send, receive, completion = 256, 64, 64
	queues, entries := config.CompletionQueues()
	receives := config.Receives
	if !config.Shared {
		receives *= config.Queues
	}
	return config.Queues*config.Sends*(send+config.Inline) + receives*receive + queues*entries*completion
}

var pairTypes = [...]C.int{transport.UC: C.IBV_QPT_UC, transport.UD: C.IBV_QPT_UD}

// pair returns one of the queue pairs.
func (p *Pairs) pair(index int) *C.struct_shim_pair {
	return &unsafe.Slice(p.c.pair, p.config.Queues)[index]
}

// Address implements transport.Queues.
func (p *Pairs) Address(index int) transport.QueueAddress {
	return transport.QueueAddress{QPN: uint32(p.pair(index).qp.qp_num), PSN: p.psn[index], QKey: p.config.QKey}
}

// Connect implements transport.Queues.
func (p *Pairs) Connect(index int, peer transport.QueueAddress, mtu int) error {
	remote := C.struct_shim_remote{
		qpn: C.uint32_t(peer.QPN), psn: C.uint32_t(peer.PSN), own_psn: C.uint32_t(p.psn[index]), qkey: C.uint32_t(peer.QKey),
		mtu: mtuCodes[mtu],
	}
	if errno := C.shim_pair_connect(p.c, C.uint32_t(index), p.conn.queue.qp, &remote); errno != 0 {
		return fmt.Errorf("connect %s queue pair %d to %s's: %w", p.config.Service, index, p.conn.peer, syscall.Errno(errno))
	}
	return nil
}

// mtuCodes maps bytes to enum ibv_mtu.
var mtuCodes = map[int]C.uint32_t{256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}

// Register implements transport.Queues.
func (p *Pairs) Register(n int, use transport.Access) (transport.Memory, error) {
	if err := p.conn.config.Budget.take(n); err != nil {
		return transport.Memory{}, err
	}
	p.taken += n
	m, err := register(p.conn.queue.pd, n, p.access(use))
	if err != nil {
		return transport.Memory{}, err
	}
	p.lent = append(p.lent, m)
	return transport.Memory{Data: m.data, Addr: uint64(m.addr(0)), Lkey: uint32(m.lkey()), Rkey: uint32(m.mr.rkey)}, nil
}

func (p *Pairs) access(use transport.Access) C.int {
	access := C.int(localAccess)
	if use&transport.PeerWrites != 0 {
		access |= C.IBV_ACCESS_REMOTE_WRITE
	}
	if use&transport.PeerReads != 0 {
		access |= C.IBV_ACCESS_REMOTE_READ
	}
	if use&transport.PeerAtomics != 0 {
		access |= C.IBV_ACCESS_REMOTE_ATOMIC
	}
	if use&transport.ReadSink != 0 {
		access |= readAccess(p.conn.queue.pd)
	}
	return access
}

// The work requests, receives and completions of Go and C are the same memory.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(transport.Work{})-C.sizeof_struct_shim_work]
	_ = [1]struct{}{}[unsafe.Sizeof(transport.Receive{})-C.sizeof_struct_shim_receive]
	_ = [1]struct{}{}[unsafe.Sizeof(transport.Completion{})-C.sizeof_struct_shim_completion]
	_ = [1]struct{}{}[unsafe.Sizeof(transport.Exchange{})-C.sizeof_struct_shim_exchange]
	_ = [1]struct{}{}[transport.TurnSize-C.SHIM_TURN]
	_ = [1]struct{}{}[transport.MostCompletionQueues-C.SHIM_CQS]
)

// Batch implements transport.Queues.
func (p *Pairs) Batch() ([]transport.Work, []transport.Receive) {
	return unsafe.Slice((*transport.Work)(unsafe.Pointer(&p.c.work)), transport.TurnSize),
		unsafe.Slice((*transport.Receive)(unsafe.Pointer(&p.c.receive)), transport.TurnSize)
}

// Turn implements transport.Queues.
func (p *Pairs) Turn(works, receives int, wait time.Duration, busy bool) ([]transport.Completion, error) {
	var polls C.int
	if busy {
		polls = 1
	}
	n := C.shim_turn(C.uintptr_t(uintptr(unsafe.Pointer(p.c))), C.int(works), C.int(receives), C.int64_t(wait), polls)
	return p.completions(n)
}

// Exchange implements transport.Queues.
func (p *Pairs) Exchange(e *transport.Exchange) ([]transport.Completion, error) {
	n := C.shim_exchange(C.uintptr_t(uintptr(unsafe.Pointer(p.c))), (*C.struct_shim_exchange)(unsafe.Pointer(e)))
	return p.completions(n)
}

// completions returns what a call of C has found.
func (p *Pairs) completions(n C.int) ([]transport.Completion, error) {
	if n < 0 {
		return nil, fmt.Errorf("post to a queue pair or poll its completion queue: %w", syscall.Errno(-n))
	}
	return unsafe.Slice((*transport.Completion)(unsafe.Pointer(&p.c.done)), int(n)), nil
}

// Wake implements transport.Queues.
func (p *Pairs) Wake() { C.shim_wake(p.c) }

// Watch implements transport.Queues.
func (p *Pairs) Watch(b *byte, old byte, wait time.Duration) (now byte, changed bool) {
	n := C.shim_watch(C.uintptr_t(uintptr(unsafe.Pointer(b))), C.uint8_t(old), C.int64_t(wait))
	return byte(n), n >= 0
}

// StatusText implements transport.Queues.
func (p *Pairs) StatusText(status uint32) string {
	return C.GoString(C.ibv_wc_status_str(C.enum_ibv_wc_status(status)))
}

// errOtherDevice refuses a data connection.
var errOtherDevice = errors.New("the connection of a data queue pair arrived at another RDMA device than the control connection")

// pairsOf returns the queue pairs that NewQueues has made, below what may be wrapped around them.
func pairsOf(q transport.Queues) *Pairs {
	if outer, ok := q.(interface{ Unwrap() transport.Queues }); ok {
		return pairsOf(outer.Unwrap())
	}
	return q.(*Pairs)
}

// AcceptQueue implements transport.Incoming, for queue pairs of NewQueues.
func (r *Request) AcceptQueue(q transport.Queues, index int) error {
	p := pairsOf(q)
	if r.id.verbs != p.conn.id.verbs {
		r.Reject(r.refuse(r.Private))
		return errOtherDevice
	}
	if err := p.createRC(index, r.id); err != nil {
		r.Reject(r.refuse(r.Private))
		return err
	}
	p.adopt(r.ch, r.id, r.device)
	ability, err := abilityOf(r.id)
	if err != nil {
		return err
	}
	responder := min(int(r.responderResources), ability.ReadResources)
	if errno := C.shim_accept(r.id, nil, 0, C.shim_max_reads(r.id, C.uint8_t(r.initiatorDepth)), C.uint8_t(responder)); errno != 0 {
		return fmt.Errorf("accept queue pair %d of %s: %w", index, r.Peer(), syscall.Errno(errno))
	}
	return p.setRNRTimer(index)
}

func (p *Pairs) setRNRTimer(index int) error {
	if errno := C.shim_pair_set_rnr_timer(p.c, C.uint32_t(index)); errno != 0 {
		return fmt.Errorf("set the RNR timer of queue pair %d: %w", index, syscall.Errno(errno))
	}
	return nil
}

// makeError returns the error of a queue pair that the device cannot make.
func (p *Pairs) makeError(index int, errno C.int) error {
	inline := ""
	if p.config.Inline > 0 {
		inline = fmt.Sprintf(" with %d bytes of inline data", p.config.Inline)
	}
	return fmt.Errorf("make %s queue pair %d of %d%s: %w", p.config.Service, index+1, p.config.Queues, inline, syscall.Errno(errno))
}

func (p *Pairs) createRC(index int, id *C.struct_rdma_cm_id) error {
	if errno := C.shim_pair_create_rc(p.c, C.uint32_t(index), id); errno != 0 {
		return p.makeError(index, errno)
	}
	return nil
}

// adopt makes an id with a queue pair one of p's.
func (p *Pairs) adopt(ch *channel, id *C.struct_rdma_cm_id, device *device) {
	p.ids = append(p.ids, pairID{id, ch, device})
	ch.handle(id, p.onEvent)
}

// onEvent ends the connection, and with it the test, when one of the queue pairs has lost its peer.
func (p *Pairs) onEvent(e event) { p.conn.onEvent(e) }

// Close ends the use of the queue pairs and frees them and their memory. No other call is running.
func (p *Pairs) Close() {
	for _, id := range p.ids {
		C.rdma_disconnect(id.id)
	}
	for _, id := range p.ids {
		id.ch.unhandle(id.id)
		id.ch.taking.Lock()
		C.shim_queue_detach(id.id)
		id.ch.taking.Unlock()
	}
	C.shim_pairs_destroy_qps(p.c) // before the memory: see Conn.free
	for _, m := range p.lent {
		m.free()
	}
	p.conn.config.Budget.give(p.taken)
	C.shim_pairs_destroy(p.c)
	C.free(unsafe.Pointer(p.c))
	for _, id := range p.ids {
		id.device.destroyID(id.id)
	}
	if p.dialled != nil {
		p.dialled.close()
	}
}
