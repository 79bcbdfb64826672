// SPDX-License-Identifier: GPL-2.0
/* A block session is started and stopped. */
#include "client/client.h"
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

/* From a connected session to one with a disk; undoes what it did on an error. */
static int session_add_disk(struct krping_session *s)
{
	bool live;
	int ret;

	ret = krping_disk_alloc(s);
	if (ret)
		return ret;
	/*
	 * Adding the disk reads it (partitions). If the target is lost meanwhile, the
	 * session fails at once, so that this thread is not stuck until a time-out.
	 */
	s->no_wait = true;
	krping_session_go_live(s);
	krping_heartbeat_start(s);
	ret = krping_disk_add(s);
	if (ret)
		goto free_disk;
	if (s->ops) {
		ret = s->ops->add(s);
		if (ret)
			goto del_disk;
	}
	krping_info(s->log_prefix, "%s: %llu bytes, %u queues of %u, %s%s",
		    krping_session_disk(s)->disk_name, s->grant.capacity, s->nr_queues,
		    s->grant.depth,
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
	/* The loss may be queued but not run: it must find the disk, or not run. */
	spin_lock_bh(&s->lock);
	krping_session_set_state(s, KRPING_SESSION_STOPPING);
	spin_unlock_bh(&s->lock);
	krping_heartbeat_stop(s);
	cancel_delayed_work_sync(&s->recovery);
	krping_session_disconnect(s);
	cancel_delayed_work_sync(&s->disk->queue->requeue_work);	/* recovery may kick it */
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

#define CONNECT_TIMEOUT		(10 * HZ)	/* of the first connection of each queue */

/**
 * krping_session_start - connect to a volume and make its disk
 * @opt:	KRPING_BLOCK_CLIENT
 * @ops:	of a local disk on top of it, or NULL
 *
 * Return: 0 when the disk is there, or the errno that PROTOCOL.md documents, with
 * nothing left behind.
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
	krping_heartbeat_prepare(s);
	ret = krping_sockaddr(opt, s->net, &s->peer);
	if (ret)
		goto put_session;
	snprintf(s->log_prefix, sizeof(s->log_prefix), "%s@%pISpc", opt->block, &s->peer);
	ret = session_find_key(s);
	if (ret)
		goto put_session;
	ret = krping_session_list(s);
	if (ret) {
		krping_err_ratelimited(s->log_prefix, "a session of that name exists");
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
	if (opened)	/* not before: the listing looks into it */
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
 * A live session writes back what its page cache holds; one that is not fails it. A
 * target that is lost or silent meanwhile fails the session, so this ends.
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
	krping_heartbeat_stop(s);
	cancel_delayed_work_sync(&s->recovery);
	krping_session_close(s);
	cancel_delayed_work_sync(&s->disk->queue->requeue_work);	/* recovery may kick it */
	krping_session_unlist(s);
	krping_info(s->log_prefix, "%s stopped", krping_session_disk(s)->disk_name);
	krping_disk_free(s);
	if (s->ops)
		s->ops->close(s);
	krping_session_put(s);
	return 0;
}
