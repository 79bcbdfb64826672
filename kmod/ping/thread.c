// SPDX-License-Identifier: GPL-2.0
/* Threads: their list, their connections, the messages that all tests exchange. */
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/nsproxy.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <net/ipv6.h>

#include "ping/hello.h"
#include "lib/log.h"
#include "ping/thread.h"

#define MAX_THREADS	4096	/* at once: each pins memory */

static bool unsafe_global_rkey;
module_param(unsafe_global_rkey, bool, 0444);
MODULE_PARM_DESC(unsafe_global_rkey,
		 "mem_mode=dma gives peers a key to all memory of this host, instead of registering what they need (default: false)");

static DEFINE_MUTEX(threads_lock);	/* protects the list, its length and listed_dev */
static LIST_HEAD(threads);
static unsigned int nr_threads;

/* ---- completions ---- */

/* From any context. */
void krping_thread_progress(struct krping_thread *thread)
{
	atomic_inc(&thread->progress);
	if (wq_has_sleeper(&thread->wait))
		wake_up_all(&thread->wait);
}

/* A work request that was counted in krping_lane_post() has completed. */
void krping_lane_completed(struct krping_lane *lane)
{
	/* pairs with all_completed(): what the work request wrote is seen */
	smp_store_release(&lane->completed, lane->completed + 1);
	krping_thread_progress(lane->thread);
}

static void send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_lane *lane = krping_lane_of(cq);

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&lane->conn, wc, "SEND");
		return;
	}
	krping_count(lane->thread->stats, KRPING_SEND_BYTES, sizeof(struct krping_ping_msg));
	krping_count(lane->thread->stats, KRPING_SEND_MSGS, 1);
	krping_lane_completed(lane);
}

void krping_lane_reg_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_lane *lane = krping_lane_of(cq);

	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(&lane->conn, wc, "memory registration");
	else
		krping_lane_completed(lane);
}

void krping_lane_read_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_lane *lane = krping_lane_of(cq);

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&lane->conn, wc, "RDMA READ");
		return;
	}
	krping_count(lane->thread->stats, KRPING_READ_BYTES, lane->rdma_len);
	krping_count(lane->thread->stats, KRPING_READ_MSGS, 1);
	krping_lane_completed(lane);
}

static void recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_buf *buf = container_of(wc->wr_cqe, struct krping_buf, cqe);
	struct krping_lane *lane = krping_lane_of(cq);
	const char *log_prefix = lane->thread->log_prefix;

	if (!krping_buf_received(&lane->conn, buf, wc))
		return;
	if (wc->byte_len != sizeof(struct krping_ping_msg)) {
		krping_err_ratelimited(log_prefix, "the peer sent a message of %u bytes, not %zu",
				       wc->byte_len, sizeof(struct krping_ping_msg));
		krping_conn_fail(&lane->conn, -EPROTO);
		return;
	}
	if (lane->received != READ_ONCE(lane->consumed)) {
		krping_err_ratelimited(log_prefix, "the peer sent a message out of turn");
		krping_conn_fail(&lane->conn, -EPROTO);
		return;
	}
	krping_count(lane->thread->stats, KRPING_RECV_BYTES, wc->byte_len);
	krping_count(lane->thread->stats, KRPING_RECV_MSGS, 1);
	lane->invalidated[lane->received % KRPING_NR_RECV] =
		wc->wc_flags & IB_WC_WITH_INVALIDATE ? wc->ex.invalidate_rkey : 0;
	/* pairs with krping_lane_has_message(): the message is seen */
	smp_store_release(&lane->received, lane->received + 1);
	krping_thread_progress(lane->thread);
}

/* A test is over all of its connections or none: whoever waits for another one is woken. */
static void lane_closed(struct krping_conn *conn, int error)
{
	struct krping_thread *thread = container_of(conn, struct krping_lane, conn)->thread;
	u32 i;

	if (!atomic_xchg(&thread->failed, 1))
		for (i = 0; i < thread->nr_lanes; i++)
			krping_conn_fail(&thread->lanes[i].conn, error);
	krping_thread_progress(thread);
}

static bool same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	if (a->ss_family != b->ss_family)
		return false;
	if (a->ss_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
		       ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	return ipv6_addr_equal(&((const struct sockaddr_in6 *)a)->sin6_addr,
			       &((const struct sockaddr_in6 *)b)->sin6_addr);
}

/* The first client is the server's, whose other connections are of the same group and host. */
static bool lane_admits(struct krping_conn *conn, const struct rdma_cm_id *id,
			const struct rdma_conn_param *param)
{
	struct krping_thread *thread = container_of(conn, struct krping_lane, conn)->thread;
	struct krping_conn *first = &thread->lanes[0].conn;

	if (conn == first)
		return true;
	return krping_hello_group(param->private_data, param->private_data_len) == thread->group &&
	       same_host(&id->route.addr.dst_addr, &first->id->route.addr.dst_addr);
}

static const struct krping_conn_ops lane_conn_ops = {
	.admits = lane_admits,
	.closed = lane_closed,
};

/* ---- the steps of a test ---- */

static bool all_completed(struct krping_lane *lane)
{
	/* pairs with krping_lane_completed() */
	return smp_load_acquire(&lane->completed) == lane->posted;
}

/* A message that krping_lane_take() would return at once. */
bool krping_lane_has_message(struct krping_lane *lane)
{
	/* pairs with recv_done() */
	return smp_load_acquire(&lane->received) != lane->consumed;
}

static bool step_ended(struct krping_lane *lane, bool for_message)
{
	return READ_ONCE(lane->conn.state) == KRPING_CONN_CLOSED ||
	       (all_completed(lane) && (!for_message || krping_lane_has_message(lane)));
}

/* Return: as wait_event_interruptible_timeout(). */
static long sleep_for_step(struct krping_lane *lane, bool for_message)
{
	return wait_event_interruptible_timeout(lane->thread->wait,
						step_ended(lane, for_message),
						krping_step_timeout(lane->thread));
}

static long spin_for_step(struct krping_lane *lane, bool for_message)
{
	unsigned long deadline = jiffies + krping_step_timeout(lane->thread);

	do {
		krping_lane_poll(lane);
		if (step_ended(lane, for_message))
			return 1;
		if (signal_pending(current))
			return -ERESTARTSYS;
		cond_resched();
		cpu_relax();
	} while (time_before(jiffies, deadline));
	return 0;
}

/*
 * Every wait of a message exchange ends here: with what is waited for, the loss of the
 * connection, a signal, or the time-out of a step.
 */
int krping_lane_wait(struct krping_lane *lane, bool for_message)
{
	long left;

	if (lane->conn.cq->poll_ctx == IB_POLL_DIRECT)
		left = spin_for_step(lane, for_message);
	else
		left = sleep_for_step(lane, for_message);
	if (left < 0)
		return -EINTR;
	if (!left) {
		krping_err_ratelimited(lane->thread->log_prefix,
				       "the peer does not answer within %u s",
				       lane->thread->opt->timeout);
		return -ETIMEDOUT;
	}
	/* What has arrived before a disconnect counts. */
	if (all_completed(lane) && for_message && krping_lane_has_message(lane))
		return 0;
	return krping_conn_error(&lane->conn);
}

/**
 * krping_lane_take - wait for the peer's message and post its receive again
 * @lane:	connected
 * @msg:	the message
 * @invalidated: key of ours that it invalidated, 0 for none
 *
 * Return: 0 or a negative errno.
 */
int krping_lane_take(struct krping_lane *lane, struct krping_ping_msg *msg, u32 *invalidated)
{
	u32 index = lane->consumed % KRPING_NR_RECV;
	struct krping_buf *buf = &lane->recv[index];
	int ret;

	ret = krping_lane_wait(lane, true);
	if (ret)
		return ret;
	memcpy(msg, buf->data, sizeof(*msg));
	*invalidated = lane->invalidated[index];
	ret = krping_buf_post_recv(&lane->conn, buf);
	if (ret && krping_conn_error(&lane->conn))
		ret = 0;	/* the disconnect is seen by the next step */
	WRITE_ONCE(lane->consumed, lane->consumed + 1);
	return ret;
}

/**
 * krping_lane_post - post work requests
 * @lane:	connected
 * @wr:		first of a chain
 * @signalled:	how many of it krping_lane_completed() will be called for
 *
 * Return: 0 or a negative errno.
 */
int krping_lane_post(struct krping_lane *lane, struct ib_send_wr *wr, u32 signalled)
{
	int ret;

	lane->posted += signalled;
	ret = krping_conn_post_send(&lane->conn, wr);
	if (!ret)
		return 0;
	if (ret == -ENOTCONN)	/* siw, before its event comes */
		return krping_conn_error(&lane->conn) ?: -ECONNRESET;
	krping_err_ratelimited(lane->thread->log_prefix, "cannot post a work request: %d", ret);
	return krping_conn_error(&lane->conn) ?: ret;
}

/**
 * krping_lane_send - send a message
 * @lane:	connected, with its send buffer free
 * @msg:	the message
 * @invalidate:	key of the peer to invalidate, 0 for none
 * @before:	work request to post before it, signalled; or NULL
 *
 * Return: 0 or a negative errno.
 */
int krping_lane_send(struct krping_lane *lane, const struct krping_ping_msg *msg,
		     u32 invalidate, struct ib_rdma_wr *before)
{
	struct ib_device *dev = lane->conn.id->device;
	struct krping_buf *buf = &lane->send;
	struct ib_sge sge = krping_buf_sge(&lane->conn, buf, sizeof(*msg));
	struct ib_send_wr wr = {
		.wr_cqe = &buf->cqe,
		.opcode = invalidate ? IB_WR_SEND_WITH_INV : IB_WR_SEND,
		.ex.invalidate_rkey = invalidate,
		.send_flags = IB_SEND_SIGNALED,
		.sg_list = &sge,
		.num_sge = 1,
	};

	ib_dma_sync_single_for_cpu(dev, buf->dma, buf->size, buf->dir);
	memcpy(buf->data, msg, sizeof(*msg));
	ib_dma_sync_single_for_device(dev, buf->dma, buf->size, buf->dir);
	if (!before)
		return krping_lane_post(lane, &wr, 1);
	before->wr.next = &wr;
	return krping_lane_post(lane, &before->wr, 2);
}

/* Tell the peer of a region that it may reach. */
int krping_lane_advertise(struct krping_lane *lane, struct krping_region *region)
{
	struct krping_ping_msg msg = {
		.addr = cpu_to_be64(krping_region_addr(region)),
		.rkey = cpu_to_be32(krping_region_rkey(&lane->conn, region)),
		.length = cpu_to_be32(region->size),
	};

	krping_region_for_device(&lane->conn, region);
	return krping_lane_send(lane, &msg, 0, NULL);
}

/**
 * krping_lane_register - give a region a new key, and wait until it is valid
 * @lane:	connected, with nothing in flight
 * @region:	if it has no memory region there is nothing to do
 * @access:	IB_ACCESS_*
 *
 * Return: 0 or a negative errno.
 */
int krping_lane_register(struct krping_lane *lane, struct krping_region *region, int access)
{
	struct ib_send_wr *wr;
	int ret;

	if (!region->mr)
		return 0;
	wr = krping_region_prepare(region, access);
	if (!wr) {
		krping_err_ratelimited(lane->thread->log_prefix, "%s cannot map %u bytes",
				       lane->conn.id->device->name, region->size);
		return -EIO;
	}
	ret = krping_lane_post(lane, wr, 1);
	return ret ?: krping_lane_wait(lane, false);
}

/* A signalled RDMA READ or WRITE of what the peer told of; @sge is this side's memory. */
struct ib_rdma_wr krping_rdma_wr(const struct krping_ping_msg *peer, struct ib_cqe *cqe,
				 enum ib_wr_opcode opcode, struct ib_sge *sge)
{
	return (struct ib_rdma_wr){
		.wr = {
			.wr_cqe = cqe,
			.opcode = opcode,
			.send_flags = IB_SEND_SIGNALED,
			.sg_list = sge,
			.num_sge = 1,
		},
		.remote_addr = be64_to_cpu(peer->addr),
		.rkey = be32_to_cpu(peer->rkey),
	};
}

static bool global_key(const struct krping_options *opt)
{
	return unsafe_global_rkey && !opt->mem_reg;
}

bool krping_lane_is_iwarp(const struct krping_lane *lane)
{
	return rdma_protocol_iwarp(lane->conn.id->device, lane->conn.id->port_num);
}

/* Return: KRPING_REGION_* of memory that the peer reaches. */
unsigned int krping_shared_memory(const struct krping_lane *lane)
{
	return global_key(lane->thread->opt) ? KRPING_REGION_CONTIGUOUS : KRPING_REGION_MR;
}

/*
 * Return: KRPING_REGION_* of memory that this side reads into and writes from. iWARP reads
 * into remotely writable memory alone: that needs a key of its own.
 */
unsigned int krping_read_memory(const struct krping_lane *lane)
{
	const struct krping_options *opt = lane->thread->opt;

	if (global_key(opt) && !krping_lane_is_iwarp(lane))
		return KRPING_REGION_CONTIGUOUS;
	return KRPING_REGION_MR | (opt->local_dma_lkey ? KRPING_REGION_CONTIGUOUS : 0);
}

/* Return: IB_ACCESS_* of such memory. */
int krping_read_access(const struct krping_lane *lane)
{
	return krping_lane_is_iwarp(lane) ? IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE :
				IB_ACCESS_LOCAL_WRITE;
}

/* ---- set-up and teardown ---- */

static int alloc_messages(struct krping_lane *lane)
{
	int ret, i;

	for (i = 0; i < KRPING_NR_RECV; i++) {
		lane->recv[i].cqe.done = recv_done;
		ret = krping_buf_alloc(&lane->conn, &lane->recv[i],
				       sizeof(struct krping_ping_msg), DMA_FROM_DEVICE);
		if (!ret)
			ret = krping_buf_post_recv(&lane->conn, &lane->recv[i]);
		if (ret)
			return ret;
	}
	lane->send.cqe.done = send_done;
	return krping_buf_alloc(&lane->conn, &lane->send, sizeof(struct krping_ping_msg),
				DMA_TO_DEVICE);
}

/* Of a lane with an id that has a device. What was made on failure, lane_down() frees. */
static int lane_prepare(struct krping_lane *lane, u32 index)
{
	struct krping_thread *thread = lane->thread;
	struct krping_qp_attr attr = {
		.send_wr = thread->test->send_wr(thread->opt),
		.recv_wr = KRPING_NR_RECV,
		.vector = index,
		.poll = thread->opt->poll && thread->nr_lanes == 1 ? IB_POLL_DIRECT :
								     IB_POLL_SOFTIRQ,
		.pd_flags = global_key(thread->opt) ? IB_PD_UNSAFE_GLOBAL_RKEY : 0,
	};
	int ret;

	if (thread->opt->read_inv && !krping_lane_is_iwarp(lane)) {
		krping_err(thread->log_prefix,
			   "read_inv: %s is no iWARP device: others have no RDMA READ that invalidates",
			   lane->conn.id->device->name);
		return -EOPNOTSUPP;
	}
	ret = krping_conn_alloc(&lane->conn, &attr);
	if (!ret)
		ret = alloc_messages(lane);
	return ret ?: thread->test->prepare(lane);
}

static void lane_down(struct krping_lane *lane)
{
	int i;

	if (!lane->conn.id)
		return;
	krping_conn_drain(&lane->conn);
	krping_conn_destroy_qp(&lane->conn);
	krping_region_free(&lane->conn, &lane->sink);
	krping_region_free(&lane->conn, &lane->source);
	krping_buf_free(&lane->conn, &lane->send);
	for (i = 0; i < KRPING_NR_RECV; i++)
		krping_buf_free(&lane->conn, &lane->recv[i]);
	krping_conn_close(&lane->conn);
}

static void show_device(struct krping_thread *thread, const char *name)
{
	mutex_lock(&threads_lock);
	strscpy(thread->listed_dev, name, sizeof(thread->listed_dev));
	mutex_unlock(&threads_lock);
}

static const struct rdma_conn_param conn_param = {
	.responder_resources = 1,	/* RDMA READs that the peer has in flight */
	.initiator_depth = 1,
	.retry_count = 7,
	.rnr_retry_count = 7,
};

static int client_connect(struct krping_lane *lane, u32 index, struct net *net,
			  const struct sockaddr_storage *addr)
{
	const struct krping_options *opt = lane->thread->opt;
	unsigned long timeout = krping_step_timeout(lane->thread);
	struct rdma_conn_param param = conn_param;
	struct krping_test_hello hello;
	int ret;

	ret = krping_conn_open(&lane->conn, net, addr, opt->has_tos ? (int)opt->tos : -1,
			       timeout);
	if (!ret)
		ret = lane_prepare(lane, index);
	if (ret)
		return ret;
	krping_hello_fill(&hello, opt, lane->thread->group);
	param.private_data = &hello;
	param.private_data_len = sizeof(hello);
	ret = krping_conn_connect(&lane->conn, &param, timeout);
	if (ret == -ECONNREFUSED)
		krping_hello_rejected(&lane->conn);
	return ret;
}

/* Wait for a request that lane_admits(). */
static int await_request(struct krping_lane *lane, u32 index)
{
	struct krping_conn *conn = &lane->conn;
	int ret;

	ret = krping_conn_wait(conn, KRPING_CONN_REQUESTED, index ?
			       krping_step_timeout(lane->thread) : MAX_SCHEDULE_TIMEOUT);
	if (ret)
		return ret;
	if (!index)
		lane->thread->group = krping_hello_group(conn->private, conn->private_len);
	return krping_hello_check(conn, lane->thread->opt);
}

static int server_accept(struct krping_lane *lane, u32 index, struct rdma_cm_id *listener)
{
	struct krping_thread *thread = lane->thread;
	struct rdma_conn_param param = conn_param;
	int ret;

	ret = await_request(lane, index);
	if (!ret)
		ret = lane_prepare(lane, index);
	if (ret)
		return ret;
	/* Before this client, connected, comes with its next connection. */
	if (index + 1 < thread->nr_lanes)
		krping_conn_listen_next(listener, &thread->lanes[index + 1].conn);
	ret = krping_conn_accept(&lane->conn, &param, krping_step_timeout(thread));
	return ret == -ECONNRESET ? 0 : ret;	/* the test knows what a disconnect means */
}

static int run_test(struct krping_thread *thread)
{
	struct krping_conn *conn = &thread->lanes[0].conn;

	krping_result_running(thread->result, conn->id->device->name);
	return thread->test->run(thread);
}

static int run_client(struct krping_thread *thread, struct net *net,
		      const struct sockaddr_storage *addr)
{
	int ret = 0;
	u32 i;

	for (i = 0; i < thread->nr_lanes && !ret; i++) {
		ret = client_connect(&thread->lanes[i], i, net, addr);
		if (!i && thread->lanes[0].conn.id)
			show_device(thread, thread->lanes[0].conn.id->device->name);
	}
	return ret ?: run_test(thread);
}

static int run_server(struct krping_thread *thread, struct net *net,
		      const struct sockaddr_storage *addr)
{
	struct rdma_cm_id *listener;
	int ret = 0;
	u32 i;

	listener = krping_conn_listen(&thread->lanes[0].conn, net, addr);
	if (IS_ERR(listener))
		return PTR_ERR(listener);
	for (i = 0; i < thread->nr_lanes && !ret; i++) {
		ret = server_accept(&thread->lanes[i], i, listener);
		if (!i && thread->lanes[0].conn.id)
			show_device(thread, thread->lanes[0].conn.id->device->name);
	}
	if (!ret)
		ret = run_test(thread);
	rdma_destroy_id(listener);	/* first: it may still give us an id */
	return ret;
}

static int list_thread(struct krping_thread *thread)
{
	int ret = 0;

	mutex_lock(&threads_lock);
	if (nr_threads < MAX_THREADS) {
		nr_threads++;
		list_add_tail(&thread->entry, &threads);
	} else {
		ret = -EAGAIN;
	}
	mutex_unlock(&threads_lock);
	if (ret)
		krping_err_ratelimited(thread->log_prefix, "%u threads run: that is the most",
				       MAX_THREADS);
	return ret;
}

static void unlist_thread(struct krping_thread *thread)
{
	mutex_lock(&threads_lock);
	list_del(&thread->entry);
	nr_threads--;
	mutex_unlock(&threads_lock);
}

static struct krping_thread *alloc_thread(const struct krping_options *opt,
					  struct krping_result *result,
					  const struct sockaddr_storage *addr)
{
	struct krping_thread *thread;
	u32 i;

	thread = kzalloc(sizeof(*thread), GFP_KERNEL);
	if (!thread)
		return NULL;
	thread->nr_lanes = opt->qps;
	thread->lanes = kvcalloc(thread->nr_lanes, sizeof(*thread->lanes), GFP_KERNEL);
	thread->stats = alloc_percpu(struct krping_stats);
	if (!thread->lanes || !thread->stats) {
		free_percpu(thread->stats);
		kvfree(thread->lanes);
		kfree(thread);
		return NULL;
	}
	thread->opt = opt;
	thread->test = opt->test == KRPING_TEST_PING ? &krping_ping_test : &krping_perf_test;
	thread->result = result;
	thread->group = get_random_u32();
	init_waitqueue_head(&thread->wait);
	snprintf(thread->log_prefix, sizeof(thread->log_prefix), "%s:%d@%pISpc",
		 opt->role == KRPING_PING_CLIENT ? "client" : "server", task_pid_nr(current),
		 addr);
	for (i = 0; i < thread->nr_lanes; i++) {
		thread->lanes[i].thread = thread;
		krping_conn_init(&thread->lanes[i].conn, thread->log_prefix, &lane_conn_ops);
		thread->lanes[i].conn.server = opt;
	}
	return thread;
}

static void free_thread(struct krping_thread *thread)
{
	free_percpu(thread->stats);
	kvfree(thread->lanes);
	kfree(thread);
}

static int connect_and_run(struct krping_thread *thread, struct net *net,
			   const struct sockaddr_storage *addr)
{
	u32 i;
	int ret;

	ret = krping_is_client(thread) ? run_client(thread, net, addr) :
					 run_server(thread, net, addr);
	for (i = 0; i < thread->nr_lanes; i++)
		lane_down(&thread->lanes[i]);
	return ret;
}

/**
 * krping_thread_run - run a ping/pong command to its end in this thread
 * @opt:	KRPING_PING_CLIENT or KRPING_PING_SERVER
 * @result:	filled in; done when this returns
 *
 * Return: 0 or the errno that PROTOCOL.md section 3 documents.
 */
int krping_thread_run(const struct krping_options *opt, struct krping_result *result)
{
	struct net *net = current->nsproxy->net_ns;
	struct krping_thread *thread;
	struct sockaddr_storage addr;
	int ret;

	ret = krping_sockaddr(opt, net, &addr);
	if (ret)
		goto done;
	snprintf(result->peer, sizeof(result->peer), "%pISpc", &addr);
	thread = alloc_thread(opt, result, &addr);
	if (!thread) {
		ret = -ENOMEM;
		goto done;
	}
	ret = list_thread(thread);
	if (!ret) {
		ret = connect_and_run(thread, net, &addr);
		unlist_thread(thread);
	}
	free_thread(thread);
done:
	krping_result_done(result, ret);
	return ret;
}

/* krping's nine columns; a server without a client has none. */
void krping_threads_show(struct seq_file *seq)
{
	struct krping_thread *thread;
	int n = 1, i;

	mutex_lock(&threads_lock);
	list_for_each_entry(thread, &threads, entry) {
		if (!thread->listed_dev[0]) {
			seq_printf(seq, "%d listen\n", n++);
			continue;
		}
		seq_printf(seq, "%d-%s", n++, thread->listed_dev);
		for (i = 0; i < KRPING_PING_COUNTERS; i++)
			seq_printf(seq, " %llu", krping_stats_sum(thread->stats, i));
		seq_putc(seq, '\n');
	}
	mutex_unlock(&threads_lock);
}
