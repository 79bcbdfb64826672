// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stddef.h>
#include <unistd.h>

#include "executor.h"

#define WAIT_NS		3600000000000	/* until it looks again whether it was woken */
#define MAX_QUIET	(SHIM_SLOTS / 4 - 1)	/* so that slots become free before the last one is taken */

static uint32_t slot_of(const struct shim_executor *x, uint32_t send)
{
	return x->slots[send % SHIM_SLOTS];
}

static void fail(struct shim_executor *x, int error)
{
	if (!x->error)
		x->error = error;
}

/* Posts the message of responses, if there is one. Returns 0 or an errno. */
static int post_responses(struct shim_executor *x)
{
	int is_signalled = x->quiet >= MAX_QUIET;
	struct ibv_sge sge = {
		.addr = (uintptr_t)x->out.data,
		.length = x->out.length,
		.lkey = x->sends_lkey,
	};
	struct ibv_send_wr *bad, wr = {
		.wr_id = (uint64_t)(is_signalled ? SHIM_SIGNALLED : SHIM_QUIET) << 32 | x->head,
		.opcode = IBV_WR_SEND,
		.send_flags = is_signalled ? IBV_SEND_SIGNALED : 0,
		.sg_list = &sge,
		.num_sge = 1,
	};
	int error;

	if (!x->out.data || !x->out.length)
		return 0;
	error = ibv_post_send(x->queue->qp, &wr, &bad);
	if (error)
		return error;
	x->head++;
	x->quiet = is_signalled ? 0 : x->quiet + 1;
	x->posted += is_signalled;
	x->out.data = NULL;
	return 0;
}

static int next_message(struct shim_out *out)
{
	struct shim_executor *x = (struct shim_executor *)((uint8_t *)out - offsetof(struct shim_executor, out));
	int error = post_responses(x);

	if (error)
		return -error;
	if (!out->data && x->head - x->tail < SHIM_SLOTS)
		out->data = x->sends + (size_t)slot_of(x, x->head) * x->volume.max_message;
	out->length = 0;
	return 0;
}

void shim_executor_sent(struct shim_executor *x, uint64_t id)
{
	if (id >> 32 != SHIM_SIGNALLED)
		return;
	x->posted--;
	x->tail = (uint32_t)id + 1;	/* the queue pair completes SENDs in order */
}

/* Executes a message. Returns whether something of it is left to Go. */
static int run_message(struct shim_executor *x, struct shim_wc *wc)
{
	uint32_t size = x->volume.max_message;
	uint8_t *buffer = x->receives + (size_t)(uint32_t)wc->wr_id * size;
	int64_t left;
	int error;

	__atomic_store_n(&x->received, 1, __ATOMIC_RELAXED);
	left = shim_run_commands(&x->volume, buffer, wc->byte_len, &x->out);
	if (left > 0) {
		wc->byte_len = left;
		return 1;
	}
	error = left < 0 ? -left : shim_post_recv((uintptr_t)x->queue, wc->wr_id, (uintptr_t)buffer, size, x->receives_lkey);
	if (!error)
		return 0;
	fail(x, error);
	wc->status = IBV_WC_GENERAL_ERR;
	return 1;
}

/* Returns whether a completion is left to Go. */
static int take(struct shim_executor *x, struct shim_wc *wc)
{
	uint32_t kind = wc->wr_id >> 32;

	if (wc->status != IBV_WC_SUCCESS || x->error)
		return 1;
	if (kind == SHIM_SIGNALLED) {
		shim_executor_sent(x, wc->wr_id);
		return 0;
	}
	if (kind == x->receive_kind && wc->opcode == IBV_WC_RECV && wc->byte_len <= x->volume.max_message)
		return run_message(x, wc);
	return 1;
}

/* Takes completions, and moves those for Go to the front. Returns their number. */
static int take_all(struct shim_executor *x, int got)
{
	struct shim_wc *wc = x->queue->wc;
	int i, left = 0, error;

	for (i = 0; i < got; i++)
		if (take(x, &wc[i]))
			wc[left++] = wc[i];
	error = post_responses(x);
	if (error)
		fail(x, error);
	return left;
}

void shim_executor_wake(struct shim_executor *x)
{
	const uint64_t one = 1;

	if (__atomic_exchange_n(&x->woken, 1, __ATOMIC_ACQ_REL))
		return;
	while (write(x->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

static int was_woken(struct shim_executor *x)
{
	uint64_t n;

	if (!__atomic_load_n(&x->woken, __ATOMIC_ACQUIRE))
		return 0;
	/* Waits for a write that is about to come: the file descriptor blocks. */
	while (read(x->wake_fd, &n, sizeof(n)) < 0 && errno == EINTR)
		;
	__atomic_store_n(&x->woken, 0, __ATOMIC_RELEASE);
	return 1;
}

/* Waits for a completion, or to be woken. Returns 0 or a negative errno. */
static int wait(struct shim_executor *x)
{
	int ready = shim_cqs_wait(&x->queue->completions, 1, x->wake_fd, WAIT_NS);

	return ready < 0 ? ready : 0;
}

int shim_execute(struct shim_executor *x, uintptr_t queue, const uint64_t *size, struct shim_counts *counts)
{
	int got;

	x->queue = (struct shim_queue *)queue;
	x->volume.size = size;
	x->volume.counts = counts;
	x->out.next = next_message;
	do {
		if (was_woken(x))
			return 0;
		got = shim_next(queue);
		if (got > 0)
			got = take_all(x, got);
		else if (got == -EAGAIN)
			got = wait(x);
	} while (!got && !x->error);
	return got;
}
