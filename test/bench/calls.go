// SPDX-License-Identifier: Apache-2.0

package bench

import "strings"

// Call is something that an I/O does on a host, counted by the calls of the functions that do it. Those of Soft-RoCE
// are Linux 6.1's.
type Call string

const (
	callPost       Call = "posts"         // calls of a device, each with one or more work requests
	callWork       Call = "work requests" // in send queues: done, signalled or not
	callCompletion Call = "completions"   // entries in completion queues
	callEvent      Call = "events"        // completion queues that ask to be polled: what a NIC raises an interrupt for
	callPacket     Call = "packets"       // sent
	callRegister   Call = "registrations" // REG_MR
	callInvalidate Call = "invalidations" // local and remote
	callWake       Call = "wake-ups"
	callSwitch     Call = "context switches" // to a thread or to idle
	callAllocate   Call = "allocations"      // of the kernel; Soft-RoCE's packets are among them
	callCopy       Call = "copies"           // the module's target's, of a command's data to or from pages
	callSystem     Call = "system calls"     // fio's on the client
	callC          Call = "calls of C"       // krping-bridge's
)

// calls are all, in the order of the report.
var calls = []Call{
	callPost, callWork, callCompletion, callEvent, callPacket, callRegister, callInvalidate, callWake, callSwitch, callAllocate, callCopy, callSystem, callC,
}

var callsByFunction = map[Function]Call{
	{Name: "rxe_post_send", Module: "rdma_rxe"}:            callPost,
	{Name: "do_complete", Module: "rdma_rxe"}:              callWork, // of the completer; the responder's is inlined
	{Name: "rxe_cq_post", Module: "rdma_rxe"}:              callCompletion,
	{Name: "rxe_send_complete", Module: "rdma_rxe"}:        callEvent,
	{Name: "rxe_xmit_packet", Module: "rdma_rxe"}:          callPacket,
	{Name: "rxe_reg_fast_mr", Module: "rdma_rxe"}:          callRegister,
	{Name: "rxe_invalidate_mr", Module: "rdma_rxe"}:        callInvalidate,
	{Name: "try_to_wake_up"}:                               callWake,
	{Name: "krping_data_copy_from", Module: "rdma_krping"}: callCopy,
	{Name: "krping_data_copy_to", Module: "rdma_krping"}:   callCopy,
	{Name: "do_syscall_64"}:                                callSystem,
	{Name: "runtime.cgocall", User: true}:                  callC,
	{Name: "__kmalloc"}:                                    callAllocate,
	{Name: "__kmalloc_node"}:                               callAllocate,
	{Name: "__kmalloc_node_track_caller"}:                  callAllocate,
	{Name: "kmalloc_trace"}:                                callAllocate,
	{Name: "kmalloc_node_trace"}:                           callAllocate,
	{Name: "kmem_cache_alloc"}:                             callAllocate,
	{Name: "kmem_cache_alloc_node"}:                        callAllocate,
	{Name: "kmem_cache_alloc_lru"}:                         callAllocate,
	{Name: "kmem_cache_alloc_bulk"}:                        callAllocate,
	{Name: "__alloc_pages"}:                                callAllocate,
}

// callOf returns what a call of a function counts as, or "".
func callOf(f Function) Call {
	if f.Module == "" && !f.User && strings.HasPrefix(f.Name, "finish_task_switch") { // the compiler adds .isra.0
		return callSwitch
	}
	return callsByFunction[f]
}
