// SPDX-License-Identifier: GPL-2.0
/*
 * The timer of a session that has a disk: finds a silent target, fails I/O after fast_fail, grows
 * the disk.
 */
#include <linux/sched/mm.h>

#include "client/internal.h"

/* Completions of poll queues for which nobody waits. */
static void poll_queues(struct krping_session *s)
{
	u32 i;

	for (i = s->nr_queues - s->nr_poll; i < s->nr_queues; i++)
		krping_poll(&s->queues[i]);
}

static void monitor_session(struct work_struct *work)
{
	struct krping_session *s = container_of(to_delayed_work(work), struct krping_session,
						monitor_work);
	unsigned int flags = memalloc_noio_save();	/* reclaim could write to our disk */
	u64 capacity = READ_ONCE(s->capacity);

	switch (READ_ONCE(s->state)) {
	case KRPING_SESSION_LIVE:
		poll_queues(s);
		krping_keepalive_check_queues(s);
		break;
	case KRPING_SESSION_RECONNECTING:
		krping_session_fast_fail(s);
		break;
	default:
		break;
	}
	if (capacity > READ_ONCE(s->grant.capacity))
		krping_disk_resize(s, capacity);
	memalloc_noio_restore(flags);
	krping_monitor_start(s);
}

/* fast_fail is in seconds and checked by this timer alone; completions of poll queues may wait. */
void krping_monitor_start(struct krping_session *s)
{
	unsigned long interval = krping_keepalive_interval(s);

	if (READ_ONCE(s->opt.fast_fail) || s->nr_poll)
		interval = min_t(unsigned long, interval, HZ);
	queue_delayed_work(krping_session_wq, &s->monitor_work, interval);
}

/* Undoes krping_monitor_start(). */
void krping_monitor_stop(struct krping_session *s)
{
	cancel_delayed_work_sync(&s->monitor_work);
}

/* Called once, for a new session. */
void krping_monitor_prepare(struct krping_session *s)
{
	INIT_DELAYED_WORK(&s->monitor_work, monitor_session);
}
