// SPDX-License-Identifier: GPL-2.0
/* Start and stop of block sessions. */
#include "client/internal.h"
#include "wire/key.h"
#include "lib/log.h"

int krping_client_init(void)
{
	int ret;

	ret = krping_recv_init();
	if (ret)
		return ret;
	ret = krping_recovery_init();
	if (ret)
		krping_recv_exit();
	return ret;
}

void krping_client_exit(void)
{
	krping_recovery_exit();
	krping_recv_exit();
}

/* Adds the disk of a connected session. Leaves nothing behind on an error. */
static int session_add_disk(struct krping_session *s)
{
	bool live;
	int ret;

	ret = krping_disk_alloc(s);
	if (ret)
		return ret;
	/*
	 * Adding the disk reads its partition table. If the target is lost meanwhile, the
	 * session fails at once (no_wait), so that this thread does not hang until the timeout.
	 */
	krping_session_go_live(s);
	krping_monitor_start(s);
	ret = krping_disk_add(s);
	if (ret)
		goto free_disk;
	if (s->ops) {
		ret = s->ops->add(s);
		if (ret)
			goto del_disk;
	}
	krping_info(s->log_prefix, "%s: %llu bytes, %u queue%s of %u, %s%s",
		    krping_session_disk(s)->disk_name, s->grant.capacity, s->nr_queues,
		    s->nr_queues == 1 ? "" : "s", s->grant.depth,
		    s->grant.writeback ? "writeback" : "write-through",
		    s->grant.read_only ? ", read-only" : "");
	spin_lock_bh(&s->lock);
	live = s->state == KRPING_SESSION_LIVE;
	if (live)
		WRITE_ONCE(s->no_wait, false);
	spin_unlock_bh(&s->lock);
	if (live)
		return 0;	/* from here on a stop may free the session */
	ret = -ECONNRESET;
	if (s->ops)
		s->ops->del(s);
del_disk:
	krping_disk_del(s);
free_disk:
	/* recovery_work may be queued: it must not run after the disk is freed. */
	spin_lock_bh(&s->lock);
	krping_session_set_state(s, KRPING_SESSION_STOPPING);
	spin_unlock_bh(&s->lock);
	krping_monitor_stop(s);
	cancel_delayed_work_sync(&s->recovery_work);
	krping_keepalive_bye(s);
	krping_session_disconnect(s);
	cancel_delayed_work_sync(&s->disk->queue->requeue_work);	/* kicked by recovery */
	krping_disk_free(s);
	return ret;
}

static int session_find_key(struct krping_session *s)
{
	struct crypto_shash *key;

	if (!s->opt.key[0])
		return 0;
	key = krping_key_find(s->opt.key, s->log_prefix);
	if (IS_ERR(key))
		return PTR_ERR(key);
	s->key = key;
	return 0;
}

#define CONNECT_TIMEOUT		(10 * HZ)	/* per step of a queue's first connection */

/**
 * krping_session_start - connect to a volume and add its disk
 * @opt:	KRPING_BLOCK_CLIENT
 * @ops:	of a local disk on top of it, or NULL
 *
 * Return: 0 with the disk added, or an errno as documented in INTERFACE.md, with nothing left
 * behind.
 */
int krping_session_start(const struct krping_options *opt,
			 const struct krping_session_ops *ops)
{
	struct krping_session *s;
	bool opened = false;
	int ret;

	s = krping_session_alloc(opt, ops);
	if (IS_ERR(s))
		return PTR_ERR(s);
	krping_recovery_prepare(s);
	krping_monitor_prepare(s);
	ret = krping_sockaddr(opt, s->net, &s->peer);
	if (ret)
		goto put_session;
	snprintf(s->log_prefix, sizeof(s->log_prefix), "%s@%pISpc", opt->block, &s->peer);
	ret = session_find_key(s);
	if (ret)
		goto put_session;
	ret = krping_session_list(s);
	if (ret) {
		krping_err_ratelimited(s->log_prefix, "a session of this name exists");
		goto put_session;
	}
	if (s->ops) {
		ret = s->ops->open(s);
		if (ret)
			goto unlist;
	}
	ret = krping_session_connect(s, CONNECT_TIMEOUT);
	if (!ret)
		ret = session_add_disk(s);
	if (!ret)
		return 0;

	krping_session_close(s);
	opened = s->ops;
unlist:
	krping_session_unlist(s);
	if (opened)	/* after unlisting: krping_sessions_show() uses it */
		s->ops->close(s);
put_session:
	krping_session_put(s);
	return ret;
}

/**
 * krping_session_stop - remove the disk of a session and close its connections
 * @name:	of the volume
 * @force:	even if the disk is open; what is not written within 2 s fails
 *
 * Dirty pages are written back if the session is live and fail otherwise. If the target is lost
 * or silent meanwhile, the session fails, so that this does not hang.
 *
 * Return: 0, -ENOENT or -EBUSY.
 */
int krping_session_stop(const char *name, bool force)
{
	struct krping_session *s = krping_session_take(name, force);

	if (IS_ERR(s))
		return PTR_ERR(s);
	krping_session_abort(s, force);
	if (s->ops)
		s->ops->del(s);
	krping_disk_del(s);
	spin_lock_bh(&s->lock);
	krping_session_set_state(s, KRPING_SESSION_STOPPING);
	spin_unlock_bh(&s->lock);
	krping_monitor_stop(s);
	cancel_delayed_work_sync(&s->recovery_work);
	krping_keepalive_bye(s);
	krping_session_close(s);
	cancel_delayed_work_sync(&s->disk->queue->requeue_work);	/* kicked by recovery */
	krping_session_unlist(s);
	krping_info(s->log_prefix, "%s stopped", krping_session_disk(s)->disk_name);
	krping_disk_free(s);
	if (s->ops)
		s->ops->close(s);
	krping_session_put(s);
	return 0;
}
