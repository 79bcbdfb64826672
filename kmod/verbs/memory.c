// SPDX-License-Identifier: GPL-2.0
/* The memory of a test: how much, and its registration. */
#include <linux/mm.h>
#include <linux/sizes.h>
#include <linux/slab.h>

#include "lib/log.h"
#include "verbs/verbs.h"

/*
 * Bytes of a memory region at most, unless one slot is larger. A sink is one region, and so is a
 * source: with VALIDATE that bounds the messages in flight, see krping_verbs_in_flight().
 */
#define REGION_BYTES	SZ_16M

/* All tests together take at most this part of the host's memory. */
#define MEMORY_PART	4

/* What they take: the sum of @charged. */
static atomic64_t all_charged;

/* Slots of @stride bytes that one memory region holds, at most @wanted. */
static u32 slots_of(const struct krping_verbs *v, u32 stride, u32 wanted)
{
	u64 bytes = (u64)krping_dev_max_reg_pages(v->control.id->device) * PAGE_SIZE;

	bytes = min_t(u64, bytes, REGION_BYTES);
	return clamp_t(u64, div_u64(bytes, stride), 1, wanted);
}

static void plan_ring(const struct krping_verbs *v, struct krping_verbs_ring *ring, u32 nr)
{
	const struct krping_options *t = &v->test;

	ring->nr = nr;
	ring->nr_slots = t->validate ? nr : 1;
	ring->len = t->size + (t->qp_type == KRPING_VERBS_UD ? KRPING_VERBS_GRH_LEN : 0);
	ring->stride = KRPING_VERBS_SLOT(ring->len);
	ring->slots_each = slots_of(v, ring->stride, ring->nr_slots);
}

/* The initiator's part of a queue pair. */
static void plan_source(const struct krping_verbs *v, struct krping_verbs_queue *q)
{
	const struct krping_options *t = &v->test;
	u32 stride = KRPING_VERBS_SLOT(t->size);

	bool lat = krping_verbs_is_lat(v), answered = lat && !krping_verbs_is_read(t);

	q->depth = lat ? KRPING_VERBS_LAT_DEPTH : t->txdepth;
	q->nr_source = t->validate || lat ? slots_of(v, stride, q->depth) : 1;
	if (t->validate || lat)
		q->depth = min(q->depth, q->nr_source);
	q->signal = min(answered ? KRPING_VERBS_LAT_SIGNAL : t->signal, q->depth);
	if (t->rate / t->qps < 10 * q->signal && t->rate)
		q->signal = 1;	/* a test ends with a signalled message: not seconds late */
	if (answered && !krping_verbs_is_client(v) && !krping_verbs_is_reliable(t))
		q->signal = 1;	/* a lost message has no answer: its signal would be missing */
	if (t->validate && !lat && !krping_verbs_is_read(t) && krping_conn_is_iwarp(&v->control))
		q->signal = 1;	/* siw may send unsignalled data after it was filled again */
	q->end = t->count ?: U64_MAX;
}

/* The target's part: READ has one slot more, so that a message never follows itself in a slot. */
static void plan_sink(const struct krping_verbs *v, struct krping_verbs_queue *q)
{
	const struct krping_options *t = &v->test;
	u32 stride = KRPING_VERBS_SLOT(t->size);

	if (t->verb == KRPING_VERB_SEND)
		q->nr_sink = 0;
	else if (!t->validate || krping_verbs_is_lat(v) || krping_verbs_is_atomic(t))
		q->nr_sink = 1;
	else
		q->nr_sink = slots_of(v, stride, t->txdepth + (t->verb == KRPING_VERB_READ));
	if (krping_verbs_takes_receive(t) && !t->srq)
		plan_ring(v, &q->ring, t->rxdepth);
}

static u64 region_bytes(u32 slots, u32 stride)
{
	return PAGE_ALIGN((u64)slots * stride);
}

static u64 ring_bytes(const struct krping_verbs *v, const struct krping_verbs_ring *ring)
{
	u64 recvs = (u64)ring->nr * sizeof(*ring->recvs);

	if (!ring->nr || v->test.verb != KRPING_VERB_SEND)
		return recvs;
	return recvs + DIV_ROUND_UP(ring->nr_slots, ring->slots_each) *
		       region_bytes(ring->slots_each, ring->stride);
}

static u64 queue_bytes(const struct krping_verbs *v, const struct krping_verbs_queue *q)
{
	u32 stride = KRPING_VERBS_SLOT(v->test.size);

	return region_bytes(q->nr_source, stride) + region_bytes(q->nr_sink, stride) +
	       ring_bytes(v, &q->ring) +
	       krping_work_bytes(krping_verbs_send_wr(q), v->test.inline_len,
				 krping_verbs_recv_wr(q));
}

/* Return: 0, or -ENOMEM if that is too much for this host. */
static int charge(struct krping_verbs *v, u64 bytes)
{
	u64 most = div_u64((u64)totalram_pages() * PAGE_SIZE, MEMORY_PART);
	s64 others = atomic64_read(&all_charged);

	do {
		if (bytes > most || others > most - bytes) {
			krping_err_ratelimited(v->thread.log_prefix,
					       "the test needs %llu bytes of memory, other tests have %llu, all may have %llu: use a smaller size, txdepth, rxdepth or qps",
					       bytes, others, most);
			return -ENOMEM;
		}
	} while (!atomic64_try_cmpxchg(&all_charged, &others, others + bytes));
	v->charged = bytes;
	return 0;
}

/**
 * krping_verbs_plan - decide how many slots each queue pair has
 * @v:		with queues and a device
 *
 * Return: 0, or -ENOMEM if that is too much for this host. krping_verbs_memory_free() undoes it.
 */
int krping_verbs_plan(struct krping_verbs *v)
{
	u32 i;

	if (v->test.srq && v->is_target)
		plan_ring(v, &v->srq_ring, v->test.rxdepth);
	for (i = 0; i < v->nr_queues; i++) {
		if (v->is_initiator)
			plan_source(v, &v->queues[i]);
		if (v->is_target)
			plan_sink(v, &v->queues[i]);
	}
	return charge(v, v->nr_queues * queue_bytes(v, &v->queues[0]) +
		      ring_bytes(v, &v->srq_ring) + krping_work_bytes(0, 0, v->srq_ring.nr));
}

/* ---- regions ---- */

static void krping_verbs_reg_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_verbs *v = container_of((struct krping_conn *)cq->cq_context,
					      struct krping_verbs, control);

	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(&v->control, wc, "memory registration");
	else
		v->regs_pending--;
}

static bool is_registered(struct krping_verbs *v)
{
	return !v->regs_pending;
}

/* Nothing else is in flight on the control connection: see krping_region_prepare(). */
static int region_alloc(struct krping_verbs *v, struct krping_region *region, u32 slots,
			u32 stride, int access)
{
	struct ib_send_wr *wr;
	int ret;

	ret = krping_region_alloc(&v->control, region, slots * stride, KRPING_REGION_MR,
				  krping_verbs_reg_done);
	if (ret)
		return ret;
	wr = krping_region_prepare(region, access);
	if (!wr) {
		krping_err_ratelimited(v->thread.log_prefix, "%s cannot map %u bytes",
				       v->control.id->device->name, region->size);
		return -EIO;
	}
	krping_region_for_device(&v->control, region);
	v->regs_pending++;
	ret = krping_conn_post_send(&v->control, wr);
	if (ret)
		return krping_verbs_post_failed(v, "a memory registration", ret);
	return krping_verbs_wait(v, is_registered);
}

static int ring_alloc(struct krping_verbs *v, struct krping_verbs_ring *ring)
{
	u32 nr = DIV_ROUND_UP(ring->nr_slots, ring->slots_each), i;
	int ret;

	ring->conn = &v->control;
	ring->recvs = kvcalloc(ring->nr, sizeof(*ring->recvs), GFP_KERNEL);
	if (!ring->recvs)
		return -ENOMEM;
	for (i = 0; i < ring->nr; i++) {
		ring->recvs[i].cqe.done = krping_verbs_rx_done;
		ring->recvs[i].ring = ring;
		ring->recvs[i].index = i;
	}
	if (v->test.verb != KRPING_VERB_SEND)
		return 0;
	ring->regions = kvcalloc(nr, sizeof(*ring->regions), GFP_KERNEL);
	if (!ring->regions)
		return -ENOMEM;
	for (i = 0; i < nr; i++) {
		ring->nr_regions = i + 1;
		ret = region_alloc(v, &ring->regions[i], ring->slots_each, ring->stride,
				   IB_ACCESS_LOCAL_WRITE);
		if (ret)
			return ret;
	}
	return 0;
}

static void ring_free(struct krping_verbs *v, struct krping_verbs_ring *ring)
{
	u32 i;

	for (i = 0; i < ring->nr_regions; i++)
		krping_region_free(&v->control, &ring->regions[i]);
	kvfree(ring->regions);
	kvfree(ring->recvs);
}

static int sink_access(const struct krping_verbs *v)
{
	if (krping_verbs_is_atomic(&v->test))
		return IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_ATOMIC;
	if (v->test.verb == KRPING_VERB_READ)
		return IB_ACCESS_REMOTE_READ;
	return IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE;
}

/* What the peer finds in the memory: see PROTOCOL.md. */
static void fill_sink(struct krping_verbs *v, struct krping_verbs_queue *q)
{
	u32 stride = KRPING_VERBS_SLOT(v->test.size), i;

	if (krping_verbs_is_write(&v->test))
		memset(q->sink.vaddr, 0xff, q->sink.size);
	q->last_byte = 0xff;
	if (v->test.verb == KRPING_VERB_READ && v->test.validate)
		for (i = 0; i < q->nr_sink; i++)
			krping_message_fill(q->sink.vaddr + i * stride, v->test.size, q->rx_tag,
					    i);
}

/* Over iWARP READs go only into memory that is remotely writable. */
static int source_access(const struct krping_verbs *v)
{
	if (v->test.verb == KRPING_VERB_READ && krping_conn_is_iwarp(&v->control))
		return IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE;
	return IB_ACCESS_LOCAL_WRITE;
}

static int queue_alloc(struct krping_verbs *v, struct krping_verbs_queue *q)
{
	u32 stride = KRPING_VERBS_SLOT(v->test.size);
	int ret = 0;

	if (q->nr_source)
		ret = region_alloc(v, &q->source, q->nr_source, stride, source_access(v));
	if (!ret && q->nr_sink) {
		ret = region_alloc(v, &q->sink, q->nr_sink, stride, sink_access(v));
		if (!ret) {
			fill_sink(v, q);
			krping_region_for_device(&v->control, &q->sink);
		}
	}
	if (!ret && q->ring.nr)
		ret = ring_alloc(v, &q->ring);
	return ret;
}

/**
 * krping_verbs_memory_alloc - allocate and register what krping_verbs_plan() has planned
 * @v:		with a control connection that is established, and with nothing in flight on it
 *
 * Return: 0 or a negative errno: krping_verbs_memory_free() frees what was allocated.
 */
int krping_verbs_memory_alloc(struct krping_verbs *v)
{
	int ret = 0;
	u32 i;

	if (v->srq_ring.nr)
		ret = ring_alloc(v, &v->srq_ring);
	for (i = 0; i < v->nr_queues && !ret; i++)
		ret = queue_alloc(v, &v->queues[i]);
	return ret;
}

/* All queue pairs, that of the control connection too, are destroyed. */
void krping_verbs_memory_free(struct krping_verbs *v)
{
	u32 i;

	for (i = 0; i < v->nr_queues; i++) {
		krping_region_free(&v->control, &v->queues[i].source);
		krping_region_free(&v->control, &v->queues[i].sink);
		ring_free(v, &v->queues[i].ring);
	}
	ring_free(v, &v->srq_ring);
	atomic64_sub(v->charged, &all_charged);
	v->charged = 0;
}
