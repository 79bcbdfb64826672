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

/* A work request that was counted in krping_ping_conn_post() has completed. */
void krping_ping_conn_completed(struct krping_ping_conn *pc)
{
	/* pairs with all_completed(): what the work request wrote is seen */
	smp_store_release(&pc->completed, pc->completed + 1);
	krping_thread_progress(pc->thread);
}

static void krping_ping_send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_ping_conn *pc = krping_ping_conn_of(cq);

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&pc->conn, wc, "SEND");
		return;
	}
	krping_count(pc->thread->stats, KRPING_SEND_BYTES, sizeof(struct krping_ping_msg));
	krping_count(pc->thread->stats, KRPING_SEND_MSGS, 1);
	krping_ping_conn_completed(pc);
}

void krping_ping_reg_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_ping_conn *pc = krping_ping_conn_of(cq);

	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(&pc->conn, wc, "memory registration");
	else
		krping_ping_conn_completed(pc);
}

void krping_ping_read_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_ping_conn *pc = krping_ping_conn_of(cq);

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&pc->conn, wc, "RDMA READ");
		return;
	}
	krping_count(pc->thread->stats, KRPING_READ_BYTES, pc->rdma_len);
	krping_count(pc->thread->stats, KRPING_READ_MSGS, 1);
	krping_ping_conn_completed(pc);
}

static void krping_ping_recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_buf *buf = container_of(wc->wr_cqe, struct krping_buf, cqe);
	struct krping_ping_conn *pc = krping_ping_conn_of(cq);
	const char *log_prefix = pc->thread->log_prefix;

	if (!krping_buf_received(&pc->conn, buf, wc))
		return;
	if (wc->byte_len != sizeof(struct krping_ping_msg)) {
		krping_err_ratelimited(log_prefix, "the peer sent a message of %u bytes, not %zu",
				       wc->byte_len, sizeof(struct krping_ping_msg));
		krping_conn_fail(&pc->conn, -EPROTO);
		return;
	}
	if (pc->received != READ_ONCE(pc->consumed)) {
		krping_err_ratelimited(log_prefix, "the peer sent a message out of turn");
		krping_conn_fail(&pc->conn, -EPROTO);
		return;
	}
	krping_count(pc->thread->stats, KRPING_RECV_BYTES, wc->byte_len);
	krping_count(pc->thread->stats, KRPING_RECV_MSGS, 1);
	pc->invalidated[pc->received % KRPING_NR_RECV] =
		wc->wc_flags & IB_WC_WITH_INVALIDATE ? wc->ex.invalidate_rkey : 0;
	/* pairs with krping_ping_conn_has_message(): the message is seen */
	smp_store_release(&pc->received, pc->received + 1);
	krping_thread_progress(pc->thread);
}

/* A test is over all of its connections or none: whoever waits for another one is woken. */
static void ping_conn_closed(struct krping_conn *conn, int error)
{
	struct krping_thread *thread = container_of(conn, struct krping_ping_conn, conn)->thread;
	u32 i;

	if (!atomic_xchg(&thread->failed, 1))
		for (i = 0; i < thread->nr_conns; i++)
			krping_conn_fail(&thread->conns[i].conn, error);
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
static bool ping_conn_admits(struct krping_conn *conn, const struct rdma_cm_id *id,
			     const struct rdma_conn_param *param)
{
	struct krping_thread *thread = container_of(conn, struct krping_ping_conn, conn)->thread;
	struct krping_conn *first = &thread->conns[0].conn;

	if (conn == first)
		return true;
	return krping_hello_group(param->private_data, param->private_data_len) == thread->group &&
	       same_host(&id->route.addr.dst_addr, &first->id->route.addr.dst_addr);
}

static const struct krping_conn_ops ping_conn_ops = {
	.admits = ping_conn_admits,
	.closed = ping_conn_closed,
};

/* ---- the steps of a test ---- */

static bool all_completed(struct krping_ping_conn *pc)
{
	/* pairs with krping_ping_conn_completed() */
	return smp_load_acquire(&pc->completed) == pc->posted;
}

/* A message that krping_ping_conn_take() would return at once. */
bool krping_ping_conn_has_message(struct krping_ping_conn *pc)
{
	/* pairs with krping_ping_recv_done() */
	return smp_load_acquire(&pc->received) != pc->consumed;
}

static bool step_ended(struct krping_ping_conn *pc, bool for_message)
{
	return READ_ONCE(pc->conn.state) == KRPING_CONN_CLOSED ||
	       (all_completed(pc) && (!for_message || krping_ping_conn_has_message(pc)));
}

/* Return: as wait_event_interruptible_timeout(). */
static long sleep_for_step(struct krping_ping_conn *pc, bool for_message)
{
	return wait_event_interruptible_timeout(pc->thread->wait,
						step_ended(pc, for_message),
						krping_step_timeout(pc->thread));
}

static long spin_for_step(struct krping_ping_conn *pc, bool for_message)
{
	unsigned long deadline = jiffies + krping_step_timeout(pc->thread);

	do {
		krping_ping_conn_poll(pc);
		if (step_ended(pc, for_message))
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
int krping_ping_conn_wait(struct krping_ping_conn *pc, bool for_message)
{
	long left;

	if (pc->conn.cq->poll_ctx == IB_POLL_DIRECT)
		left = spin_for_step(pc, for_message);
	else
		left = sleep_for_step(pc, for_message);
	if (left < 0)
		return -EINTR;
	if (!left) {
		krping_err_ratelimited(pc->thread->log_prefix,
				       "the peer does not answer within %u s",
				       pc->thread->opt->timeout);
		return -ETIMEDOUT;
	}
	/* What has arrived before a disconnect counts. */
	if (all_completed(pc) && for_message && krping_ping_conn_has_message(pc))
		return 0;
	return krping_conn_error(&pc->conn);
}

/**
 * krping_ping_conn_take - wait for the peer's message and post its receive again
 * @pc:	connected
 * @msg:	the message
 * @invalidated: key of ours that it invalidated, 0 for none
 *
 * Return: 0 or a negative errno.
 */
int krping_ping_conn_take(struct krping_ping_conn *pc, struct krping_ping_msg *msg,
			  u32 *invalidated)
{
	u32 index = pc->consumed % KRPING_NR_RECV;
	struct krping_buf *buf = &pc->recv[index];
	int ret;

	ret = krping_ping_conn_wait(pc, true);
	if (ret)
		return ret;
	memcpy(msg, buf->data, sizeof(*msg));
	*invalidated = pc->invalidated[index];
	ret = krping_buf_post_recv(&pc->conn, buf);
	if (ret && krping_conn_error(&pc->conn))
		ret = 0;	/* the disconnect is seen by the next step */
	WRITE_ONCE(pc->consumed, pc->consumed + 1);
	return ret;
}

/**
 * krping_ping_conn_post - post work requests
 * @pc:	connected
 * @wr:		first of a chain
 * @signalled:	how many of it krping_ping_conn_completed() will be called for
 *
 * Return: 0 or a negative errno.
 */
int krping_ping_conn_post(struct krping_ping_conn *pc, struct ib_send_wr *wr, u32 signalled)
{
	int ret;

	pc->posted += signalled;
	ret = krping_conn_post_send(&pc->conn, wr);
	if (!ret)
		return 0;
	if (ret == -ENOTCONN)	/* siw, before its event comes */
		return krping_conn_error(&pc->conn) ?: -ECONNRESET;
	krping_err_ratelimited(pc->thread->log_prefix, "cannot post a work request: %d", ret);
	return krping_conn_error(&pc->conn) ?: ret;
}

/**
 * krping_ping_conn_send - send a message
 * @pc:	connected, with its send buffer free
 * @msg:	the message
 * @invalidate:	key of the peer to invalidate, 0 for none
 * @before:	work request to post before it, signalled; or NULL
 *
 * Return: 0 or a negative errno.
 */
int krping_ping_conn_send(struct krping_ping_conn *pc, const struct krping_ping_msg *msg,
			  u32 invalidate, struct ib_rdma_wr *before)
{
	struct ib_device *dev = pc->conn.id->device;
	struct krping_buf *buf = &pc->send;
	struct ib_sge sge = krping_buf_sge(&pc->conn, buf, sizeof(*msg));
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
		return krping_ping_conn_post(pc, &wr, 1);
	before->wr.next = &wr;
	return krping_ping_conn_post(pc, &before->wr, 2);
}

/* Tell the peer of a region that it may reach. */
int krping_ping_conn_advertise(struct krping_ping_conn *pc, struct krping_region *region)
{
	struct krping_ping_msg msg = {
		.addr = cpu_to_be64(krping_region_addr(region)),
		.rkey = cpu_to_be32(krping_region_rkey(&pc->conn, region)),
		.length = cpu_to_be32(region->size),
	};

	krping_region_for_device(&pc->conn, region);
	return krping_ping_conn_send(pc, &msg, 0, NULL);
}

/**
 * krping_ping_conn_register - give a region a new key, and wait until it is valid
 * @pc:	connected, with nothing in flight
 * @region:	if it has no memory region there is nothing to do
 * @access:	IB_ACCESS_*
 *
 * Return: 0 or a negative errno.
 */
int krping_ping_conn_register(struct krping_ping_conn *pc, struct krping_region *region, int access)
{
	struct ib_send_wr *wr;
	int ret;

	if (!region->mr)
		return 0;
	wr = krping_region_prepare(region, access);
	if (!wr) {
		krping_err_ratelimited(pc->thread->log_prefix, "%s cannot map %u bytes",
				       pc->conn.id->device->name, region->size);
		return -EIO;
	}
	ret = krping_ping_conn_post(pc, wr, 1);
	return ret ?: krping_ping_conn_wait(pc, false);
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

bool krping_ping_conn_is_iwarp(const struct krping_ping_conn *pc)
{
	return rdma_protocol_iwarp(pc->conn.id->device, pc->conn.id->port_num);
}

/* Return: KRPING_REGION_* of memory that the peer reaches. */
unsigned int krping_shared_memory(const struct krping_ping_conn *pc)
{
	return global_key(pc->thread->opt) ? KRPING_REGION_CONTIGUOUS : KRPING_REGION_MR;
}

/*
 * Return: KRPING_REGION_* of memory that this side reads into and writes from. iWARP reads
 * into remotely writable memory alone: that needs a key of its own.
 */
unsigned int krping_read_memory(const struct krping_ping_conn *pc)
{
	const struct krping_options *opt = pc->thread->opt;

	if (global_key(opt) && !krping_ping_conn_is_iwarp(pc))
		return KRPING_REGION_CONTIGUOUS;
	return KRPING_REGION_MR | (opt->local_dma_lkey ? KRPING_REGION_CONTIGUOUS : 0);
}

/* Return: IB_ACCESS_* of such memory. */
int krping_read_access(const struct krping_ping_conn *pc)
{
	return krping_ping_conn_is_iwarp(pc) ? IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE :
				IB_ACCESS_LOCAL_WRITE;
}

/* ---- set-up and teardown ---- */

static int alloc_messages(struct krping_ping_conn *pc)
{
	int ret, i;

	for (i = 0; i < KRPING_NR_RECV; i++) {
		pc->recv[i].cqe.done = krping_ping_recv_done;
		ret = krping_buf_alloc(&pc->conn, &pc->recv[i],
				       sizeof(struct krping_ping_msg), DMA_FROM_DEVICE);
		if (!ret)
			ret = krping_buf_post_recv(&pc->conn, &pc->recv[i]);
		if (ret)
			return ret;
	}
	pc->send.cqe.done = krping_ping_send_done;
	return krping_buf_alloc(&pc->conn, &pc->send, sizeof(struct krping_ping_msg),
				DMA_TO_DEVICE);
}

/* The id has a device. What was made on failure, ping_conn_down() frees. */
static int ping_conn_prepare(struct krping_ping_conn *pc, u32 index)
{
	struct krping_thread *thread = pc->thread;
	struct krping_qp_attr attr = {
		.send_wr = thread->test->send_wr(thread->opt),
		.recv_wr = KRPING_NR_RECV,
		.vector = index,
		.poll = thread->opt->poll && thread->nr_conns == 1 ? IB_POLL_DIRECT :
								     IB_POLL_SOFTIRQ,
		.pd_flags = global_key(thread->opt) ? IB_PD_UNSAFE_GLOBAL_RKEY : 0,
	};
	int ret;

	if (thread->opt->read_inv && !krping_ping_conn_is_iwarp(pc)) {
		krping_err(thread->log_prefix,
			   "read_inv: %s is no iWARP device: others have no RDMA READ that invalidates",
			   pc->conn.id->device->name);
		return -EOPNOTSUPP;
	}
	ret = krping_conn_alloc(&pc->conn, &attr);
	if (!ret)
		ret = alloc_messages(pc);
	return ret ?: thread->test->prepare(pc);
}

static void ping_conn_down(struct krping_ping_conn *pc)
{
	int i;

	if (!pc->conn.id)
		return;
	krping_conn_drain(&pc->conn);
	krping_conn_destroy_qp(&pc->conn);
	krping_region_free(&pc->conn, &pc->sink);
	krping_region_free(&pc->conn, &pc->source);
	krping_buf_free(&pc->conn, &pc->send);
	for (i = 0; i < KRPING_NR_RECV; i++)
		krping_buf_free(&pc->conn, &pc->recv[i]);
	krping_conn_close(&pc->conn);
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

static int client_connect(struct krping_ping_conn *pc, u32 index, struct net *net,
			  const struct sockaddr_storage *addr)
{
	const struct krping_options *opt = pc->thread->opt;
	unsigned long timeout = krping_step_timeout(pc->thread);
	struct rdma_conn_param param = conn_param;
	struct krping_test_hello hello;
	int ret;

	ret = krping_conn_open(&pc->conn, net, addr, opt->has_tos ? (int)opt->tos : -1,
			       timeout);
	if (!ret)
		ret = ping_conn_prepare(pc, index);
	if (ret)
		return ret;
	krping_hello_fill(&hello, opt, pc->thread->group);
	param.private_data = &hello;
	param.private_data_len = sizeof(hello);
	ret = krping_conn_connect(&pc->conn, &param, timeout);
	if (ret == -ECONNREFUSED)
		krping_hello_rejected(&pc->conn);
	return ret;
}

/* Wait for a request that ping_conn_admits(). */
static int await_request(struct krping_ping_conn *pc, u32 index)
{
	struct krping_conn *conn = &pc->conn;
	int ret;

	ret = krping_conn_wait(conn, KRPING_CONN_REQUESTED, index ?
			       krping_step_timeout(pc->thread) : MAX_SCHEDULE_TIMEOUT);
	if (ret)
		return ret;
	if (!index)
		pc->thread->group = krping_hello_group(conn->private, conn->private_len);
	return krping_hello_check(conn, pc->thread->opt);
}

static int server_accept(struct krping_ping_conn *pc, u32 index, struct rdma_cm_id *listener)
{
	struct krping_thread *thread = pc->thread;
	struct rdma_conn_param param = conn_param;
	int ret;

	ret = await_request(pc, index);
	if (!ret)
		ret = ping_conn_prepare(pc, index);
	if (ret)
		return ret;
	/* Before this client, connected, comes with its next connection. */
	if (index + 1 < thread->nr_conns)
		krping_conn_listen_next(listener, &thread->conns[index + 1].conn);
	ret = krping_conn_accept(&pc->conn, &param, krping_step_timeout(thread));
	return ret == -ECONNRESET ? 0 : ret;	/* the test knows what a disconnect means */
}

static int run_test(struct krping_thread *thread)
{
	struct krping_conn *conn = &thread->conns[0].conn;

	krping_result_running(thread->result, conn->id->device->name);
	return thread->test->run(thread);
}

static int run_client(struct krping_thread *thread, struct net *net,
		      const struct sockaddr_storage *addr)
{
	int ret = 0;
	u32 i;

	for (i = 0; i < thread->nr_conns && !ret; i++) {
		ret = client_connect(&thread->conns[i], i, net, addr);
		if (!i && thread->conns[0].conn.id)
			show_device(thread, thread->conns[0].conn.id->device->name);
	}
	return ret ?: run_test(thread);
}

static int run_server(struct krping_thread *thread, struct net *net,
		      const struct sockaddr_storage *addr)
{
	struct rdma_cm_id *listener;
	int ret = 0;
	u32 i;

	listener = krping_conn_listen(&thread->conns[0].conn, net, addr);
	if (IS_ERR(listener))
		return PTR_ERR(listener);
	for (i = 0; i < thread->nr_conns && !ret; i++) {
		ret = server_accept(&thread->conns[i], i, listener);
		if (!i && thread->conns[0].conn.id)
			show_device(thread, thread->conns[0].conn.id->device->name);
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
	thread->nr_conns = opt->qps;
	thread->conns = kvcalloc(thread->nr_conns, sizeof(*thread->conns), GFP_KERNEL);
	thread->stats = alloc_percpu(struct krping_stats);
	if (!thread->conns || !thread->stats) {
		free_percpu(thread->stats);
		kvfree(thread->conns);
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
	for (i = 0; i < thread->nr_conns; i++) {
		thread->conns[i].thread = thread;
		krping_conn_init(&thread->conns[i].conn, thread->log_prefix, &ping_conn_ops);
		thread->conns[i].conn.server = opt;
	}
	return thread;
}

static void free_thread(struct krping_thread *thread)
{
	free_percpu(thread->stats);
	kvfree(thread->conns);
	kfree(thread);
}

static int connect_and_run(struct krping_thread *thread, struct net *net,
			   const struct sockaddr_storage *addr)
{
	u32 i;
	int ret;

	ret = krping_is_client(thread) ? run_client(thread, net, addr) :
					 run_server(thread, net, addr);
	for (i = 0; i < thread->nr_conns; i++)
		ping_conn_down(&thread->conns[i]);
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
