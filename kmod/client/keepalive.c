// SPDX-License-Identifier: GPL-2.0
/*
 * A target that is silent is asked for a sign of life (PROTOCOL.md section 2.3, KEEP_ALIVE), one
 * that stays silent is lost.
 */
#include "client/client.h"
#include "lib/fault.h"
#include "lib/log.h"

#define LOOKS	5	/* in the time of a heartbeat */

/*
 * The disk's own commands may be held up by the store for long; this one is not. With the
 * first look after the silence begins it is asked, and with the one that completes the
 * time of a heartbeat at the latest the target is lost.
 */
unsigned long krping_look_interval(const struct krping_session *s)
{
	return s->opt.heartbeat ? s->opt.heartbeat * HZ / LOOKS : HZ;
}

static void send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_queue *q = container_of(wc->wr_cqe, struct krping_queue, alive.buf.cqe);

	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(&q->conn, wc, "SEND");
	spin_lock_bh(&q->lock);
	q->alive.sending = false;
	spin_unlock_bh(&q->lock);
}

int krping_alive_alloc(struct krping_queue *q)
{
	struct krping_cmd cmd = {
		.op = KRPING_OP_KEEP_ALIVE,
		.flags = KRPING_CMD_INLINE,
		.tag = cpu_to_be16(KRPING_TAG_KEEP_ALIVE),
	};
	int ret;

	ret = krping_buf_alloc(&q->conn, &q->alive.buf, sizeof(cmd), DMA_TO_DEVICE);
	if (ret)
		return ret;
	memcpy(q->alive.buf.data, &cmd, sizeof(cmd));
	q->alive.buf.cqe.done = send_done;
	q->alive.sending = false;
	q->alive.unanswered = false;
	q->heard = jiffies;
	return 0;
}

/* Twin of krping_alive_alloc(); drained, or never used. */
void krping_alive_free(struct krping_queue *q)
{
	krping_buf_free(&q->conn, &q->alive.buf);
}

/* Called with q->lock held, on a queue that is connected. */
static int ask(struct krping_queue *q)
{
	struct krping_alive *alive = &q->alive;
	struct ib_sge sge = krping_buf_sge(&q->conn, &alive->buf, alive->buf.size);
	struct ib_send_wr send = {
		.wr_cqe = &alive->buf.cqe,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
		.sg_list = &sge,
		.num_sge = 1,
	};
	int ret;

	ib_dma_sync_single_for_device(q->conn.id->device, alive->buf.dma, alive->buf.size,
				      DMA_TO_DEVICE);
	alive->asked = jiffies;
	if (krping_fault(KRPING_FAULT_KEEPALIVE_LOST, q->session->opt.block)) {
		alive->unanswered = true;
		return 0;
	}
	ret = ib_post_send(q->conn.qp, &send, NULL);
	if (ret)
		return ret;
	alive->sending = true;
	alive->unanswered = true;
	return 0;
}

static bool is_answered(struct krping_queue *q)
{
	return !READ_ONCE(q->alive.unanswered) || READ_ONCE(q->conn.state) == KRPING_CONN_CLOSED;
}

/**
 * krping_alive_check - does the target answer, or does it accept only?
 * @s:		all queues are connected, none is used yet
 * @timeout:	jiffies
 *
 * A network may carry the management of connections and nothing else.
 *
 * Return: 0, -ETIMEDOUT, -EINTR, or the error that closed a connection.
 */
int krping_alive_check(struct krping_session *s, unsigned long timeout)
{
	unsigned long until = jiffies + timeout;
	long left;
	u32 i;
	int ret = 0;

	for (i = 0; i < s->nr_queues && !ret; i++) {
		struct krping_queue *q = &s->queues[i];

		spin_lock_bh(&q->lock);
		ret = READ_ONCE(q->conn.state) == KRPING_CONN_LIVE ? ask(q) :
								     -ECONNRESET;
		spin_unlock_bh(&q->lock);
	}
	for (i = 0; i < s->nr_queues && !ret; i++) {
		struct krping_queue *q = &s->queues[i];

		left = max_t(long, until - jiffies, 1);
		left = wait_event_interruptible_timeout(q->conn.wait, is_answered(q), left);
		if (left < 0)
			return -EINTR;
		ret = left ? krping_conn_error(&q->conn) : -ETIMEDOUT;
		if (!left && !q->conn.quiet)
			krping_err_ratelimited(s->log_prefix,
					       "the target accepts, but does not answer on queue %u",
					       i);
	}
	return ret;
}

/*
 * An idle session is asked over its first queue. A queue with commands in flight is judged for
 * itself: a queue pair may hang while others live.
 */
static void look_at(struct krping_queue *q)
{
	struct krping_session *s = q->session;
	unsigned long heard = READ_ONCE(q->heard), interval = krping_look_interval(s), silent;
	struct krping_alive *alive = &q->alive;
	int error = 0;

	silent = jiffies - heard;	/* in this order: else it may be less than 0 */
	if (silent < interval)
		return;
	spin_lock_bh(&q->lock);
	/* The session, too: a queue that is being connected has no message yet. */
	if (READ_ONCE(s->state) != KRPING_SESSION_LIVE ||
	    READ_ONCE(q->conn.state) != KRPING_CONN_LIVE || (q->index && !q->nr_inflight))
		goto unlock;
	if (!alive->sending && !alive->unanswered)
		error = ask(q);
	else if (silent >= (LOOKS - 1) * interval &&
		 time_after_eq(jiffies, alive->asked + (LOOKS - 2) * interval))
		error = -ETIMEDOUT;
unlock:
	spin_unlock_bh(&q->lock);
	if (!error)
		return;
	krping_warn_ratelimited(s->log_prefix, "no sign of life from the target on queue %u for %u ms",
				q->index, jiffies_to_msecs(silent));
	krping_conn_fail(&q->conn, error);
}

void krping_look_after(struct krping_session *s)
{
	u32 i;

	for (i = 0; s->opt.heartbeat && i < s->nr_queues; i++)
		look_at(&s->queues[i]);
}

/**
 * krping_alive_answer - the response to KEEP_ALIVE
 * @q:		queue that it came over
 * @status:	enum krping_status
 * @data:	inline data or NULL
 * @len:	its bytes
 *
 * Return: 0 or -EPROTO.
 */
int krping_alive_answer(struct krping_queue *q, u8 status, const void *data, u32 len)
{
	struct krping_session *s = q->session;
	bool asked;
	__be64 answer;
	u64 capacity;

	spin_lock_bh(&q->lock);
	asked = q->alive.unanswered;
	spin_unlock_bh(&q->lock);
	if (!asked)
		return krping_queue_violation(q, "a sign of life that was not asked for", 0);
	if (status != KRPING_ST_OK || !data || len != sizeof(__be64))
		return krping_queue_violation(q, "a sign of life without a capacity", len);
	memcpy(&answer, data, sizeof(answer));
	capacity = be64_to_cpu(answer);
	if (capacity < READ_ONCE(s->grant.capacity) || capacity % s->grant.block_size ||
	    capacity > (u64)LLONG_MAX)
		return krping_queue_violation(q, "the volume has now a capacity of", capacity);
	WRITE_ONCE(s->capacity, capacity);
	spin_lock_bh(&q->lock);
	WRITE_ONCE(q->alive.unanswered, false);
	spin_unlock_bh(&q->lock);
	wake_up(&q->conn.wait);
	return 0;
}
