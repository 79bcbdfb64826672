// SPDX-License-Identifier: GPL-2.0
/* Slots and messages of a queue: allocated, kept, freed; requests in flight cancelled. */
#include <linux/slab.h>

#include "client/request.h"
#include "lib/fault.h"
#include "lib/log.h"

static u32 nr_messages(u32 depth)
{
	return min_t(u32, depth, KRPING_FEW_MESSAGES);
}

/* Return: the bytes of memory that a queue takes at least. The device takes more. */
u64 krping_queue_bytes(const struct krping_session *s)
{
	u32 depth = s->grant.depth;
	u64 messages = nr_messages(depth) + krping_receives_first(depth);
	/* A segment has an entry in the region's list of pages. */
	u64 slot = sizeof(struct krping_slot) + s->max_segments * sizeof(u64);

	return messages * (PAGE_SIZE << get_order(s->buf_size)) + depth * slot;
}

/* Allocated once and kept, as the depth never changes. */
static int make_slots(struct krping_queue *q)
{
	struct krping_session *s = q->session;
	u32 i;

	if (!q->slots) {
		q->slots = kvcalloc(s->grant.depth, sizeof(*q->slots), GFP_KERNEL);
		if (!q->slots)
			return -ENOMEM;
		q->nr_slots = s->grant.depth;
	}
	for (i = 0; i < q->nr_slots; i++)
		q->slots[i].inv_cqe.done = krping_recv_inv_done;
	return 0;
}

/* Memory regions belong to the protection domain of one connection. */
static int alloc_regions(struct krping_queue *q)
{
	u32 i;

	for (i = 0; i < q->nr_slots; i++) {
		struct ib_mr *mr = ib_alloc_mr(q->conn.pd, IB_MR_TYPE_MEM_REG,
					       q->session->max_segments);

		if (IS_ERR(mr))
			return PTR_ERR(mr);
		q->slots[i].mr = mr;
	}
	return 0;
}

static void free_regions(struct krping_queue *q)
{
	u32 i;

	for (i = 0; i < q->nr_slots; i++) {
		if (q->slots[i].mr)
			ib_dereg_mr(q->slots[i].mr);
		q->slots[i].mr = NULL;
	}
}

/* Allocated once and kept. */
static int make_messages(struct krping_queue *q)
{
	if (!q->tx) {
		q->nr_tx = nr_messages(q->nr_slots);
		q->tx = kvcalloc(q->nr_tx, sizeof(*q->tx), GFP_KERNEL);
	}
	if (!q->rx) {
		q->nr_rx = krping_receives_first(q->nr_slots);
		q->rx = kvcalloc(q->nr_slots + KRPING_MORE_RX, sizeof(*q->rx), GFP_KERNEL);
	}
	return q->tx && q->rx ? 0 : -ENOMEM;
}

static int alloc_tx(struct krping_queue *q)
{
	u32 i;
	int ret;

	for (i = 0; i < q->nr_tx; i++) {
		struct krping_tx *tx = &q->tx[i];

		tx->queue = q;
		tx->buf.cqe.done = krping_send_done;
		ret = krping_buf_alloc(&q->conn, &tx->buf, q->session->buf_size, DMA_TO_DEVICE);
		if (ret)
			return ret;
		list_add_tail(&tx->entry, &q->tx_free);
		q->nr_free++;
	}
	return 0;
}

static void unmap_messages(struct krping_queue *q)
{
	u32 i;

	for (i = 0; q->rx && i < q->nr_rx; i++)
		krping_buf_unmap(&q->conn, &q->rx[i]);
	for (i = 0; q->tx && i < q->nr_tx; i++)
		krping_buf_unmap(&q->conn, &q->tx[i].buf);
	krping_keepalive_unmap(q);
	INIT_LIST_HEAD(&q->tx_free);
	q->nr_free = 0;
	INIT_LIST_HEAD(&q->unsignalled);
	q->nr_unsignalled = 0;
	q->refused = false;
	q->rx_short = false;
	INIT_LIST_HEAD(&q->early);
	q->invalidating = false;
	q->open = NULL;
	q->nr_sending = 0;
	q->nr_regs = 0;
}

/**
 * krping_queue_alloc - allocate slots and messages of a connected queue, post receives
 * @q:		connected, with a grant
 *
 * All but memory regions is kept for the next connection: a reconnect may happen when memory is
 * short, even as part of writeback.
 *
 * Return: 0 or a negative errno; then the caller drains and calls krping_queue_free().
 */
int krping_queue_alloc(struct krping_queue *q)
{
	int ret;

	if (krping_fault(KRPING_FAULT_ALLOC_FAIL, q->session->opt.block))
		return -ENOMEM;
	q->reg_cqe.done = krping_send_reg_done;
	ret = make_slots(q) ?: alloc_regions(q);
	if (!ret)
		ret = make_messages(q);
	if (!ret)
		ret = alloc_tx(q);
	if (!ret)
		ret = krping_keepalive_alloc(q);
	if (!ret)
		ret = krping_bufs_alloc_recv(&q->conn, q->rx, q->nr_rx,
					     q->session->buf_size, krping_recv_done);
	return ret;
}

/*
 * Undoes krping_queue_alloc(), but keeps slots and messages. The queue pair is destroyed and all
 * requests are cancelled, or it was never used. Idempotent.
 */
void krping_queue_free(struct krping_queue *q)
{
	unmap_messages(q);
	free_regions(q);
}

/* Called when the queue will not be connected again. Idempotent. */
void krping_queue_free_kept(struct krping_queue *q)
{
	u32 i;

	kvfree(q->slots);
	q->slots = NULL;
	q->nr_slots = 0;
	krping_keepalive_free(q);
	for (i = 0; q->rx && i < q->nr_rx; i++)
		krping_buf_free(&q->conn, &q->rx[i]);
	for (i = 0; q->tx && i < q->nr_tx; i++)
		krping_buf_free(&q->conn, &q->tx[i].buf);
	kvfree(q->rx);
	kvfree(q->tx);
	q->rx = NULL;
	q->tx = NULL;
}

/*
 * The time that a request has begins when it is posted for the first time: before that it may have
 * waited for room. Called with q->lock held, when its message is posted.
 */
void krping_slot_start_time(struct krping_queue *q, const struct krping_slot *slot)
{
	struct krping_request *req = krping_req(slot->rq);

	if (req->posted)
		return;
	req->posted = true;
	req->expires = slot->tx->posted_at + q->session->opt.timeout * HZ;
}

/*
 * Requeues a request of a lost connection if it has time left and has not caused the loss, or if
 * its message was not @posted.
 */
static void cancel_request(struct krping_queue *q, struct krping_slot *slot, struct request *rq,
			   bool posted, int error)
{
	struct krping_request *req = krping_req(rq);

	krping_suspect_back(q->session, rq);
	krping_rq_unmap(q, slot, rq);
	if (krping_session_is_stacked(q->session)) {
		req->error = -ENOTCONN;
		blk_mq_complete_request(rq);
		return;
	}
	if (krping_rq_is_digest(rq) ||
	    (posted && (time_after(jiffies, req->expires) || krping_suspect_lost(q, rq, error)))) {
		krping_count(q->session->stats, KRPING_ERRORS, 1);
		req->error = -EIO;
		blk_mq_complete_request(rq);
		return;
	}
	krping_count(q->session->stats, KRPING_RETRIES, 1);
	blk_mq_requeue_request(rq, true);
}

/**
 * krping_queue_cancel - cancel all requests in flight, and complete those whose answer is held
 * @q:		its queue pair is drained and destroyed
 * @error:	why the connection was lost; 0 if the session closed it
 *
 * Idempotent.
 */
void krping_queue_cancel(struct krping_queue *q, int error)
{
	u32 i;

	for (i = 0; i < q->nr_slots; i++) {
		struct krping_slot *slot = &q->slots[i];
		struct krping_decoded_rsp answer;
		struct request *rq;
		bool answered, posted;

		spin_lock_bh(&q->lock);
		answered = slot->answered;
		posted = slot->tx != q->open;
		if (slot->rq && posted)
			krping_slot_start_time(q, slot);
		answer = slot->answer;
		rq = slot->rq ? krping_slot_take(q, slot) : NULL;
		spin_unlock_bh(&q->lock);
		if (rq && answered)
			krping_recv_accept(q, rq, &answer);
		else if (rq)
			cancel_request(q, slot, rq, posted, error);
	}
}
