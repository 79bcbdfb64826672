// SPDX-License-Identifier: GPL-2.0
/* The loop of a test: post, answer, wait. */
#include <linux/sched/signal.h>

#include "lib/log.h"
#include "verbs/verbs.h"

#define TICK_NS		(50 * NSEC_PER_MSEC)	/* the longest sleep: time-outs need a look */
#define RATE_TICK_NS	NSEC_PER_MSEC

/* ---- waiting ---- */

/* Return: whether a completion queue has something already. */
static bool arm_all(struct krping_verbs *v)
{
	enum ib_cq_notify_flags flags = IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS;
	bool missed;
	u32 i;

	missed = ib_req_notify_cq(v->control.cq, flags) > 0;
	for (i = 0; i < v->nr_cqs; i++)
		missed |= ib_req_notify_cq(v->cqs[i], flags) > 0;
	return missed;
}

/* Whether this side gets control messages only. Polling for them gains nothing. */
static bool is_passive(const struct krping_verbs *v)
{
	return !v->is_initiator &&
	       (krping_verbs_is_read(&v->test) || !krping_verbs_sees_arrivals(v));
}

/* @seen: @progress before the last poll. */
static void idle(struct krping_verbs *v, int seen)
{
	u64 tick = v->test.rate && v->going ? RATE_TICK_NS : TICK_NS;

	if ((v->thread.opt->poll && !is_passive(v)) || krping_verbs_watches_memory(v))
		cpu_relax();
	else if (!arm_all(v))
		wait_event_interruptible_hrtimeout(v->thread.wait,
						   atomic_read(&v->thread.progress) != seen,
						   ns_to_ktime(tick));
}

static int timed_out(struct krping_verbs *v)
{
	krping_err_ratelimited(v->thread.log_prefix, "the peer did not go on within %u s",
			       v->thread.opt->timeout);
	return -ETIMEDOUT;
}

/**
 * krping_verbs_wait - poll until a step of the set-up is done
 * @v:		with an established control connection
 * @is_done:	returns whether it is
 *
 * Return: 0, or the error of the test, the connection, a signal or the time-out of a step.
 */
int krping_verbs_wait(struct krping_verbs *v, bool (*is_done)(struct krping_verbs *v))
{
	u32 ignored;
	int seen, lost;

	for (v->moved = jiffies;;) {
		seen = atomic_read(&v->thread.progress);
		lost = krping_conn_error(&v->control);	/* what came before it still counts */
		ignored = v->ignored;
		if (krping_verbs_poll(v) != v->ignored - ignored)
			v->moved = jiffies;
		if (v->error || is_done(v))
			return v->error;
		if (lost)
			return lost;
		if (signal_pending(current))
			return -EINTR;
		if (time_after(jiffies, v->moved + krping_verbs_setup_timeout(v)))
			return timed_out(v);
		idle(v, seen);
		cond_resched();
	}
}

static bool has_room(struct krping_verbs *v)
{
	return krping_verbs_control_has_room(v);
}

/* Sends a control message, waiting for a free buffer. */
int krping_verbs_tell(struct krping_verbs *v, const struct krping_verbs_msg *msg)
{
	int ret = krping_verbs_wait(v, has_room);

	return ret ?: krping_verbs_control_send(v, msg);
}

/* ---- messages of the test ---- */

static int send_number(struct krping_verbs *v, enum krping_verbs_msg_type type, u16 queue,
		       u64 number)
{
	struct krping_verbs_msg msg = {
		.type = type,
		.queue = cpu_to_be16(queue),
		.number = cpu_to_be64(number),
	};

	return krping_verbs_control_send(v, &msg);
}

static int exchange_credit_of(struct krping_verbs_queue *q)
{
	struct krping_verbs *v = q->v;
	int ret = 0;

	if (q->credit_due) {
		ret = send_number(v, KRPING_VERBS_CREDIT, q->index, q->checked);
		q->credited = q->checked;
		q->credit_due = false;
	}
	if (!ret && v->is_initiator && !krping_verbs_is_reliable(&v->test) &&
	    krping_verbs_control_has_room(v) && krping_verbs_is_stalled(q)) {
		ret = send_number(v, KRPING_VERBS_CHECK, q->index, q->posted);
		q->asked = q->posted;
		q->checked_upto = q->posted;
	}
	return ret;
}

/*
 * Gives credit, and asks for what was lost on the way, once round all queue pairs. The round begins
 * where a lack of buffers has ended the last one.
 */
static int exchange_credit(struct krping_verbs *v)
{
	int ret = 0;
	u32 i;

	for (i = 0; i < v->nr_queues && !ret && krping_verbs_control_has_room(v); i++) {
		ret = exchange_credit_of(&v->queues[v->next_credit]);
		v->next_credit = (v->next_credit + 1) % v->nr_queues;
	}
	return ret;
}

/* Whether this side says what it has sent, and gets a REPORT. */
static bool sends_done(const struct krping_verbs *v)
{
	return v->is_initiator && (krping_verbs_is_client(v) || !krping_verbs_is_lat(v));
}

/* Whether this side gets DONE, and reports. */
static bool sends_report(const struct krping_verbs *v)
{
	return v->is_target && (!krping_verbs_is_client(v) || !krping_verbs_is_lat(v));
}

static int finish(struct krping_verbs *v)
{
	struct krping_verbs_msg msg;
	int ret = 0;

	if (sends_done(v) && !v->done_sent && krping_verbs_control_has_room(v) &&
	    krping_verbs_all_sent(v)) {
		ret = send_number(v, KRPING_VERBS_DONE, 0, v->sent);
		v->done_sent = !ret;
	}
	if (!ret && sends_report(v) && !v->report_sent && krping_verbs_control_has_room(v) &&
	    krping_verbs_all_arrived(v)) {
		ret = krping_verbs_fill_report(v, &msg);
		if (!ret)
			ret = krping_verbs_control_send(v, &msg);
		v->report_sent = !ret;
	}
	return ret;
}

/* A client disconnects when it has the REPORT, which may be before the server knows that it has. */
static bool is_over(struct krping_verbs *v)
{
	if (sends_done(v) && !v->reported)
		return false;
	if (!sends_report(v))
		return true;
	return v->report_sent &&
	       (v->tx_done == v->tx_posted ||
		(!krping_verbs_is_client(v) && krping_conn_error(&v->control) == -ECONNRESET));
}

/* LAT on UC and UD: a message without an answer is lost, and the next one follows. */
static void give_up_answer(struct krping_verbs *v)
{
	struct krping_verbs_queue *q = &v->queues[0];

	if (!krping_verbs_is_client(v) || q->answers == q->posted ||
	    !time_after(jiffies, q->posted_at + msecs_to_jiffies(KRPING_VERBS_QUIET_MS)))
		return;
	q->answers = q->posted;
	q->started = ktime_get();
	krping_account_miss(&q->account, q->posted - 1);
}

/* ---- progress ---- */

/* The times of a LAT client are counted one by one. */
static void count_operations(struct krping_verbs *v)
{
	struct krping_verbs_counts *counts = &v->thread.result->verbs;
	u64 ops = sends_done(v) ? v->done : v->arrived;
	ktime_t now;

	if (ops == v->counted)
		return;
	WRITE_ONCE(counts->sent, v->sent);
	WRITE_ONCE(counts->received,
		   v->arrived + (v->test.verb == KRPING_VERB_READ ? v->done : 0));
	if (!krping_verbs_is_lat(v) || !krping_verbs_is_client(v)) {
		now = ktime_get();
		krping_result_count(v->thread.result, ops - v->counted, now);
		krping_peak_add(&v->peak, ktime_to_ns(now), ops - v->counted);
		WRITE_ONCE(counts->peak_ops, krping_peak_rate(&v->peak));
	}
	v->counted = ops;
}

/* Return: how much progress there was, or a negative errno. */
static int step(struct krping_verbs *v)
{
	u32 ignored = v->ignored, polled = krping_verbs_poll(v);
	int posted = 0, ret;

	if (v->error)
		return v->error;
	if (v->test.duration && !v->stopping && sends_done(v) &&
	    time_after(jiffies, v->deadline))
		krping_verbs_stop(v);
	if (v->is_initiator)
		posted = krping_verbs_post(v);
	if (posted < 0)
		return posted;
	ret = v->uses_credit ? exchange_credit(v) : 0;
	if (!ret && krping_verbs_is_lat(v) && !krping_verbs_is_reliable(&v->test))
		give_up_answer(v);
	if (!ret)
		ret = finish(v);
	count_operations(v);
	return ret ?: polled - (v->ignored - ignored) + posted;
}

/* Whether the peer has to send, and each message will be seen here, or be asked for. */
static bool awaits_messages(const struct krping_verbs *v)
{
	return sends_report(v) && !v->peer_done && !v->test.rate &&
	       krping_verbs_sees_arrivals(v) &&
	       (krping_verbs_is_reliable(&v->test) || v->uses_credit);
}

/* Whether something is due from the peer or the device. */
static bool must_go_on(const struct krping_verbs *v)
{
	if (v->peer_done && !v->report_sent && sends_report(v))
		return true;
	if (v->reported && awaits_messages(v))
		return true;
	if (!sends_done(v) || v->reported)
		return false;
	return !v->test.rate || v->done_sent || v->sent != v->done || krping_verbs_lacks_credit(v);
}

/* Detects a peer that has vanished, or does not go on. */
static int watch_time(struct krping_verbs *v)
{
	unsigned long timeout = krping_step_timeout(&v->thread);

	if (must_go_on(v) && time_after(jiffies, v->moved + timeout))
		return timed_out(v);
	if (v->probing)
		return time_after(jiffies, v->probed + timeout) ? timed_out(v) : 0;
	if (!time_after(jiffies, v->probed + max(timeout / 2, (unsigned long)HZ)))
		return 0;
	v->probed = jiffies;
	return krping_verbs_control_probe(v);
}

/**
 * krping_verbs_loop - run the test to its end
 * @v:		ready, and going
 *
 * Return: 0 when all messages were sent and all reports exchanged, or a negative errno.
 */
int krping_verbs_loop(struct krping_verbs *v)
{
	int seen, lost, n, ret;

	v->moved = jiffies;
	v->probed = jiffies;
	v->last_arrival = jiffies;
	v->deadline = jiffies + v->test.duration * HZ;
	WRITE_ONCE(v->thread.result->start, ktime_get());
	v->peak.start = ktime_to_ns(v->thread.result->start);
	for (;;) {
		seen = atomic_read(&v->thread.progress);
		lost = krping_conn_error(&v->control);	/* what came before it still counts */
		n = step(v);
		if (n < 0 && n != -ECONNRESET)
			return n;
		if (is_over(v))
			return 0;
		if (n < 0)
			return n;
		if (lost)
			return lost;
		if (signal_pending(current))
			return -EINTR;
		if (n)
			v->moved = jiffies;
		ret = watch_time(v);
		if (ret)
			return ret;
		if (!n)
			idle(v, seen);
		cond_resched();
	}
}
