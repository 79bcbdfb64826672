// SPDX-License-Identifier: GPL-2.0
/* Volumes that are served: start, stop, list. */
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/nsproxy.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/uuid.h>

#include "lib/log.h"
#include "target/target.h"

static DEFINE_MUTEX(krping_volumes_lock);	/* protects the list */
static LIST_HEAD(krping_volumes);
static DEFINE_IDA(krping_volume_ids);

static const char *const state_names[] = {
	[KRPING_VOLUME_STARTING]	= "connecting",
	[KRPING_VOLUME_LIVE]		= "live",
	[KRPING_VOLUME_NO_DEVICE]	= "no_device",
	[KRPING_VOLUME_STOPPING]	= "stopping",
};

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
	krping_volume_wqs_free(v);
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

/* Runs as a work item: waiting for a stalled disk must not block the caller of the stop. */
static void krping_volume_finish(struct work_struct *work)
{
	struct krping_volume *v = container_of(work, struct krping_volume, finish_work);
	struct krping_target_conn *tc;

	krping_listener_leave(v);
	spin_lock(&v->lock);
	list_for_each_entry(tc, &v->conns, entry)
		krping_conn_fail(&tc->conn, -ECONNRESET);
	spin_unlock(&v->lock);
	wait_event_idle(v->wait, is_empty(v));
	/* Wait for a listing that found the volume live and may still read its backing. */
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
	if (krping_volume_wqs_alloc(v))
		goto free_id;
	kref_init(&v->ref);
	v->opt = *opt;
	v->net = get_net(current->nsproxy->net_ns);
	INIT_WORK(&v->finish_work, krping_volume_finish);
	init_completion(&v->finished);
	spin_lock_init(&v->lock);
	INIT_LIST_HEAD(&v->conns);
	init_waitqueue_head(&v->wait);
	atomic64_set(&v->epoch, get_random_u64());
	strscpy(v->ibdev, "-", sizeof(v->ibdev));
	__module_get(THIS_MODULE);	/* the running command holds a reference */
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
		krping_err(v->log_prefix, "block_size=%u: must be a multiple of the %u bytes of a block of %s",
			   v->opt.block_size, block_size, v->opt.backing);
		return -EINVAL;
	}
	if (krping_volume_size(v))
		return 0;
	krping_err(v->log_prefix, "%s is smaller than one block", v->opt.backing);
	return -EINVAL;
}

/* Sets UUID and capabilities of a volume whose backing is open. */
static void set_identity(struct krping_volume *v)
{
	const struct krping_options *opt = &v->opt;

	memcpy(v->uuid, opt->uuid, sizeof(v->uuid));
	if (krping_uuid_is_null(v->uuid) && !krping_backing_uuid(&v->backing, v->uuid)) {
		generate_random_uuid(v->uuid);
		if (!opt->ram)
			krping_warn(v->log_prefix, "%s has no unique ID: clients fail when the volume is started again; uuid=%pUb keeps it",
				    opt->backing, v->uuid);
	}
	v->caps = (krping_backing_discards(&v->backing) ? KRPING_CAP_DISCARD : 0) |
		  (opt->shared ? KRPING_CAP_SHARED : 0);
	if (!krping_backing_tears(&v->backing, opt->block_size))
		return;
	v->caps |= KRPING_CAP_TORN_BLOCKS;
	krping_warn(v->log_prefix, "a power loss may tear a block of %u bytes: %s has smaller ones",
		    opt->block_size, opt->backing);
}

/* Sets address, log prefix and key. On failure volume_free() frees what was set. */
static int volume_prepare(struct krping_volume *v)
{
	int ret = krping_sockaddr(&v->opt, v->net, &v->addr);

	if (ret)
		return ret;
	snprintf(v->log_prefix, sizeof(v->log_prefix), "%s@%pISpc", v->opt.block, &v->addr);
	return volume_find_key(v);
}

/* Lists the volume and opens its backing. Return: 0 or a negative errno with neither done. */
static int volume_open(struct krping_volume *v)
{
	int ret = volume_list(v);

	if (ret) {
		krping_err_ratelimited(v->log_prefix, "a volume of this name is already served");
		return ret;
	}
	ret = krping_backing_open(&v->backing, &v->opt, v->opt.read_only, v->log_prefix);
	if (ret)
		goto unlist;
	ret = check_backing(v);
	if (!ret) {
		set_identity(v);
		return 0;
	}
	krping_backing_close(&v->backing);
unlist:
	volume_unlist(v);
	return ret;
}

/* Listens; if that fails, ends the volume as a stop does. The caller holds a reference. */
static int volume_serve(struct krping_volume *v)
{
	int ret = krping_listener_join(v);

	if (ret) {
		spin_lock(&v->lock);
		v->state = KRPING_VOLUME_STOPPING;
		spin_unlock(&v->lock);
		queue_work(krping_volume_wq, &v->finish_work);
		wait_for_completion_interruptible(&v->finished);	/* as a stop does */
	}
	return ret;
}

/**
 * krping_volume_start - begin to serve a volume
 * @opt:	a command with KRPING_BLOCK_SERVER
 *
 * Return: 0 once it is served, which lasts until krping_volume_stop(); or the errno that
 * INTERFACE.md documents, with nothing left behind.
 */
int krping_volume_start(const struct krping_options *opt)
{
	struct krping_volume *v = volume_new(opt);
	int ret;

	if (!v)
		return -ENOMEM;
	ret = volume_prepare(v);
	if (!ret)
		ret = volume_open(v);
	if (!ret) {
		kref_get(&v->ref);	/* krping_volume_finish() puts the list's */
		ret = volume_serve(v);
	}
	kref_put(&v->ref, volume_free);
	return ret;
}

/* Return: the volume, stopping, with a reference for the caller; or an ERR_PTR. */
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
		krping_err_ratelimited(v->log_prefix, "the volume is being started or stopped");
		goto out;
	}
	kref_get(&v->ref);
	queue_work(krping_volume_wq, &v->finish_work);
out:
	mutex_unlock(&krping_volumes_lock);
	return ret ? ERR_PTR(ret) : v;
}

/**
 * krping_volume_stop - stop serving a volume
 * @name:	name of the volume
 *
 * Clients lose their connections. Unanswered commands may or may not have been executed.
 *
 * Return: 0, -ENOENT, -EBUSY, or -EINTR: the volume then ends once its backing allows it.
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
	char text[KRPING_ADDR_TEXT];
	u8 writer[16];

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
	seq_printf(seq, " violations=%lld connections=%lld rejected=%lld",
		   atomic64_read(&v->violations), atomic64_read(&v->connections),
		   atomic64_read(&v->rejected));
	seq_printf(seq, " uuid=%pUb volatile=%d shared=%d", v->uuid, !!v->opt.ram, v->opt.shared);
	if (krping_writer_addr(v, writer))
		seq_printf(seq, " writer=%s\n", krping_addr_text(writer, text));
	else
		seq_puts(seq, " writer=-\n");
}

void krping_volumes_show(struct seq_file *seq)
{
	struct krping_volume *v;

	mutex_lock(&krping_volumes_lock);
	list_for_each_entry(v, &krping_volumes, entry)
		volume_show(seq, v);
	mutex_unlock(&krping_volumes_lock);
}
