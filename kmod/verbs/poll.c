// SPDX-License-Identifier: GPL-2.0
/* Polls all completion queues of a test. */
#include <linux/delay.h>

#include "lib/log.h"
#include "verbs/verbs.h"

#define POLL_BATCH	16	/* completions */
#define POLL_MOST	256	/* of a completion queue, before others get their turn */
#define SETTLE_MS	200

/* There is something to poll. Called in any context. */
void krping_verbs_notify(struct ib_cq *cq, void *context)
{
	struct krping_verbs *v = container_of((struct krping_conn *)context, struct krping_verbs,
					      control);

	krping_thread_progress(&v->thread);
}

static u32 poll_cq(struct krping_verbs *v, struct ib_cq *cq)
{
	struct ib_wc wc[POLL_BATCH];
	u32 polled = 0;
	int n, i;

	do {
		n = ib_poll_cq(cq, POLL_BATCH, wc);
		for (i = 0; i < n; i++)
			wc[i].wr_cqe->done(cq, &wc[i]);
		if (n < 0)
			krping_verbs_fail(v, -EIO);
		else
			polled += n;
		cond_resched();	/* each may have checked much data */
	} while (n == POLL_BATCH && polled < POLL_MOST);
	return polled;
}

/* LAT with WRITE: nothing but memory tells that a message has arrived. */
bool krping_verbs_watches_memory(const struct krping_verbs *v)
{
	return krping_verbs_is_lat(v) && v->test.verb == KRPING_VERB_WRITE && v->going;
}

/* Return: completions polled. */
u32 krping_verbs_poll(struct krping_verbs *v)
{
	struct krping_verbs_counts *counts = &v->thread.result->verbs;
	u32 polled = poll_cq(v, v->control.cq), i;

	for (i = 0; i < v->nr_cqs; i++) {
		u32 n = poll_cq(v, v->cqs[i]);

		polled += n;
		if (v->to_check)
			krping_verbs_take_deferred(v, v->cqs[i], n < POLL_MOST ? U32_MAX : n);
	}
	if (polled)
		WRITE_ONCE(counts->completions, counts->completions + polled);
	if (krping_verbs_watches_memory(v))
		krping_verbs_watch(v);
	return polled;
}

/**
 * krping_verbs_post_failed - why a work request could not be posted
 * @v:		the test
 * @what:	what was posted, for the log
 * @ret:	the device's errno
 *
 * Not called by a completion.
 *
 * Return: the error that the queue pair has failed with, if it has completed, else @ret.
 */
int krping_verbs_post_failed(struct krping_verbs *v, const char *what, int ret)
{
	if (ret == -ENOTCONN)	/* siw reports this before its disconnect event */
		return krping_conn_error(&v->control) ?: -ECONNRESET;
	krping_verbs_poll(v);
	if (v->error)
		return v->error;
	if (!krping_conn_error(&v->control))
		krping_err_ratelimited(v->thread.log_prefix, "cannot post %s: %d", what, ret);
	return krping_conn_error(&v->control) ?: ret;
}

/* Gives the last control message some time to reach the peer, whatever else happens. */
void krping_verbs_settle(struct krping_verbs *v)
{
	unsigned long until = jiffies + msecs_to_jiffies(SETTLE_MS);

	while (v->tx_done != v->tx_posted && !krping_conn_error(&v->control) &&
	       time_before(jiffies, until)) {
		poll_cq(v, v->control.cq);
		usleep_range(200, 500);
	}
}
