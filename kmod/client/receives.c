// SPDX-License-Identifier: GPL-2.0
/* The receives of a queue: few at first, as they take most of its memory; more when needed. */
#include <linux/mm.h>

#include "client/internal.h"

#define FIRST_RX	16	/* commands in flight that they are enough for */

/* Return: the receives of a queue of @depth commands at first. */
u32 krping_receives_first(u32 depth)
{
	return min_t(u32, depth, FIRST_RX) + KRPING_MORE_RX;
}

/* Bytes of memory that must stay free: the kernel would kill processes for them. */
u64 krping_memory_reserve(void)
{
	return (u64)(totalram_pages() / 16) << PAGE_SHIFT;
}

u64 krping_memory_available(void)
{
	return (u64)max(si_mem_available(), 0L) << PAGE_SHIFT;
}

/* Return: whether the receive queue has room for the answer to one more command in flight. */
static bool has_receive(const struct krping_queue *q)
{
	return READ_ONCE(q->nr_inflight) + 1 + KRPING_MORE_RX <= READ_ONCE(q->nr_rx);
}

#define RETRY_DELAY	(HZ / 10)	/* when there was no memory for receives */

/**
 * krping_receives_suffice - may one more command be in flight?
 * @q:		its queue, which no thread disconnects; what it says is final under q->lock only
 *
 * Return: whether there is a receive for its answer. If not, one will be there soon, or when
 * another command has been answered.
 */
bool krping_receives_suffice(struct krping_queue *q)
{
	if (has_receive(q))
		return true;
	queue_delayed_work(krping_session_wq, &q->rx_work,
			   READ_ONCE(q->rx_short) ? RETRY_DELAY : 0);
	return false;
}

/* Posts one more receive. Return: 0, or a negative errno with nothing allocated. */
static int add_receive(struct krping_queue *q)
{
	struct krping_buf *buf = &q->rx[q->nr_rx];
	int ret;

	buf->cqe.done = krping_recv_done;
	ret = krping_buf_try_alloc(&q->conn, buf, q->session->buf_size, DMA_FROM_DEVICE);
	if (!ret) {
		spin_lock_bh(&q->lock);
		ret = -ECONNRESET;
		if (READ_ONCE(q->conn.state) == KRPING_CONN_LIVE)
			ret = krping_buf_post_recv(&q->conn, buf);
		if (!ret)
			WRITE_ONCE(q->nr_rx, q->nr_rx + 1);
		spin_unlock_bh(&q->lock);
	}
	if (ret)
		krping_buf_free(&q->conn, buf);
	return ret;
}

/*
 * Doubles the receives. Without memory for that, requests wait until others are answered. Does not
 * wait for memory: it may become free only when writes to this disk have ended, which recovery sees
 * to, and recovery waits for this work.
 */
static void add_receives(struct work_struct *work)
{
	struct krping_queue *q = container_of(to_delayed_work(work), struct krping_queue, rx_work);
	u32 had = q->nr_rx, want = min(2 * (had - KRPING_MORE_RX), q->nr_slots) + KRPING_MORE_RX;
	u64 need = krping_memory_reserve() + (u64)(want - had) * q->session->buf_size;
	bool is_short = false;

	if (!has_receive(q)) {		/* else it was queued while it ran */
		is_short = krping_memory_available() < need;
		while (!is_short && q->nr_rx < want)
			is_short = add_receive(q);
	}
	WRITE_ONCE(q->rx_short, is_short);
	blk_mq_run_hw_queues(q->session->disk->queue, true);
}

/* Called once, for a new session. */
void krping_receives_init(struct krping_queue *q)
{
	INIT_DELAYED_WORK(&q->rx_work, add_receives);
}
