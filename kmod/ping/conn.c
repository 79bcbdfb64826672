// SPDX-License-Identifier: GPL-2.0
/* A connection of a thread: its memory, and the messages common to all tests. */
#include <linux/module.h>
#include <linux/sched/signal.h>

#include "lib/log.h"
#include "ping/thread.h"

static bool unsafe_global_rkey;
module_param(unsafe_global_rkey, bool, 0444);
MODULE_PARM_DESC(unsafe_global_rkey,
		 "mem_mode=dma gives peers a key to all memory of this host, instead of registering only what they need (default: false)");

/* ---- completions ---- */

/* Called in any context. */
void krping_thread_progress(struct krping_thread *thread)
{
	atomic_inc(&thread->progress);
	if (wq_has_sleeper(&thread->wait))
		wake_up_all(&thread->wait);
}

/* A work request counted in krping_ping_conn_post() has completed. */
void krping_ping_conn_completed(struct krping_ping_conn *pc)
{
	/* pairs with all_completed(): makes what the work request wrote visible */
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
	/* pairs with krping_ping_conn_has_message(): makes the message visible */
	smp_store_release(&pc->received, pc->received + 1);
	krping_thread_progress(pc->thread);
}

/* ---- the steps of a test ---- */

static bool all_completed(struct krping_ping_conn *pc)
{
	/* pairs with krping_ping_conn_completed() */
	return smp_load_acquire(&pc->completed) == pc->posted;
}

/* Return: whether krping_ping_conn_take() would return a message at once. */
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

/* Return: the same as wait_event_interruptible_timeout(). */
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
 * Waits until all posted work requests have completed and, with @for_message, until a message has
 * arrived.
 * Ends early on loss of the connection, a signal, or the time-out of a step.
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
				       "the peer did not answer within %u s",
				       pc->thread->opt->timeout);
		return -ETIMEDOUT;
	}
	/* Messages that arrived before a disconnect still count. */
	if (all_completed(pc) && for_message && krping_ping_conn_has_message(pc))
		return 0;
	return krping_conn_error(&pc->conn);
}

/**
 * krping_ping_conn_take - wait for the peer's message, and repost its receive
 * @pc:	connected
 * @msg:	filled in with the message
 * @invalidated: filled in with the local key that it invalidated, 0 for none
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
		ret = 0;	/* the next step reports the disconnect */
	WRITE_ONCE(pc->consumed, pc->consumed + 1);
	return ret;
}

/**
 * krping_ping_conn_post - post work requests
 * @pc:	connected
 * @wr:		first of a chain
 * @signalled:	how many of them call krping_ping_conn_completed()
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
	if (ret == -ENOTCONN)	/* siw reports this before its disconnect event */
		return krping_conn_error(&pc->conn) ?: -ECONNRESET;
	krping_err_ratelimited(pc->thread->log_prefix, "cannot post a work request: %d", ret);
	return krping_conn_error(&pc->conn) ?: ret;
}

/**
 * krping_ping_conn_send - send a message
 * @pc:	connected, with its send buffer free
 * @msg:	the message
 * @invalidate:	key of the peer to invalidate, 0 for none
 * @before:	signalled work request to post before it, or NULL
 *
 * Return: 0 or a negative errno.
 */
int krping_ping_conn_send(struct krping_ping_conn *pc, const struct krping_ping_msg *msg,
			  u32 invalidate, struct ib_rdma_wr *before)
{
	struct krping_buf *buf = &pc->send;
	struct ib_sge sges[KRPING_BUF_SGES];
	struct ib_send_wr wr = {
		.wr_cqe = &buf->cqe,
		.opcode = invalidate ? IB_WR_SEND_WITH_INV : IB_WR_SEND,
		.ex.invalidate_rkey = invalidate,
		.send_flags = IB_SEND_SIGNALED,
		.sg_list = sges,
	};

	memcpy(buf->data, msg, sizeof(*msg));
	wr.num_sge = krping_buf_send_sges(&pc->conn, buf, sizeof(*msg), sges);
	if (!before)
		return krping_ping_conn_post(pc, &wr, 1);
	before->wr.next = &wr;
	return krping_ping_conn_post(pc, &before->wr, 2);
}

/* Sends the peer the address and key of a region. */
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
 * @region:	nothing is done if it has no memory region
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

/* Builds a signalled RDMA READ or WRITE of what @peer advertises; @sge is local memory. */
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

/* Return: 0, or -EINVAL with the limit of the device in the log. */
int krping_ping_check_size(struct krping_ping_conn *pc)
{
	u32 size = pc->thread->opt->size;

	return krping_conn_check_limit(&pc->conn, "bytes in a message", size,
				       krping_conn_max_message(&pc->conn, size));
}

/* Return: KRPING_REGION_* flags of memory that the peer accesses. */
unsigned int krping_shared_memory(const struct krping_ping_conn *pc)
{
	return global_key(pc->thread->opt) ? KRPING_REGION_CONTIGUOUS : KRPING_REGION_MR;
}

/*
 * Return: KRPING_REGION_* flags of memory that this side reads into and writes from. Over
 * iWARP, RDMA READs go only into remotely writable memory, which needs a key of its own.
 */
unsigned int krping_read_memory(const struct krping_ping_conn *pc)
{
	const struct krping_options *opt = pc->thread->opt;

	if (global_key(opt) && !krping_conn_is_iwarp(&pc->conn))
		return KRPING_REGION_CONTIGUOUS;
	return KRPING_REGION_MR | (opt->local_dma_lkey ? KRPING_REGION_CONTIGUOUS : 0);
}

/* Return: IB_ACCESS_* flags of this memory. */
int krping_read_access(const struct krping_ping_conn *pc)
{
	return krping_conn_is_iwarp(&pc->conn) ? IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE :
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

/* The id has a device. On failure krping_ping_conn_down() frees what was allocated. */
int krping_ping_conn_prepare(struct krping_ping_conn *pc, u32 index)
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

	if (thread->opt->read_inv && !krping_conn_is_iwarp(&pc->conn)) {
		krping_err(thread->log_prefix,
			   "read_inv needs an iWARP device, %s is none",
			   pc->conn.id->device->name);
		return -EOPNOTSUPP;
	}
	ret = krping_conn_alloc(&pc->conn, &attr);
	if (!ret)
		ret = alloc_messages(pc);
	return ret ?: thread->test->prepare(pc);
}

void krping_ping_conn_down(struct krping_ping_conn *pc)
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
