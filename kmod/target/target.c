// SPDX-License-Identifier: GPL-2.0
/*
 * Volumes that are served: start, stop, list; their listeners, the handshake (PROTOCOL.md
 * section 2.1), and the end of a connection.
 */
#include <crypto/algapi.h>
#include <linux/ctype.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/nsproxy.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <rdma/ib_cm.h>

#include "lib/fault.h"
#include "lib/log.h"
#include "target/target.h"

static DEFINE_MUTEX(krping_volumes_lock);	/* protects the list */
static LIST_HEAD(krping_volumes);
static DEFINE_IDA(krping_volume_ids);

/*
 * What may wait for another is on a queue of its own: a set-up (and a volume's end) for
 * teardowns, a teardown for a set-up of before, for the worker, and for the store's work.
 */
struct workqueue_struct *krping_target_wq;
struct workqueue_struct *krping_poll_wq;
static struct workqueue_struct *setup_wq;
static struct workqueue_struct *teardown_wq;

void krping_target_exit(void)
{
	struct workqueue_struct *all[] = {
		setup_wq, teardown_wq, krping_poll_wq, krping_target_wq,
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(all); i++)
		if (all[i])
			destroy_workqueue(all[i]);
}

int krping_target_init(void)
{
	krping_target_wq = alloc_workqueue("krping_target", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	krping_poll_wq = alloc_workqueue("krping_target_poll", WQ_MEM_RECLAIM | WQ_HIGHPRI, 0);
	setup_wq = alloc_workqueue("krping_target_setup", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	teardown_wq = alloc_workqueue("krping_target_end", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	if (krping_target_wq && krping_poll_wq && setup_wq && teardown_wq)
		return 0;
	krping_target_exit();
	return -ENOMEM;
}

/* Bytes that a client may use now: whole blocks. */
u64 krping_volume_size(const struct krping_volume *v)
{
	return round_down(krping_backing_size(&v->backing), v->opt.block_size);
}

/* ---- the end of a connection ---- */

static void target_conn_unlist(struct krping_target_conn *tc)
{
	struct krping_volume *v = tc->volume;

	spin_lock(&v->lock);
	list_del(&tc->entry);
	v->nr_conns--;
	wake_up_all(&v->wait);	/* under the lock: the volume may be gone behind it */
	spin_unlock(&v->lock);
}

static void krping_target_conn_teardown(struct work_struct *work)
{
	struct krping_target_conn *tc = container_of(work, struct krping_target_conn,
						     teardown_work);
	unsigned int flags = memalloc_noio_save();
	int error = krping_conn_error(&tc->conn);

	flush_work(&tc->setup_work);
	cancel_delayed_work_sync(&tc->deadline_work);
	krping_target_conn_drain(tc);
	krping_target_conn_free(tc);
	krping_conn_close(&tc->conn);
	krping_info_ratelimited(tc->log_prefix, "queue %u disconnected (%d)", tc->index, error);
	target_conn_unlist(tc);
	kfree(tc);
	memalloc_noio_restore(flags);
}

/* From here on @tc is the teardown's. */
static void target_conn_closed(struct krping_conn *conn, int error)
{
	struct krping_target_conn *tc = container_of(conn, struct krping_target_conn, conn);

	wake_up_all(&tc->volume->wait);
	queue_work(teardown_wq, &tc->teardown_work);
}

static const struct krping_conn_ops target_conn_ops = {
	.closed = target_conn_closed,
};

#define ESTABLISH_TIMEOUT	(5 * HZ)	/* from our reply to the client's confirmation */

static void krping_target_conn_deadline(struct work_struct *work)
{
	struct krping_target_conn *tc = container_of(to_delayed_work(work),
						     struct krping_target_conn, deadline_work);

	if (READ_ONCE(tc->conn.state) >= KRPING_CONN_LIVE)
		return;
	krping_err_ratelimited(tc->log_prefix, "the client does not complete the connection");
	krping_conn_fail(&tc->conn, -ETIMEDOUT);
}

/* ---- handshake ---- */

/* Return: 0 and @t filled in if the client has answered its challenge right, or a reason. */
static enum krping_reject_reason check_answer(struct krping_volume *v, const struct rdma_cm_id *id,
					      const struct krping_hello *hello,
					      struct krping_transcript *t)
{
	u8 addr[16], nonce[KRPING_TARGET_NONCE_LEN], proof[KRPING_PROOF_LEN];

	krping_peer_addr(id, addr);
	if (!v->key || !krping_challenge_take(v->challenges, addr, hello, nonce))
		return KRPING_REJ_STALE;
	krping_transcript_fill(t, hello, v->opt.block, nonce);
	if (krping_client_proof(v->key, t, proof))
		return KRPING_REJ_RESOURCES;
	return crypto_memneq(proof, hello->answer.proof, sizeof(proof)) ? KRPING_REJ_KEY : 0;
}

/* Return: 0 if it is our volume that the client wants and may have, or a reason. */
static enum krping_reject_reason check_volume(struct krping_volume *v, const struct rdma_cm_id *id,
					      const struct krping_hello *hello,
					      struct krping_transcript *t)
{
	if (hello->flags == KRPING_HELLO_PROOF)
		return check_answer(v, id, hello, t);
	if (strcmp(hello->volume, v->opt.block))
		return KRPING_REJ_VOLUME;
	if (hello->flags == KRPING_HELLO_KEY)
		return v->key ? KRPING_REJ_CHALLENGE : KRPING_REJ_NO_KEY;
	return v->key ? KRPING_REJ_NEEDS_KEY : 0;
}

static enum krping_reject_reason check_limits(const struct krping_hello *hello,
					      const struct rdma_conn_param *param, u32 *value)
{
	if (be16_to_cpu(hello->queue_count) > KRPING_TARGET_QUEUES) {
		*value = KRPING_TARGET_QUEUES;
		return KRPING_REJ_QUEUES;
	}
	/* It has to serve our RDMA READs. */
	return param->initiator_depth ? 0 : KRPING_REJ_INVALID;
}

/* Return: 0, or why the client is refused, in the order of PROTOCOL.md section 2.1. */
static enum krping_reject_reason check_client(struct krping_volume *v, const struct rdma_cm_id *id,
					      const struct rdma_conn_param *param,
					      struct krping_hello *hello,
					      struct krping_transcript *t, u32 *value)
{
	enum krping_reject_reason reason;

	*value = 0;
	if (!krping_peer_is_allowed(id, &v->opt))
		return KRPING_REJ_NOT_ALLOWED;
	reason = krping_read_hello(param->private_data, param->private_data_len, hello, value);
	if (!reason)
		reason = check_volume(v, id, hello, t);
	return reason ?: check_limits(hello, param, value);
}

/* Called with the handler lock of @id held. */
static void reject(struct krping_volume *v, struct rdma_cm_id *id,
		   enum krping_reject_reason reason, u32 value)
{
	atomic64_inc(&v->rejected);
	krping_warn_ratelimited(v->log_prefix, "%pISpc was rejected: %s (reason %u, value %u)",
				&id->route.addr.dst_addr, krping_reject_text(reason), reason,
				value);
	krping_reject(id, reason, value);
}

static void challenge(struct krping_volume *v, struct rdma_cm_id *id,
		      const struct krping_hello *hello)
{
	struct krping_challenge challenge = {
		.reject = {
			.magic = cpu_to_be32(KRPING_MAGIC),
			.version = KRPING_VERSION,
			.reason = cpu_to_be16(KRPING_REJ_CHALLENGE),
		},
	};
	u8 addr[16];

	krping_peer_addr(id, addr);
	krping_challenge_give(v->challenges, addr, hello, &challenge);
	rdma_reject(id, &challenge, sizeof(challenge), IB_CM_REJ_CONSUMER_DEFINED);
}

static bool is_same(const struct krping_target_conn *tc, const struct krping_target_conn *other)
{
	return tc->index == other->index &&
	       !memcmp(tc->session, other->session, sizeof(tc->session));
}

/* Return: 0 if @tc is in the list and being set up, or why the client is refused. */
static enum krping_reject_reason target_conn_list(struct krping_target_conn *tc, u32 *value)
{
	struct krping_volume *v = tc->volume;
	enum krping_reject_reason reason = 0;
	struct krping_target_conn *other;
	bool replaces = false;

	spin_lock(&v->lock);
	list_for_each_entry(other, &v->conns, entry)
		replaces |= is_same(tc, other);
	if (v->state == KRPING_VOLUME_STOPPING) {
		reason = KRPING_REJ_RESOURCES;
	} else if (v->nr_conns >= KRPING_TARGET_CONNECTIONS &&
		   (!replaces || v->nr_conns >= 2 * KRPING_TARGET_CONNECTIONS)) {
		reason = KRPING_REJ_BUSY;
		*value = KRPING_TARGET_CONNECTIONS;
	} else {
		list_add_tail(&tc->entry, &v->conns);
		v->nr_conns++;
		strscpy(v->ibdev, tc->conn.id->device->name, sizeof(v->ibdev));
		/* Under the lock: who closes the connection has found it in the list. */
		queue_work(setup_wq, &tc->setup_work);
	}
	spin_unlock(&v->lock);
	return reason;
}

/*
 * Return: true if no connection is left that is older than @tc and of the same session and index,
 * or of any session and closed. A client that was stopped and starts anew has another session, and
 * what the store still does for the old one must not come behind it.
 */
static bool is_only(struct krping_target_conn *tc, bool fail)
{
	struct krping_volume *v = tc->volume;
	struct krping_target_conn *other;
	bool only = true;

	spin_lock(&v->lock);
	list_for_each_entry(other, &v->conns, entry) {
		if (other == tc)
			break;
		if (!is_same(tc, other) && READ_ONCE(other->conn.state) != KRPING_CONN_CLOSED)
			continue;
		only = false;
		if (fail)
			krping_conn_fail(&other->conn, -ECONNRESET);
	}
	spin_unlock(&v->lock);
	return only;
}

/* Nothing of an old connection of this queue reaches the store behind a new one's command. */
static void fence(struct krping_target_conn *tc)
{
	if (is_only(tc, true))
		return;
	krping_info_ratelimited(tc->log_prefix, "queue %u: an old connection is being closed first",
				tc->index);
	wait_event_idle(tc->volume->wait, is_only(tc, false) || krping_conn_error(&tc->conn));
}

static int reply(struct krping_target_conn *tc)
{
	const struct krping_volume *v = tc->volume;
	struct krping_proven_welcome private = { .welcome = {
		.magic = cpu_to_be32(KRPING_MAGIC),
		.version = KRPING_VERSION,
		.flags = (v->opt.read_only ? KRPING_VOL_READ_ONLY : 0) |
			 (v->opt.writeback ? KRPING_VOL_WRITEBACK : 0) |
			 (v->opt.ram ? KRPING_VOL_VOLATILE : 0),
		.depth = cpu_to_be16(tc->depth),
		.capacity = cpu_to_be64(krping_volume_size(v)),
		.epoch = cpu_to_be64(tc->epoch),
		.block_size = cpu_to_be32(v->opt.block_size),
		.max_data = cpu_to_be32(KRPING_TARGET_MAX_DATA),
		.max_inline = cpu_to_be32(KRPING_TARGET_MAX_INLINE),
		.max_message = cpu_to_be32(KRPING_TARGET_MAX_MESSAGE),
	} };
	struct rdma_conn_param param = {
		.private_data = &private,
		.private_data_len = v->key ? sizeof(private) : sizeof(private.welcome),
		.responder_resources = tc->peer_read_from,
		.initiator_depth = tc->peer_reads,
		.rnr_retry_count = 7,
	};
	int ret = 0;

	if (v->key)
		ret = krping_target_proof(v->key, &tc->transcript, &private.welcome, private.proof);
	return ret ?: krping_conn_reply(&tc->conn, &param);
}

static void krping_target_conn_setup(struct work_struct *work)
{
	struct krping_target_conn *tc = container_of(work, struct krping_target_conn, setup_work);
	unsigned int flags = memalloc_noio_save();
	int ret;

	fence(tc);
	tc->epoch = atomic64_read(&tc->volume->epoch);
	ret = krping_conn_error(&tc->conn);
	if (ret)
		goto out;	/* the teardown waits for us */
	ret = krping_target_conn_alloc(tc);
	if (ret) {
		rdma_lock_handler(tc->conn.id);
		reject(tc->volume, tc->conn.id, KRPING_REJ_RESOURCES, 0);
		rdma_unlock_handler(tc->conn.id);
		krping_conn_fail(&tc->conn, ret);
		goto out;
	}
	queue_delayed_work(setup_wq, &tc->deadline_work, ESTABLISH_TIMEOUT);
	ret = reply(tc);
	if (ret) {
		krping_err_ratelimited(tc->log_prefix, "cannot accept: %d", ret);
		krping_conn_fail(&tc->conn, ret);
		goto out;
	}
	atomic64_inc(&tc->volume->connections);
	krping_info_ratelimited(tc->log_prefix, "queue %u of depth %u", tc->index, tc->depth);
out:
	memalloc_noio_restore(flags);
}

static struct krping_target_conn *target_conn_new(struct krping_volume *v, struct rdma_cm_id *id,
						  const struct krping_hello *hello,
						  const struct krping_transcript *transcript,
						  const struct rdma_conn_param *param)
{
	const struct ib_device_attr *attrs = &id->device->attrs;
	struct krping_target_conn *tc = kzalloc(sizeof(*tc), GFP_KERNEL);

	if (!tc)
		return NULL;
	snprintf(tc->log_prefix, sizeof(tc->log_prefix), "%s@%pISpc", v->opt.block,
		 &id->route.addr.dst_addr);
	krping_conn_init(&tc->conn, tc->log_prefix, &target_conn_ops);
	tc->volume = v;
	memcpy(tc->session, hello->session, sizeof(tc->session));
	tc->index = be16_to_cpu(hello->queue_index);
	tc->transcript = *transcript;
	tc->depth = min_t(u16, be16_to_cpu(hello->depth), KRPING_TARGET_DEPTH);
	tc->peer_reads = min_t(int, param->initiator_depth, attrs->max_qp_init_rd_atom);
	tc->peer_read_from = min_t(int, param->responder_resources, attrs->max_qp_rd_atom);
	INIT_WORK(&tc->setup_work, krping_target_conn_setup);
	INIT_WORK(&tc->teardown_work, krping_target_conn_teardown);
	INIT_DELAYED_WORK(&tc->deadline_work, krping_target_conn_deadline);
	krping_target_conn_init(tc);
	return tc;
}

static int on_connect_request(struct krping_volume *v, struct rdma_cm_id *id,
			      const struct rdma_cm_event *event)
{
	const struct rdma_conn_param *param = &event->param.conn;
	unsigned int flags = memalloc_noio_save();
	struct krping_transcript transcript = {};
	enum krping_reject_reason reason;
	struct krping_target_conn *tc = NULL;
	struct krping_hello hello;
	u32 value;

	reason = check_client(v, id, param, &hello, &transcript, &value);
	if (!reason && krping_fault(KRPING_FAULT_TARGET_REJECT, v->opt.block))
		reason = KRPING_REJ_RESOURCES;
	if (!reason) {
		tc = target_conn_new(v, id, &hello, &transcript, param);
		if (!tc)
			reason = KRPING_REJ_RESOURCES;
	}
	if (!reason) {
		krping_conn_adopt(&tc->conn, id, event);
		reason = target_conn_list(tc, &value);
	}
	memalloc_noio_restore(flags);
	if (!reason)
		return 0;
	if (reason == KRPING_REJ_CHALLENGE)
		challenge(v, id, &hello);
	else
		reject(v, id, reason, value);
	kfree(tc);
	return -ECONNREFUSED;	/* rdma_cm destroys the id */
}

static int volume_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct krping_volume *v = id->context;

	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		return on_connect_request(v, id, event);
	case RDMA_CM_EVENT_ADDR_CHANGE:		/* of a bond that fails over to another device */
		krping_warn(v->log_prefix, "the address has moved");
		mod_delayed_work(setup_wq, &v->listen_work, 0);
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		krping_err(v->log_prefix, "the RDMA device is being removed");
		mod_delayed_work(setup_wq, &v->listen_work, 0);
		break;
	default:
		break;
	}
	return 0;
}

/* ---- volumes ---- */

static const char *const state_names[] = {
	[KRPING_VOLUME_STARTING]	= "connecting",
	[KRPING_VOLUME_LIVE]		= "live",
	[KRPING_VOLUME_NO_DEVICE]	= "no_device",
	[KRPING_VOLUME_STOPPING]	= "stopping",
};

/* Return: false if the volume is being stopped. */
static bool set_state(struct krping_volume *v, enum krping_volume_state state)
{
	bool changed;

	spin_lock(&v->lock);
	changed = v->state != KRPING_VOLUME_STOPPING;
	if (changed)
		v->state = state;
	spin_unlock(&v->lock);
	return changed;
}

static int listen(struct krping_volume *v, const char *log_prefix)
{
	struct sockaddr_storage addr;
	struct rdma_cm_id *id;
	int ret;

	ret = krping_sockaddr(&v->opt, v->net, &addr);	/* its interface may have a new index */
	if (ret)
		return ret;
	id = krping_listen(log_prefix, volume_event, v, v->net, &addr);
	if (IS_ERR(id))
		return PTR_ERR(id);
	v->listener = id;
	spin_lock(&v->lock);
	if (id->device)		/* else the address is that of any */
		strscpy(v->ibdev, id->device->name, sizeof(v->ibdev));
	spin_unlock(&v->lock);
	set_state(v, KRPING_VOLUME_LIVE);
	return 0;
}

static void stop_listening(struct krping_volume *v)
{
	if (v->listener)
		rdma_destroy_id(v->listener);	/* returns when no event handler runs */
	v->listener = NULL;
}

#define LISTEN_RETRY_DELAY	HZ

/* Its RDMA device was removed and has to be let go of; or the address is on another one now. */
static void krping_volume_listen_again(struct work_struct *work)
{
	struct krping_volume *v = container_of(to_delayed_work(work), struct krping_volume,
					       listen_work);

	mutex_lock(&v->listen_lock);
	stop_listening(v);
	if (set_state(v, KRPING_VOLUME_NO_DEVICE)) {
		if (listen(v, NULL))
			queue_delayed_work(setup_wq, &v->listen_work, LISTEN_RETRY_DELAY);
		else
			krping_info(v->log_prefix, "serving again");
	}
	mutex_unlock(&v->listen_lock);
}

static bool is_empty(struct krping_volume *v)
{
	bool empty;

	spin_lock(&v->lock);
	empty = list_empty(&v->conns);
	spin_unlock(&v->lock);
	return empty;
}

static void volume_free(struct kref *ref)
{
	struct krping_volume *v = container_of(ref, struct krping_volume, ref);

	krping_challenges_free(v->challenges);
	crypto_free_shash(v->key);
	put_net(v->net);
	destroy_workqueue(v->store_wq);
	ida_free(&krping_volume_ids, v->id);
	free_percpu(v->stats);
	kfree(v);
	module_put(THIS_MODULE);
}

static void volume_unlist(struct krping_volume *v)
{
	mutex_lock(&krping_volumes_lock);
	list_del(&v->entry);
	mutex_unlock(&krping_volumes_lock);
}

/* Connections that wait for a stalled disk take as long as it does: so this is not the stop's. */
static void krping_volume_finish(struct work_struct *work)
{
	struct krping_volume *v = container_of(work, struct krping_volume, finish_work);
	struct krping_target_conn *tc;

	mutex_lock(&v->listen_lock);
	stop_listening(v);	/* its events queue the work */
	mutex_unlock(&v->listen_lock);
	cancel_delayed_work_sync(&v->listen_work);
	spin_lock(&v->lock);
	list_for_each_entry(tc, &v->conns, entry)
		krping_conn_fail(&tc->conn, -ECONNRESET);
	spin_unlock(&v->lock);
	wait_event_idle(v->wait, is_empty(v));
	/* A listing that found the volume served may look at its backing yet. */
	mutex_lock(&krping_volumes_lock);
	mutex_unlock(&krping_volumes_lock);
	krping_backing_close(&v->backing);	/* may wait for the disk */
	mutex_lock(&krping_volumes_lock);
	list_del(&v->entry);
	mutex_unlock(&krping_volumes_lock);
	if (v->served)
		krping_info(v->log_prefix, "no longer served");
	complete_all(&v->finished);
	kref_put(&v->ref, volume_free);
}

static struct krping_volume *volume_new(const struct krping_options *opt)
{
	struct krping_volume *v = kzalloc(sizeof(*v), GFP_KERNEL);

	if (!v)
		return NULL;
	v->stats = alloc_percpu(struct krping_stats);
	if (!v->stats)
		goto free_volume;
	v->id = ida_alloc(&krping_volume_ids, GFP_KERNEL);
	if (v->id < 0)
		goto free_stats;
	v->store_wq = alloc_workqueue("krping_%s", WQ_MEM_RECLAIM | WQ_UNBOUND, 0, opt->block);
	if (!v->store_wq)
		goto free_id;
	kref_init(&v->ref);
	v->opt = *opt;
	v->net = get_net(current->nsproxy->net_ns);
	mutex_init(&v->listen_lock);
	INIT_DELAYED_WORK(&v->listen_work, krping_volume_listen_again);
	INIT_WORK(&v->finish_work, krping_volume_finish);
	init_completion(&v->finished);
	spin_lock_init(&v->lock);
	INIT_LIST_HEAD(&v->conns);
	init_waitqueue_head(&v->wait);
	atomic64_set(&v->epoch, get_random_u64());
	strscpy(v->ibdev, "-", sizeof(v->ibdev));
	__module_get(THIS_MODULE);	/* a command runs, so there is a reference to copy */
	return v;

free_id:
	ida_free(&krping_volume_ids, v->id);
free_stats:
	free_percpu(v->stats);
free_volume:
	kfree(v);
	return NULL;
}

/* Called with krping_volumes_lock held. */
static struct krping_volume *volume_find(const char *name)
{
	struct krping_volume *v;

	list_for_each_entry(v, &krping_volumes, entry)
		if (!strcmp(v->opt.block, name))
			return v;
	return NULL;
}

static int volume_list(struct krping_volume *v)
{
	int ret = 0;

	mutex_lock(&krping_volumes_lock);
	if (volume_find(v->opt.block))
		ret = -EEXIST;
	else
		list_add_tail(&v->entry, &krping_volumes);
	mutex_unlock(&krping_volumes_lock);
	return ret;
}

static int volume_find_key(struct krping_volume *v)
{
	struct crypto_shash *key;

	if (!v->opt.key[0])
		return 0;
	key = krping_key_find(v->opt.key, v->log_prefix);
	if (IS_ERR(key))
		return PTR_ERR(key);
	v->key = key;
	v->challenges = krping_challenges_alloc();
	return v->challenges ? 0 : -ENOMEM;
}

static int check_backing(struct krping_volume *v)
{
	u32 block_size = v->backing.block_size;

	if (v->opt.block_size % block_size) {
		krping_err(v->log_prefix, "block_size=%u: %s has blocks of %u bytes",
			   v->opt.block_size, v->opt.backing, block_size);
		return -EINVAL;
	}
	if (krping_volume_size(v))
		return 0;
	krping_err(v->log_prefix, "%s has not one block", v->opt.backing);
	return -EINVAL;
}

/**
 * krping_volume_start - begin to serve a volume
 * @opt:	KRPING_BLOCK_SERVER
 *
 * Return: 0 when it is served, until krping_volume_stop(), or the errno that PROTOCOL.md
 * documents, with nothing left behind.
 */
int krping_volume_start(const struct krping_options *opt)
{
	struct krping_volume *v = volume_new(opt);
	int ret;

	if (!v)
		return -ENOMEM;
	ret = krping_sockaddr(opt, v->net, &v->addr);
	if (ret)
		goto put_volume;
	snprintf(v->log_prefix, sizeof(v->log_prefix), "%s@%pISpc", opt->block, &v->addr);
	ret = volume_find_key(v);
	if (ret)
		goto put_volume;
	ret = volume_list(v);
	if (ret) {
		krping_err_ratelimited(v->log_prefix, "a volume of that name is served already");
		goto put_volume;
	}
	ret = krping_backing_open(&v->backing, opt, opt->read_only, v->log_prefix);
	if (ret)
		goto unlist;
	ret = check_backing(v);
	if (ret)
		goto close_backing;
	kref_get(&v->ref);	/* a stop may free it while the lock is being given back */
	mutex_lock(&v->listen_lock);
	ret = listen(v, v->log_prefix);
	if (!ret) {	/* here, as a stop may end it all as soon as the lock is free */
		krping_info(v->log_prefix, "serving %llu bytes, %s%s", krping_volume_size(v),
			    opt->writeback ? "writeback" : "write-through",
			    opt->read_only ? ", read-only" : "");
		v->served = true;
	} else {
		/*
		 * It may have listened for a while, on one device of several or until the only
		 * one was removed: connections and krping_volume_listen_again() may know it.
		 */
		set_state(v, KRPING_VOLUME_STOPPING);
		queue_work(setup_wq, &v->finish_work);
	}
	mutex_unlock(&v->listen_lock);
	if (ret)	/* as a stop does, not longer than until a signal */
		wait_for_completion_interruptible(&v->finished);
	kref_put(&v->ref, volume_free);
	return ret;

close_backing:
	krping_backing_close(&v->backing);
unlist:
	volume_unlist(v);
put_volume:
	kref_put(&v->ref, volume_free);
	return ret;
}

/* Return: the volume, with a reference and going to finish, or an ERR_PTR. */
static struct krping_volume *volume_take(const char *name)
{
	struct krping_volume *v;
	int ret = 0;

	mutex_lock(&krping_volumes_lock);
	v = volume_find(name);
	if (!v) {
		ret = -ENOENT;
		goto out;
	}
	spin_lock(&v->lock);
	if (v->state == KRPING_VOLUME_STARTING || v->state == KRPING_VOLUME_STOPPING)
		ret = -EBUSY;
	else
		v->state = KRPING_VOLUME_STOPPING;
	spin_unlock(&v->lock);
	if (ret) {
		krping_err_ratelimited(v->log_prefix, "it is being started or stopped");
		goto out;
	}
	kref_get(&v->ref);
	queue_work(setup_wq, &v->finish_work);
out:
	mutex_unlock(&krping_volumes_lock);
	return ret ? ERR_PTR(ret) : v;
}

/**
 * krping_volume_stop - no longer serve a volume
 * @name:	of the volume
 *
 * Its clients lose their connections. What they were not answered may be done or not.
 *
 * Return: 0, -ENOENT, -EBUSY, or -EINTR: then it ends as soon as its backing lets it.
 */
int krping_volume_stop(const char *name)
{
	struct krping_volume *v = volume_take(name);
	int ret;

	if (IS_ERR(v))
		return PTR_ERR(v);
	ret = wait_for_completion_interruptible(&v->finished);
	kref_put(&v->ref, volume_free);
	return ret ? -EINTR : 0;
}

static void volume_show(struct seq_file *seq, struct krping_volume *v)
{
	enum krping_volume_state state;
	char ibdev[IB_DEVICE_NAME_MAX];
	u32 inflight = 0, queues;
	struct krping_target_conn *tc;

	spin_lock(&v->lock);
	state = v->state;
	queues = v->nr_conns;
	memcpy(ibdev, v->ibdev, sizeof(ibdev));
	list_for_each_entry(tc, &v->conns, entry)
		inflight += READ_ONCE(tc->nr_inflight);
	spin_unlock(&v->lock);

	seq_printf(seq, "id=%d name=%s role=target mode=remote dev=- state=%s peer=%pISpc ibdev=%s",
		   v->id, v->opt.block, state_names[state], &v->addr, ibdev);
	seq_printf(seq, " size=%llu block_size=%u writeback=%d read_only=%d queues=%u depth=%u inflight=%u",
		   state == KRPING_VOLUME_STARTING || state == KRPING_VOLUME_STOPPING ? 0 :
		   krping_volume_size(v), v->opt.block_size, v->opt.writeback, v->opt.read_only,
		   queues, KRPING_TARGET_DEPTH, inflight);
	krping_block_stats_show(v->stats, KRPING_TARGET_COUNTERS, seq);
	seq_printf(seq, " violations=%lld connections=%lld rejected=%lld\n",
		   atomic64_read(&v->violations), atomic64_read(&v->connections),
		   atomic64_read(&v->rejected));
}

void krping_volumes_show(struct seq_file *seq)
{
	struct krping_volume *v;

	mutex_lock(&krping_volumes_lock);
	list_for_each_entry(v, &krping_volumes, entry)
		volume_show(seq, v);
	mutex_unlock(&krping_volumes_lock);
}
