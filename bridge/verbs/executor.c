// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "crc32c.h"
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

/*
 * Posts the message of responses, if there is one; behind an RDMA WRITE, and invalidating a key of the client, if
 * these are given. Returns 0 or an errno.
 */
static int post_message(struct shim_executor *x, struct ibv_send_wr *data, uint32_t key)
{
	int is_signalled = x->quiet >= MAX_QUIET || __builtin_popcount(x->used) > SHIM_BUFFERS / 2;
	struct ibv_sge sge = {
		.addr = (uintptr_t)x->out.data,
		.length = x->out.length,
		.lkey = x->sends_lkey,
	};
	struct ibv_send_wr *bad, wr = {
		.wr_id = (uint64_t)(is_signalled ? SHIM_SIGNALLED : SHIM_QUIET) << 32 | x->head,
		.opcode = key ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND,
		.send_flags = is_signalled ? IBV_SEND_SIGNALED : 0,
		.sg_list = &sge,
		.num_sge = 1,
	};
	int error;

	if (!x->out.data || !x->out.length)
		return 0;
	if (key) {
		wr.wr.rdma.rkey = key;	/* libsiw reads this one */
		wr.invalidate_rkey = key;
	}
	if (data)
		data->next = &wr;
	error = ibv_post_send(x->queue->qp, data ? data : &wr, &bad);
	if (error)
		return error;
	x->used_by[x->head % SHIM_SLOTS] = data ? 1u << (uint32_t)data->wr_id : 0;
	x->head++;
	x->quiet = is_signalled ? 0 : x->quiet + 1;
	x->posted += is_signalled;
	x->out.data = NULL;
	return 0;
}

static struct shim_executor *executor_of(struct shim_out *out)
{
	return (struct shim_executor *)((uint8_t *)out - offsetof(struct shim_executor, out));
}

static int next_message(struct shim_out *out)
{
	struct shim_executor *x = executor_of(out);
	int error = post_message(x, NULL, 0);

	if (error)
		return -error;
	if (!out->data && x->head - x->tail < SHIM_SLOTS)
		out->data = x->sends + (size_t)slot_of(x, x->head) * x->volume.max_message;
	out->length = 0;
	return 0;
}

void shim_executor_completed(struct shim_executor *x, uint64_t id)
{
	uint32_t kind = id >> 32;

	if (kind == SHIM_QUIET)
		return;
	x->posted--;
	if (kind == SHIM_FETCH)
		return;
	while (x->tail != (uint32_t)id + 1)	/* the queue pair completes SENDs in order */
		x->used &= ~x->used_by[x->tail++ % SHIM_SLOTS];
}

static uint8_t *buffer_of(const struct shim_executor *x, uint32_t n)
{
	return x->buffers + (size_t)n * SHIM_BUFFER;
}

/* An RDMA READ or WRITE of a buffer, for a command. */
static struct ibv_send_wr transfer(struct shim_executor *x, const struct shim_command *c, uint32_t n,
				   struct ibv_sge *sge)
{
	*sge = (struct ibv_sge){
		.addr = (uintptr_t)buffer_of(x, n),
		.length = c->length,
		.lkey = x->buffers_lkey,
	};
	return (struct ibv_send_wr){
		.wr_id = (uint64_t)SHIM_QUIET << 32 | n,
		.opcode = IBV_WR_RDMA_WRITE,
		.sg_list = sge,
		.num_sge = 1,
		.wr.rdma.remote_addr = c->addr,
		.wr.rdma.rkey = c->rkey,
	};
}

static int read_remote(struct shim_executor *x, const struct shim_command *c, uint32_t n)
{
	uint8_t *buffer = buffer_of(x, n);
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	int room = shim_make_room(&x->volume, &x->out, 0), error;

	if (room <= 0)
		return room;
	if (!shim_read_data(&x->volume, c, buffer))
		return SHIM_LEFT;
	shim_respond(&x->volume, &x->out, c, shim_crc32c(buffer, c->length));
	wr = transfer(x, c, n, &sge);
	error = post_message(x, &wr, c->rkey);
	if (error)
		return -error;
	x->used |= 1u << n;
	return SHIM_ANSWERED;
}

static int fetch(struct shim_executor *x, const struct shim_command *c, uint32_t n)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	int error;

	if (!shim_may_write(&x->volume, c))
		return SHIM_LEFT;
	wr = transfer(x, c, n, &sge);
	wr.wr_id = (uint64_t)SHIM_FETCH << 32 | n;
	wr.opcode = IBV_WR_RDMA_READ;
	wr.send_flags = IBV_SEND_SIGNALED;
	error = ibv_post_send(x->queue->qp, &wr, &bad);
	if (error)
		return -error;
	x->posted++;
	x->used |= 1u << n;
	x->fetching[n] = *c;
	return SHIM_STARTED;
}

static int run_remote(struct shim_out *out, const struct shim_command *c)
{
	struct shim_executor *x = executor_of(out);
	uint32_t n = __builtin_ctz(~x->used);

	if (c->length > SHIM_BUFFER)
		return SHIM_LEFT;
	if (!x->buffers || n >= SHIM_BUFFERS) {
		x->wants_buffers = !x->buffers;
		return SHIM_LEFT;
	}
	x->fetched++;
	return c->op == SHIM_OP_READ ? read_remote(x, c, n) : fetch(x, c, n);
}

/* Writes what was fetched. If that fails, Go does all of it again. */
static void write_fetched(struct shim_executor *x, uint32_t n)
{
	struct shim_command *c = &x->fetching[n];
	int room = shim_make_room(&x->volume, &x->out, 0);

	x->used &= ~(1u << n);
	if (room < 0) {
		fail(x, -room);
		return;
	}
	if (!room || !shim_write_data(&x->volume, c, buffer_of(x, n))) {
		memcpy(x->given[x->nr_given++], c->wire, SHIM_COMMAND);
		return;
	}
	shim_respond(&x->volume, &x->out, c, 0);
	shim_clear_tag(&x->volume, c->tag);
	fail(x, post_message(x, NULL, c->rkey));
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
	if (kind == SHIM_SIGNALLED || kind == SHIM_FETCH) {
		shim_executor_completed(x, wc->wr_id);
		if (kind == SHIM_FETCH)
			write_fetched(x, wc->wr_id);
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
	int i, left = 0;

	for (i = 0; i < got; i++)
		if (take(x, &wc[i]))
			wc[left++] = wc[i];
	fail(x, post_message(x, NULL, 0));
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

int shim_executor_confirm(struct shim_executor *x)
{
	struct ibv_sge sge = { .addr = (uintptr_t)x->sends, .lkey = x->sends_lkey };
	struct ibv_send_wr *bad, wr = {	/* empty: the client's device acknowledges it */
		.wr_id = (uint64_t)SHIM_SIGNALLED << 32 | (x->head - 1),
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.sg_list = &sge,
		.num_sge = 1,
	};
	int error;

	if (!x->quiet)
		return 0;
	error = ibv_post_send(x->queue->qp, &wr, &bad);
	if (error)
		return error;
	x->quiet = 0;
	x->posted++;
	return 0;
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
	x->out.remote = run_remote;
	x->nr_given = 0;
	do {
		if (was_woken(x))
			return 0;
		got = shim_next(queue);
		if (got > 0)
			got = take_all(x, got);
		else if (got == -EAGAIN)
			got = wait(x);
	} while (!got && !x->error && !x->nr_given && !x->wants_buffers);
	return got;
}
