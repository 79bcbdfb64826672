// SPDX-License-Identifier: GPL-2.0
/*
 * Ping/pong (PROTOCOL.md section 1): one thread, that of the writer of the command,
 * and one connection. Completions only count and wake; the thread does the rest.
 */
#include <linux/mutex.h>
#include <linux/nsproxy.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "conn.h"
#include "log.h"
#include "pattern.h"
#include "ping.h"
#include "stats.h"

#define MAX_PINGS	4096	/* threads at once: each pins memory */

/*
 * One message is in flight each way; a second receive is there so that a peer that
 * sends out of turn is told apart from one that is late.
 */
#define NR_RECV		2

/* WRITE, SEND: the longest chain that is posted at once. */
#define MAX_CHAIN	2

/**
 * struct krping_ping - a running ping/pong thread
 * @entry:	in krping_pings
 * @opt:	the command
 * @subject:	for the log
 * @conn:	its connection
 * @listed_dev:	name of the RDMA device, "" while there is none; under krping_pings_lock
 * @stats:	nine columns
 * @source:	client: what the server reads. Server: where it reads to, writes from
 * @sink:	client only: what the server writes
 * @recv:	receive buffers, taken in turn
 * @send:	the one send buffer, free when @posted equals @completed
 * @read_cqe:	of an RDMA READ
 * @write_cqe:	of an RDMA WRITE
 * @rdma_len:	bytes of the RDMA READ or WRITE in flight
 * @posted:	signalled work requests posted; the thread's
 * @completed:	of those completed; written by completions, read by the thread
 * @received:	messages received; written by completions, read by the thread
 * @consumed:	messages that the thread has taken; read by completions
 *
 * The thread owns all of it. Completions of the one CQ run one after another.
 */
struct krping_ping {
	struct list_head entry;
	const struct krping_options *opt;
	char subject[96];
	struct krping_conn conn;
	char listed_dev[IB_DEVICE_NAME_MAX];
	struct krping_stats __percpu *stats;
	struct krping_region source;
	struct krping_region sink;
	struct krping_buf recv[NR_RECV];
	struct krping_buf send;
	struct ib_cqe read_cqe;
	struct ib_cqe write_cqe;
	u32 rdma_len;
	u32 posted;
	u32 completed;
	u32 received;
	u32 consumed;
};

static DEFINE_MUTEX(krping_pings_lock);	/* protects the list, its length and listed_dev */
static LIST_HEAD(krping_pings);
static unsigned int nr_pings;

static struct krping_ping *ping_of(struct ib_cq *cq)
{
	struct krping_conn *conn = cq->cq_context;

	return container_of(conn, struct krping_ping, conn);
}

/* ---- completions ---- */

static void wr_completed(struct krping_ping *p)
{
	/* pairs with all_completed(): what the work request wrote is seen */
	smp_store_release(&p->completed, p->completed + 1);
	wake_up_all(&p->conn.wait);
}

static void send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_ping *p = ping_of(cq);

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&p->conn, wc, "SEND");
		return;
	}
	krping_count(p->stats, KRPING_SEND_BYTES, sizeof(struct krping_ping_msg));
	krping_count(p->stats, KRPING_SEND_MSGS, 1);
	wr_completed(p);
}

static void read_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_ping *p = ping_of(cq);

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&p->conn, wc, "RDMA READ");
		return;
	}
	krping_count(p->stats, KRPING_READ_BYTES, p->rdma_len);
	krping_count(p->stats, KRPING_READ_MSGS, 1);
	wr_completed(p);
}

static void write_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_ping *p = ping_of(cq);

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&p->conn, wc, "RDMA WRITE");
		return;
	}
	krping_count(p->stats, KRPING_WRITE_BYTES, p->rdma_len);
	krping_count(p->stats, KRPING_WRITE_MSGS, 1);
	wr_completed(p);
}

static void reg_done(struct ib_cq *cq, struct ib_wc *wc)
{
	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(cq->cq_context, wc, "memory registration");
	else
		wr_completed(ping_of(cq));
}

static void recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_ping *p = ping_of(cq);

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&p->conn, wc, "RECV");
		return;
	}
	if (wc->byte_len != sizeof(struct krping_ping_msg)) {
		krping_err_ratelimited(p->subject, "the peer sent a message of %u bytes, not %zu",
				       wc->byte_len, sizeof(struct krping_ping_msg));
		krping_conn_fail(&p->conn, -EPROTO);
		return;
	}
	if (p->received != READ_ONCE(p->consumed)) {
		krping_err_ratelimited(p->subject, "the peer sent a message out of turn");
		krping_conn_fail(&p->conn, -EPROTO);
		return;
	}
	krping_count(p->stats, KRPING_RECV_BYTES, wc->byte_len);
	krping_count(p->stats, KRPING_RECV_MSGS, 1);
	/* pairs with message_waits(): the message is seen */
	smp_store_release(&p->received, p->received + 1);
	wake_up_all(&p->conn.wait);
}

/* ---- the thread's steps ---- */

static unsigned long step_timeout(const struct krping_ping *p)
{
	return p->opt->timeout * HZ;
}

static bool all_completed(struct krping_ping *p)
{
	/* pairs with wr_completed() */
	return smp_load_acquire(&p->completed) == p->posted;
}

static bool message_waits(struct krping_ping *p)
{
	/* pairs with recv_done() */
	return smp_load_acquire(&p->received) != p->consumed;
}

/*
 * Every wait of the exchange ends here: with what is waited for, the loss of the
 * connection, a signal, or the time-out of a step.
 */
static int wait_step(struct krping_ping *p, bool for_message)
{
	long left;

	left = wait_event_interruptible_timeout(p->conn.wait,
						READ_ONCE(p->conn.state) == KRPING_CONN_CLOSED ||
						(all_completed(p) &&
						 (!for_message || message_waits(p))),
						step_timeout(p));
	if (left < 0)
		return -EINTR;
	if (!left) {
		krping_err_ratelimited(p->subject, "the peer does not answer within %u s",
				       p->opt->timeout);
		return -ETIMEDOUT;
	}
	/* What has arrived before a disconnect counts. */
	if (all_completed(p) && for_message && message_waits(p))
		return 0;
	return krping_conn_error(&p->conn);
}

/* Wait for the peer's message, copy it out and post its receive again. */
static int take_message(struct krping_ping *p, struct krping_ping_msg *msg)
{
	struct krping_buf *buf = &p->recv[p->consumed % NR_RECV];
	int ret;

	ret = wait_step(p, true);
	if (ret)
		return ret;
	ib_dma_sync_single_for_cpu(p->conn.id->device, buf->dma, buf->size, buf->dir);
	memcpy(msg, buf->data, sizeof(*msg));
	ret = krping_buf_post_recv(&p->conn, buf);
	if (ret && krping_conn_error(&p->conn))
		ret = 0;	/* the disconnect is seen by the next step */
	WRITE_ONCE(p->consumed, p->consumed + 1);
	return ret;
}

static int post_wr(struct krping_ping *p, struct ib_send_wr *wr, u32 signalled)
{
	int ret;

	p->posted += signalled;
	ret = ib_post_send(p->conn.qp, wr, NULL);
	if (!ret)
		return 0;
	krping_err_ratelimited(p->subject, "cannot post a work request: %d", ret);
	return krping_conn_error(&p->conn) ?: ret;
}

static void prepare_send(struct krping_ping *p, const struct krping_ping_msg *msg,
			 struct ib_send_wr *wr, struct ib_sge *sge)
{
	struct ib_device *dev = p->conn.id->device;

	ib_dma_sync_single_for_cpu(dev, p->send.dma, p->send.size, p->send.dir);
	memcpy(p->send.data, msg, sizeof(*msg));
	ib_dma_sync_single_for_device(dev, p->send.dma, p->send.size, p->send.dir);
	*sge = krping_buf_sge(&p->conn, &p->send, sizeof(*msg));
	*wr = (struct ib_send_wr){
		.wr_cqe = &p->send.cqe,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
		.sg_list = sge,
		.num_sge = 1,
	};
}

static int send_go_ahead(struct krping_ping *p, struct ib_rdma_wr *write)
{
	struct krping_ping_msg msg = {};
	struct ib_send_wr send;
	struct ib_sge sge;

	prepare_send(p, &msg, &send, &sge);
	if (!write)
		return post_wr(p, &send, 1);
	write->wr.next = &send;
	return post_wr(p, &write->wr, 2);
}

static int register_region(struct krping_ping *p, struct krping_region *region, int access)
{
	struct ib_send_wr *reg = krping_region_prepare(region, access);
	int ret;

	if (!reg)
		return -EIO;
	ret = post_wr(p, reg, 1);
	return ret ?: wait_step(p, false);
}

/* Client: tell the server of @region. */
static int advertise(struct krping_ping *p, struct krping_region *region)
{
	struct krping_ping_msg msg = {
		.addr = cpu_to_be64(region->mr->iova),
		.rkey = cpu_to_be32(region->mr->rkey),
		.length = cpu_to_be32(region->size),
	};
	struct ib_send_wr send;
	struct ib_sge sge;

	prepare_send(p, &msg, &send, &sge);
	krping_region_for_device(&p->conn, region);
	return post_wr(p, &send, 1);
}

static int mismatch(struct krping_ping *p, u32 ping, s64 offset)
{
	krping_err(p->subject, "ping %u: data differs from byte %lld on", ping, offset);
	return -EBADMSG;
}

static s64 first_difference(const u8 *a, const u8 *b, u32 size)
{
	u32 i;

	for (i = 0; i < size; i++)
		if (a[i] != b[i])
			return i;
	return -1;
}

static void show_data(struct krping_ping *p, u32 ping, const u8 *data, u32 len)
{
	if (p->opt->verbose)
		krping_info_ratelimited(p->subject, "ping %u: |%*pE|", ping,
					(int)min_t(u32, len, 64), data);
}

/* ---- client ---- */

static int client_ping(struct krping_ping *p, u32 ping)
{
	struct krping_ping_msg go_ahead;
	s64 offset;
	int ret;

	krping_region_for_cpu(&p->conn, &p->source);
	krping_pattern_fill(p->source.vaddr, p->source.size, ping);
	ret = advertise(p, &p->source);
	if (!ret)
		ret = take_message(p, &go_ahead);
	if (!ret)
		ret = advertise(p, &p->sink);
	if (!ret)
		ret = take_message(p, &go_ahead);
	if (ret)
		return ret;

	krping_region_for_cpu(&p->conn, &p->sink);
	show_data(p, ping, p->sink.vaddr, p->sink.size);
	if (!p->opt->validate)
		return 0;
	offset = first_difference(p->source.vaddr, p->sink.vaddr, p->sink.size);
	return offset < 0 ? 0 : mismatch(p, ping, offset);
}

static int client_loop(struct krping_ping *p)
{
	u32 ping = 0;
	int ret;

	ret = register_region(p, &p->source, IB_ACCESS_REMOTE_READ);
	if (!ret)
		ret = register_region(p, &p->sink, IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE);
	while (!ret && (!p->opt->count || ping < p->opt->count)) {
		ret = signal_pending(current) ? -EINTR : client_ping(p, ping);
		if (!ret)
			ping++;
		cond_resched();
	}
	krping_info(p->subject, "%u pings of %u bytes%s", ping, p->opt->size,
		    ret ? ", then stopped" : p->opt->validate ? ", all data valid" : "");
	return ret;
}

/* ---- server ---- */

static int check_advert(struct krping_ping *p, const struct krping_ping_msg *msg, u32 min, u32 max)
{
	u32 len = be32_to_cpu(msg->length);

	if (msg->rkey && len >= min && len <= max)
		return 0;
	krping_err_ratelimited(p->subject,
			       "the client advertised %u bytes with rkey 0x%x: must be %u to %u, with a key",
			       len, be32_to_cpu(msg->rkey), min, max);
	return -EPROTO;
}

static void prepare_rdma(struct krping_ping *p, const struct krping_ping_msg *msg,
			 struct ib_rdma_wr *wr, struct ib_sge *sge, enum ib_wr_opcode opcode)
{
	sge->addr = p->source.mr->iova;
	sge->length = p->rdma_len;
	sge->lkey = p->source.mr->lkey;
	*wr = (struct ib_rdma_wr){
		.wr = {
			.wr_cqe = opcode == IB_WR_RDMA_READ ? &p->read_cqe : &p->write_cqe,
			.opcode = opcode,
			.send_flags = IB_SEND_SIGNALED,
			.sg_list = sge,
			.num_sge = 1,
		},
		.remote_addr = be64_to_cpu(msg->addr),
		.rkey = be32_to_cpu(msg->rkey),
	};
}

/* The local key is enough on InfiniBand; iWARP reads into remotely writable memory. */
static int read_sink_access(struct krping_ping *p)
{
	if (rdma_protocol_iwarp(p->conn.id->device, p->conn.id->port_num))
		return IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE;
	return IB_ACCESS_LOCAL_WRITE;
}

static int server_read(struct krping_ping *p, const struct krping_ping_msg *source, u32 ping)
{
	struct ib_rdma_wr read;
	struct ib_sge sge;
	s64 offset;
	int ret;

	ret = check_advert(p, source, 1, p->opt->size);
	if (ret)
		return ret;
	p->rdma_len = be32_to_cpu(source->length);
	prepare_rdma(p, source, &read, &sge, IB_WR_RDMA_READ);
	krping_region_for_device(&p->conn, &p->source);
	ret = post_wr(p, &read.wr, 1);
	if (!ret)
		ret = wait_step(p, false);
	if (ret)
		return ret;
	krping_region_for_cpu(&p->conn, &p->source);
	show_data(p, ping, p->source.vaddr, p->rdma_len);
	if (!p->opt->validate)
		return 0;
	offset = krping_pattern_mismatch(p->source.vaddr, p->rdma_len, ping);
	return offset < 0 ? 0 : mismatch(p, ping, offset);
}

static int server_write(struct krping_ping *p, const struct krping_ping_msg *sink)
{
	struct ib_rdma_wr write;
	struct ib_sge sge;
	int ret;

	ret = check_advert(p, sink, p->rdma_len, U32_MAX);
	if (ret)
		return ret;
	prepare_rdma(p, sink, &write, &sge, IB_WR_RDMA_WRITE);
	krping_region_for_device(&p->conn, &p->source);
	return send_go_ahead(p, &write);
}

static int server_pong(struct krping_ping *p, const struct krping_ping_msg *source, u32 ping)
{
	struct krping_ping_msg sink;
	int ret;

	ret = server_read(p, source, ping);
	if (!ret)
		ret = send_go_ahead(p, NULL);
	if (!ret)
		ret = take_message(p, &sink);
	if (!ret)
		ret = server_write(p, &sink);
	return ret;
}

static int server_loop(struct krping_ping *p)
{
	struct krping_ping_msg source;
	u32 ping = 0;
	int ret;

	ret = register_region(p, &p->source, read_sink_access(p));
	while (!ret) {
		ret = signal_pending(current) ? -EINTR : take_message(p, &source);
		if (ret == -ECONNRESET) {	/* between two pings: the client is done */
			ret = 0;
			break;
		}
		if (!ret)
			ret = server_pong(p, &source, ping);
		if (!ret)
			ping++;
		cond_resched();
	}
	krping_info(p->subject, "%u pings answered%s", ping,
		    ret ? ", then stopped" : p->opt->validate ? ", all data valid" : "");
	return ret;
}

/* ---- set-up and teardown ---- */

static void free_memory(struct krping_ping *p)
{
	int i;

	krping_region_free(&p->conn, &p->sink);
	krping_region_free(&p->conn, &p->source);
	krping_buf_free(&p->conn, &p->send);
	for (i = 0; i < NR_RECV; i++)
		krping_buf_free(&p->conn, &p->recv[i]);
}

static int alloc_memory(struct krping_ping *p)
{
	int ret, i;

	for (i = 0; i < NR_RECV; i++) {
		p->recv[i].cqe.done = recv_done;
		ret = krping_buf_alloc(&p->conn, &p->recv[i], sizeof(struct krping_ping_msg),
				       DMA_FROM_DEVICE);
		if (ret)
			goto undo;
		ret = krping_buf_post_recv(&p->conn, &p->recv[i]);
		if (ret) {
			krping_conn_drain(&p->conn);	/* the ones before it are posted */
			goto undo;
		}
	}
	p->send.cqe.done = send_done;
	p->read_cqe.done = read_done;
	p->write_cqe.done = write_done;
	ret = krping_buf_alloc(&p->conn, &p->send, sizeof(struct krping_ping_msg), DMA_TO_DEVICE);
	if (!ret)
		ret = krping_region_alloc(&p->conn, &p->source, p->opt->size, reg_done);
	if (!ret && p->opt->role == KRPING_PING_CLIENT)
		ret = krping_region_alloc(&p->conn, &p->sink, p->opt->size, reg_done);
	if (!ret)
		return 0;
	krping_conn_drain(&p->conn);
undo:
	free_memory(p);
	return ret;
}

static void show_device(struct krping_ping *p)
{
	mutex_lock(&krping_pings_lock);
	strscpy(p->listed_dev, p->conn.id->device->name, sizeof(p->listed_dev));
	mutex_unlock(&krping_pings_lock);
}

/* With an id that has a device: queue pair, memory, connection, then the loop. */
static int run_connected(struct krping_ping *p)
{
	bool client = p->opt->role == KRPING_PING_CLIENT;
	struct rdma_conn_param param = {
		.responder_resources = 1,	/* READs that the server has in flight */
		.initiator_depth = 1,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
	int ret;

	ret = krping_conn_alloc(&p->conn, MAX_CHAIN, NR_RECV, 0);
	if (ret)
		return ret;
	ret = alloc_memory(p);
	if (ret)
		return ret;	/* krping_conn_close() frees the queue pair */
	show_device(p);
	if (client)
		ret = krping_conn_connect(&p->conn, &param, step_timeout(p));
	else
		ret = krping_conn_accept(&p->conn, &param, step_timeout(p));
	if (!ret)
		ret = client ? client_loop(p) : server_loop(p);
	krping_conn_drain(&p->conn);
	free_memory(p);
	return ret;
}

static int run_client(struct krping_ping *p, struct net *net, const struct sockaddr_storage *addr)
{
	int ret;

	ret = krping_conn_open(&p->conn, net, addr, step_timeout(p));
	if (ret)
		return ret;
	ret = run_connected(p);
	krping_conn_close(&p->conn);
	return ret;
}

static int run_server(struct krping_ping *p, struct net *net, const struct sockaddr_storage *addr)
{
	struct rdma_cm_id *listener;
	int ret;

	listener = krping_conn_listen(&p->conn, net, addr);
	if (IS_ERR(listener))
		return PTR_ERR(listener);
	ret = krping_conn_wait(&p->conn, KRPING_CONN_REQUESTED, MAX_SCHEDULE_TIMEOUT);
	if (!ret)
		ret = run_connected(p);
	rdma_destroy_id(listener);	/* first: it may still give us an id */
	krping_conn_close(&p->conn);
	return ret;
}

static int list_ping(struct krping_ping *p)
{
	int ret = 0;

	mutex_lock(&krping_pings_lock);
	if (nr_pings < MAX_PINGS) {
		nr_pings++;
		list_add_tail(&p->entry, &krping_pings);
	} else {
		ret = -EAGAIN;
	}
	mutex_unlock(&krping_pings_lock);
	if (ret)
		krping_err_ratelimited(p->subject, "%u threads run: that is the most", MAX_PINGS);
	return ret;
}

static void unlist_ping(struct krping_ping *p)
{
	mutex_lock(&krping_pings_lock);
	list_del(&p->entry);
	nr_pings--;
	mutex_unlock(&krping_pings_lock);
}

/**
 * krping_ping_run - run a ping/pong command to its end in this thread
 * @opt:	KRPING_PING_CLIENT or KRPING_PING_SERVER
 *
 * Return: 0 or the errno that PROTOCOL.md section 3 documents.
 */
int krping_ping_run(const struct krping_options *opt)
{
	struct net *net = current->nsproxy->net_ns;
	struct sockaddr_storage addr;
	struct krping_ping *p;
	int ret;

	ret = krping_sockaddr(opt, net, &addr);
	if (ret)
		return ret;
	p = kzalloc(sizeof(*p), GFP_KERNEL);
	if (!p)
		return -ENOMEM;
	p->opt = opt;
	snprintf(p->subject, sizeof(p->subject), "%s:%d@%pISpc",
		 opt->role == KRPING_PING_CLIENT ? "client" : "server", task_pid_nr(current),
		 &addr);
	p->stats = alloc_percpu(struct krping_stats);
	if (!p->stats) {
		ret = -ENOMEM;
		goto free_ping;
	}
	krping_conn_init(&p->conn, p->subject, NULL);
	ret = list_ping(p);
	if (ret)
		goto free_stats;
	ret = opt->role == KRPING_PING_CLIENT ? run_client(p, net, &addr) :
						run_server(p, net, &addr);
	unlist_ping(p);
free_stats:
	free_percpu(p->stats);
free_ping:
	kfree(p);
	return ret;
}

/* krping's nine columns; a server without a client has none. */
void krping_pings_show(struct seq_file *seq)
{
	struct krping_ping *p;
	int n = 1, i;

	mutex_lock(&krping_pings_lock);
	list_for_each_entry(p, &krping_pings, entry) {
		if (!p->listed_dev[0]) {
			seq_printf(seq, "%d listen\n", n++);
			continue;
		}
		seq_printf(seq, "%d-%s", n++, p->listed_dev);
		for (i = 0; i < KRPING_PING_COUNTERS; i++)
			seq_printf(seq, " %llu", krping_stats_sum(p->stats, i));
		seq_putc(seq, '\n');
	}
	mutex_unlock(&krping_pings_lock);
}
