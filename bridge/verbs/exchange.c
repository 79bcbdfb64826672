// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <string.h>

#include "exchange.h"

#define WAIT_NS 10000000	/* for a message, until the caller looks after other things */

#define KIND_SHIFT 56		/* the highest byte of an id says what it is of */

static uint8_t last_byte(uint64_t address)
{
	return __atomic_load_n((const uint8_t *)(uintptr_t)address, __ATOMIC_ACQUIRE);
}

static int post_message(struct shim_pairs *p, struct shim_exchange *e)
{
	int error;

	if (e->tx_last)
		__atomic_store_n((uint8_t *)(uintptr_t)e->tx_last, e->number, __ATOMIC_RELEASE);
	p->work[0] = e->work;
	if (++e->quiet >= e->signal || e->number + 1 == e->end) {
		p->work[0].flags |= IBV_SEND_SIGNALED;
		e->quiet = 0;
	}
	error = shim_post_works(p, 1);
	e->work.id++;
	e->work.imm++;
	if (e->work.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		e->work.compare_add++;
		e->work.swap++;
	}
	return error;
}

/* What a completion is. */
enum meaning {
	UNEXPECTED,
	PROGRESS,	/* a message of this side has left */
	ARRIVAL,	/* what the exchange waits for */
};

static enum meaning meaning_of(const struct shim_exchange *e, const struct shim_completion *c)
{
	if (c->status != IBV_WC_SUCCESS)
		return UNEXPECTED;
	if (c->id >> KIND_SHIFT == e->work.id >> KIND_SHIFT) {
		if (e->arrival != SHIM_FETCHED)
			return PROGRESS;
		return c->id + 1 == e->work.id ? ARRIVAL : UNEXPECTED;
	}
	if (e->arrival != SHIM_RECEIVED || c->opcode != e->opcode || c->length != e->length)
		return UNEXPECTED;
	if (e->source_qpn && c->source_qpn != e->source_qpn)
		return UNEXPECTED;
	if (e->opcode == IBV_WC_RECV_RDMA_WITH_IMM && c->imm != (uint32_t)e->number)
		return UNEXPECTED;
	if (e->rx_last && last_byte(e->rx_last) != (uint8_t)e->number)
		return UNEXPECTED;
	return ARRIVAL;
}

/*
 * Goes through the completions in p->done. Stops at one that is not expected, moves it and what follows to
 * the front, and returns how many those are. Returns 0 and sets arrived if the message has arrived.
 */
static int take(struct shim_pairs *p, struct shim_exchange *e, int got, int *arrived)
{
	int i, error;

	for (i = 0; i < got; i++) {
		enum meaning meaning = meaning_of(e, &p->done[i]);

		if (meaning == UNEXPECTED || (meaning == ARRIVAL && *arrived))
			break;
		e->polled++;
		if (meaning == PROGRESS)
			continue;
		*arrived = 1;
		if (e->arrival != SHIM_RECEIVED)
			continue;
		p->receive[0] = e->receive;
		p->receive[0].id = p->done[i].id;
		error = shim_post_receives(p, 1);
		if (error)
			return -error;
	}
	memmove(p->done, p->done + i, (got - i) * sizeof(p->done[0]));
	return got - i;
}

/* Watches memory. Completions are looked at once, for errors and to make room in the queue. */
static int await_write(struct shim_pairs *p, struct shim_exchange *e, int *arrived)
{
	uint8_t old = e->number - 1;
	int64_t end = shim_now_ns() + WAIT_NS;
	int got = shim_turn((uintptr_t)p, 0, 0, 0, 0);

	if (got > 0)
		got = take(p, e, got, arrived);
	if (got)
		return got;
	while (last_byte(e->rx_last) == old)
		if (shim_now_ns() >= end)
			return 0;
	*arrived = last_byte(e->rx_last) == (uint8_t)e->number;
	return 0;
}

/* Waits for a message. Without one it returns as shim_exchange() does. */
static int await_message(struct shim_pairs *p, struct shim_exchange *e, int *arrived)
{
	int got;

	*arrived = 0;
	if (e->arrival == SHIM_WRITTEN)
		return await_write(p, e, arrived);
	do {
		got = shim_turn((uintptr_t)p, 0, 0, WAIT_NS, e->busy);
		if (got <= 0)
			return got;
		got = take(p, e, got, arrived);
	} while (!got && !*arrived);
	return got;
}

static int may_go_on(const struct shim_pairs *p, const struct shim_exchange *e, int64_t now, int64_t end)
{
	return e->exchanged < SHIM_EXCHANGES && e->number < e->end && now < end &&
	       !__atomic_load_n(&p->woken, __ATOMIC_RELAXED);
}

static int ask(struct shim_pairs *p, struct shim_exchange *e)
{
	int64_t now = shim_now_ns(), end = now + e->limit_ns, then;
	int got = 0, arrived;

	while (!got && may_go_on(p, e, now, end)) {
		got = post_message(p, e);
		if (got)
			return -got;
		e->pending = 1;
		e->pending_ns = now;
		got = await_message(p, e, &arrived);
		if (!arrived)
			break;
		then = now;
		now = shim_now_ns();
		e->took_ns[e->exchanged++] = now - then;
		e->pending = 0;
		e->number++;
	}
	e->pending_ns = shim_now_ns() - e->pending_ns;
	return got;
}

static int answer(struct shim_pairs *p, struct shim_exchange *e)
{
	int64_t end = shim_now_ns() + e->limit_ns;
	int got = 0, arrived, error;

	while (!got && may_go_on(p, e, shim_now_ns(), end)) {
		got = await_message(p, e, &arrived);
		if (!arrived)
			break;
		error = post_message(p, e);
		if (error)
			return -error;
		e->exchanged++;
		e->number++;
	}
	return got;
}

int shim_exchange(uintptr_t pairs, struct shim_exchange *e)
{
	struct shim_pairs *p = (struct shim_pairs *)pairs;
	int got;

	e->exchanged = 0;
	e->pending = 0;
	e->polled = 0;
	got = e->server ? answer(p, e) : ask(p, e);
	if (__atomic_load_n(&p->woken, __ATOMIC_RELAXED))
		shim_forget_wakes(p);	/* the caller looks why */
	return got;
}
