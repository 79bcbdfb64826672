// SPDX-License-Identifier: GPL-2.0
/*
 * Answers to large commands that arrive before the SEND of the command has completed.
 *
 * An answer invalidates the key of the command's memory region. On most devices this shows that the
 * REG_MR was carried out before, and it will not be again. iWARP lets a peer invalidate a region
 * that is not registered yet, and Soft-RoCE repeats a REG_MR with the messages before it that were
 * not acknowledged. There the memory must not be given back yet: a target that breaks the protocol
 * could still use it. So the request keeps its slot until the SEND has completed, after which no
 * REG_MR of the message follows, and a LOCAL_INV has invalidated the key for good. These devices
 * allow that for a key which is invalid already, others need not.
 */
#include "client/request.h"
#include "lib/fault.h"

/* Whether a region may become valid after an answer has invalidated its key. */
static bool registers_late(const struct krping_queue *q)
{
	const struct rdma_cm_id *id = q->conn.id;

	return rdma_protocol_iwarp(id->device, id->port_num) ||
	       id->device->ops.driver_id == RDMA_DRIVER_RXE;
}

static void inv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_slot *slot = container_of(wc->wr_cqe, struct krping_slot, inv_cqe);
	struct krping_conn *conn = cq->cq_context;
	struct krping_queue *q = container_of(conn, struct krping_queue, conn);
	struct krping_decoded_rsp answer;
	struct request *rq;

	if (wc->status != IB_WC_SUCCESS) {	/* recovery finds the request in its slot */
		krping_conn_wc_failed(conn, wc, "invalidation of a key");
		return;
	}
	spin_lock_bh(&q->lock);
	q->nr_regs--;
	answer = slot->answer;
	rq = krping_slot_take(q, slot);
	spin_unlock_bh(&q->lock);
	krping_recv_accept(q, rq, &answer);
}

/* Takes the place of the REG_MR in the send queue. Called with q->lock held. */
static void post_inv(struct krping_queue *q, struct krping_slot *slot)
{
	struct ib_send_wr inv = {
		.wr_cqe = &slot->inv_cqe,
		.opcode = IB_WR_LOCAL_INV,
		.send_flags = IB_SEND_SIGNALED,
		.ex.invalidate_rkey = slot->mr->rkey,
	};
	int ret;

	if (READ_ONCE(q->conn.state) != KRPING_CONN_LIVE)
		return;
	slot->inv_cqe.done = inv_done;
	ret = ib_post_send(q->conn.qp, &inv, NULL);
	if (ret)
		krping_conn_fail(&q->conn, ret);
	else
		q->nr_regs++;
}

/**
 * krping_early_hold - hold an answer that is early
 * @q:		its queue, with q->lock held
 * @slot:	of a large command in flight that the answer matches
 * @rsp:	the answer
 *
 * Return: whether it is held; then its LOCAL_INV's completion accepts it, or the request is cancelled.
 */
bool krping_early_hold(struct krping_queue *q, struct krping_slot *slot,
		       const struct krping_decoded_rsp *rsp)
{
	bool sent = slot->message <= q->sent;

	if (!registers_late(q))
		return false;
	if (sent && !krping_fault(KRPING_FAULT_RECV_EARLY, q->session->opt.block))
		return false;
	slot->answered = true;
	slot->answer = *rsp;
	if (sent)
		post_inv(q, slot);
	else
		list_add_tail(&slot->early, &q->early);
	return true;
}

/* All messages up to q->sent have been sent. Called with q->lock held. */
void krping_early_sent(struct krping_queue *q)
{
	struct krping_slot *slot, *next;

	list_for_each_entry_safe(slot, next, &q->early, early) {
		if (slot->message > q->sent)
			continue;
		list_del(&slot->early);
		post_inv(q, slot);
	}
}
