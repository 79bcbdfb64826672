// SPDX-License-Identifier: GPL-2.0
/* PD, CQ and QP of a connection. */

#include <linux/interrupt.h>
#include <linux/irq_poll.h>
#include <linux/sizes.h>
#include <linux/workqueue.h>

#include "lib/compat.h"
#include "rdma/conn.h"
#include "lib/fault.h"
#include "lib/log.h"

/* Limits of the smallest device known, an Intel X722. */
#define SMALL_WR	895
#define SMALL_SEND_SGE	3
#define SMALL_REG_PAGES	256u	/* limit of siw */

/* The most work requests in a queue. */
u32 krping_dev_max_wr(const struct ib_device *dev)
{
	int most = max(dev->attrs.max_qp_wr, 0);

	return krping_fault_is_on(KRPING_FAULT_SMALL_DEVICE, "") ? min(most, SMALL_WR) : most;
}

/* The most SGEs of a work request in a send queue. */
u32 krping_dev_max_send_sge(const struct ib_device *dev)
{
	int most = max(dev->attrs.max_send_sge, 1);

	return krping_fault_is_on(KRPING_FAULT_SMALL_DEVICE, "") ? min(most, SMALL_SEND_SGE) : most;
}

/* The most SGEs of a message. */
static u32 max_buf_sges(const struct ib_device *dev)
{
	return min_t(u32, krping_dev_max_send_sge(dev), max(dev->attrs.max_recv_sge, 1));
}

/* The most pages in a memory region. */
u32 krping_dev_max_reg_pages(const struct ib_device *dev)
{
	u32 most = dev->attrs.max_fast_reg_page_list_len;

	return krping_fault_is_on(KRPING_FAULT_SMALL_DEVICE, "") ? min(most, SMALL_REG_PAGES) :
								   most;
}

/*
 * Return: the most bytes of a message, for one of @size. Every port supports 1 MiB: it is queried
 * only for more, as drivers may take locks and log.
 */
u32 krping_conn_max_message(const struct krping_conn *conn, u32 size)
{
	struct ib_port_attr port;

	if (size <= SZ_1M || ib_query_port(conn->id->device, conn->id->port_num, &port))
		return SZ_1M;
	return port.max_msg_sz;
}

/* Return: 0, or -EINVAL with the limit of the device in the log. */
int krping_conn_check_limit(struct krping_conn *conn, const char *what, u32 wanted, u32 limit)
{
	if (wanted <= limit)
		return 0;
	krping_err_ratelimited(conn->log_prefix, "%s: %u needed, %s allows %u", what, wanted,
			       conn->id->device->name, limit);
	return -EINVAL;
}

/* Return: a completion queue that its owner polls, or an ERR_PTR. @context: passed to @notify. */
struct ib_cq *krping_cq_alloc(struct ib_device *dev, u32 cqe, u32 vector, ib_comp_handler notify,
			      void *context)
{
	struct ib_cq_init_attr attr = {
		.cqe = cqe,
		.comp_vector = vector % dev->num_comp_vectors,
	};

	return ib_create_cq(dev, notify, NULL, context, &attr);
}

static struct ib_cq *alloc_cq(struct krping_conn *conn, const struct krping_qp_attr *want,
			      u32 cqe)
{
	struct ib_device *dev = conn->id->device;

	conn->cq_is_own = want->notify;
	if (want->notify)
		return krping_cq_alloc(dev, cqe, want->vector, want->notify, conn);
	return ib_alloc_cq(dev, conn, cqe, want->vector % dev->num_comp_vectors, want->poll);
}

static void nothing(struct tasklet_struct *unused)
{
}

/* Under last_tasklets: else another caller could queue it ahead of the awaited tasklets. */
static DEFINE_PER_CPU(struct tasklet_struct, last_tasklet);
static DEFINE_PER_CPU(struct work_struct, last_work);
static DEFINE_MUTEX(last_tasklets);
static struct workqueue_struct *tasklet_wq;	/* from module load to unload */

int krping_qp_init(void)
{
	tasklet_wq = alloc_workqueue("krping_tasklet", WQ_MEM_RECLAIM | KRPING_WQ_PERCPU, 0);
	return tasklet_wq ? 0 : -ENOMEM;
}

void krping_qp_exit(void)
{
	destroy_workqueue(tasklet_wq);
}

/* Without preemption: if its CPU has gone offline, work may run on any. */
static void schedule_last_tasklet(struct work_struct *unused)
{
	tasklet_schedule(get_cpu_ptr(&last_tasklet));
	put_cpu_ptr(&last_tasklet);
}

/*
 * Sleeps until all scheduled tasklets have run: a CPU runs its tasklets in order. Before Linux 6.4
 * rxe reports completions from a tasklet, for which destroying a completion queue does not wait.
 * Its headers do not say which it is, so all kernels do this: it takes little time. From an IPI
 * (on_each_cpu()) a PREEMPT_RT kernel warns of a softirq that is raised on an idle CPU.
 */
static void wait_for_tasklets(void)
{
	int cpu;

	mutex_lock(&last_tasklets);
	for_each_possible_cpu(cpu)
		tasklet_setup(per_cpu_ptr(&last_tasklet, cpu), nothing);
	for_each_online_cpu(cpu) {
		INIT_WORK(per_cpu_ptr(&last_work, cpu), schedule_last_tasklet);
		queue_work_on(cpu, tasklet_wq, per_cpu_ptr(&last_work, cpu));
	}
	flush_workqueue(tasklet_wq);
	for_each_possible_cpu(cpu)
		tasklet_kill(per_cpu_ptr(&last_tasklet, cpu));
	mutex_unlock(&last_tasklets);
}

/*
 * Waits until the softirq has left its handler of a completion queue whose queue pair is gone.
 * ib_free_cq() waits only until the handler has called irq_poll_complete(). After that it still
 * uses the completion queue, to arm it.
 */
static void wait_for_poll(struct ib_cq *cq)
{
	irq_poll_disable(&cq->iop);	/* returns when it is not scheduled */
	irq_poll_enable(&cq->iop);
	synchronize_rcu_expedited();	/* a softirq is a read-side critical section */
}

static void wait_for_reports(const struct ib_cq *cq)
{
	if (cq->device->ops.driver_id == RDMA_DRIVER_RXE)
		wait_for_tasklets();
}

/* Undoes krping_cq_alloc(); its queue pairs are destroyed. Afterwards @notify does not run. */
void krping_cq_free(struct ib_cq *cq)
{
	wait_for_reports(cq);
	ib_destroy_cq(cq);
}

static void free_cq(struct krping_conn *conn)
{
	if (conn->cq_is_own) {
		krping_cq_free(conn->cq);
	} else {
		wait_for_reports(conn->cq);	/* they may schedule a poll */
		if (conn->cq->poll_ctx == IB_POLL_SOFTIRQ)
			wait_for_poll(conn->cq);
		ib_free_cq(conn->cq);
	}
	conn->cq = NULL;
}

/* Return: 0 with @conn's PD and CQ, or a negative errno with neither. */
static int get_pd_and_cq(struct krping_conn *conn, const struct krping_qp_attr *want, u32 cqe)
{
	int ret;

	conn->borrowed = want->pd;
	if (conn->borrowed) {
		conn->pd = want->pd;
		conn->cq = want->cq;
		return 0;
	}
	conn->pd = ib_alloc_pd(conn->id->device, want->pd_flags);
	if (IS_ERR(conn->pd)) {
		ret = PTR_ERR(conn->pd);
		goto no_pd;
	}
	conn->cq = alloc_cq(conn, want, cqe);
	if (!IS_ERR(conn->cq))
		return 0;
	ret = PTR_ERR(conn->cq);
	ib_dealloc_pd(conn->pd);
no_pd:
	conn->cq = NULL;
	conn->pd = NULL;
	return ret;
}

static void put_pd_and_cq(struct krping_conn *conn)
{
	if (!conn->borrowed) {
		free_cq(conn);
		ib_dealloc_pd(conn->pd);
	}
	conn->cq = NULL;
	conn->pd = NULL;
}

/**
 * krping_conn_alloc - allocate PD, CQ and QP on the id's device
 * @conn:	with an id that has a device
 * @want:	parameters of the queue pair
 *
 * Return: 0 or a negative errno with nothing left allocated.
 */
int krping_conn_alloc(struct krping_conn *conn, const struct krping_qp_attr *want)
{
	struct ib_device *dev = conn->id->device;
	u32 buf_sges = min(want->buf_sges ?: 1, max_buf_sges(dev));
	struct ib_qp_init_attr attr = {
		.qp_context = want->context,
		.srq = want->srq,
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = {
			.max_send_wr = want->send_wr + 1,	/* 1 = drain */
			.max_recv_wr = want->srq ? 0 : want->recv_wr + 1,	/* 1 = drain */
			.max_send_sge = max(want->send_sge, buf_sges),
			.max_recv_sge = want->srq ? 0 : buf_sges,
			.max_rdma_ctxs = want->rw_ctxs,
			.max_inline_data = want->inline_len,
		},
	};
	/* 3 = READ or WRITE, plus REG_MR and INV on devices that need memory regions */
	u32 send_wr = want->send_wr + 3 * want->rw_ctxs + 1;
	u32 cqe = send_wr + attr.cap.max_recv_wr;
	int ret;

	if (!(dev->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS)) {
		krping_err_ratelimited(conn->log_prefix,
				       "%s cannot register memory by work requests", dev->name);
		return -EOPNOTSUPP;
	}
	if (!(dev->attrs.page_size_cap & PAGE_SIZE)) {	/* ib_map_mr_sg() does not check it */
		krping_err_ratelimited(conn->log_prefix, "%s cannot register pages of %lu bytes",
				       dev->name, PAGE_SIZE);
		return -EOPNOTSUPP;
	}
	ret = krping_conn_check_limit(conn, "work requests in a queue",
				      max(send_wr, want->recv_wr + 1),
				      krping_dev_max_wr(dev));
	if (!ret)
		ret = krping_conn_check_limit(conn, "completion queue entries", cqe,
					      max(dev->attrs.max_cqe, 0));
	if (ret)
		return ret;

	ret = get_pd_and_cq(conn, want, cqe);
	if (ret)
		goto failed;
	attr.send_cq = conn->cq;
	attr.recv_cq = conn->cq;
	ret = rdma_create_qp(conn->id, conn->pd, &attr);
	if (ret) {
		put_pd_and_cq(conn);
		goto failed;
	}
	conn->qp = conn->id->qp;
	conn->buf_sges = buf_sges;
	return 0;

failed:
	krping_err_ratelimited(conn->log_prefix, "cannot set up a queue pair on %s: %d", dev->name,
			       ret);
	return ret;
}

/**
 * krping_conn_destroy_qp - destroy a drained queue pair
 * @conn:	nothing is posted to it any more
 *
 * Call it before memory regions that the peer could use are freed. In 6.1, an rxe queue pair that
 * enters the error state during an RDMA WRITE with immediate data keeps a reference to the region,
 * for which ib_dereg_mr() would wait 50 s.
 */
void krping_conn_destroy_qp(struct krping_conn *conn)
{
	if (!conn->qp)
		return;
	rdma_destroy_qp(conn->id);
	conn->qp = NULL;
}

/* Undoes krping_conn_alloc(); the queue pair is drained, or already destroyed. */
void krping_conn_free(struct krping_conn *conn)
{
	if (!conn->pd)
		return;
	krping_conn_destroy_qp(conn);
	put_pd_and_cq(conn);
}

/* Afterwards no completion runs and the peer cannot access memory any more. */
void krping_conn_drain(struct krping_conn *conn)
{
	if (!conn->qp)
		return;
	rdma_disconnect(conn->id);
	ib_drain_qp(conn->qp);
}

/* Undoes krping_conn_open() or krping_conn_adopt(). */
void krping_conn_close(struct krping_conn *conn)
{
	struct rdma_cm_id *id = conn->id;

	if (!id)
		return;
	krping_conn_free(conn);
	rdma_destroy_id(id);	/* returns when no event handler runs */
	conn->id = NULL;
}

/*
 * With bottom halves off: a software RDMA device then does its work when they are enabled again,
 * not when ksoftirqd gets its turn.
 */
int krping_conn_post_send(struct krping_conn *conn, struct ib_send_wr *wr)
{
	int ret;

	local_bh_disable();
	ret = ib_post_send(conn->qp, wr, NULL);
	local_bh_enable();
	return ret;
}

/* The errno for a failed completion. */
static int wc_error(const struct krping_conn *conn, const struct ib_wc *wc)
{
	switch (wc->status) {
	case IB_WC_WR_FLUSH_ERR:
		return -ECONNRESET;
	case IB_WC_LOC_QP_OP_ERR:
		/*
		 * iWARP: the peer closed the stream during a send; rxe: a message was longer than
		 * its receive.
		 */
		return krping_conn_is_iwarp(conn) ? -ECONNRESET : -EPROTO;
	case IB_WC_RETRY_EXC_ERR:
	case IB_WC_RNR_RETRY_EXC_ERR:
	case IB_WC_RESP_TIMEOUT_ERR:
		return -ETIMEDOUT;
	case IB_WC_REM_ACCESS_ERR:
	case IB_WC_REM_INV_REQ_ERR:
	case IB_WC_REM_OP_ERR:
	case IB_WC_LOC_LEN_ERR:
	case IB_WC_LOC_ACCESS_ERR:
	case IB_WC_BAD_RESP_ERR:
		return -EPROTO;
	default:
		return -EIO;
	}
}

/*
 * A flush is only a consequence: the cause is reported separately. During set-up it may be reported
 * later, because rdma_cm moves the queue pair to the error state before it reports a reject.
 */
void krping_conn_wc_failed(struct krping_conn *conn, const struct ib_wc *wc, const char *what)
{
	if (wc->status != IB_WC_WR_FLUSH_ERR)
		krping_err_ratelimited(conn->log_prefix, "%s failed: %s (vendor error 0x%x)", what,
				       ib_wc_status_msg(wc->status), wc->vendor_err);
	else if (READ_ONCE(conn->state) < KRPING_CONN_LIVE)
		return;
	krping_conn_fail(conn, wc_error(conn, wc));
}
