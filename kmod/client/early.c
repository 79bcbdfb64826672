// SPDX-License-Identifier: GPL-2.0
/*
 * Answers to large commands that arrive before the SEND of the command has completed.
 *
 * An answer invalidates the key of the command's memory region. On hardware this shows that the
 * REG_MR was carried out before. But siw lets a peer invalidate a region that is not registered
 * yet, and Soft-RoCE repeats a REG_MR with the messages before it that were not acknowledged. There
 * the memory must not be given back yet: a target that breaks the protocol could still use it. So
 * the request keeps its slot until the SEND has completed, after which no REG_MR of the message
 * follows, and a LOCAL_INV has invalidated the key once more. These two devices allow that for a
 * key which is invalid already, others need not.
 *
 * Soft-RoCE holds back a LOCAL_INV until everything before it has completed, and in 6.1 may forget
 * it then. So nothing is in flight when one is posted.
 */
#include "client/request.h"
#include "lib/fault.h"

/* Whether a region may become valid after an answer has invalidated its key. */
static bool registers_late(const struct krping_queue *q)
{
	u32 driver = q->conn.id->device->ops.driver_id;

	return driver == RDMA_DRIVER_SIW || driver == RDMA_DRIVER_RXE;
}

/* Whether a LOCAL_INV waits for what is in flight. Called with q->lock held. */
bool krping_early_is_due(const struct krping_queue *q)
{
	const struct krping_slot *slot;

	list_for_each_entry(slot, &q->early, early)
		if (slot->tx->message <= q->sent)
			return true;
	return false;
}

/* Posts the next LOCAL_INV once nothing is in flight. Called with q->lock held. */
void krping_early_next(struct krping_queue *q)
{
	struct krping_slot *slot = list_first_entry_or_null(&q->early, struct krping_slot, early);
	struct ib_send_wr inv = {
		.opcode = IB_WR_LOCAL_INV,
		.send_flags = IB_SEND_SIGNALED,
	};
	int ret;

	if (!slot || q->nr_sending || q->keepalive.sending || q->invalidating ||
	    READ_ONCE(q->conn.state) != KRPING_CONN_LIVE)
		return;
	inv.wr_cqe = &slot->inv_cqe;
	inv.ex.invalidate_rkey = slot->mr->rkey;
	ret = ib_post_send(q->conn.qp, &inv, NULL);
	if (ret) {
		krping_conn_fail(&q->conn, ret);
		return;
	}
	q->invalidating = true;
	q->nr_regs++;	/* it takes the place of the slot's REG_MR */
}

/**
 * krping_early_hold - hold an answer that is early
 * @q:		its queue, with q->lock held
 * @slot:	of a large command in flight that the answer matches
 * @rsp:	the answer
 *
 * Return: whether it is held; then krping_early_finish() or krping_queue_cancel() takes it.
 */
bool krping_early_hold(struct krping_queue *q, struct krping_slot *slot,
		       const struct krping_decoded_rsp *rsp)
{
	if (!registers_late(q))
		return false;
	if (slot->tx->message <= q->sent &&
	    !krping_fault(KRPING_FAULT_RECV_EARLY, q->session->opt.block))
		return false;
	slot->answered = true;
	slot->answer = *rsp;
	list_add_tail(&slot->early, &q->early);
	krping_early_next(q);
	return true;
}

/**
 * krping_early_finish - take a held answer after the LOCAL_INV of its key
 * @q:		its queue
 * @slot:	of the command
 * @answer:	set to the answer
 *
 * Return: the request, out of its slot.
 */
struct request *krping_early_finish(struct krping_queue *q, struct krping_slot *slot,
				    struct krping_decoded_rsp *answer)
{
	struct request *rq;

	spin_lock_bh(&q->lock);
	list_del(&slot->early);
	q->invalidating = false;
	q->nr_regs--;
	*answer = slot->answer;
	rq = krping_slot_take(q, slot);
	krping_early_next(q);
	spin_unlock_bh(&q->lock);
	return rq;
}
