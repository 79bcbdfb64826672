// SPDX-License-Identifier: GPL-2.0
/*
 * Reconnects a session that has lost a connection (PROTOCOL.md section 2.6). Only one thread at a
 * time connects: first the writer of the command, afterwards recovery_work.
 */
#include <linux/random.h>
#include <linux/sched/mm.h>

#include "client/internal.h"
#include "lib/log.h"
#include "lib/trace.h"

#define RECONNECT_TIMEOUT	(3 * HZ)	/* per step of an attempt */
#define BACKOFF_MIN		(HZ / 10)
#define BACKOFF_MAX		(2 * HZ)

struct workqueue_struct *krping_session_wq;

int krping_recovery_init(void)
{
	krping_session_wq = alloc_workqueue("krping", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	return krping_session_wq ? 0 : -ENOMEM;
}

void krping_recovery_exit(void)
{
	destroy_workqueue(krping_session_wq);
}

static void queue_closed(struct krping_conn *conn, int error)
{
	struct krping_queue *q = container_of(conn, struct krping_queue, conn);

	krping_session_lost(q->session, error);
}

static const struct krping_conn_ops queue_conn_ops = {
	.closed = queue_closed,
};

/* A connection of the session is broken: starts recovery. Any context. */
void krping_session_lost(struct krping_session *s, int error)
{
	bool lost;

	spin_lock_bh(&s->lock);
	lost = s->state == KRPING_SESSION_LIVE;
	if (lost) {
		s->lost_since = jiffies;
		if (krping_keepalive_target_answered(s) || !READ_ONCE(s->early_losses))
			s->outage_since = jiffies;
		krping_session_set_state(s, KRPING_SESSION_RECONNECTING);
		mod_delayed_work(krping_session_wq, &s->recovery_work, 0);
	}
	spin_unlock_bh(&s->lock);
	if (lost)
		krping_warn_ratelimited(s->log_prefix, "connection lost (%d)%s", error,
					krping_session_is_stacked(s) ? "" : ", requests wait");
}

/* Requests may run from here on. Notices a queue that was lost before. */
void krping_session_go_live(struct krping_session *s)
{
	u32 i;

	WRITE_ONCE(s->live_since, jiffies);
	spin_lock_bh(&s->lock);
	krping_session_set_state(s, KRPING_SESSION_LIVE);
	spin_unlock_bh(&s->lock);
	for (i = 0; i < s->nr_queues; i++) {
		int error = krping_conn_error(&s->queues[i].conn);

		if (error)
			krping_session_lost(s, error);
	}
}

#define FORCED_STOP_GRACE	(2 * HZ)	/* for writeback */

/*
 * Prepares a stop. A session that is not live gives up connecting. A live one stays live for
 * writeback; with @force only for FORCED_STOP_GRACE.
 */
void krping_session_abort(struct krping_session *s, bool force)
{
	u32 i;

	spin_lock_bh(&s->lock);
	if (s->state == KRPING_SESSION_LIVE) {
		if (force) {
			WRITE_ONCE(s->forced, true);
			mod_delayed_work(krping_session_wq, &s->recovery_work, FORCED_STOP_GRACE);
		}
		spin_unlock_bh(&s->lock);
		return;
	}
	WRITE_ONCE(s->aborted, true);
	spin_unlock_bh(&s->lock);
	smp_mb();	/* pairs with connect_queue() */
	for (i = 0; i < s->nr_queues; i++)
		krping_conn_fail(&s->queues[i].conn, -ECANCELED);
	mod_delayed_work(krping_session_wq, &s->recovery_work, 0);
}

/* Afterwards no queue_rq() runs. Called with s->hold_lock held. */
static void hold_requests(struct krping_session *s)
{
	if (s->held)
		return;
	s->held = true;
	blk_mq_quiesce_queue(s->disk->queue);
}

/*
 * Passes waiting requests to queue_rq() again. Called with s->hold_lock held.
 *
 * Before Linux 6.13, a submitter that sees the queue quiesced inserts its request without running
 * the queue. If it inserts after the run of blk_mq_unquiesce_queue(), the request waits for the
 * next run, perhaps forever. Check and insertion are in one RCU read section, so run the queue
 * again after a grace period.
 */
static void release_requests(struct krping_session *s)
{
	struct request_queue *queue = s->disk->queue;

	if (s->held) {
		s->held = false;
		synchronize_rcu();	/* queue_rq() sees all that was stored before */
		blk_mq_unquiesce_queue(queue);
		synchronize_rcu();
		blk_mq_run_hw_queues(queue, true);
	}
	blk_mq_kick_requeue_list(queue);
}

static void session_fail(struct krping_session *s, const char *why)
{
	spin_lock_bh(&s->lock);
	krping_session_set_state(s, KRPING_SESSION_FAILED);
	spin_unlock_bh(&s->lock);
	krping_err(s->log_prefix, "%s: I/O %s from now on", why,
		   krping_session_is_stacked(s) ? "is local" : "fails");
	mutex_lock(&s->hold_lock);
	release_requests(s);
	mutex_unlock(&s->hold_lock);
}

/**
 * krping_session_fast_fail - fail waiting I/O once the outage exceeds fast_fail
 * @s:		reconnecting
 *
 * The queues are closed; queue_rq() checks @s->failing before it uses one.
 */
void krping_session_fast_fail(struct krping_session *s)
{
	u32 fast_fail = READ_ONCE(s->opt.fast_fail);	/* sysfs changes it */

	if (!fast_fail || krping_session_is_stacked(s))
		return;
	mutex_lock(&s->hold_lock);
	if (s->torn_down && !s->failing &&
	    !time_before(jiffies, s->outage_since + fast_fail * HZ)) {
		krping_warn(s->log_prefix, "the target has been lost for %u s: I/O fails until it is back",
			    fast_fail);
		WRITE_ONCE(s->failing, true);
		release_requests(s);
	}
	mutex_unlock(&s->hold_lock);
}

/* Jiffies left for the target to come back, or 0. */
static long time_left(const struct krping_session *s)
{
	if (krping_session_is_stacked(s))	/* never gives up */
		return MAX_SCHEDULE_TIMEOUT;
	return max_t(long, s->lost_since + s->opt.timeout * HZ - jiffies, 0);
}

/* Schedules the next attempt, the last one for the end of the timeout. */
static void back_off(struct krping_session *s)
{
	long most = min_t(long, BACKOFF_MAX, s->opt.timeout * HZ / 4);
	long delay = min_t(long, most, BACKOFF_MIN << min(s->attempts + s->early_losses, 10u));

	delay = delay / 2 + get_random_u32() % (delay / 2 + 1);
	queue_delayed_work(krping_session_wq, &s->recovery_work, min(delay, time_left(s)));
}

static void resume_session(struct krping_session *s)
{
	s->attempts = 0;
	krping_count(s->stats, KRPING_RECONNECTS, 1);
	krping_info_ratelimited(s->log_prefix, "reconnected after %u ms",
				jiffies_to_msecs(jiffies - s->lost_since));
	mutex_lock(&s->hold_lock);
	hold_requests(s);	/* else queue_rq() could see the state before the queues */
	s->torn_down = false;
	WRITE_ONCE(s->failing, false);
	krping_session_go_live(s);
	release_requests(s);
	mutex_unlock(&s->hold_lock);
}

static void reconnect_session(struct krping_session *s)
{
	int ret;

	if (READ_ONCE(s->no_wait)) {
		session_fail(s, "the target was lost while the session was started or stopped");
		return;
	}
	ret = krping_session_connect(s, RECONNECT_TIMEOUT);
	if (!ret) {
		resume_session(s);
		return;
	}
	if (s->target_changed) {
		session_fail(s, "the target is not the one it was");
		return;
	}
	if (!time_left(s)) {
		session_fail(s, "the target did not come back in time");
		return;
	}
	s->attempts++;
	back_off(s);
}

static void tear_down(struct krping_session *s)
{
	mutex_lock(&s->hold_lock);
	hold_requests(s);
	krping_session_disconnect(s);
	s->torn_down = true;
	if (krping_session_is_stacked(s))	/* requests fail until it is live */
		release_requests(s);
	mutex_unlock(&s->hold_lock);
}

/* Backs off if the target keeps dropping connections that it has just accepted. */
static void recover_session(struct krping_session *s)
{
	if (!s->torn_down) {
		WRITE_ONCE(s->early_losses,
			   krping_keepalive_target_answered(s) ? 0 : s->early_losses + 1);
		tear_down(s);
		if (s->early_losses > 1 && !READ_ONCE(s->no_wait)) {
			back_off(s);
			return;
		}
	}
	reconnect_session(s);
}

/* Closes the queues of a lost session and reconnects. */
static void recovery_work_fn(struct work_struct *work)
{
	struct krping_session *s = container_of(to_delayed_work(work), struct krping_session,
						recovery_work);
	unsigned int flags = memalloc_noio_save();	/* reclaim could write to our disk */

	if (READ_ONCE(s->forced))	/* FORCED_STOP_GRACE is over */
		krping_session_lost(s, -ETIMEDOUT);
	if (READ_ONCE(s->state) == KRPING_SESSION_RECONNECTING)
		recover_session(s);
	memalloc_noio_restore(flags);
}

/* Called once, for a new session. */
void krping_recovery_prepare(struct krping_session *s)
{
	u32 i;

	INIT_DELAYED_WORK(&s->recovery_work, recovery_work_fn);
	for (i = 0; i < s->nr_queues; i++)
		krping_conn_init(&s->queues[i].conn, s->log_prefix, &queue_conn_ops);
}
