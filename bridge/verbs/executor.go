// SPDX-License-Identifier: Apache-2.0

package verbs

/*
#include <stdlib.h>
#include "crc32c.h"
#include "executor.h"
*/
import "C"

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"krping/bridge/transport"
)

// executor executes commands of a connection in C: see executor.h.
type executor struct {
	c      *C.struct_shim_executor // of C's memory
	volume transport.Volume

	trimming atomic.Bool    // give memory back that is not used
	settling sync.WaitGroup // waits for the store after the last call

	// Protected by Conn.mu.
	seen  uint32    // c.completed when it was looked at last
	busy  bool      // something was posted then
	since time.Time // since when seen has stayed the same while something was posted

	// Used while completions are taken only.
	begun   bool // the volume's Begin was called, and not End
	ended   bool // nothing more is executed
	classes [C.SHIM_CLASSES]struct {
		memory *memory // of its buffers; nil: none
		uses   uint32  // its uses in C at the last trim
	}
	given [][]byte // messages that are left to Recv
}

// maxExecutors is how many connections execute in C. Each keeps a thread of the process while it waits.
const maxExecutors = 1024

var executors atomic.Int32

// Prepare binds the goroutine to its thread, as the kernel ends what io_uring does in the thread that has started it, and
// has workers for each thread. It uses io_uring for the first time in the thread, which waits while a CPU goes offline.
func (c *Conn) Prepare() {
	runtime.LockOSThread()
	C.shim_ring_first_use()
}

// Execute executes READs and WRITEs in C. It does nothing if Recv does not poll, if there is no io_uring for a volume in
// a file, or if many connections execute already.
func (c *Conn) Execute(to transport.Volume) {
	if !c.config.Polls || int(to.MaxMessage) != c.config.MaxMessage {
		return
	}
	if executors.Add(1) > maxExecutors {
		executors.Add(-1)
		return
	}
	e, err := c.newExecutor(to)
	if err != nil {
		executors.Add(-1)
		return
	}
	c.executor.Store(e)
}

func (c *Conn) newExecutor(to transport.Volume) (*executor, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	if len(c.freeSends) < C.SHIM_SLOTS {
		_ = unix.Close(wake)
		return nil, fmt.Errorf("%d buffers for SENDs are free", len(c.freeSends))
	}
	x := (*C.struct_shim_executor)(C.calloc(1, C.sizeof_struct_shim_executor)) // never nil: see cgo
	for i := range x.slots {
		x.slots[i] = C.uint32_t(<-c.freeSends)
	}
	first := c.config.receive(0)
	x.receives, x.receives_lkey = (*C.uint8_t)(&c.recv.data[first]), c.recv.lkey()
	x.stride = C.uint32_t(c.config.receive(1) - first)
	x.sends, x.sends_lkey = (*C.uint8_t)(&c.send.data[0]), c.send.lkey()
	x.receive_kind, x.wake_fd = kindRecv, C.int(wake)
	for i := range x.classes {
		x.classes[i].waiting = (*C.struct_shim_command)(C.calloc(C.size_t(to.Depth), C.sizeof_struct_shim_command))
	}
	v := &x.volume
	if to.Memory != nil {
		v.memory = (*C.uint8_t)(&to.Memory[0])
	} else if errno := C.shim_ring_open(&x.ring, C.int(to.File)); errno != 0 {
		for _, slot := range x.slots {
			c.freeSends <- int(slot)
		}
		_ = unix.Close(wake)
		freeC(x)
		return nil, fmt.Errorf("set io_uring up: %w", syscall.Errno(errno))
	}
	if x.ring != nil {
		C.shim_ring_register(x.ring, C.SHIM_RECEIVES, unsafe.Pointer(&c.recv.data[0]), C.size_t(len(c.recv.data)))
	}
	v.flags = C.uint8_t(to.Flags)
	v.block_size, v.depth = C.uint32_t(to.BlockSize), C.uint32_t(to.Depth)
	v.max_data, v.max_inline, v.max_message = C.uint32_t(to.MaxData), C.uint32_t(to.MaxInline), C.uint32_t(to.MaxMessage)
	v.writes, v.writeback = flag(to.Writes), flag(to.Writeback)
	return &executor{c: x, volume: to, since: time.Now()}, nil
}

func freeC(x *C.struct_shim_executor) {
	for i := range x.classes {
		C.free(unsafe.Pointer(x.classes[i].waiting))
	}
	C.free(unsafe.Pointer(x))
}

func flag(set bool) C.uint8_t {
	if set {
		return 1
	}
	return 0
}

// freeExecutor frees what the executor has. The queue pair is destroyed.
func (c *Conn) freeExecutor() {
	c.mu.Lock()
	e := c.executor.Swap(nil)
	c.mu.Unlock()
	if e == nil {
		return
	}
	e.settling.Wait()
	C.shim_ring_close(e.c.ring)
	e.c.ring = nil
	for class := range e.classes {
		e.takeBack(class, c.config.Budget)
	}
	_ = unix.Close(int(e.c.wake_fd))
	freeC(e.c)
	executors.Add(-1)
}

// executed waits for completions, executes, and leaves in queue.wc those that Go handles. It returns how many those
// are: none when woken. may is false if nothing is executed now.
func (c *Conn) executed() (n int, may bool, err error) {
	e := c.executor.Load()
	if e == nil || e.ended {
		return 0, false, nil
	}
	may = e.c.error == 0 && !c.isClosed()
	if may && e.trimming.Swap(false) {
		e.trim(c.config.Budget)
	}
	if !may || !e.begin() {
		e.end()
		return 0, false, nil
	}
	c.dropPoller()
	size, stable := (*C.uint64_t)(unsafe.Pointer(e.volume.Size)), (*C.uint32_t)(unsafe.Pointer(e.volume.Stable))
	n = int(C.shim_execute(e.c, c.handle(), size, stable, (*C.struct_shim_counts)(unsafe.Pointer(e.volume.Counts))))
	for i := range int(e.c.nr_given) {
		g := &e.c.given[i]
		msg := C.GoBytes(unsafe.Pointer(&g.command), C.SHIM_COMMAND)
		e.given = append(e.given, append(msg, unsafe.Slice((*byte)(g.data), int(g.length))...))
		c.received <- given
	}
	if e.c.storing == 0 {
		e.volume.End()
		e.begun = false
	}
	if e.c.wants != 0 {
		e.c.wants = 0
		e.lend(c)
	}
	if n < 0 {
		return 0, true, syscall.Errno(-n)
	}
	return n, true, nil
}

// begin begins an operation of the volume, or goes on with the one that the store has not ended.
func (e *executor) begin() bool {
	if !e.volume.Begin() {
		return false
	}
	if e.begun {
		e.volume.End()
	}
	e.begun = true
	return true
}

// end says that nothing more is executed. The operation of the volume ends when the store has ended it.
func (e *executor) end() {
	e.ended = true
	if !e.begun {
		return
	}
	e.settling.Go(func() {
		C.shim_executor_settle(e.c)
		e.volume.End()
	})
}

// given is a slot of Conn.received that stands for a message that the executor has given back.
const given = -1

// message returns the first message that was given back.
func (e *executor) message() transport.Message {
	first := e.given[0]
	e.given = e.given[1:]
	return transport.Message{Data: first, Taken: true, Release: func() error { return nil }}
}

// lend gives the executor the buffers that it wants, unless memory is short: then Go does what needs them.
func (e *executor) lend(c *Conn) {
	for class := range e.classes {
		if in := &e.c.classes[class]; in.is_wanted != 0 {
			in.is_wanted = 0
			e.lendClass(class, c)
		}
	}
}

func (e *executor) lendClass(class int, c *Conn) {
	size := int(C.shim_class_memory(C.int(class)))
	if e.classes[class].memory != nil || !c.config.Budget.takeSpare(size) {
		return
	}
	m, err := register(c.queue.pd, size, readAccess(c.queue.pd))
	if err != nil {
		c.config.Budget.give(size)
		return
	}
	e.classes[class].memory, e.classes[class].uses = m, uint32(e.c.classes[class].uses)-1
	C.shim_executor_lend(e.c, C.int(class), (*C.uint8_t)(&m.data[0]), m.lkey())
}

// trim takes those buffers back of which none was used since the last call.
func (e *executor) trim(budget *Budget) {
	C.shim_executor_confirm(e.c) // frees what the last SENDs use, for the next call; if it fails, the connection has
	for i := range e.classes {
		class := &e.classes[i]
		if uses := uint32(e.c.classes[i].uses); uses != class.uses {
			class.uses = uses
		} else if class.memory != nil && C.shim_executor_is_idle(e.c, C.int(i)) != 0 {
			e.takeBack(i, budget)
		}
	}
}

func (e *executor) takeBack(class int, budget *Budget) {
	m := e.classes[class].memory
	if m == nil {
		return
	}
	C.shim_executor_lend(e.c, C.int(class), nil, 0)
	e.classes[class].memory = nil
	size := len(m.data)
	m.free()
	budget.give(size)
}

// trimExecutor has the executor give memory back that it does not use.
func (c *Conn) trimExecutor() {
	c.mu.Lock() // not while it is freed
	defer c.mu.Unlock()
	if e := c.executor.Load(); e != nil {
		e.trimming.Store(true)
		e.wake()
	}
}

// err returns why a post has failed.
func (e *executor) err() error {
	if e == nil || e.c.error == 0 {
		return nil
	}
	return fmt.Errorf("post a work request: %w", syscall.Errno(e.c.error))
}

// owns reports whether a work request is one of an executor.
func owns(kind int) bool { return kind >= C.SHIM_QUIET && kind <= C.SHIM_WRITTEN }

// completed notes the completion of a work request.
func (e *executor) completed(id C.uint64_t) { C.shim_executor_completed(e.c, id) }

// posted returns how many of its work requests will have a completion. Receives that it keeps count as posted in Conn.
func (e *executor) posted() int {
	if e == nil {
		return 0
	}
	return int(e.c.posted - e.c.nr_kept)
}

// isStuck reports whether its work requests have not completed for stuckTime.
func (e *executor) isStuck(now time.Time) bool {
	if e == nil {
		return false
	}
	completed, busy := atomic.LoadUint32((*uint32)(&e.c.completed)), atomic.LoadInt32((*int32)(&e.c.posted)) != 0
	if completed != e.seen || !busy || !e.busy {
		e.seen, e.since = completed, now
	}
	e.busy = busy
	return now.Sub(e.since) >= stuckTime
}

func (e *executor) wake() {
	if e != nil {
		C.shim_executor_wake(e.c)
	}
}

// Interrupt makes Recv call Volume.Begin again soon.
func (c *Conn) Interrupt() { c.executor.Load().wake() }

// Executed reports whether messages have arrived since the last call.
func (c *Conn) Executed() bool {
	e := c.executor.Load()
	return e != nil && atomic.SwapInt32((*int32)(&e.c.received), 0) != 0
}

// tag returns the word that has the bit of a tag.
func (e *executor) tag(tag uint16) (word *uint64, bit uint64) {
	return (*uint64)(&e.c.volume.tags[tag/64]), 1 << (tag % 64)
}

// TakeTag marks a tag as in flight. It returns how many are then, and whether it was free.
func (c *Conn) TakeTag(tag uint16) (inFlight int, free bool) {
	e := c.executor.Load()
	if e == nil {
		return 0, true
	}
	word, bit := e.tag(tag)
	if atomic.OrUint64(word, bit)&bit != 0 {
		return 0, false
	}
	return int(atomic.AddInt32((*int32)(&e.c.volume.in_flight), 1)), true
}

// FreeTag marks a tag as answered.
func (c *Conn) FreeTag(tag uint16) {
	if e := c.executor.Load(); e != nil {
		if word, bit := e.tag(tag); atomic.AndUint64(word, ^bit)&bit != 0 {
			atomic.AddInt32((*int32)(&e.c.volume.in_flight), -1)
		}
	}
}
