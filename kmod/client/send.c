// SPDX-License-Identifier: GPL-2.0
/* Sends requests: maps their data, puts them into messages as commands, posts these. */
#include <linux/highmem.h>

#include "client/request.h"
#include "wire/crc.h"
#include "lib/fault.h"
#include "lib/log.h"
#include "lib/trace.h"

/* Bytes of a WRITE that are worth a registration, to save room in a message. */
#define SCARCE_INLINE	1024

/*
 * The target reads or writes large data by RDMA; small data is inline. When many commands gather in
 * the last message, the data of most WRITEs counts as large, so that it has room for them.
 */
static bool is_large(const struct krping_queue *q, struct request *rq)
{
	bool scarce = !READ_ONCE(q->nr_free) && READ_ONCE(q->nr_inflight) >= q->nr_tx;

	if (!krping_rq_moves_data(rq))
		return false;
	return blk_rq_bytes(rq) > q->session->grant.max_inline ||
	       (scarce && req_op(rq) == REQ_OP_WRITE && blk_rq_bytes(rq) > SCARCE_INLINE);
}

/* Whether a request can be sent now; final with q->lock held. */
static bool has_room(struct krping_queue *q)
{
	return krping_receives_suffice(q) && (READ_ONCE(q->open) || READ_ONCE(q->nr_free));
}

static void copy_from_rq(void *to, struct request *rq)
{
	struct req_iterator iter;
	struct bio_vec bv;

	rq_for_each_segment(bv, rq, iter) {
		memcpy_from_bvec(to, &bv);
		to += bv.bv_len;
	}
}

/* Sets slot->sg to a scatterlist of @nr entries; krping_rq_unmap() gives it back. */
static bool take_sg(struct krping_queue *q, struct krping_slot *slot, u32 nr)
{
	slot->sg_is_pooled = false;
	slot->sg = slot->small;
	if (nr <= ARRAY_SIZE(slot->small))
		return true;
	slot->sg = kmalloc_array(nr, sizeof(*slot->sg), GFP_NOWAIT | __GFP_NOWARN);
	if (slot->sg)
		return true;
	slot->sg_is_pooled = true;
	slot->sg = mempool_alloc(&q->session->sg_pool, GFP_NOWAIT);
	return slot->sg;
}

/* Maps the data, of the private copy if there is one. BLK_STS_IOERR: it does not fit the region. */
static blk_status_t map_data(struct krping_queue *q, struct krping_slot *slot, struct request *rq)
{
	struct krping_request *req = krping_req(rq);
	int mapped, fit;

	if (!take_sg(q, slot, req->copy ? DIV_ROUND_UP(blk_rq_bytes(rq), PAGE_SIZE) :
					  blk_rq_nr_phys_segments(rq)))
		return BLK_STS_RESOURCE;
	if (req->copy) {
		req->nents = krping_copy_map(req->copy, slot->sg);
	} else {
		sg_init_table(slot->sg, blk_rq_nr_phys_segments(rq));
		req->nents = krping_rq_map_sg(rq, slot->sg);
	}
	mapped = ib_dma_map_sg(q->conn.id->device, slot->sg, req->nents, rq_dma_dir(rq));
	if (!mapped) {
		req->nents = 0;
		krping_slot_put_sg(q, slot);
		return BLK_STS_RESOURCE;
	}
	fit = ib_map_mr_sg(slot->mr, slot->sg, mapped, NULL, PAGE_SIZE);
	if (!req->copy && krping_fault(KRPING_FAULT_MAP_UNFIT, q->session->opt.block))
		fit--;
	if (fit == mapped)
		return BLK_STS_OK;
	krping_rq_unmap(q, slot, rq);
	return BLK_STS_IOERR;
}

/*
 * A bounce buffer need not have the data's offset in its page. Then a region, which has gaps
 * between pages nowhere, holds only a part of the data, but all of a copy in whole pages.
 */
static blk_status_t map_copy(struct krping_queue *q, struct krping_slot *slot, struct request *rq)
{
	krping_copy_make(rq);
	return krping_req(rq)->copy ? map_data(q, slot, rq) : BLK_STS_RESOURCE;
}

static blk_status_t map_large(struct krping_queue *q, struct krping_slot *slot,
			      struct request *rq)
{
	struct krping_request *req = krping_req(rq);
	blk_status_t status;

	if (krping_fault(KRPING_FAULT_REG_REFUSE, q->session->opt.block))
		return BLK_STS_RESOURCE;
	if (req->retried && !req->copy)
		krping_copy_make(rq);
	status = map_data(q, slot, rq);
	if (status == BLK_STS_IOERR && !req->copy)
		status = map_copy(q, slot, rq);
	if (status) {
		if (status == BLK_STS_IOERR)
			krping_err_ratelimited(q->session->log_prefix,
					       "%s of %u bytes at sector %llu: its memory cannot be registered, it fails",
					       blk_op_str(req_op(rq)), blk_rq_bytes(rq),
					       (u64)blk_rq_pos(rq));
		return status;
	}
	ib_update_fast_reg_key(slot->mr, ib_inc_rkey(slot->mr->rkey));
	slot->reg_wr = (struct ib_reg_wr){
		.wr = {
			.wr_cqe = &q->reg_cqe,
			.opcode = IB_WR_REG_MR,
		},
		.mr = slot->mr,
		.key = slot->mr->rkey,
		.access = rq_data_dir(rq) == WRITE ? IB_ACCESS_REMOTE_READ :
			  IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE,
	};
	return BLK_STS_OK;
}

static void fill_command(struct krping_queue *q, struct krping_slot *slot, struct request *rq,
			 struct krping_cmd *cmd)
{
	struct krping_request *req = krping_req(rq);

	*cmd = (struct krping_cmd){
		.op = krping_rq_opcode(rq),
		.tag = cpu_to_be16(req->wire_tag),
		.length = cpu_to_be32(krping_rq_length(rq)),
		.offset = cpu_to_be64(krping_rq_offset(rq)),
	};
	if (rq->cmd_flags & REQ_FUA &&
	    (req_op(rq) == REQ_OP_WRITE || req_op(rq) == REQ_OP_WRITE_ZEROES))
		cmd->flags |= KRPING_CMD_FUA;
	if (rq->cmd_flags & REQ_NOUNMAP && req_op(rq) == REQ_OP_WRITE_ZEROES &&
	    q->session->grant.version > 1)
		cmd->flags |= KRPING_CMD_NO_UNMAP;
	if (krping_rq_is_digest(rq) && req->digest->alg == KRPING_DIGEST_SHA256)
		cmd->flags |= KRPING_CMD_SHA256;
	if (req->nents) {
		cmd->addr = cpu_to_be64(slot->mr->iova);
		cmd->rkey = cpu_to_be32(slot->mr->rkey);
	} else if (krping_rq_moves_data(rq) || krping_rq_is_digest(rq)) {
		cmd->flags |= KRPING_CMD_INLINE;
	}
}

/* Copies inline data into the message, so that what is checksummed is what is sent. */
static void fill_inline(struct request *rq, void *to)
{
	u32 len = blk_rq_bytes(rq);

	copy_from_rq(to, rq);
	memset(to + len, 0, ALIGN(len, KRPING_ALIGN) - len);
	krping_req(rq)->crc = krping_crc(to, len);
}

/*
 * While this many SENDs have not completed, further commands, large ones too, are gathered in the
 * open message. It is posted when it is full or when one of them completes. An idle queue posts at
 * once. With many commands in flight, fewer and larger messages cost less.
 */
static u32 send_window(const struct krping_queue *q)
{
	return q->nr_inflight > 8 ? 1 : 2;
}

/*
 * In a queue with fewer messages than slots, commands gather in the last free message until another
 * one is answered.
 */
static bool is_last(const struct krping_queue *q)
{
	return !q->nr_free && q->nr_tx < q->nr_slots;
}

/* Nothing is posted while a LOCAL_INV is due (early.c). */
static bool may_post(struct krping_queue *q)
{
	return q->open && q->nr_sending < send_window(q) && !is_last(q) &&
	       !krping_early_is_due(q) && READ_ONCE(q->conn.state) == KRPING_CONN_LIVE;
}

/* Only the second SEND completes the message: the buffer is in use until then. */
static void send_duplicate(struct krping_queue *q, struct ib_send_wr *send,
			   struct ib_send_wr *again)
{
	*again = *send;
	send->wr_cqe = &q->reg_cqe;
	send->send_flags = 0;
	send->next = again;
}

/* Its SEND has completed, or was not posted. Called with q->lock held. */
static void end_send(struct krping_queue *q, struct krping_tx *tx)
{
	q->nr_regs -= tx->nr_regs;
	krping_tx_put(q, tx);
}

/*
 * When a queue has one command at a time, few SENDs need a completion: that of a later one tells
 * that they have completed, too. They keep their messages until then. All others are signalled:
 * further messages wait for them (send_window()), and so do answers to large commands (early.c).
 */
static bool must_signal(const struct krping_queue *q, const struct krping_tx *tx)
{
	u32 commands = tx->users - 1;

	return tx->nr_regs || q->nr_inflight > commands ||
	       q->nr_unsignalled + 1 >= q->nr_tx / 4 ||
	       krping_conn_is_iwarp(&q->conn) ||	/* siw would not copy the message */
	       krping_fault_is_on(KRPING_FAULT_DISCONNECT, q->session->opt.block);
}

/* Its SEND was posted. Called with q->lock held. */
static void note_posted(struct krping_queue *q, struct krping_tx *tx, bool signalled)
{
	q->posted = q->opened;
	if (signalled) {
		q->nr_sending++;
	} else {
		q->nr_unsignalled++;
		list_add_tail(&tx->entry, &q->unsignalled);
	}
}

/* The SENDs before that of @tx have completed. Called with q->lock held. */
static void end_unsignalled(struct krping_queue *q, const struct krping_tx *tx)
{
	struct krping_tx *first;

	while ((first = list_first_entry_or_null(&q->unsignalled, struct krping_tx, entry)) &&
	       first->message < tx->message) {
		list_del(&first->entry);
		q->nr_unsignalled--;
		end_send(q, first);
	}
}

/* Posts the open message behind the REG_MRs of its commands. Called with q->lock held. */
static void post_open(struct krping_queue *q)
{
	const char *name = q->session->opt.block;
	struct krping_tx *tx = q->open;
	struct ib_sge sges[KRPING_BUF_SGES];
	struct ib_send_wr again;
	bool signalled;
	int ret;

	q->open = NULL;
	tx->posted_at = jiffies;
	if (krping_fault(KRPING_FAULT_SEND_DROP, name)) {
		end_send(q, tx);
		return;
	}
	krping_fault_delay(KRPING_FAULT_SEND_DELAY, name);
	signalled = must_signal(q, tx);
	tx->send = (struct ib_send_wr){
		.wr_cqe = &tx->buf.cqe,
		.opcode = IB_WR_SEND,
		.send_flags = signalled ? IB_SEND_SIGNALED : 0,
		.sg_list = sges,
		.num_sge = krping_buf_send_sges(&q->conn, &tx->buf, tx->len, sges),
	};
	if (krping_fault(KRPING_FAULT_SEND_DUPLICATE, name))
		send_duplicate(q, &tx->send, &again);
	ret = -ENOMEM;
	if (!krping_fault(KRPING_FAULT_POST_FAIL, name))
		ret = ib_post_send(q->conn.qp, tx->first, NULL);
	if (!ret) {
		note_posted(q, tx, signalled);
		krping_count(q->session->stats, KRPING_MESSAGES, 1);
		return;
	}
	/* Recovery finds its commands in their slots, and drains those REG_MRs that were posted. */
	end_send(q, tx);
	krping_err_ratelimited(q->session->log_prefix, "cannot post a message: %d", ret);
	krping_conn_fail(&q->conn, ret);
}

/* Called with q->lock held. Return: a message with room for @need bytes, or NULL. */
static struct krping_tx *open_message(struct krping_queue *q, u32 need)
{
	struct krping_tx *tx;

	if (q->open && q->open->len + need > q->session->grant.max_message) {
		if (krping_early_is_due(q))
			return NULL;
		post_open(q);
	}
	if (q->open)
		return q->open;
	tx = list_first_entry_or_null(&q->tx_free, struct krping_tx, entry);
	if (!tx)
		return NULL;
	list_del(&tx->entry);
	WRITE_ONCE(q->nr_free, q->nr_free - 1);
	tx->users = 1;
	tx->len = 0;
	tx->first = &tx->send;
	tx->nr_regs = 0;
	tx->message = ++q->opened;
	q->open = tx;
	return tx;
}

/* Called with q->lock held. Return: whether the send queue has room for one more REG_MR. */
static bool may_register(const struct krping_queue *q)
{
	return q->nr_regs < q->nr_slots;
}

/* Puts the slot's REG_MR in front of the message. Called with q->lock held. */
static void add_reg(struct krping_queue *q, struct krping_tx *tx, struct krping_slot *slot)
{
	slot->reg_wr.wr.next = tx->first;
	tx->first = &slot->reg_wr.wr;
	tx->nr_regs++;
	q->nr_regs++;
}

static void trace_post(struct krping_queue *q, struct request *rq, const struct krping_cmd *cmd)
{
	struct krping_cmd_event event;

	if (!trace_krping_cmd_post_enabled())
		return;
	event = krping_rq_event(q, rq, be32_to_cpu(cmd->crc32c));
	event.flags = cmd->flags;
	trace_krping_cmd_post(&event);
}

/* Called with q->lock held. */
static blk_status_t append_command(struct krping_queue *q, struct krping_slot *slot,
				   struct request *rq)
{
	struct krping_request *req = krping_req(rq);
	struct krping_cmd cmd;
	struct krping_tx *tx;
	u32 need = sizeof(cmd);

	if (req_op(rq) == REQ_OP_WRITE && !req->nents)
		need += ALIGN(blk_rq_bytes(rq), KRPING_ALIGN);
	tx = NULL;
	if (krping_receives_suffice(q) && (!req->nents || may_register(q)))
		tx = open_message(q, need);
	if (!tx) {
		q->refused = true;
		return BLK_STS_RESOURCE;
	}

	req->wire_tag = slot->generation++ << KRPING_TAG_BITS | rq->tag;
	fill_command(q, slot, rq, &cmd);
	if (req_op(rq) == REQ_OP_WRITE) {
		if (!req->nents)
			fill_inline(rq, tx->buf.data + tx->len + sizeof(cmd));
		cmd.crc32c = cpu_to_be32(req->crc);
		if (!req->nents)
			krping_fault_corrupt(KRPING_FAULT_SEND_CORRUPT, q->session->opt.block,
					     tx->buf.data + tx->len + sizeof(cmd));
	}
	memcpy(tx->buf.data + tx->len, &cmd, sizeof(cmd));
	tx->len += need;
	if (req->nents)
		add_reg(q, tx, slot);
	slot->rq = rq;
	slot->tx = tx;
	tx->users++;
	q->nr_inflight++;
	trace_post(q, rq, &cmd);
	return BLK_STS_OK;
}

/* Return: whether there is no room; then the queue is run when a SEND has made some. */
static bool refuse(struct krping_queue *q)
{
	bool refused;

	spin_lock_bh(&q->lock);
	refused = !has_room(q);
	q->refused |= refused;
	if (refused && may_post(q))
		post_open(q);
	spin_unlock_bh(&q->lock);
	return refused;
}

/**
 * krping_send_request - send a request
 * @q:		its queue
 * @rq:		with a driver tag
 * @last:	no request follows soon: post the message
 *
 * Return: BLK_STS_OK: sent, its response or recovery ends it. BLK_STS_RESOURCE: try again later.
 * Others: it failed.
 */
blk_status_t krping_send_request(struct krping_queue *q, struct request *rq, bool last)
{
	struct krping_session *s = q->session;
	struct krping_request *req = krping_req(rq);
	struct krping_slot *slot;
	blk_status_t status;
	bool large;

	if (krping_session_is_stacked(s)) {	/* the local disk counts and logs failures */
		rq->rq_flags |= RQF_QUIET;
		if (READ_ONCE(s->state) != KRPING_SESSION_LIVE)
			return BLK_STS_TRANSPORT;
	}
	if (READ_ONCE(s->state) == KRPING_SESSION_FAILED || READ_ONCE(s->failing))
		return BLK_STS_IOERR;
	/* Recovery quiesces the queue before it frees the slots, which waits for us. */
	if (READ_ONCE(q->conn.state) != KRPING_CONN_LIVE)
		return BLK_STS_RESOURCE;
	if (!krping_rq_opcode(rq))
		return BLK_STS_NOTSUPP;
	large = is_large(q, rq);
	if (large && !has_room(q) && refuse(q)) {	/* before its CRC is computed */
		krping_count(s->stats, KRPING_STALLS, 1);
		return BLK_STS_RESOURCE;
	}
	if (!krping_suspect_may_go(s, rq))
		return BLK_STS_RESOURCE;

	slot = &q->slots[rq->tag];
	blk_mq_start_request(rq);
	if (req_op(rq) == REQ_OP_FLUSH)
		req->unflushed = atomic64_read(&s->write_seq);
	if (large) {
		status = map_large(q, slot, rq);
		if (status) {
			krping_suspect_back(s, rq);
			return status;
		}
		if (req_op(rq) == REQ_OP_WRITE)
			req->crc = krping_rq_crc(rq);
	}
	spin_lock_bh(&q->lock);
	status = append_command(q, slot, rq);
	if ((last || status) && may_post(q))
		post_open(q);
	spin_unlock_bh(&q->lock);
	if (status) {
		krping_suspect_back(s, rq);
		krping_rq_unmap(q, slot, rq);
		krping_count(s->stats, KRPING_STALLS, 1);
	}
	return status;
}

/* Posts what krping_send_request() left in the open message. */
void krping_send_commit(struct krping_queue *q)
{
	spin_lock_bh(&q->lock);
	if (may_post(q))
		post_open(q);
	spin_unlock_bh(&q->lock);
}

void krping_send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_tx *tx = container_of(wc->wr_cqe, struct krping_tx, buf.cqe);
	struct krping_queue *q = tx->queue;
	bool run;

	if (wc->status != IB_WC_SUCCESS) {	/* recovery takes all messages back */
		krping_conn_wc_failed(&q->conn, wc, "SEND");
		return;
	}
	spin_lock_bh(&q->lock);
	q->sent = tx->message;
	end_unsignalled(q, tx);
	end_send(q, tx);
	q->nr_sending--;
	krping_early_next(q);
	if (may_post(q))
		post_open(q);
	run = q->refused && q->nr_free;	/* perhaps all others have been answered */
	if (run)
		q->refused = false;
	spin_unlock_bh(&q->lock);
	if (run)
		blk_mq_run_hw_queues(q->session->disk->queue, true);
	if (krping_fault(KRPING_FAULT_DISCONNECT, q->session->opt.block))
		krping_conn_fail(&q->conn, -ECONNRESET);
}

void krping_send_reg_done(struct ib_cq *cq, struct ib_wc *wc)
{
	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(cq->cq_context, wc, "memory registration");
}
