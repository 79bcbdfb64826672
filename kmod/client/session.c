// SPDX-License-Identifier: GPL-2.0
/* Block sessions: references, state, list and listing. */
#include <crypto/hash.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/nsproxy.h>
#include <linux/slab.h>

#include "client/internal.h"
#include "lib/log.h"
#include "lib/trace.h"

static DEFINE_MUTEX(krping_sessions_lock);	/* protects the list */
static LIST_HEAD(krping_sessions);
static DEFINE_IDA(krping_ids);

static const char *const state_names[] = {
	[KRPING_SESSION_CONNECTING]	= "connecting",
	[KRPING_SESSION_LIVE]		= "live",
	[KRPING_SESSION_RECONNECTING]	= "reconnecting",
	[KRPING_SESSION_FAILED]		= "failed",
	[KRPING_SESSION_STOPPING]	= "stopping",
};

static const char *const mode_names[] = {
	[KRPING_MODE_REMOTE]	= "remote",
	[KRPING_MODE_TAP]	= "tap",
};

/* Called with s->lock held. */
void krping_session_set_state(struct krping_session *s, enum krping_session_state state)
{
	trace_krping_session_state(s->id, s->state, state);
	WRITE_ONCE(s->state, state);
}

int krping_queue_violation(struct krping_queue *q, const char *what, u64 value)
{
	krping_err_ratelimited(q->session->log_prefix, "the target broke the protocol: %s (%llu)",
			       what, value);
	return -EPROTO;
}

/* The block layer uses one hardware queue per CPU at most. */
#define MAX_DEFAULT_QUEUES	16u

/*
 * Allocates the reserve, which need not be contiguous. Later calls fail: the pool could keep their
 * memory, and free that of the reserve in atomic context, where vfree() must not be called.
 */
static void *alloc_sg(gfp_t flags, void *unused)
{
	if (!gfpflags_allow_blocking(flags))
		return NULL;
	return kvmalloc_array(KRPING_SEGMENTS_MAX, sizeof(struct scatterlist), flags);
}

static void free_sg(void *sg, void *unused)
{
	kvfree(sg);
}

struct krping_session *krping_session_alloc(const struct krping_options *opt,
					    const struct krping_session_ops *ops)
{
	struct krping_session *s;
	u32 i;

	s = kzalloc(sizeof(*s), GFP_KERNEL);
	if (!s)
		return ERR_PTR(-ENOMEM);
	s->stats = alloc_percpu(struct krping_stats);
	if (!s->stats)
		goto free_session;
	s->nr_poll = min(opt->poll_queues, nr_cpu_ids);
	s->nr_queues = min(opt->queues ?: MAX_DEFAULT_QUEUES, nr_cpu_ids) + s->nr_poll;
	s->queues = kcalloc(s->nr_queues, sizeof(*s->queues), GFP_KERNEL);
	if (!s->queues)
		goto free_stats;
	if (mempool_init(&s->sg_pool, s->nr_queues + 1, alloc_sg, free_sg, NULL))
		goto free_queues;
	s->id = ida_alloc(&krping_ids, GFP_KERNEL);
	if (s->id < 0)
		goto free_pool;

	kref_init(&s->ref);
	s->opt = *opt;
	s->ops = ops;
	s->no_wait = true;	/* until the disk has been added */
	s->net = get_net(current->nsproxy->net_ns);
	uuid_gen(&s->uuid);
	spin_lock_init(&s->lock);
	mutex_init(&s->hold_lock);
	sema_init(&s->digests, 4);
	for (i = 0; i < s->nr_queues; i++) {
		struct krping_queue *q = &s->queues[i];

		q->session = s;
		q->index = i;
		q->polls = i >= s->nr_queues - s->nr_poll;
		spin_lock_init(&q->poll_lock);
		spin_lock_init(&q->lock);
		INIT_LIST_HEAD(&q->tx_free);
		INIT_LIST_HEAD(&q->unsignalled);
		INIT_LIST_HEAD(&q->early);
		INIT_LIST_HEAD(&q->unchecked);
		krping_receives_init(q);
	}
	__module_get(THIS_MODULE);	/* safe: the running command holds one */
	return s;

free_pool:
	mempool_exit(&s->sg_pool);
free_queues:
	kfree(s->queues);
free_stats:
	free_percpu(s->stats);
free_session:
	kfree(s);
	return ERR_PTR(-ENOMEM);
}

static void session_free(struct kref *ref)
{
	struct krping_session *s = container_of(ref, struct krping_session, ref);

	if (s->ops)
		s->ops->free(s);
	crypto_free_shash(s->key);
	put_net(s->net);
	ida_free(&krping_ids, s->id);
	mempool_exit(&s->sg_pool);
	kfree(s->queues);
	free_percpu(s->stats);
	kfree(s);
	module_put(THIS_MODULE);
}

void krping_session_put(struct krping_session *s)
{
	kref_put(&s->ref, session_free);
}

/* Called with krping_sessions_lock held. */
static struct krping_session *session_find(const char *name)
{
	struct krping_session *s;

	list_for_each_entry(s, &krping_sessions, entry)
		if (!strcmp(s->opt.block, name))
			return s;
	return NULL;
}

int krping_session_list(struct krping_session *s)
{
	int ret = 0;

	mutex_lock(&krping_sessions_lock);
	if (session_find(s->opt.block))
		ret = -EEXIST;
	else
		list_add_tail(&s->entry, &krping_sessions);
	mutex_unlock(&krping_sessions_lock);
	return ret;
}

void krping_session_unlist(struct krping_session *s)
{
	mutex_lock(&krping_sessions_lock);
	list_del(&s->entry);
	mutex_unlock(&krping_sessions_lock);
}

/* The disk that applications open. */
struct gendisk *krping_session_disk(struct krping_session *s)
{
	return s->ops ? s->ops->disk(s) : s->disk;
}

static int refuse_stop(struct krping_session *s, const char *why)
{
	krping_err_ratelimited(s->log_prefix, "not stopped: %s", why);
	return -EBUSY;
}

/* Return: the session, which only the caller may stop now, or an ERR_PTR. */
struct krping_session *krping_session_take(const char *name, bool force)
{
	struct krping_session *s;
	int ret = 0;

	mutex_lock(&krping_sessions_lock);
	s = session_find(name);
	if (!s)
		ret = -ENOENT;
	else if (READ_ONCE(s->state) == KRPING_SESSION_CONNECTING || s->no_wait)
		ret = refuse_stop(s, "it is being started or stopped");
	else if (!force && disk_openers(krping_session_disk(s)))
		ret = refuse_stop(s, "its device is in use: close it, or stop with force");
	else
		WRITE_ONCE(s->no_wait, true);
	mutex_unlock(&krping_sessions_lock);
	return ret ? ERR_PTR(ret) : s;
}

static void show_source(struct seq_file *seq, const struct krping_options *opt)
{
	switch (opt->src_family) {
	case AF_INET:
		seq_printf(seq, " source=%pI4", opt->src);
		break;
	case AF_INET6:
		seq_printf(seq, " source=%pI6c%s%s", opt->src, opt->src_ifname[0] ? "%" : "",
			   opt->src_ifname);
		break;
	default:
		seq_puts(seq, " source=-");
	}
}

static void session_show(struct seq_file *seq, struct krping_session *s)
{
	char ibdev[IB_DEVICE_NAME_MAX];
	u32 inflight = 0, i;

	spin_lock_bh(&s->lock);
	strscpy(ibdev, s->ibdev[0] ? s->ibdev : "-", sizeof(ibdev));
	spin_unlock_bh(&s->lock);
	for (i = 0; i < s->nr_queues; i++)
		inflight += READ_ONCE(s->queues[i].nr_inflight);

	seq_printf(seq, "id=%d name=%s role=client mode=%s dev=krping%d state=%s peer=%pISpc ibdev=%s",
		   s->id, s->opt.block, mode_names[s->opt.mode], s->id,
		   state_names[READ_ONCE(s->state)], &s->peer, ibdev);
	seq_printf(seq, " size=%llu block_size=%u writeback=%d read_only=%d queues=%u depth=%u inflight=%u",
		   s->grant.capacity, s->grant.block_size, s->grant.writeback,
		   s->grant.read_only, s->nr_queues - s->nr_poll, s->grant.depth, inflight);
	krping_block_stats_show(s->stats, KRPING_BLOCK_COUNTERS, seq);
	seq_printf(seq, " timeout=%u fast_fail=%u heartbeat=%u", s->opt.timeout,
		   READ_ONCE(s->opt.fast_fail), s->opt.heartbeat);
	if (s->grant.version > 1)
		seq_printf(seq, " uuid=%pUb", s->grant.uuid);
	else
		seq_puts(seq, " uuid=-");
	seq_printf(seq, " version=%u volatile=%d shared=%d", s->grant.version,
		   s->grant.is_volatile, !!(s->grant.caps & KRPING_CAP_SHARED));
	show_source(seq, &s->opt);
	if (s->opt.has_tos)
		seq_printf(seq, " tos=%u", s->opt.tos);
	else
		seq_puts(seq, " tos=-");
	seq_printf(seq, " poll_queues=%u", s->nr_poll);
	if (s->ops)
		s->ops->show(s, seq);
	seq_putc(seq, '\n');
}

void krping_sessions_show(struct seq_file *seq)
{
	struct krping_session *s;

	mutex_lock(&krping_sessions_lock);
	list_for_each_entry(s, &krping_sessions, entry)
		session_show(seq, s);
	mutex_unlock(&krping_sessions_lock);
}
