// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "crc32c.h"
#include "executor.h"

#define WOKEN		INT_MAX
#define MAX_QUIET	(SHIM_SLOTS / 4 - 1)	/* so that slots become free before the last one is taken */

#define NO_BUFFER	UINT32_MAX

#define ALIGNMENT	512	/* of data for direct I/O */

#define FEW	8	/* buffers of a class: each is worth a completion, so that it becomes free soon */

static const struct {
	uint32_t size;	/* of a buffer, in bytes */
	uint32_t nr;
	uint32_t first;	/* its number */
} classes[SHIM_CLASSES] = {
	{ 4096, 64, 0 },
	{ 16384, 32, 64 },
	{ 65536, 32, 96 },
	{ 262144, 8, 128 },
	{ 1048576, 4, 136 },
};

_Static_assert(SHIM_BUFFERS == 64 + 32 + SHIM_RDMA_BUFFERS, "the classes");
_Static_assert(SHIM_RDMA_BUFFERS == 32 + 8 + 4, "the classes");
_Static_assert(SHIM_RING_ENTRIES >= SHIM_BUFFERS, "the ring is never full");
_Static_assert(SHIM_RING_AREAS > SHIM_RECEIVES, "an area for each class, and for messages");

uint32_t shim_class_memory(int class)
{
	return classes[class].size * classes[class].nr;
}

static int class_of_buffer(uint32_t n)
{
	int class = SHIM_CLASSES - 1;

	while (n < classes[class].first)
		class--;
	return class;
}

/* Whether a buffer is to be known as free as soon as its SEND has completed. */
static int is_urgent(const struct shim_executor *x, uint32_t n)
{
	int class = class_of_buffer(n);

	return x->classes[class].nr_waiting || classes[class].nr <= FEW;
}

static int is_iwarp(const struct shim_executor *x)
{
	return x->queue->qp->context->device->transport_type == IBV_TRANSPORT_IWARP;
}

/*
 * Over iWARP a SEND completes when TCP has it. siw passes the pages of unsignalled work requests to TCP without a copy:
 * they would be used again while TCP sends them.
 */
static int must_signal(const struct shim_executor *x)
{
	return is_iwarp(x);
}

/* siw ends the connection at inline data of a SEND that invalidates a key. */
static int may_inline(const struct shim_executor *x, uint32_t key)
{
	return x->out.length <= x->queue->max_inline_data && !(key && is_iwarp(x));
}

static uint32_t slot_of(const struct shim_executor *x, uint32_t send)
{
	return x->slots[send % SHIM_SLOTS];
}

static void fail(struct shim_executor *x, int error)
{
	if (!x->error)
		x->error = error;
}

/* Posts work requests, of which so many are signalled. Returns 0 or an errno. */
static int post(struct shim_executor *x, struct ibv_send_wr *wrs, int signalled)
{
	struct ibv_send_wr *bad = NULL;
	int error = ibv_post_send(x->queue->qp, wrs, &bad);

	if (!error || !bad)	/* without bad all are in the queue: see shim_post_send() */
		x->posted += signalled;
	return error;
}

/*
 * Posts the message of responses, if there is one; behind an RDMA WRITE, and invalidating a key of the client, if
 * these are given. Returns 0 or an errno.
 */
static int post_message(struct shim_executor *x, struct ibv_send_wr *data, uint32_t key)
{
	int is_signalled = must_signal(x) || x->quiet >= MAX_QUIET || (data && is_urgent(x, data->wr_id));
	struct ibv_sge sge = {
		.addr = (uintptr_t)x->out.data,
		.length = x->out.length,
		.lkey = x->sends_lkey,
	};
	struct ibv_send_wr wr = {
		.wr_id = (uint64_t)(is_signalled ? SHIM_SIGNALLED : SHIM_QUIET) << 32 | x->head,
		.opcode = key ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND,
		.send_flags = is_signalled ? IBV_SEND_SIGNALED : 0,
		.sg_list = &sge,
		.num_sge = 1,
	};
	int error, signalled = is_signalled;

	if (!x->out.data || !x->out.length)
		return 0;
	if (may_inline(x, key))
		wr.send_flags |= IBV_SEND_INLINE;
	if (key) {
		wr.wr.rdma.rkey = key;	/* libsiw reads this one */
		wr.invalidate_rkey = key;
	}
	if (data && must_signal(x)) {
		data->wr_id = (uint64_t)SHIM_WRITTEN << 32 | (uint32_t)data->wr_id;
		data->send_flags = IBV_SEND_SIGNALED;
		signalled++;
	}
	if (data)
		data->next = &wr;
	error = post(x, data ? data : &wr, signalled);
	if (error)
		return error;
	x->used_by[x->head % SHIM_SLOTS] = data ? (int)(uint32_t)data->wr_id : -1;
	x->head++;
	x->quiet = is_signalled ? 0 : x->quiet + 1;
	x->quiet_data = !is_signalled && (x->quiet_data || data);
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

static uint8_t *buffer_of(const struct shim_executor *x, uint32_t n)
{
	int class = class_of_buffer(n);

	return x->classes[class].buffers + (size_t)(n - classes[class].first) * classes[class].size;
}

static void use_buffer(struct shim_executor *x, uint32_t n, const struct shim_command *c)
{
	int class = class_of_buffer(n);

	x->classes[class].used |= 1ull << (n - classes[class].first);
	x->classes[class].uses++;
	x->commands[n] = *c;
}

static void free_buffer(struct shim_executor *x, uint32_t n)
{
	int class = class_of_buffer(n);

	x->classes[class].used &= ~(1ull << (n - classes[class].first));
}

/* The class of the smallest buffers that a command can use, or SHIM_CLASSES. */
static int class_of(const struct shim_command *c)
{
	int class = shim_is_inline(c) ? 0 : SHIM_FIRST_RDMA;

	while (class < SHIM_CLASSES && classes[class].size < c->length)
		class++;
	return class;
}

/* Finds a free buffer of a class, or a larger one for which nobody waits. Returns NO_BUFFER if there is none. */
static uint32_t find_buffer(const struct shim_executor *x, int class)
{
	int last = class < SHIM_FIRST_RDMA ? SHIM_FIRST_RDMA : SHIM_CLASSES - 1, larger;
	uint64_t free;

	for (larger = class; larger <= last; larger++) {
		if (!x->classes[larger].buffers || (larger > class && x->classes[larger].nr_waiting))
			continue;
		free = ~x->classes[larger].used & (~0ull >> (64 - classes[larger].nr));
		if (free)
			return classes[larger].first + (uint32_t)__builtin_ctzll(free);
	}
	return NO_BUFFER;
}

int shim_executor_is_idle(const struct shim_executor *x, int class)
{
	return !x->classes[class].used && !x->classes[class].nr_waiting;
}

void shim_executor_completed(struct shim_executor *x, uint64_t id)
{
	uint32_t kind = id >> 32;
	int n;

	if (kind == SHIM_QUIET)
		return;
	x->posted--;
	__atomic_fetch_add(&x->completed, 1, __ATOMIC_RELAXED);
	if (kind == SHIM_FETCH || kind == SHIM_WRITTEN)
		return;
	while (x->tail != (uint32_t)id + 1) {	/* the queue pair completes SENDs in order */
		n = x->used_by[x->tail++ % SHIM_SLOTS];
		if (n >= 0)
			free_buffer(x, n);
	}
}

static uint8_t *message_of(const struct shim_executor *x, uint64_t id)
{
	return x->receives + (size_t)(uint32_t)id * x->stride;
}

static int post_receive(struct shim_executor *x, uint64_t id)
{
	return shim_post_recv((uintptr_t)x->queue, id, (uintptr_t)message_of(x, id), x->volume.max_message, x->receives_lkey);
}

/* Posts the receive again that was kept for a buffer, if there is one. */
static void release_message(struct shim_executor *x, uint32_t n)
{
	uint64_t id = x->kept[n];
	int error;

	if (!id)
		return;
	x->kept[n] = 0;
	if (x->is_flushed)
		return;
	error = post_receive(x, id);
	if (error)
		fail(x, error);
	else
		x->nr_kept--;
}

/* Gives the command of a buffer to Go. An inline WRITE's data is in the buffer. */
static void give(struct shim_executor *x, uint32_t n)
{
	const struct shim_command *c = &x->commands[n];
	struct shim_given *g = &x->given[x->nr_given++];

	if (x->kept[n])
		memcpy(buffer_of(x, n), message_of(x, x->kept[n]) + SHIM_COMMAND, c->length);
	release_message(x, n);
	memcpy(g->command, c->wire, SHIM_COMMAND);
	g->data = buffer_of(x, n);
	g->length = c->op == SHIM_OP_WRITE && shim_is_inline(c) ? shim_padded(c->length) : 0;
	g->buffer = n;
}

/* An RDMA READ or WRITE of a buffer, for its command. */
static struct ibv_send_wr transfer(struct shim_executor *x, uint32_t n, struct ibv_sge *sge)
{
	const struct shim_command *c = &x->commands[n];

	*sge = (struct ibv_sge){
		.addr = (uintptr_t)buffer_of(x, n),
		.length = c->length,
		.lkey = x->classes[class_of_buffer(n)].lkey,
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

/* Answers a command whose data is in the buffer, or was written from it. Returns whether there was a slot. */
static int try_answer(struct shim_executor *x, uint32_t n)
{
	const struct shim_command *c = &x->commands[n];
	int is_read = c->op == SHIM_OP_READ, is_inline = shim_is_inline(c);
	int room = shim_make_room(&x->volume, &x->out, is_read && is_inline ? shim_padded(c->length) : 0);
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	if (room <= 0) {
		fail(x, -room);
		return 0;
	}
	if (is_read && is_inline)
		memcpy(shim_data(&x->out), buffer_of(x, n), c->length);
	shim_respond(&x->volume, &x->out, c, is_read ? shim_crc32c(buffer_of(x, n), c->length) : 0);
	shim_clear_tag(&x->volume, c->tag);
	if (is_read && !is_inline) {	/* the SEND's completion frees the buffer */
		wr = transfer(x, n, &sge);
		fail(x, post_message(x, &wr, c->rkey));
		return 1;
	}
	free_buffer(x, n);
	if (!is_inline)
		fail(x, post_message(x, NULL, c->rkey));
	return 1;
}

/* The same, later if there is no slot. */
static void answer(struct shim_executor *x, uint32_t n)
{
	if (!x->nr_unanswered && try_answer(x, n))
		return;
	x->unanswered[(x->first_unanswered + x->nr_unanswered++) % SHIM_BUFFERS] = n;
}

/* Answers the commands that wait for a slot. */
static void answer_waiting(struct shim_executor *x)
{
	while (x->nr_unanswered && !x->error && try_answer(x, x->unanswered[x->first_unanswered])) {
		x->first_unanswered = (x->first_unanswered + 1) % SHIM_BUFFERS;
		x->nr_unanswered--;
	}
}

/* Reads or writes a buffer. */
static void access_store(struct shim_executor *x, uint32_t n)
{
	const struct shim_command *c = &x->commands[n];
	int is_write = c->op == SHIM_OP_WRITE, class = class_of_buffer(n);

	if (!x->ring) {
		if (is_write)
			memcpy(x->volume.memory + c->offset, buffer_of(x, n), c->length);
		else
			memcpy(buffer_of(x, n), x->volume.memory + c->offset, c->length);
		answer(x, n);
	} else if (shim_ring_prepare(x->ring, is_write, class, buffer_of(x, n), c->length, c->offset, n)) {
		give(x, n);
	} else {
		x->storing++;
	}
}

/* Writes the data of a WRITE that is in its buffer. Go says what is wrong with it. */
static void write_buffer(struct shim_executor *x, uint32_t n)
{
	const struct shim_command *c = &x->commands[n];

	if (shim_may_write(&x->volume, c) && shim_crc32c(buffer_of(x, n), c->length) == c->crc)
		access_store(x, n);
	else
		give(x, n);
}

static int fetch(struct shim_executor *x, uint32_t n)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	wr = transfer(x, n, &sge);
	wr.wr_id = (uint64_t)SHIM_FETCH << 32 | n;
	wr.opcode = IBV_WR_RDMA_READ;
	wr.send_flags = IBV_SEND_SIGNALED;
	return -post(x, &wr, 1);
}

/* Whether the data of an inline WRITE may be written from its message: that of the first command. */
static int may_keep(const struct shim_executor *x, const uint8_t *data)
{
	return x->ring && data == x->message + SHIM_COMMAND && !((uintptr_t)data % ALIGNMENT);
}

/* Writes the data of an inline WRITE from its buffer. */
static void write_copy(struct shim_executor *x, uint32_t n, const uint8_t *data)
{
	uint32_t length = x->commands[n].length;

	memcpy(buffer_of(x, n), data, length);
	memset(buffer_of(x, n) + length, 0, shim_padded(length) - length);
	write_buffer(x, n);
}

/* Begins a command in a free buffer. data is that of an inline WRITE. Returns 0 or a negative errno. */
static int begin(struct shim_executor *x, uint32_t n, const struct shim_command *c, const uint8_t *data)
{
	use_buffer(x, n, c);
	if (c->op == SHIM_OP_WRITE && !shim_is_inline(c))
		return fetch(x, n);
	if (c->op == SHIM_OP_WRITE && may_keep(x, data)) {
		x->first = n;	/* see run_message() */
	} else if (c->op == SHIM_OP_WRITE) {
		write_copy(x, n, data);
	} else if (shim_is_inside(&x->volume, c)) {
		access_store(x, n);
	} else {
		give(x, n);	/* the volume has shrunk while it waited */
	}
	return 0;
}

/*
 * Has a command wait for a buffer of a class that has some. Each that is used becomes free by a completion, by the ring,
 * or in the next call.
 */
static int wait_for_buffer(struct shim_executor *x, struct shim_class *class, const struct shim_command *c)
{
	if (class->nr_waiting == x->volume.depth)
		return SHIM_LEFT;
	class->waiting[(class->first_waiting + class->nr_waiting++) % x->volume.depth] = *c;
	if (x->quiet_data)
		fail(x, shim_executor_confirm(x));
	return SHIM_STARTED;
}

static int begin_later(struct shim_executor *x, const struct shim_command *c, const uint8_t *data)
{
	int is_write = c->op == SHIM_OP_WRITE, class = class_of(c), error;
	int can_wait = !is_write || !shim_is_inline(c);	/* the data is not in a receive buffer */
	struct shim_class *own = &x->classes[class];
	uint32_t n;

	if (class == SHIM_CLASSES || !(is_write ? shim_may_write(&x->volume, c) : shim_is_inside(&x->volume, c)))
		return SHIM_LEFT;
	if (own->nr_waiting)
		return can_wait ? wait_for_buffer(x, own, c) : SHIM_LEFT;
	n = find_buffer(x, class);
	if (n != NO_BUFFER) {
		error = begin(x, n, c, data);
		return error ? error : SHIM_STARTED;
	}
	if (!own->buffers)
		x->wants = own->is_wanted = 1;
	else if (can_wait)
		return wait_for_buffer(x, own, c);
	return SHIM_LEFT;
}

/* Writes the data of a message's first command from its buffer, if it is not written yet. */
static void copy_first(struct shim_executor *x)
{
	uint32_t n = x->first;

	x->first = NO_BUFFER;
	if (n != NO_BUFFER)
		write_copy(x, n, x->message + SHIM_COMMAND);
}

/* Writes the data of a message's first command from there. Returns whether the message is kept for that. */
static int keep_message(struct shim_executor *x, uint64_t id)
{
	uint8_t *data = x->message + SHIM_COMMAND;
	const struct shim_command *c;
	uint32_t n = x->first;

	if (n == NO_BUFFER)
		return 0;
	c = &x->commands[n];
	if (!shim_may_write(&x->volume, c) || shim_crc32c(data, c->length) != c->crc ||
	    shim_ring_prepare(x->ring, 1, SHIM_RECEIVES, data, c->length, c->offset, n)) {
		copy_first(x);
		return 0;
	}
	x->kept[n] = id;
	x->nr_kept++;
	x->storing++;
	return 1;
}

static int run_later(struct shim_out *out, const struct shim_command *c, const uint8_t *data)
{
	struct shim_executor *x = executor_of(out);
	int outcome = begin_later(x, c, data);

	if (outcome == SHIM_LEFT)
		copy_first(x);	/* what is left to Go moves to the front of the message */
	return outcome;
}

/* Begins the commands that wait for a buffer, those for large ones first. */
static void begin_waiting(struct shim_executor *x)
{
	int class = SHIM_CLASSES - 1;
	const struct shim_command *c;
	struct shim_class *own;
	uint32_t n;

	for (; class >= 0; class--) {
		own = &x->classes[class];
		while (own->nr_waiting && !x->error) {
			n = find_buffer(x, class);
			if (n == NO_BUFFER)
				break;
			c = &own->waiting[own->first_waiting];
			own->first_waiting = (own->first_waiting + 1) % x->volume.depth;
			own->nr_waiting--;
			fail(x, -begin(x, n, c, NULL));
		}
	}
}

/* Starts what is prepared, and answers what has ended. Returns how many that were. */
static int store(struct shim_executor *x)
{
	int32_t result;
	uint32_t n;
	int ended = 0;

	if (!x->storing)
		return 0;
	fail(x, shim_ring_submit(x->ring));
	while (!x->error && shim_ring_take(x->ring, &n, &result)) {
		ended++;
		x->storing--;
		if (result == (int32_t)x->commands[n].length) {
			release_message(x, n);
			answer(x, n);
		} else {
			give(x, n);
		}
	}
	return ended;
}

void shim_executor_settle(struct shim_executor *x)
{
	int32_t result;
	uint32_t n;

	while (x->ring && shim_ring_wait(x->ring, &n, &result, x->storing))
		x->storing--;
	x->storing = 0;
}

void shim_executor_lend(struct shim_executor *x, int class, uint8_t *buffers, uint32_t lkey)
{
	x->classes[class].buffers = buffers;
	x->classes[class].lkey = lkey;
	if (x->ring)
		shim_ring_register(x->ring, class, buffers, shim_class_memory(class));
}

/*
 * Executes a message. The data of its first command, if that is an inline WRITE, is written to the file from there at
 * the end, unless Go gets something of it. Returns whether something of it is left to Go. Nothing is executed after a message that is
 * left untouched, until Go has marked its tags.
 */
static int run_message(struct shim_executor *x, struct shim_wc *wc, int *untouched)
{
	int64_t left;
	int error, taken;

	__atomic_store_n(&x->received, 1, __ATOMIC_RELAXED);
	if (!wc->byte_len || *untouched)
		return 1;
	x->message = message_of(x, wc->wr_id);
	x->first = NO_BUFFER;
	left = shim_run_commands(&x->volume, x->message, wc->byte_len, &x->out, &taken);
	*untouched = !taken;
	if (left > 0) {
		wc->byte_len = left | (taken ? SHIM_TAKEN : 0);
		return 1;
	}
	if (!left && keep_message(x, wc->wr_id))
		return 0;
	error = left < 0 ? -left : post_receive(x, wc->wr_id);
	if (!error)
		return 0;
	fail(x, error);
	wc->status = IBV_WC_GENERAL_ERR;
	return 1;
}

/* Returns whether a completion is left to Go. */
static int take(struct shim_executor *x, struct shim_wc *wc, int *untouched)
{
	uint32_t kind = wc->wr_id >> 32;

	if (wc->status != IBV_WC_SUCCESS)
		x->is_flushed = 1;
	if (wc->status != IBV_WC_SUCCESS || x->error)
		return 1;
	if (kind == SHIM_SIGNALLED || kind == SHIM_FETCH || kind == SHIM_WRITTEN) {
		shim_executor_completed(x, wc->wr_id);
		if (kind == SHIM_FETCH)
			write_buffer(x, wc->wr_id);
		answer_waiting(x);	/* before what comes */
		return 0;
	}
	if (kind == x->receive_kind && wc->opcode == IBV_WC_RECV && wc->byte_len <= x->volume.max_message)
		return run_message(x, wc, untouched);
	return 1;
}

/* Takes completions, and moves those for Go to the front. Returns their number. */
static int take_all(struct shim_executor *x, int got)
{
	struct shim_wc *wc = x->queue->wc;
	int i, left = 0, untouched = 0;

	for (i = 0; i < got; i++)
		if (take(x, &wc[i], &untouched))
			wc[left++] = wc[i];
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
	struct ibv_send_wr wr = {	/* empty: the client's device acknowledges it */
		.wr_id = (uint64_t)SHIM_SIGNALLED << 32 | (x->head - 1),
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.sg_list = &sge,
		.num_sge = 1,
	};
	int error;

	if (!x->quiet)
		return 0;
	error = post(x, &wr, 1);
	if (!error)
		x->quiet = x->quiet_data = 0;
	return error;
}

/* Waits for a completion, for the store, or to be woken. Returns 0 or a negative errno. */
static int wait_for_any(struct shim_executor *x)
{
	struct pollfd files[] = {
		{ .fd = x->wake_fd, .events = POLLIN },
		{ .fd = x->queue->completions.channel->fd, .events = POLLIN },
		{ .fd = x->storing ? shim_ring_fd(x->ring) : -1, .events = POLLIN },
	};
	sigset_t all;

	sigfillset(&all);	/* the Go runtime's signals must not end the wait */
	return ppoll(files, 3, NULL, &all) < 0 ? -errno : 0;
}

/* Handles what there is, or waits. Returns the completions for Go, or a negative errno. */
static int turn(struct shim_executor *x)
{
	int got = shim_next((uintptr_t)x->queue), left = 0, ended;

	if (got > 0)
		left = take_all(x, got);
	else if (got != -EAGAIN)
		return got;
	begin_waiting(x);
	ended = store(x);
	if (ended)
		begin_waiting(x);	/* the next turn starts it */
	fail(x, post_message(x, NULL, 0));
	if (got != -EAGAIN || ended || x->nr_given || x->error)
		return left;
	return wait_for_any(x);
}

int shim_execute(struct shim_executor *x, uintptr_t queue, const uint64_t *size, const uint32_t *stable,
		 struct shim_counts *counts)
{
	int got;

	x->queue = (struct shim_queue *)queue;
	x->volume.size = size;
	x->volume.stable = stable;
	x->volume.counts = counts;
	x->out.next = next_message;
	x->out.later = run_later;
	while (x->nr_given)
		free_buffer(x, x->given[--x->nr_given].buffer);
	do
		got = was_woken(x) ? WOKEN : turn(x);
	while (!got && !x->error && !x->nr_given && !x->wants);
	x->volume.size = NULL;
	x->volume.stable = NULL;
	x->volume.counts = NULL;
	return got == WOKEN ? 0 : got;
}
