// SPDX-License-Identifier: GPL-2.0
/* The timer of a session that has a disk. */
#include <linux/sched/mm.h>

#include "client/client.h"

static void krping_heartbeat(struct work_struct *work)
{
	struct krping_session *s = container_of(to_delayed_work(work), struct krping_session,
						beat);
	unsigned int flags = memalloc_noio_save();	/* our own disk may be what is written to */
	u64 capacity = READ_ONCE(s->capacity);

	switch (READ_ONCE(s->state)) {
	case KRPING_SESSION_LIVE:
		krping_look_after(s);
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
	krping_heartbeat_start(s);
}

/* fast_fail has seconds, and no other clock. */
void krping_heartbeat_start(struct krping_session *s)
{
	unsigned long interval = krping_look_interval(s);

	if (s->opt.fast_fail)
		interval = min_t(unsigned long, interval, HZ);
	queue_delayed_work(krping_wq, &s->beat, interval);
}

/* Twin of krping_heartbeat_start(). */
void krping_heartbeat_stop(struct krping_session *s)
{
	cancel_delayed_work_sync(&s->beat);
}

/* A new session: its timer does not run yet. */
void krping_heartbeat_prepare(struct krping_session *s)
{
	INIT_DELAYED_WORK(&s->beat, krping_heartbeat);
}
