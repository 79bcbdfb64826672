// SPDX-License-Identifier: GPL-2.0
/*
 * Asks a silent target whether it is still there (PROTOCOL.md section 2.3, KEEP_ALIVE). Other
 * commands may wait long for the target's store; this one does not.
 */
#include "client/internal.h"
#include "lib/fault.h"
#include "lib/log.h"

#define CHECKS	5	/* per heartbeat interval */

/*
 * Jiffies between two checks. The first check after silence begins sends a KEEP_ALIVE, and one
 * within the heartbeat interval finds the target lost if it stays silent.
 */
unsigned long krping_keepalive_interval(const struct krping_session *s)
{
	return s->opt.heartbeat ? s->opt.heartbeat * HZ / CHECKS : HZ;
}

#define TRUSTED	(2 * HZ)	/* a target that keeps its connections so long is there */

/* Has the target sent anything, or kept the connections for a while, since the session was live? */
bool krping_keepalive_target_answered(const struct krping_session *s)
{
	unsigned long since = READ_ONCE(s->live_since);
	u32 i;

	if (time_after(jiffies, since + TRUSTED))
		return true;
	for (i = 0; i < s->nr_queues; i++)
		if (time_after(READ_ONCE(s->queues[i].last_rx), since))
			return true;
	return false;
}

static void keepalive_send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_queue *q = container_of(wc->wr_cqe, struct krping_queue, keepalive.buf.cqe);

	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(&q->conn, wc, "SEND");
	spin_lock_bh(&q->lock);
	q->keepalive.sending = false;
	krping_early_next(q);
	spin_unlock_bh(&q->lock);
}

int krping_keepalive_alloc(struct krping_queue *q)
{
	struct krping_cmd cmd = {
		.op = KRPING_OP_KEEP_ALIVE,
		.flags = KRPING_CMD_INLINE,
		.tag = cpu_to_be16(KRPING_TAG_KEEP_ALIVE),
	};
	struct krping_keepalive *ka = &q->keepalive;
	int ret;

	ret = krping_buf_alloc(&q->conn, &ka->buf, sizeof(cmd), DMA_TO_DEVICE);
	if (ret)
		return ret;
	memcpy(ka->buf.data, &cmd, sizeof(cmd));
	ka->buf.cqe.done = keepalive_send_done;
	ka->sending = false;
	ka->unanswered = false;
	q->last_rx = jiffies;
	return 0;
}

/* The queue pair is drained or was never used; the memory is kept. */
void krping_keepalive_unmap(struct krping_queue *q)
{
	krping_buf_unmap(&q->conn, &q->keepalive.buf);
}

/* Undoes krping_keepalive_alloc(). */
void krping_keepalive_free(struct krping_queue *q)
{
	krping_buf_free(&q->conn, &q->keepalive.buf);
}

/* Called with q->lock held, on a connected queue. */
static int post_keepalive(struct krping_queue *q)
{
	struct krping_keepalive *ka = &q->keepalive;
	struct ib_sge sges[KRPING_BUF_SGES];
	struct ib_send_wr send = {
		.wr_cqe = &ka->buf.cqe,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
		.sg_list = sges,
		.num_sge = krping_buf_send_sges(&q->conn, &ka->buf, ka->buf.size, sges),
	};
	int ret;

	ka->sent_at = jiffies;
	if (krping_fault(KRPING_FAULT_KEEPALIVE_LOST, q->session->opt.block)) {
		ka->unanswered = true;
		return 0;
	}
	ret = ib_post_send(q->conn.qp, &send, NULL);
	if (ret)
		return ret;
	ka->sending = true;
	ka->unanswered = true;
	return 0;
}

/* The target has answered, or the connection is closed; @q->conn.wait is woken then. */
bool krping_keepalive_is_answered(const struct krping_queue *q)
{
	return !READ_ONCE(q->keepalive.unanswered) ||
	       READ_ONCE(q->conn.state) == KRPING_CONN_CLOSED;
}

/**
 * krping_keepalive_ask - ask the target whether it answers on a queue
 * @q:		connected, and not used yet
 *
 * Return: 0; or a negative errno, also if the connection is closed.
 */
int krping_keepalive_ask(struct krping_queue *q)
{
	int ret;

	spin_lock_bh(&q->lock);
	ret = READ_ONCE(q->conn.state) == KRPING_CONN_LIVE ? post_keepalive(q) : -ECONNRESET;
	spin_unlock_bh(&q->lock);
	return ret;
}

#define BYE_TIMEOUT	HZ

static void wait_answered(struct krping_queue *q, unsigned long until)
{
	wait_event_timeout(q->conn.wait, krping_keepalive_is_answered(q),
			   max_t(long, until - jiffies, 1));
}

/**
 * krping_keepalive_bye - tell the target that the session ends, so that others may write
 * @s:		no request will be sent, and its monitor is stopped
 *
 * If the target does not answer within BYE_TIMEOUT, it holds the volume for a while, as after a
 * loss.
 */
void krping_keepalive_bye(struct krping_session *s)
{
	unsigned long until = jiffies + BYE_TIMEOUT;
	struct krping_queue *q = &s->queues[0];
	struct krping_keepalive *ka = &q->keepalive;
	int ret = -EBUSY;

	if (s->grant.version == 1 || READ_ONCE(q->conn.state) != KRPING_CONN_LIVE || !ka->buf.data)
		return;
	wait_answered(q, until);
	spin_lock_bh(&q->lock);
	if (READ_ONCE(q->conn.state) == KRPING_CONN_LIVE && !ka->sending && !ka->unanswered) {
		((struct krping_cmd *)ka->buf.data)->flags |= KRPING_CMD_BYE;
		ret = post_keepalive(q);
	}
	spin_unlock_bh(&q->lock);
	if (!ret)
		wait_answered(q, until);
}

/*
 * An idle session is checked by its first queue alone. A queue with commands in flight is checked
 * in any case: one queue pair may hang while others work.
 */
static void check_queue(struct krping_queue *q)
{
	unsigned long last_rx = READ_ONCE(q->last_rx), interval, silent;
	struct krping_keepalive *ka = &q->keepalive;
	struct krping_session *s = q->session;
	int error = 0;

	silent = jiffies - last_rx;	/* @last_rx must be read before jiffies */
	interval = krping_keepalive_interval(s);
	if (silent < interval)
		return;
	spin_lock_bh(&q->lock);
	/* A live queue of a session that is not live may have no message yet. */
	if (READ_ONCE(s->state) != KRPING_SESSION_LIVE ||
	    READ_ONCE(q->conn.state) != KRPING_CONN_LIVE || (q->index && !q->nr_inflight))
		goto unlock;
	if (!ka->sending && !ka->unanswered)
		error = post_keepalive(q);
	else if (silent >= (CHECKS - 1) * interval &&
		 time_after_eq(jiffies, ka->sent_at + (CHECKS - 2) * interval))
		error = -ETIMEDOUT;
unlock:
	spin_unlock_bh(&q->lock);
	if (!error)
		return;
	krping_warn_ratelimited(s->log_prefix, "the target was silent on queue %u for %u ms",
				q->index, jiffies_to_msecs(silent));
	krping_conn_fail(&q->conn, error);
}

/* Called once per krping_keepalive_interval() while the session is live. */
void krping_keepalive_check_queues(struct krping_session *s)
{
	u32 i;

	for (i = 0; s->opt.heartbeat && i < s->nr_queues; i++)
		check_queue(&s->queues[i]);
}

/**
 * krping_keepalive_answered - handle the response to a KEEP_ALIVE
 * @q:		queue it arrived on
 * @status:	enum krping_status
 * @data:	inline data or NULL
 * @len:	bytes of @data
 *
 * Return: 0 or -EPROTO.
 */
int krping_keepalive_answered(struct krping_queue *q, u8 status, const void *data, u32 len)
{
	struct krping_session *s = q->session;
	bool expected;
	__be64 answer;
	u64 capacity;

	spin_lock_bh(&q->lock);
	expected = q->keepalive.unanswered;
	spin_unlock_bh(&q->lock);
	if (!expected)
		return krping_queue_violation(q, "unexpected keep-alive response", 0);
	if (status != KRPING_ST_OK || !data || len != sizeof(__be64))
		return krping_queue_violation(q, "keep-alive response without a capacity", len);
	memcpy(&answer, data, sizeof(answer));
	capacity = be64_to_cpu(answer);
	if (capacity < READ_ONCE(s->grant.capacity) || capacity % s->grant.block_size ||
	    capacity > (u64)LLONG_MAX)
		return krping_queue_violation(q, "invalid new capacity", capacity);
	WRITE_ONCE(s->capacity, capacity);
	spin_lock_bh(&q->lock);
	WRITE_ONCE(q->keepalive.unanswered, false);
	spin_unlock_bh(&q->lock);
	wake_up(&q->conn.wait);
	return 0;
}
