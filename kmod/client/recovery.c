// SPDX-License-Identifier: GPL-2.0
/*
 * Connections of a block session: made, lost and made again (PROTOCOL.md sections
 * 2.1 and 2.6). One thread at a time connects: the writer of the command first, the
 * recovery work afterwards.
 */
#include <linux/random.h>
#include <linux/sched/mm.h>

#include "client/client.h"
#include "lib/log.h"
#include "lib/trace.h"

#define RECONNECT_TIMEOUT	(3 * HZ)	/* of one attempt for one queue */
#define BACKOFF_MIN		(HZ / 10)
#define BACKOFF_MAX		(2 * HZ)

struct workqueue_struct *krping_wq;

int krping_recovery_init(void)
{
	krping_wq = alloc_workqueue("krping", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	return krping_wq ? 0 : -ENOMEM;
}

void krping_recovery_exit(void)
{
	destroy_workqueue(krping_wq);
}

static void queue_closed(struct krping_conn *conn, int error)
{
	struct krping_queue *q = container_of(conn, struct krping_queue, conn);

	krping_session_lost(q->session, error);
}

static const struct krping_conn_ops queue_conn_ops = {
	.closed = queue_closed,
};

/* Was the target there, or has it dropped at once what it had accepted, without a word? */
static bool was_back(const struct krping_session *s)
{
	u32 i;

	if (time_after(jiffies, s->live_since + BACKOFF_MAX))
		return true;
	for (i = 0; i < s->nr_queues; i++)
		if (time_after(READ_ONCE(s->queues[i].heard), s->live_since))
			return true;
	return false;
}

/* From any process context that finds the session broken; the work does the rest. */
void krping_session_lost(struct krping_session *s, int error)
{
	bool lost;

	spin_lock_bh(&s->lock);
	lost = s->state == KRPING_SESSION_LIVE;
	if (lost) {
		s->lost_since = jiffies;
		if (was_back(s) || !READ_ONCE(s->unheard))
			s->away_since = jiffies;
		krping_session_set_state(s, KRPING_SESSION_RECONNECTING);
		mod_delayed_work(krping_wq, &s->recovery, 0);
	}
	spin_unlock_bh(&s->lock);
	if (lost)
		krping_warn_ratelimited(s->log_prefix, "connection lost (%d)%s", error,
					krping_session_is_stacked(s) ? "" : ", requests wait");
}

/* Requests may run; a queue that was lost meanwhile is noticed here. */
void krping_session_go_live(struct krping_session *s)
{
	u32 i;

	s->live_since = jiffies;
	spin_lock_bh(&s->lock);
	krping_session_set_state(s, KRPING_SESSION_LIVE);
	spin_unlock_bh(&s->lock);
	for (i = 0; i < s->nr_queues; i++) {
		int error = krping_conn_error(&s->queues[i].conn);

		if (error)
			krping_session_lost(s, error);
	}
}

#define FORCED_STOP_GRACE	(2 * HZ)	/* for what is still to be written back */

/*
 * For a stop: whoever connects or waits to do so gives up now. A live session is still
 * needed; with force it has a time to finish.
 */
void krping_session_abort(struct krping_session *s, bool force)
{
	u32 i;

	spin_lock_bh(&s->lock);
	if (s->state == KRPING_SESSION_LIVE) {
		if (force) {
			WRITE_ONCE(s->forced, true);
			mod_delayed_work(krping_wq, &s->recovery, FORCED_STOP_GRACE);
		}
		spin_unlock_bh(&s->lock);
		return;
	}
	WRITE_ONCE(s->aborted, true);
	spin_unlock_bh(&s->lock);
	smp_mb();	/* pairs with queue_connect() */
	for (i = 0; i < s->nr_queues; i++)
		krping_conn_fail(&s->queues[i].conn, -ECANCELED);
	mod_delayed_work(krping_wq, &s->recovery, 0);
}

/* No queue_rq runs from here on. Called with s->hold_lock held. */
static void hold_requests(struct krping_session *s)
{
	if (s->held)
		return;
	s->held = true;
	blk_mq_quiesce_queue(s->disk->queue);
}

/*
 * What waits is given to queue_rq() again. Called with s->hold_lock held.
 *
 * Before Linux 6.13 a request whose submitter saw the queue quiesced is inserted without a run
 * of the queue; if that comes after the run of the unquiesce, the request waits for the next one,
 * for ever if there is none. Look and insertion are in one RCU section.
 */
static void release_requests(struct krping_session *s)
{
	struct request_queue *queue = s->disk->queue;

	if (s->held) {
		s->held = false;
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
 * krping_session_fast_fail - let I/O fail that waits for a target for too long
 * @s:		being reconnected
 *
 * The queues are torn down, and queue_rq() looks at @s->failing before it touches one.
 */
void krping_session_fast_fail(struct krping_session *s)
{
	if (!s->opt.fast_fail || krping_session_is_stacked(s) ||
	    time_before(jiffies, s->away_since + s->opt.fast_fail * HZ))
		return;
	mutex_lock(&s->hold_lock);
	if (s->torn_down && !s->failing) {
		krping_warn(s->log_prefix, "the target is lost for %u s: I/O fails until it is back",
			    s->opt.fast_fail);
		WRITE_ONCE(s->failing, true);
		release_requests(s);
	}
	mutex_unlock(&s->hold_lock);
}

/* Jiffies in which the target may still come back, 0 if they are over. */
static long time_left(const struct krping_session *s)
{
	if (krping_session_is_stacked(s))	/* waits for it as long as it takes */
		return MAX_SCHEDULE_TIMEOUT;
	return max_t(long, s->lost_since + s->opt.timeout * HZ - jiffies, 0);
}

/* There are some attempts, the last of them when the time is over. */
static void back_off(struct krping_session *s)
{
	long most = min_t(long, BACKOFF_MAX, s->opt.timeout * HZ / 4);
	long delay = min_t(long, most, BACKOFF_MIN << min(s->attempts + s->unheard, 10u));

	delay = delay / 2 + get_random_u32() % (delay / 2 + 1);
	queue_delayed_work(krping_wq, &s->recovery, min(delay, time_left(s)));
}

static void resume(struct krping_session *s)
{
	s->attempts = 0;
	krping_count(s->stats, KRPING_RECONNECTS, 1);
	krping_info_ratelimited(s->log_prefix, "reconnected after %u ms",
				jiffies_to_msecs(jiffies - s->lost_since));
	mutex_lock(&s->hold_lock);
	hold_requests(s);	/* or queue_rq might see the state and not the queues */
	s->torn_down = false;
	WRITE_ONCE(s->failing, false);
	krping_session_go_live(s);
	release_requests(s);
	mutex_unlock(&s->hold_lock);
}

static void reconnect(struct krping_session *s)
{
	int ret;

	if (READ_ONCE(s->no_wait)) {
		session_fail(s, "the target was lost while the session is started or stopped");
		return;
	}
	ret = krping_session_connect(s, RECONNECT_TIMEOUT);
	if (!ret) {
		resume(s);
		return;
	}
	if (s->unfit) {
		session_fail(s, "the target is not the one it was");
		return;
	}
	if (!time_left(s)) {
		session_fail(s, "the target has not come back in time");
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
	if (krping_session_is_stacked(s))	/* nobody waits: they fail until it is live */
		release_requests(s);
	mutex_unlock(&s->hold_lock);
}

/* A target that drops again and again what it has just accepted is not asked at once. */
static void recover(struct krping_session *s)
{
	if (!s->torn_down) {
		WRITE_ONCE(s->unheard, was_back(s) ? 0 : s->unheard + 1);
		tear_down(s);
		if (s->unheard > 1 && !READ_ONCE(s->no_wait)) {
			back_off(s);
			return;
		}
	}
	reconnect(s);
}

/* Work of a session that was live: what is broken is taken down, then built again. */
static void krping_recover(struct work_struct *work)
{
	struct krping_session *s = container_of(to_delayed_work(work), struct krping_session,
						recovery);
	unsigned int flags = memalloc_noio_save();	/* our own disk may be what is written to */

	if (READ_ONCE(s->forced))	/* and the time is over */
		krping_session_lost(s, -ETIMEDOUT);
	if (READ_ONCE(s->state) == KRPING_SESSION_RECONNECTING)
		recover(s);
	memalloc_noio_restore(flags);
}

/* A new session: nothing is connected. */
void krping_recovery_prepare(struct krping_session *s)
{
	u32 i;

	INIT_DELAYED_WORK(&s->recovery, krping_recover);
	for (i = 0; i < s->nr_queues; i++)
		krping_conn_init(&s->queues[i].conn, s->log_prefix, &queue_conn_ops);
}
