// SPDX-License-Identifier: GPL-2.0
/* The life cycle of a target connection: allocation, the volume's list, teardown. */
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "lib/compat.h"
#include "lib/fault.h"
#include "lib/log.h"
#include "target/target.h"

/*
 * Work that can block on other work has its own workqueue: the end of a volume waits for
 * teardowns, as do set-ups; teardowns wait for set-ups, workers and the store.
 */
struct workqueue_struct *krping_target_wq;
struct workqueue_struct *krping_poll_wq;
struct workqueue_struct *krping_volume_wq;

static void destroy_workqueues(struct workqueue_struct **wqs, int n)
{
	int i;

	for (i = 0; i < n; i++)
		if (wqs[i])
			destroy_workqueue(wqs[i]);
}

void krping_target_exit(void)
{
	struct workqueue_struct *all[] = { krping_volume_wq, krping_poll_wq, krping_target_wq };

	destroy_workqueues(all, ARRAY_SIZE(all));
}

int krping_target_init(void)
{
	krping_target_wq = alloc_workqueue("krping_target", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	/* The CRC of 1 MiB takes long: other work of this CPU need not wait for it. */
	krping_poll_wq = alloc_workqueue("krping_target_poll",
					 WQ_MEM_RECLAIM | WQ_HIGHPRI | WQ_CPU_INTENSIVE |
					 KRPING_WQ_PERCPU, 0);
	krping_volume_wq = alloc_workqueue("krping_volumes", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	if (krping_target_wq && krping_poll_wq && krping_volume_wq)
		return 0;
	krping_target_exit();
	return -ENOMEM;
}

#define MAX_LISTED	(2 * KRPING_TARGET_CONNECTIONS)	/* see is_full() */
#define MAX_RANGES	16
#define MAX_DIGESTS	4	/* they read the disk and use the CPU: I/O comes first */

/* Frees also what a failed krping_volume_wqs_alloc() left. */
void krping_volume_wqs_free(struct krping_volume *v)
{
	struct workqueue_struct *all[] = {
		v->wq.setup, v->wq.teardown, v->wq.store, v->wq.ranges, v->wq.digests,
	};

	destroy_workqueues(all, ARRAY_SIZE(all));
}

/* Fences wait for all of them, and a client's reclaim of memory may wait for the fence. */
static struct workqueue_struct *volume_wq(const struct krping_volume *v, const char *what, int max)
{
	return alloc_workqueue("krping%d_%s", WQ_MEM_RECLAIM | WQ_UNBOUND, max, v->id, what);
}

int krping_volume_wqs_alloc(struct krping_volume *v)
{
	v->wq.setup = volume_wq(v, "setup", MAX_LISTED);
	v->wq.teardown = volume_wq(v, "end", MAX_LISTED);
	v->wq.store = volume_wq(v, "store", 0);
	v->wq.ranges = volume_wq(v, "ranges", MAX_RANGES);
	v->wq.digests = volume_wq(v, "digests", MAX_DIGESTS);
	if (v->wq.setup && v->wq.teardown && v->wq.store && v->wq.ranges && v->wq.digests)
		return 0;
	krping_volume_wqs_free(v);
	return -ENOMEM;
}

/* ---- allocation ---- */

/*
 * An answered command stays in use while its data is being sent; during that time it holds a
 * message. So at most @depth + KRPING_TARGET_TX commands are in use, plus one KEEP_ALIVE.
 */
static int alloc_cmds(struct krping_target_conn *tc)
{
	u32 nr = tc->depth + KRPING_TARGET_TX + 1, i;

	tc->tags = bitmap_zalloc(KRPING_TAG_KEEP_ALIVE + 1, GFP_KERNEL);
	tc->cmds = kvcalloc(nr, sizeof(*tc->cmds), GFP_KERNEL);
	if (!tc->tags || !tc->cmds)
		return -ENOMEM;
	tc->nr_cmds = nr;
	for (i = 0; i < nr; i++) {
		struct krping_target_cmd *cmd = &tc->cmds[i];

		cmd->tc = tc;
		cmd->rw_cqe.done = krping_worker_read_done;
		INIT_WORK(&cmd->work, krping_store_work);
		sg_init_table(&cmd->small, 1);
		if (i)
			list_add_tail(&cmd->entry, &tc->free_cmds);
		if (!i || !tc->volume->backing.bdev)
			continue;
		cmd->page = alloc_page(GFP_KERNEL);
		if (!cmd->page)
			return -ENOMEM;
	}
	tc->keep_alive = &tc->cmds[0];
	return 0;
}

static void free_cmds(struct krping_target_conn *tc)
{
	u32 i;

	for (i = 0; i < tc->nr_cmds; i++) {
		struct krping_target_cmd *cmd = &tc->cmds[i];

		if (cmd->nr_wrs)
			krping_transfer_free(cmd);
		krping_data_free(cmd);
		if (cmd->page)
			__free_page(cmd->page);
	}
	krping_free_chunks(tc, 0);
	kvfree(tc->cmds);
	bitmap_free(tc->tags);
	tc->cmds = NULL;
	tc->nr_cmds = 0;
	tc->tags = NULL;
}

static int alloc_tx(struct krping_target_conn *tc)
{
	u32 i;
	int ret = 0;

	tc->tx = kvcalloc(KRPING_TARGET_TX, sizeof(*tc->tx), GFP_KERNEL);
	if (!tc->tx)
		return -ENOMEM;
	for (i = 0; !ret && i < KRPING_TARGET_TX; i++) {
		tc->tx[i].tc = tc;
		tc->tx[i].buf.cqe.done = krping_worker_send_done;
		ret = krping_buf_alloc(&tc->conn, &tc->tx[i].buf, KRPING_TARGET_MAX_MESSAGE,
				       DMA_TO_DEVICE);
	}
	return ret;
}

static void free_tx(struct krping_target_conn *tc)
{
	u32 i;

	if (!tc->tx)
		return;
	for (i = 0; i < KRPING_TARGET_TX; i++)
		krping_buf_free(&tc->conn, &tc->tx[i].buf);
	kvfree(tc->tx);
	tc->tx = NULL;
}

/*
 * The client may have sent @messages messages and a KEEP_ALIVE that are not answered yet. That many
 * receives are always posted; one more is being read by the worker.
 */
static u32 nr_receives(const struct krping_target_conn *tc)
{
	return tc->messages + 2;
}

/* Pages of its messages and of its commands' small data. */
static u32 idle_pages(const struct krping_target_conn *tc)
{
	return nr_receives(tc) *
	       DIV_ROUND_UP(KRPING_TARGET_RX_HEAD + KRPING_TARGET_MAX_MESSAGE, PAGE_SIZE) +
	       KRPING_TARGET_TX * DIV_ROUND_UP(KRPING_TARGET_MAX_MESSAGE, PAGE_SIZE) +
	       (tc->volume->backing.bdev ? tc->depth + KRPING_TARGET_TX : 0);
}

static int alloc_rx(struct krping_target_conn *tc)
{
	u32 nr = nr_receives(tc), i;

	tc->rx = kvcalloc(nr, sizeof(*tc->rx), GFP_KERNEL);
	if (!tc->rx)
		return -ENOMEM;
	tc->nr_rx = nr;
	for (i = 0; i < nr; i++)
		tc->rx[i].head = KRPING_TARGET_RX_HEAD;
	return krping_bufs_alloc_recv(&tc->conn, tc->rx, nr, KRPING_TARGET_MAX_MESSAGE,
				      krping_worker_recv_done);
}

static void free_rx(struct krping_target_conn *tc)
{
	u32 i;

	for (i = 0; i < tc->nr_rx; i++)
		krping_buf_free(&tc->conn, &tc->rx[i]);
	kvfree(tc->rx);
	tc->rx = NULL;
	tc->nr_rx = 0;
}

/* SGEs of an RDMA READ or WRITE. An iWARP READ always has one, the memory region. */
static u32 rw_pieces(const struct krping_target_conn *tc)
{
	const struct ib_device *dev = tc->conn.id->device;
	int sge = krping_dev_max_send_sge(dev);

	if (!krping_conn_is_iwarp(&tc->conn))
		sge = min_t(int, sge, dev->attrs.max_sge_rd);
	return clamp(sge, 1, 32);
}

#define MIN_RW_CTXS	32	/* transfers in flight if each command needs only one */

/* RDMA READs and WRITEs that the send queue has room for; a command takes up to @most. */
static u32 rw_ctxs(const struct krping_target_conn *tc, u32 most, u32 send_wr)
{
	/* 3: see krping_conn_alloc(), which fails if not even one command fits. */
	int fit = ((int)krping_dev_max_wr(tc->conn.id->device) - (int)send_wr - 1) / 3;

	return min_t(u32, max_t(u32, 4 * most, MIN_RW_CTXS), max_t(int, fit, most));
}

/**
 * krping_target_conn_alloc - allocate a connection's resources and post its receives
 * @tc:		connection with a client's request
 *
 * The send queue holds KRPING_TARGET_TX messages and @rw_ctxs RDMA READs and WRITEs. A command
 * takes at most DIV_ROUND_UP(256 pages, SGEs of a work request) of the latter; there is room for
 * four such commands, counted in @tc->rw_room. So a command never needs more room than the queue
 * has, and completions free it.
 *
 * Return: 0 or a negative errno; the teardown then frees what was allocated.
 */
int krping_target_conn_alloc(struct krping_target_conn *tc)
{
	const struct rdma_cm_id *id = tc->conn.id;
	u32 pages = KRPING_TARGET_MAX_DATA / PAGE_SIZE, pieces = rw_pieces(tc);
	u32 most = max(rdma_rw_mr_factor(id->device, id->port_num, pages),
		       DIV_ROUND_UP(pages, pieces));
	struct krping_qp_attr attr = {
		.send_wr = KRPING_TARGET_TX + 1,	/* 1 = probe */
		.recv_wr = nr_receives(tc),
		.vector = tc->index,
		.notify = krping_worker_notify,
		.send_sge = pieces,
		.buf_sges = KRPING_BUF_SGES,
		.rw_ctxs = rw_ctxs(tc, most, KRPING_TARGET_TX + 1),
	};
	int ret;

	krping_fault_sleep(KRPING_FAULT_TARGET_SETUP_STALL, tc->volume->opt.block);
	tc->chunk_order = krping_chunk_order(id->device);
	tc->rw_size = attr.rw_ctxs;
	tc->rw_room = attr.rw_ctxs;
	ret = alloc_cmds(tc);
	if (!ret)
		ret = krping_conn_alloc(&tc->conn, &attr);
	if (ret)
		return ret;
	ib_req_notify_cq(tc->conn.cq, IB_CQ_NEXT_COMP);	/* draining needs completions, too */
	ret = alloc_tx(tc);
	if (!ret)
		ret = alloc_rx(tc);
	if (ret)
		return ret;
	krping_worker_start(tc);
	return 0;
}

/* ---- the end of a connection ---- */

/*
 * Waits until a closed connection has nothing in the store. From then on it is quiet: only the
 * worker gives commands to the store, and looks before each whether the connection is closed. This
 * needs neither the peer nor the RDMA device, so a new connection waits for no more than this.
 */
static void target_conn_quiesce(struct krping_target_conn *tc)
{
	struct krping_volume *v = tc->volume;

	flush_work(&tc->poll_work);	/* a later run sees that it is closed */
	if (!atomic_dec_and_test(&tc->async))
		wait_for_completion(&tc->async_done);
	spin_lock(&v->lock);
	tc->quiet = true;
	wake_up_all(&v->wait);
	spin_unlock(&v->lock);
}

/*
 * Waits until a quiet connection, whose set-up has finished, has nothing in flight. Afterwards the
 * client does not touch its memory. How long this takes depends on the RDMA device, and over iWARP
 * on the peer.
 */
static void target_conn_drain(struct krping_target_conn *tc)
{
	krping_fault_sleep(KRPING_FAULT_TARGET_DRAIN_STALL, tc->volume->opt.block);
	krping_conn_drain(&tc->conn);
	krping_worker_stop(tc);
}

/* Undoes krping_target_conn_alloc(); the connection is drained. */
static void target_conn_free(struct krping_target_conn *tc)
{
	free_cmds(tc);
	free_rx(tc);
	free_tx(tc);
	krping_conn_free(&tc->conn);
}

static void target_conn_unlist(struct krping_target_conn *tc)
{
	struct krping_volume *v = tc->volume;

	spin_lock(&v->lock);
	krping_writer_closed(tc);
	list_del(&tc->entry);
	v->nr_conns--;
	krping_pages_put(tc->pages);
	wake_up_all(&v->wait);	/* under the lock: the volume may be freed after it */
	spin_unlock(&v->lock);
}

static void krping_target_conn_teardown(struct work_struct *work)
{
	struct krping_target_conn *tc = container_of(work, struct krping_target_conn,
						     teardown_work);
	unsigned int flags = memalloc_noio_save();
	int error = krping_conn_error(&tc->conn);

	target_conn_quiesce(tc);
	flush_work(&tc->setup_work);
	cancel_delayed_work_sync(&tc->deadline_work);
	target_conn_drain(tc);
	target_conn_free(tc);
	krping_conn_close(&tc->conn);
	krping_info_ratelimited(tc->log_prefix, "queue %u disconnected (%d)", tc->index, error);
	target_conn_unlist(tc);
	kfree(tc);
	memalloc_noio_restore(flags);
}

/* From here on the teardown owns the connection. */
static void target_conn_closed(struct krping_conn *conn, int error)
{
	struct krping_target_conn *tc = container_of(conn, struct krping_target_conn, conn);

	WRITE_ONCE(tc->closed_at, jiffies ?: 1);
	wake_up_all(&tc->volume->wait);
	queue_work(tc->volume->wq.teardown, &tc->teardown_work);
}

static const struct krping_conn_ops target_conn_ops = {
	.closed = target_conn_closed,
};

static void krping_target_conn_deadline(struct work_struct *work)
{
	struct krping_target_conn *tc = container_of(to_delayed_work(work),
						     struct krping_target_conn, deadline_work);

	if (READ_ONCE(tc->conn.state) >= KRPING_CONN_LIVE)
		return;
	krping_err_ratelimited(tc->log_prefix, "the client did not complete the connection");
	krping_conn_fail(&tc->conn, -ETIMEDOUT);
}

void krping_target_conn_init(struct krping_target_conn *tc)
{
	krping_conn_init(&tc->conn, tc->log_prefix, &target_conn_ops);
	INIT_WORK(&tc->teardown_work, krping_target_conn_teardown);
	INIT_DELAYED_WORK(&tc->deadline_work, krping_target_conn_deadline);
	atomic_set(&tc->async, 1);
	init_completion(&tc->async_done);
	INIT_LIST_HEAD(&tc->free_cmds);
	krping_chunks_init(tc);
	krping_worker_init(tc);
}

/* ---- the list of a volume ---- */

static bool is_same(const struct krping_target_conn *tc, const struct krping_target_conn *other)
{
	return tc->index == other->index &&
	       !memcmp(tc->session, other->session, sizeof(tc->session));
}

/* A replacement needs no free place, but the number of those that wait is limited, too. */
static bool is_full(u32 listed, u32 most, bool replaces)
{
	return listed >= (replaces ? 2 * most : most);
}

/* Return: 0 with @tc listed and its set-up queued, or why the client is rejected. */
enum krping_reject_reason krping_target_conn_list(struct krping_target_conn *tc, u32 *value)
{
	struct krping_volume *v = tc->volume;
	enum krping_reject_reason reason = 0;
	struct krping_target_conn *other;
	u32 of_address = 0;
	bool replaces = false;

	tc->pages = idle_pages(tc);
	spin_lock(&v->lock);
	list_for_each_entry(other, &v->conns, entry) {
		replaces |= is_same(tc, other);
		of_address += !memcmp(tc->addr, other->addr, sizeof(tc->addr));
	}
	if (v->state == KRPING_VOLUME_STOPPING) {
		reason = KRPING_REJ_RESOURCES;
	} else if (is_full(v->nr_conns, KRPING_TARGET_CONNECTIONS, replaces)) {
		reason = KRPING_REJ_BUSY;
		*value = KRPING_TARGET_CONNECTIONS;
	} else if (is_full(of_address, KRPING_TARGET_OF_ADDRESS, replaces)) {
		reason = KRPING_REJ_BUSY;
		*value = KRPING_TARGET_OF_ADDRESS;
	} else if (!krping_pages_get(tc, tc->pages)) {
		reason = KRPING_REJ_RESOURCES;
	} else if (!krping_writer_admit(tc, tc->take_over)) {
		krping_pages_put(tc->pages);
		reason = KRPING_REJ_IN_USE;
	} else {
		list_add_tail(&tc->entry, &v->conns);
		v->nr_conns++;
		strscpy(v->ibdev, tc->conn.id->device->name, sizeof(v->ibdev));
		/* Under the lock: others find and close the connection through the list. */
		queue_work(v->wq.setup, &tc->setup_work);
	}
	spin_unlock(&v->lock);
	return reason;
}

/*
 * Return: true unless an older connection is left that is closed, or has the same session and
 * index, or belongs to a session that @tc's replaces as the writer, and is not quiet yet. Closed
 * ones count whatever their session: a restarted client has a new session, and the store must
 * first finish the old session's commands.
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
		if (other->quiet ||
		    (!is_same(tc, other) && !krping_writer_replaces(tc, other) &&
		     READ_ONCE(other->conn.state) != KRPING_CONN_CLOSED))
			continue;
		only = false;
		if (fail)
			krping_conn_fail(&other->conn, -ECONNRESET);
	}
	spin_unlock(&v->lock);
	return only;
}

/* No command of an old connection may reach the store after one of the new connection. */
void krping_target_conn_fence(struct krping_target_conn *tc)
{
	if (is_only(tc, true))
		return;
	krping_info_ratelimited(tc->log_prefix, "queue %u: waiting for an old connection to close",
				tc->index);
	wait_event_idle(tc->volume->wait, is_only(tc, false) || krping_conn_error(&tc->conn));
}
