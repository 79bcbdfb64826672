// SPDX-License-Identifier: GPL-2.0
/* Data queue pairs: allocation, and UC's and UD's way to the peer. */
#include <linux/random.h>
#include <linux/slab.h>

#include "lib/log.h"
#include "verbs/verbs.h"

/* Entries of a completion queue, unless one queue pair needs more. */
#define CQ_ENTRIES	16384

/* Work requests in the send queue. */
u32 krping_verbs_send_wr(const struct krping_verbs_queue *q)
{
	return q->depth + KRPING_VERBS_SPARE_WR;
}

static bool has_checks(const struct krping_verbs *v)
{
	return v->uses_check;
}

/* Receives of the queue pair itself. */
u32 krping_verbs_recv_wr(const struct krping_verbs_queue *q)
{
	if (has_checks(q->v))
		return KRPING_VERBS_CHECK_DEPTH;
	return q->ring.nr;
}

/* A queue pair that fails completes all of its work requests; +2: the drain's places. */
static u32 completions_of(const struct krping_verbs_queue *q)
{
	return krping_verbs_send_wr(q) + krping_verbs_recv_wr(q) + 2;
}

/**
 * krping_verbs_queues_alloc - allocate the array of queue pairs
 * @v:		with @test
 *
 * The caller sets @nr_queues when their connections are initialized.
 *
 * Return: 0 or -ENOMEM.
 */
int krping_verbs_queues_alloc(struct krping_verbs *v)
{
	bool by_server = !krping_verbs_is_client(v), reads = krping_verbs_is_read(&v->test);
	u16 group = v->thread.group;
	u32 i;

	v->queues = kvcalloc(v->test.qps, sizeof(*v->queues), GFP_KERNEL);
	if (!v->queues)
		return -ENOMEM;
	for (i = 0; i < v->test.qps; i++) {
		struct krping_verbs_queue *q = &v->queues[i];

		q->v = v;
		q->index = i;
		q->psn = get_random_u32() & 0xffffff;
		q->tx_tag = krping_message_tag(group, i, by_server != reads);
		q->rx_tag = krping_message_tag(group, i, by_server == reads);
		q->tx_cqe.done = krping_verbs_tx_done;
	}
	return 0;
}

/* ---- completion queues and the shared receive queue ---- */

static int alloc_cqs(struct krping_verbs *v)
{
	struct ib_device *dev = v->control.id->device;
	u32 of_queue = 0, shared = v->srq_ring.nr, most, each, i;

	for (i = 0; i < v->nr_queues; i++)	/* a QUEUE may have made some smaller already */
		of_queue = max(of_queue, completions_of(&v->queues[i]));
	most = clamp_t(u32, CQ_ENTRIES, 1, max(dev->attrs.max_cqe, 1));
	each = most > shared + of_queue ? (most - shared) / of_queue : 1;
	each = min(each, v->nr_queues);
	v->cqs = kvcalloc(DIV_ROUND_UP(v->nr_queues, each), sizeof(*v->cqs), GFP_KERNEL);
	if (!v->cqs)
		return -ENOMEM;
	for (i = 0; i < DIV_ROUND_UP(v->nr_queues, each); i++) {
		struct ib_cq *cq = krping_cq_alloc(dev, each * of_queue + shared, i,
						   krping_verbs_notify, &v->control);

		if (IS_ERR(cq))
			return PTR_ERR(cq);
		v->cqs[v->nr_cqs++] = cq;
	}
	for (i = 0; i < v->nr_queues; i++)
		v->queues[i].cq = v->cqs[i / each];
	return 0;
}

static int alloc_srq(struct krping_verbs *v)
{
	struct ib_srq_init_attr attr = {
		.attr = { .max_wr = v->srq_ring.nr, .max_sge = 1 },
		.srq_type = IB_SRQT_BASIC,
	};
	struct ib_srq *srq;

	srq = ib_create_srq(v->control.pd, &attr);
	if (IS_ERR(srq))
		return PTR_ERR(srq);
	v->srq = srq;
	v->srq_ring.srq = srq;
	return krping_verbs_ring_fill(&v->srq_ring);
}

/* ---- UC and UD ---- */

/* The path of the control connection, for a queue pair that enters @state. */
static int path_attr(struct krping_verbs *v, enum ib_qp_state state, struct ib_qp_attr *attr)
{
	int mask, ret;

	*attr = (struct ib_qp_attr){ .qp_state = state };
	ret = rdma_init_qp_attr(v->control.id, attr, &mask);
	return ret ? krping_conn_setup_errno(&v->control, ret) : 0;
}

static u32 own_qkey(const struct krping_verbs_queue *q)
{
	return q->psn;	/* random, and its highest bit is zero */
}

static int make_init(struct krping_verbs_queue *q)
{
	int mask = IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT, ret;
	struct ib_qp_attr attr;

	ret = path_attr(q->v, IB_QPS_INIT, &attr);
	if (ret)
		return ret;
	attr.qp_state = IB_QPS_INIT;
	if (q->v->test.qp_type == KRPING_VERBS_UD) {
		attr.qkey = own_qkey(q);
		mask |= IB_QP_QKEY;
	} else {
		attr.qp_access_flags = IB_ACCESS_REMOTE_WRITE;
		mask |= IB_QP_ACCESS_FLAGS;
	}
	return ib_modify_qp(q->qp, &attr, mask);
}

static int make_ready(struct krping_verbs_queue *q)
{
	int mask = IB_QP_STATE, ret;
	u32 mtu = q->v->test.mtu;
	struct ib_qp_attr attr;

	ret = path_attr(q->v, IB_QPS_RTR, &attr);
	if (ret)
		return ret;
	attr.qp_state = IB_QPS_RTR;
	if (q->v->test.qp_type == KRPING_VERBS_UC) {
		attr.dest_qp_num = q->peer.qpn;
		attr.rq_psn = q->peer.psn;
		if (mtu && mtu < ib_mtu_enum_to_int(attr.path_mtu))
			attr.path_mtu = ib_mtu_int_to_enum(mtu);
		mask |= IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN | IB_QP_RQ_PSN;
	}
	ret = ib_modify_qp(q->qp, &attr, mask);
	if (ret)
		return ret;
	attr.qp_state = IB_QPS_RTS;
	attr.sq_psn = q->psn;
	return ib_modify_qp(q->qp, &attr, IB_QP_STATE | IB_QP_SQ_PSN);
}

static int make_ah(struct krping_verbs *v)
{
	struct ib_qp_attr attr;
	struct ib_ah *ah;
	int ret;

	ret = path_attr(v, IB_QPS_RTR, &attr);
	if (ret)
		return ret;
	ah = rdma_create_ah(v->control.pd, &attr.ah_attr, RDMA_CREATE_AH_SLEEPABLE);
	if (IS_ERR(ah))
		return PTR_ERR(ah);
	v->ah = ah;
	return 0;
}

static int alloc_unconnected(struct krping_verbs_queue *q)
{
	struct krping_verbs *v = q->v;
	struct ib_qp_init_attr attr = {
		.qp_context = q,
		.send_cq = q->cq,
		.recv_cq = q->cq,
		.srq = v->srq,
		.cap = {
			.max_send_wr = krping_verbs_send_wr(q),
			.max_recv_wr = v->srq ? 0 : max(krping_verbs_recv_wr(q), 1u),
			.max_send_sge = 1,
			.max_recv_sge = v->srq ? 0 : 1,
			.max_inline_data = v->test.inline_len,
		},
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = v->test.qp_type == KRPING_VERBS_UC ? IB_QPT_UC : IB_QPT_UD,
	};
	struct ib_qp *qp = ib_create_qp(v->control.pd, &attr);

	if (IS_ERR(qp))
		return PTR_ERR(qp);
	q->qp = qp;
	return make_init(q);
}

/* ---- all ---- */

static int post_receives(struct krping_verbs_queue *q)
{
	if (has_checks(q->v))
		return krping_verbs_checks_post(q);
	q->ring.qp = q->qp;
	return krping_verbs_ring_fill(&q->ring);
}

/**
 * krping_verbs_rc_prepare - make the queue pair of an RC data connection, and post its receives
 * @q:		its connection has an id with a device
 *
 * Return: 0 or a negative errno: krping_verbs_queues_free() frees what was allocated.
 */
int krping_verbs_rc_prepare(struct krping_verbs_queue *q)
{
	struct krping_qp_attr attr = {
		.send_wr = krping_verbs_send_wr(q),
		.recv_wr = krping_verbs_recv_wr(q),
		.pd = q->v->control.pd,
		.cq = q->cq,
		.srq = q->v->srq,
		.context = q,
		.inline_len = q->v->test.inline_len,
	};
	int ret;

	ret = krping_conn_alloc(&q->conn, &attr);
	if (ret)
		return ret;
	q->qp = q->conn.qp;
	/* Otherwise a sender that finds no receive waits for 655 ms. */
	ret = rdma_set_min_rnr_timer(q->conn.id, IB_RNR_TIMER_000_32);
	return ret ?: post_receives(q);
}

/**
 * krping_verbs_queues_prepare - make what queue pairs share; UC and UD: the queue pairs, too
 * @v:		with its memory, and an established control connection
 *
 * Return: 0 or a negative errno: krping_verbs_queues_free() frees what was allocated.
 */
int krping_verbs_queues_prepare(struct krping_verbs *v)
{
	bool unconnected = !krping_verbs_is_reliable(&v->test);
	int ret;
	u32 i;

	ret = alloc_cqs(v);
	if (!ret && v->srq_ring.nr)
		ret = alloc_srq(v);
	if (!ret && v->test.qp_type == KRPING_VERBS_UD)
		ret = make_ah(v);
	for (i = 0; i < v->nr_queues && !ret; i++) {
		if (has_checks(v))
			ret = krping_verbs_checks_alloc(&v->queues[i], krping_verbs_check_sent);
		if (!ret && unconnected)
			ret = alloc_unconnected(&v->queues[i]);
		if (!ret && unconnected)
			ret = post_receives(&v->queues[i]);
	}
	if (ret && !krping_conn_error(&v->control))
		krping_err_ratelimited(v->thread.log_prefix, "cannot set up queue pairs on %s: %d",
				       v->control.id->device->name, ret);
	return ret;
}

/* Makes UC and UD queue pairs ready to send and receive; the peer's are known. */
int krping_verbs_queues_connect(struct krping_verbs *v)
{
	int ret = 0;
	u32 i;

	if (krping_verbs_is_reliable(&v->test))
		return 0;
	for (i = 0; i < v->nr_queues && !ret; i++)
		ret = make_ready(&v->queues[i]);
	if (ret && !krping_conn_error(&v->control))
		krping_err_ratelimited(v->thread.log_prefix,
				       "cannot make a queue pair of %s ready: %d",
				       v->control.id->device->name, ret);
	return ret;
}

/* Fills in the QUEUE of a data queue pair. */
void krping_verbs_describe(const struct krping_verbs_queue *q, struct krping_verbs_msg *msg)
{
	const struct krping_verbs *v = q->v;
	bool unconnected = !krping_verbs_is_reliable(&v->test);
	bool datagram = v->test.qp_type == KRPING_VERBS_UD;
	u32 slots = q->nr_sink;

	if (v->is_target && v->test.verb == KRPING_VERB_SEND)
		slots = v->test.srq ? v->test.rxdepth / v->nr_queues : v->test.rxdepth;
	*msg = (struct krping_verbs_msg){
		.type = KRPING_VERBS_QUEUE,
		.queue = cpu_to_be16(q->index),
		.info = {
			.qpn = cpu_to_be32(unconnected ? q->qp->qp_num : 0),
			.psn = cpu_to_be32(unconnected ? q->psn : 0),
			.qkey = cpu_to_be32(datagram ? own_qkey(q) : 0),
			.slots = cpu_to_be32(slots),
			.addr = cpu_to_be64(q->nr_sink ? q->sink.mr->iova : 0),
			.rkey = cpu_to_be32(q->nr_sink ? q->sink.mr->rkey : 0),
		},
	};
}

static void queue_free(struct krping_verbs_queue *q)
{
	if (krping_verbs_is_reliable(&q->v->test))
		krping_conn_close(&q->conn);
	else if (q->qp)
		ib_destroy_qp(q->qp);
	q->qp = NULL;
	krping_verbs_checks_free(q);
}

/*
 * Moves the data queue pairs to the error state: they send nothing more. The peer destroys its own
 * when it hears that the test has ended, and Soft-RoCE may warn about a packet that arrives
 * meanwhile (DESIGN.md, "What software devices do"). On iWARP this would break the connections
 * before the peer hears why. Before GO nothing is sent, and rdma_cm may still be connecting.
 */
void krping_verbs_queues_stop(struct krping_verbs *v)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };
	u32 i;

	if (!v->going || krping_conn_is_iwarp(&v->control))
		return;
	for (i = 0; i < v->nr_queues; i++)
		ib_modify_qp(v->queues[i].qp, &attr, IB_QP_STATE);
}

/**
 * krping_verbs_queues_free - undo krping_verbs_queues_prepare() and krping_verbs_rc_prepare()
 * @v:		nothing polls any more; the id of the control connection is still there
 *
 * Destroying a queue pair ends its work requests; their completions nobody needs.
 */
void krping_verbs_queues_free(struct krping_verbs *v)
{
	u32 i;

	for (i = 0; i < v->nr_queues; i++)
		if (v->queues[i].conn.id)
			rdma_disconnect(v->queues[i].conn.id);
	for (i = 0; i < v->nr_queues; i++)
		queue_free(&v->queues[i]);
	if (v->ah)
		rdma_destroy_ah(v->ah, RDMA_DESTROY_AH_SLEEPABLE);
	if (v->srq)
		ib_destroy_srq(v->srq);
	for (i = 0; i < v->nr_cqs; i++)
		krping_cq_free(v->cqs[i]);
	kvfree(v->cqs);
	v->ah = NULL;
	v->srq = NULL;
	v->cqs = NULL;
	v->nr_cqs = 0;
}
