// SPDX-License-Identifier: GPL-2.0
/*
 * The way of a request: mapped, put into a message as a command, posted; answered,
 * unmapped, checked, completed. And of what it uses: allocated, cancelled, freed.
 */
#include <linux/highmem.h>
#include <linux/slab.h>

#include "block.h"
#include "crc.h"
#include "log.h"
#include "trace.h"

static struct krping_request *to_req(struct request *rq)
{
	return blk_mq_rq_to_pdu(rq);
}

/* A wire command's parts that depend on the request alone. */
static u8 rq_opcode(struct request *rq)
{
	switch (req_op(rq)) {
	case REQ_OP_READ:
		return KRPING_OP_READ;
	case REQ_OP_WRITE:
		return KRPING_OP_WRITE;
	case REQ_OP_FLUSH:
		return KRPING_OP_FLUSH;
	case REQ_OP_DISCARD:
		return KRPING_OP_DISCARD;
	case REQ_OP_WRITE_ZEROES:
		return KRPING_OP_WRITE_ZEROES;
	case REQ_OP_DRV_IN:
		return KRPING_OP_DIGEST;
	default:
		return 0;
	}
}

static bool is_digest(struct request *rq)
{
	return req_op(rq) == REQ_OP_DRV_IN;
}

static u32 rq_length(struct request *rq)
{
	return is_digest(rq) ? to_req(rq)->digest->length : blk_rq_bytes(rq);
}

static u64 rq_offset(struct request *rq)
{
	if (is_digest(rq))
		return to_req(rq)->digest->offset;
	return req_op(rq) == REQ_OP_FLUSH ? 0 : blk_rq_pos(rq) << SECTOR_SHIFT;
}

static bool moves_data(struct request *rq)
{
	return req_op(rq) == REQ_OP_READ || req_op(rq) == REQ_OP_WRITE;
}

/* Large data is moved by the target and needs a memory region; small data travels inline. */
static bool is_large(struct krping_session *s, struct request *rq)
{
	return moves_data(rq) && blk_rq_bytes(rq) > s->grant.max_inline;
}

static u32 rq_crc(struct request *rq)
{
	struct req_iterator iter;
	u32 crc = crc_begin();
	struct bio_vec bv;

	rq_for_each_segment(bv, rq, iter) {
		void *data = bvec_kmap_local(&bv);

		crc = crc32c(crc, data, bv.bv_len);
		kunmap_local(data);
	}
	return crc_end(crc);
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

static void copy_to_rq(struct request *rq, const void *from)
{
	struct req_iterator iter;
	struct bio_vec bv;

	rq_for_each_segment(bv, rq, iter) {
		memcpy_to_bvec(&bv, from);
		from += bv.bv_len;
	}
}

/* ---- memory registration of large requests ---- */

static blk_status_t map_large(struct krping_queue *q, struct krping_slot *slot,
			      struct request *rq)
{
	struct ib_device *dev = q->conn.id->device;
	struct krping_request *req = to_req(rq);
	int nents, mapped;

	sg_init_table(slot->sg, q->session->max_segments);
	nents = blk_rq_map_sg(rq->q, rq, slot->sg);
	req->nents = nents;
	mapped = ib_dma_map_sg(dev, slot->sg, nents, rq_dma_dir(rq));
	if (!mapped) {
		req->nents = 0;
		return BLK_STS_RESOURCE;
	}
	ib_update_fast_reg_key(slot->mr, ib_inc_rkey(slot->mr->rkey));
	if (ib_map_mr_sg(slot->mr, slot->sg, mapped, NULL, PAGE_SIZE) != mapped) {
		ib_dma_unmap_sg(dev, slot->sg, nents, rq_dma_dir(rq));
		req->nents = 0;
		return BLK_STS_IOERR;
	}
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

/* The peer's key is invalid by now, or the queue pair is drained. */
static void unmap_large(struct krping_queue *q, struct krping_slot *slot, struct request *rq)
{
	struct krping_request *req = to_req(rq);

	if (!req->nents)
		return;
	ib_dma_unmap_sg(q->conn.id->device, slot->sg, req->nents, rq_dma_dir(rq));
	req->nents = 0;
}

/* ---- sending ---- */

static void fill_command(struct krping_queue *q, struct krping_slot *slot, struct request *rq,
			 struct krping_cmd *cmd)
{
	struct krping_request *req = to_req(rq);

	*cmd = (struct krping_cmd){
		.op = rq_opcode(rq),
		.tag = cpu_to_be16(req->wire_tag),
		.length = cpu_to_be32(rq_length(rq)),
		.offset = cpu_to_be64(rq_offset(rq)),
	};
	if (rq->cmd_flags & REQ_FUA &&
	    (req_op(rq) == REQ_OP_WRITE || req_op(rq) == REQ_OP_WRITE_ZEROES))
		cmd->flags |= KRPING_CMD_FUA;
	if (is_digest(rq) && req->digest->alg == KRPING_DIGEST_SHA256)
		cmd->flags |= KRPING_CMD_SHA256;
	if (req->nents) {
		cmd->addr = cpu_to_be64(slot->mr->iova);
		cmd->rkey = cpu_to_be32(slot->mr->rkey);
	} else if (moves_data(rq) || is_digest(rq)) {
		cmd->flags |= KRPING_CMD_INLINE;
	}
}

/* Inline data of a command, in a private copy: what is checksummed is what is sent. */
static void fill_inline(struct request *rq, void *to)
{
	u32 len = blk_rq_bytes(rq);

	copy_from_rq(to, rq);
	memset(to + len, 0, ALIGN(len, KRPING_ALIGN) - len);
	to_req(rq)->crc = data_crc(to, len);
}

/*
 * While so many messages are on their way, what comes is gathered in the next: it goes out
 * when it is full, or when one of them has arrived. An idle queue waits for nothing.
 */
#define SEND_WINDOW	2

static bool may_post(struct krping_queue *q)
{
	return q->open && q->nr_sending < SEND_WINDOW &&
	       READ_ONCE(q->conn.state) == KRPING_CONN_LIVE;
}

/* Called with q->lock held: from here on the message is the hardware's. */
static void post_open(struct krping_queue *q)
{
	struct ib_device *dev = q->conn.id->device;
	struct krping_tx *tx = q->open;
	struct ib_send_wr send, *first = &send;
	struct ib_sge sge;
	int ret;

	q->open = NULL;
	ib_dma_sync_single_for_device(dev, tx->buf.dma, tx->len, DMA_TO_DEVICE);
	sge = krping_buf_sge(&q->conn, &tx->buf, tx->len);
	send = (struct ib_send_wr){
		.wr_cqe = &tx->buf.cqe,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
		.sg_list = &sge,
		.num_sge = 1,
	};
	if (tx->reg) {
		tx->reg->reg_wr.wr.next = &send;
		first = &tx->reg->reg_wr.wr;
	}
	ret = ib_post_send(q->conn.qp, first, NULL);
	if (!ret) {
		q->nr_sending++;
		krping_count(q->session->stats, KRPING_MESSAGES, 1);
		return;
	}
	/* Its commands are in their slots: recovery finds them there. */
	list_add(&tx->entry, &q->tx_free);
	krping_err_ratelimited(q->session->subject, "cannot post a message: %d", ret);
	krping_conn_fail(&q->conn, ret);
}

/* Called with q->lock held. Return: a message with room for @need bytes, or NULL. */
static struct krping_tx *open_message(struct krping_queue *q, u32 need)
{
	struct krping_tx *tx;

	if (q->open && q->open->len + need > q->session->grant.max_message)
		post_open(q);
	if (q->open)
		return q->open;
	tx = list_first_entry_or_null(&q->tx_free, struct krping_tx, entry);
	if (!tx)
		return NULL;
	list_del(&tx->entry);
	tx->len = 0;
	tx->reg = NULL;
	q->open = tx;
	return tx;
}

static struct krping_cmd_event command_event(struct krping_queue *q, struct request *rq, u32 crc)
{
	return (struct krping_cmd_event){
		.sector = rq_offset(rq) >> SECTOR_SHIFT,
		.session = q->session->id,
		.dev = disk_devt(q->session->disk),
		.bytes = rq_length(rq),
		.crc = crc,
		.queue = q->index,
		.tag = to_req(rq)->wire_tag,
		.op = rq_opcode(rq),
	};
}

static void trace_post(struct krping_queue *q, struct request *rq, const struct krping_cmd *cmd)
{
	struct krping_cmd_event event;

	if (!trace_krping_cmd_post_enabled())
		return;
	event = command_event(q, rq, be32_to_cpu(cmd->crc32c));
	event.flags = cmd->flags;
	trace_krping_cmd_post(&event);
}

static void trace_done(struct krping_queue *q, struct request *rq, u32 crc, int error)
{
	struct krping_cmd_event event;

	if (!trace_krping_cmd_done_enabled())
		return;
	event = command_event(q, rq, crc);
	event.status = error;
	trace_krping_cmd_done(&event);
}

/* Called with q->lock held. */
static blk_status_t append_command(struct krping_queue *q, struct krping_slot *slot,
				   struct request *rq)
{
	struct krping_request *req = to_req(rq);
	struct krping_cmd cmd;
	struct krping_tx *tx;
	u32 need = sizeof(cmd);

	if (req_op(rq) == REQ_OP_WRITE && !req->nents)
		need += ALIGN(blk_rq_bytes(rq), KRPING_ALIGN);
	tx = open_message(q, need);
	if (!tx)
		return BLK_STS_RESOURCE;

	req->wire_tag = slot->generation++ << KRPING_TAG_BITS | rq->tag;
	fill_command(q, slot, rq, &cmd);
	if (req_op(rq) == REQ_OP_WRITE) {
		if (!req->nents)
			fill_inline(rq, tx->buf.data + tx->len + sizeof(cmd));
		cmd.crc32c = cpu_to_be32(req->crc);
	}
	memcpy(tx->buf.data + tx->len, &cmd, sizeof(cmd));
	tx->len += need;
	if (req->nents)
		tx->reg = slot;
	slot->rq = rq;
	q->nr_inflight++;
	trace_post(q, rq, &cmd);
	return BLK_STS_OK;
}

/**
 * krping_queue_request - send a request
 * @q:		its queue
 * @rq:		with a driver tag
 * @last:	post the message: nothing follows soon
 *
 * Return: BLK_STS_OK: an answer or a loss will end it. BLK_STS_RESOURCE: try again
 * later. Others: it has failed.
 */
blk_status_t krping_queue_request(struct krping_queue *q, struct request *rq, bool last)
{
	struct krping_session *s = q->session;
	struct krping_request *req = to_req(rq);
	struct krping_slot *slot;
	blk_status_t status;

	if (s->stack) {		/* whoever asked counts and marks it */
		rq->rq_flags |= RQF_QUIET;
		if (READ_ONCE(s->state) != KRPING_SESSION_LIVE)
			return BLK_STS_TRANSPORT;
	}
	if (READ_ONCE(s->state) == KRPING_SESSION_FAILED || READ_ONCE(s->failing))
		return BLK_STS_IOERR;
	/* Recovery stops the queue, and waits for us, before it frees the slots. */
	if (READ_ONCE(q->conn.state) != KRPING_CONN_LIVE)
		return BLK_STS_RESOURCE;
	if (!rq_opcode(rq))
		return BLK_STS_NOTSUPP;

	slot = &q->slots[rq->tag];
	blk_mq_start_request(rq);
	if (req_op(rq) == REQ_OP_FLUSH)
		req->unflushed = atomic64_read(&s->write_seq);
	if (is_large(s, rq)) {
		status = map_large(q, slot, rq);
		if (status)
			return status;
		if (req_op(rq) == REQ_OP_WRITE)
			req->crc = rq_crc(rq);
	}
	spin_lock_bh(&q->lock);
	status = append_command(q, slot, rq);
	if (req->nents || status ? !!q->open : last && may_post(q))
		post_open(q);
	spin_unlock_bh(&q->lock);
	if (status) {
		unmap_large(q, slot, rq);
		krping_count(s->stats, KRPING_STALLS, 1);
	}
	return status;
}

/* The plug is empty: what was queued without "last" goes out. */
void krping_queue_commit(struct krping_queue *q)
{
	spin_lock_bh(&q->lock);
	if (may_post(q))
		post_open(q);
	spin_unlock_bh(&q->lock);
}

static void send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_tx *tx = container_of(wc->wr_cqe, struct krping_tx, buf.cqe);
	struct krping_queue *q = tx->queue;

	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(&q->conn, wc, "SEND");
	spin_lock_bh(&q->lock);
	list_add(&tx->entry, &q->tx_free);
	q->nr_sending--;
	if (may_post(q))
		post_open(q);
	spin_unlock_bh(&q->lock);
}

static void reg_done(struct ib_cq *cq, struct ib_wc *wc)
{
	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(cq->cq_context, wc, "memory registration");
}

/* ---- receiving ---- */

/* One response of a message, in host order, with what came with it. */
struct response {
	u16 tag;
	u8 status;
	u8 flags;
	u32 length;
	u32 crc;
	const void *data;	/* inline data of @length bytes, or NULL */
	u32 size;		/* bytes of the message that it takes */
};

int krping_violation(struct krping_queue *q, const char *what, u64 value)
{
	krping_err_ratelimited(q->session->subject, "the target broke the protocol: %s (%llu)",
			       what, value);
	return -EPROTO;
}

static int parse_response(struct krping_queue *q, const void *msg, u32 left, struct response *rsp)
{
	struct krping_rsp wire;

	if (left < sizeof(wire))
		return krping_violation(q, "message ends in a response", left);
	memcpy(&wire, msg, sizeof(wire));
	*rsp = (struct response){
		.tag = be16_to_cpu(wire.tag),
		.status = wire.status,
		.flags = wire.flags,
		.length = be32_to_cpu(wire.length),
		.crc = be32_to_cpu(wire.crc32c),
		.size = sizeof(wire),
	};
	if (wire.reserved)
		return krping_violation(q, "reserved field is not zero", be32_to_cpu(wire.reserved));
	if (rsp->status > KRPING_ST_INVALID)
		return krping_violation(q, "unknown status", rsp->status);
	if (rsp->flags & ~KRPING_RSP_FLAGS)
		return krping_violation(q, "unknown flags", rsp->flags);
	if (!(rsp->flags & KRPING_RSP_INLINE))
		return 0;
	if (rsp->length > q->session->grant.max_inline ||
	    ALIGN(rsp->length, KRPING_ALIGN) > left - sizeof(wire))
		return krping_violation(q, "inline data is too long", rsp->length);
	rsp->data = msg + sizeof(wire);
	rsp->size += ALIGN(rsp->length, KRPING_ALIGN);
	return 0;
}

static u32 digest_size(const struct krping_digest *digest)
{
	return digest->alg == KRPING_DIGEST_SHA256 ? 32 : 4;
}

/* Bytes that a good response to @rq speaks of. */
static u32 expected_length(struct request *rq)
{
	if (is_digest(rq))
		return digest_size(to_req(rq)->digest);
	return moves_data(rq) ? blk_rq_bytes(rq) : 0;
}

/* Does the response fit the request? Called with q->lock held. */
static int check_response(struct krping_queue *q, struct krping_slot *slot,
			  const struct response *rsp, const struct ib_wc *wc)
{
	struct request *rq = slot->rq;
	struct krping_request *req = to_req(rq);
	bool ok = rsp->status == KRPING_ST_OK;
	bool wants_inline = ok && (is_digest(rq) ||
				   (req_op(rq) == REQ_OP_READ && !req->nents));

	if (rsp->length != (ok ? expected_length(rq) : 0))
		return krping_violation(q, "wrong length in a response", rsp->length);
	if (!!rsp->data != wants_inline)
		return krping_violation(q, "inline data missing or not asked for", rsp->flags);
	if (req->nents && !(wc->wc_flags & IB_WC_WITH_INVALIDATE &&
			    wc->ex.invalidate_rkey == slot->mr->rkey))
		return krping_violation(q, "our key was not invalidated", slot->mr->rkey);
	return 0;
}

/* Take the request that a response names out of its slot. */
static struct request *claim(struct krping_queue *q, const struct response *rsp,
			     const struct ib_wc *wc)
{
	u32 tag = rsp->tag & KRPING_TAG_MASK;
	struct request *rq = NULL;
	struct krping_slot *slot;

	spin_lock_bh(&q->lock);
	slot = tag < q->nr_slots ? &q->slots[tag] : NULL;
	if (!slot || !slot->rq || to_req(slot->rq)->wire_tag != rsp->tag) {
		krping_violation(q, "tag is not in flight", rsp->tag);
	} else if (!check_response(q, slot, rsp, wc)) {
		rq = slot->rq;
		slot->rq = NULL;
		q->nr_inflight--;
	}
	spin_unlock_bh(&q->lock);
	return rq;
}

static int status_error(u8 status)
{
	switch (status) {
	case KRPING_ST_OK:
		return 0;
	case KRPING_ST_CRC:
		return -EBADMSG;
	case KRPING_ST_NO_SPACE:
		return -ENOSPC;
	case KRPING_ST_UNSUPPORTED:
		return -EOPNOTSUPP;
	case KRPING_ST_READ_ONLY:
		return -EROFS;
	default:
		return -EIO;
	}
}

/* The data of a READ that came inline: against its CRC, and into its pages. */
static int finish_inline_read(struct request *rq, const struct response *rsp)
{
	u32 crc = data_crc(rsp->data, rsp->length);

	copy_to_rq(rq, rsp->data);
	return crc == rsp->crc ? 0 : -EBADMSG;
}

static void finish_digest(struct request *rq, const struct response *rsp)
{
	struct krping_digest *digest = to_req(rq)->digest;

	memset(digest->digest, 0, sizeof(digest->digest));
	memcpy(digest->digest, rsp->data, rsp->length);
	digest->digest_len = rsp->length;
}

static void raise_flushed(struct krping_session *s, u64 seq)
{
	s64 old = atomic64_read(&s->flushed_seq);

	while ((s64)seq > old && !atomic64_try_cmpxchg(&s->flushed_seq, &old, seq))
		;
}

/* What a crash of a writeback target may undo. */
static void note_unflushed(struct krping_session *s, struct request *rq)
{
	if (s->grant.writeback && !(rq->cmd_flags & REQ_FUA))
		atomic64_inc(&s->write_seq);
}

static void count_success(struct krping_session *s, struct request *rq)
{
	switch (req_op(rq)) {
	case REQ_OP_READ:
		krping_count(s->stats, KRPING_READS, 1);
		krping_count(s->stats, KRPING_BYTES_READ, blk_rq_bytes(rq));
		break;
	case REQ_OP_WRITE:
		krping_count(s->stats, KRPING_WRITES, 1);
		krping_count(s->stats, KRPING_BYTES_WRITTEN, blk_rq_bytes(rq));
		note_unflushed(s, rq);
		break;
	case REQ_OP_DISCARD:
	case REQ_OP_WRITE_ZEROES:
		krping_count(s->stats, req_op(rq) == REQ_OP_DISCARD ? KRPING_DISCARDS :
			     KRPING_ZEROES, 1);
		note_unflushed(s, rq);
		break;
	case REQ_OP_FLUSH:
		krping_count(s->stats, KRPING_FLUSHES, 1);
		raise_flushed(s, to_req(rq)->unflushed);
		break;
	default:
		krping_count(s->stats, KRPING_DIGESTS, 1);
		break;
	}
}

/* A mismatch is tried once more: then the data on the way is to blame no longer. */
static void note_mismatch(struct krping_session *s, struct request *rq)
{
	struct krping_request *req = to_req(rq);

	krping_count(s->stats, KRPING_CRC_ERRORS, 1);
	krping_err_ratelimited(s->subject, "CRC mismatch: %s of %u bytes at %llu%s",
			       rq_data_dir(rq) == WRITE ? "write" : "read", blk_rq_bytes(rq),
			       rq_offset(rq),
			       req->retried ? " again, it fails" : ", trying again");
	if (!req->retried) {
		req->retried = true;
		req->retry = true;
		krping_count(s->stats, KRPING_RETRIES, 1);
	}
}

static void finish(struct krping_queue *q, struct request *rq, int error)
{
	struct krping_session *s = q->session;
	struct krping_request *req = to_req(rq);

	trace_done(q, rq, req->crc, error);
	if (error == -EBADMSG)
		note_mismatch(s, rq);
	if (!error)
		count_success(s, rq);
	else if (!req->retry)
		krping_count(s->stats, KRPING_ERRORS, 1);
	req->error = error;
	blk_mq_complete_request(rq);
}

/* A CRC of up to a mebibyte has no place in a softirq. */
static void finish_large_read(struct work_struct *work)
{
	struct krping_request *req = container_of(work, struct krping_request, work);
	struct request *rq = blk_mq_rq_from_pdu(req);

	finish(rq->mq_hctx->driver_data, rq, rq_crc(rq) == req->crc ? 0 : -EBADMSG);
}

static void accept_response(struct krping_queue *q, struct request *rq,
			    const struct response *rsp)
{
	struct krping_request *req = to_req(rq);
	int error = status_error(rsp->status);
	bool large = req->nents;

	unmap_large(q, &q->slots[rsp->tag & KRPING_TAG_MASK], rq);
	if (req_op(rq) != REQ_OP_WRITE)
		req->crc = rsp->crc;
	if (!error && req_op(rq) == REQ_OP_READ) {
		if (large) {
			INIT_WORK(&req->work, finish_large_read);
			krping_queue_check(&req->work);
			return;
		}
		error = finish_inline_read(rq, rsp);
	} else if (!error && is_digest(rq)) {
		finish_digest(rq, rsp);
	}
	finish(q, rq, error);
}

static int read_message(struct krping_queue *q, const void *msg, const struct ib_wc *wc)
{
	bool invalidated = !(wc->wc_flags & IB_WC_WITH_INVALIDATE);
	u32 left = wc->byte_len;
	struct response rsp;
	struct request *rq;
	int ret;

	if (!left)
		return krping_violation(q, "empty message", 0);
	for (; left; left -= rsp.size, msg += rsp.size) {
		ret = parse_response(q, msg, left, &rsp);
		if (ret)
			return ret;
		if (rsp.tag == KRPING_TAG_KEEP_ALIVE) {
			ret = krping_alive_answer(q, rsp.status, rsp.data, rsp.length);
			if (ret)
				return ret;
			continue;
		}
		rq = claim(q, &rsp, wc);
		if (!rq)
			return -EPROTO;
		invalidated |= to_req(rq)->nents > 0;
		accept_response(q, rq, &rsp);
	}
	return invalidated ? 0 : krping_violation(q, "it invalidated a key of no request",
					   wc->ex.invalidate_rkey);
}

static void recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_buf *buf = container_of(wc->wr_cqe, struct krping_buf, cqe);
	struct krping_conn *conn = cq->cq_context;
	struct krping_queue *q = container_of(conn, struct krping_queue, conn);
	int ret;

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(conn, wc, "RECV");
		return;
	}
	ib_dma_sync_single_for_cpu(conn->id->device, buf->dma, wc->byte_len, DMA_FROM_DEVICE);
	WRITE_ONCE(q->heard, jiffies);
	ret = read_message(q, buf->data, wc);
	if (!ret)
		ret = krping_buf_post_recv(conn, buf);
	if (ret)
		krping_conn_fail(conn, ret);
}

static blk_status_t blk_status(int error)
{
	switch (error) {
	case 0:
		return BLK_STS_OK;
	case -ENOSPC:
		return BLK_STS_NOSPC;
	case -EOPNOTSUPP:
		return BLK_STS_NOTSUPP;
	case -ETIMEDOUT:
		return BLK_STS_TIMEOUT;
	case -ENOTCONN:
		return BLK_STS_TRANSPORT;
	default:
		return BLK_STS_IOERR;
	}
}

void krping_complete_rq(struct request *rq)
{
	struct krping_request *req = to_req(rq);

	if (req->retry) {
		req->retry = false;
		blk_mq_requeue_request(rq, true);
		return;
	}
	blk_mq_end_request(rq, blk_status(req->error));
}

/* ---- what a queue uses ---- */

#define MAX_TX	32	/* messages that are on their way or being filled */

static int alloc_slots(struct krping_queue *q)
{
	struct krping_session *s = q->session;
	u32 i;

	q->slots = kvcalloc(s->grant.depth, sizeof(*q->slots), GFP_KERNEL);
	if (!q->slots)
		return -ENOMEM;
	q->nr_slots = s->grant.depth;
	for (i = 0; i < q->nr_slots; i++) {
		struct krping_slot *slot = &q->slots[i];
		struct ib_mr *mr;

		slot->sg = kvmalloc_array(s->max_segments, sizeof(*slot->sg), GFP_KERNEL);
		if (!slot->sg)
			return -ENOMEM;
		mr = ib_alloc_mr(q->conn.pd, IB_MR_TYPE_MEM_REG, s->max_segments);
		if (IS_ERR(mr))
			return PTR_ERR(mr);
		slot->mr = mr;
	}
	return 0;
}

static void free_slots(struct krping_queue *q)
{
	u32 i;

	for (i = 0; i < q->nr_slots; i++) {
		if (q->slots[i].mr)
			ib_dereg_mr(q->slots[i].mr);
		kvfree(q->slots[i].sg);
	}
	kvfree(q->slots);
	q->slots = NULL;
	q->nr_slots = 0;
}

static int alloc_tx(struct krping_queue *q)
{
	u32 nr = min_t(u32, q->nr_slots, MAX_TX), i;
	int ret;

	q->tx = kvcalloc(nr, sizeof(*q->tx), GFP_KERNEL);
	if (!q->tx)
		return -ENOMEM;
	for (i = 0; i < nr; i++) {
		struct krping_tx *tx = &q->tx[i];

		tx->queue = q;
		tx->buf.cqe.done = send_done;
		ret = krping_buf_alloc(&q->conn, &tx->buf, q->session->grant.max_message,
				       DMA_TO_DEVICE);
		if (ret)
			return ret;
		q->nr_tx++;
		list_add_tail(&tx->entry, &q->tx_free);
	}
	return 0;
}

static void free_tx(struct krping_queue *q)
{
	u32 i;

	INIT_LIST_HEAD(&q->tx_free);
	q->open = NULL;
	q->nr_sending = 0;
	for (i = 0; i < q->nr_tx; i++)
		krping_buf_free(&q->conn, &q->tx[i].buf);
	kvfree(q->tx);
	q->tx = NULL;
	q->nr_tx = 0;
}

static int alloc_rx(struct krping_queue *q)
{
	u32 i, nr = q->nr_slots + 2;
	int ret;

	q->rx = kvcalloc(nr, sizeof(*q->rx), GFP_KERNEL);
	if (!q->rx)
		return -ENOMEM;
	for (i = 0; i < nr; i++) {
		q->rx[i].cqe.done = recv_done;
		ret = krping_buf_alloc(&q->conn, &q->rx[i], q->session->grant.max_message,
				       DMA_FROM_DEVICE);
		if (ret)
			return ret;
		q->nr_rx++;
		ret = krping_buf_post_recv(&q->conn, &q->rx[i]);
		if (ret)
			return ret;
	}
	return 0;
}

static void free_rx(struct krping_queue *q)
{
	u32 i;

	for (i = 0; i < q->nr_rx; i++)
		krping_buf_free(&q->conn, &q->rx[i]);
	kvfree(q->rx);
	q->rx = NULL;
	q->nr_rx = 0;
}

/**
 * krping_queue_alloc - slots, messages and posted receives of a connected queue
 * @q:		connected, with a grant
 *
 * Return: 0 or a negative errno: the caller drains and then calls krping_queue_free().
 */
int krping_queue_alloc(struct krping_queue *q)
{
	int ret;

	q->reg_cqe.done = reg_done;
	ret = alloc_slots(q);
	if (!ret)
		ret = alloc_tx(q);
	if (!ret)
		ret = krping_alive_alloc(q);
	if (!ret)
		ret = alloc_rx(q);
	return ret;
}

/* Twin of krping_queue_alloc(); drained and cancelled, or never used. Idempotent. */
void krping_queue_free(struct krping_queue *q)
{
	free_rx(q);
	krping_alive_free(q);
	free_tx(q);
	free_slots(q);
}

/* A request of a lost connection: sent again if there is time left. */
static void cancel(struct krping_queue *q, struct krping_slot *slot, struct request *rq)
{
	struct krping_request *req = to_req(rq);

	unmap_large(q, slot, rq);
	if (q->session->stack) {
		req->error = -ENOTCONN;
		blk_mq_complete_request(rq);
		return;
	}
	if (is_digest(rq) || time_after(jiffies, req->expires)) {
		krping_count(q->session->stats, KRPING_ERRORS, 1);
		req->error = is_digest(rq) ? -EIO : -ETIMEDOUT;
		blk_mq_complete_request(rq);
		return;
	}
	krping_count(q->session->stats, KRPING_RETRIES, 1);
	blk_mq_requeue_request(rq, true);
}

/* Every request that has no answer is put back; the queue pair is drained. Idempotent. */
void krping_queue_cancel(struct krping_queue *q)
{
	u32 i;

	for (i = 0; i < q->nr_slots; i++) {
		struct krping_slot *slot = &q->slots[i];
		struct request *rq;

		spin_lock_bh(&q->lock);
		rq = slot->rq;
		if (rq) {
			slot->rq = NULL;
			q->nr_inflight--;
		}
		spin_unlock_bh(&q->lock);
		if (rq)
			cancel(q, slot, rq);
	}
}
