// SPDX-License-Identifier: GPL-2.0
/* Completes requests: their responses are checked, their data is unmapped and checked. */
#include <linux/highmem.h>

#include "client/request.h"
#include "wire/crc.h"
#include "lib/fault.h"
#include "lib/log.h"
#include "lib/trace.h"

struct workqueue_struct *krping_crc_wq;

int krping_recv_init(void)
{
	krping_crc_wq = alloc_workqueue("krping-check",
					WQ_MEM_RECLAIM | WQ_HIGHPRI | WQ_CPU_INTENSIVE |
					KRPING_WQ_PERCPU, 0);
	return krping_crc_wq ? 0 : -ENOMEM;
}

void krping_recv_exit(void)
{
	destroy_workqueue(krping_crc_wq);
}

static u32 digest_size(const struct krping_digest *digest)
{
	return digest->alg == KRPING_DIGEST_SHA256 ? 32 : 4;
}

/* The length field of a successful response to @rq. */
static u32 expected_length(struct request *rq)
{
	if (krping_rq_is_digest(rq))
		return digest_size(krping_req(rq)->digest);
	return krping_rq_moves_data(rq) ? blk_rq_bytes(rq) : 0;
}

/*
 * Does the response match the request? A target that guesses tag and key may answer a command whose
 * message is not posted yet. Its memory would be given back here, and only then registered.
 *
 * Called with q->lock held.
 */
static int check_response(struct krping_queue *q, struct krping_slot *slot,
			  const struct krping_decoded_rsp *rsp, const struct ib_wc *wc)
{
	struct request *rq = slot->rq;
	struct krping_request *req = krping_req(rq);
	bool ok = rsp->status == KRPING_ST_OK;
	bool wants_inline = ok && (krping_rq_is_digest(rq) ||
				   (req_op(rq) == REQ_OP_READ && !req->nents));

	if (slot->tx->message > q->posted)
		return krping_queue_violation(q, "answer to a command that was not sent", rsp->tag);
	if (rsp->length != (ok ? expected_length(rq) : 0))
		return krping_queue_violation(q, "wrong length in a response", rsp->length);
	if (!!rsp->data != wants_inline)
		return krping_queue_violation(q, "inline data missing or not asked for",
					      rsp->flags);
	if (req->nents && !(wc->wc_flags & IB_WC_WITH_INVALIDATE &&
			    wc->ex.invalidate_rkey == slot->mr->rkey))
		return krping_queue_violation(q, "our key was not invalidated", slot->mr->rkey);
	return 0;
}

/*
 * Takes the request that a response names out of its slot, unless the response is held.
 *
 * Return: 0 with @rq, which is NULL if the response is held, or a negative errno.
 */
static int claim_request(struct krping_queue *q, const struct krping_decoded_rsp *rsp,
			 const struct ib_wc *wc, struct request **rq)
{
	u32 tag = rsp->tag & KRPING_TAG_MASK;
	struct krping_slot *slot;
	int ret;

	spin_lock_bh(&q->lock);
	slot = tag < q->nr_slots ? &q->slots[tag] : NULL;
	if (!slot || !slot->rq || slot->answered || krping_req(slot->rq)->wire_tag != rsp->tag)
		ret = krping_queue_violation(q, "tag is not in flight", rsp->tag);
	else
		ret = check_response(q, slot, rsp, wc);
	*rq = NULL;
	if (!ret && !(krping_req(slot->rq)->nents && krping_early_hold(q, slot, rsp)))
		*rq = krping_slot_take(q, slot);
	spin_unlock_bh(&q->lock);
	return ret;
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

static void copy_to_rq(struct request *rq, const void *from)
{
	struct req_iterator iter;
	struct bio_vec bv;

	rq_for_each_segment(bv, rq, iter) {
		memcpy_to_bvec(&bv, from);
		from += bv.bv_len;
	}
}

/* Checks and copies the inline data of a READ. */
static int finish_inline_read(struct krping_queue *q, struct request *rq,
			      const struct krping_decoded_rsp *rsp)
{
	u32 crc;

	krping_fault_corrupt(KRPING_FAULT_RECV_CORRUPT, q->session->opt.block,
			     (void *)rsp->data);
	crc = krping_crc(rsp->data, rsp->length);
	copy_to_rq(rq, rsp->data);
	return crc == rsp->crc ? 0 : -EBADMSG;
}

static void finish_digest(struct request *rq, const struct krping_decoded_rsp *rsp)
{
	struct krping_digest *digest = krping_req(rq)->digest;

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

/* A crash of a writeback target may lose this write. */
static void note_unflushed(struct krping_session *s, struct request *rq)
{
	if (s->grant.writeback && !(rq->cmd_flags & REQ_FUA))
		atomic64_inc(&s->write_seq);
}

static void count_success(struct krping_session *s, struct request *rq)
{
	krping_count_command(s->stats, krping_rq_opcode(rq), krping_rq_length(rq));
	switch (req_op(rq)) {
	case REQ_OP_WRITE:
	case REQ_OP_DISCARD:
	case REQ_OP_WRITE_ZEROES:
		note_unflushed(s, rq);
		break;
	case REQ_OP_FLUSH:
		raise_flushed(s, krping_req(rq)->unflushed);
		break;
	default:
		break;
	}
}

/* The first mismatch of a request is retried: the data may have changed in flight (copy.c). */
static void note_mismatch(struct krping_session *s, struct request *rq)
{
	struct krping_request *req = krping_req(rq);

	krping_count(s->stats, KRPING_CRC_ERRORS, 1);
	krping_err_ratelimited(s->log_prefix, "CRC mismatch: %s of %u bytes at %llu%s",
			       rq_data_dir(rq) == WRITE ? "write" : "read", blk_rq_bytes(rq),
			       krping_rq_offset(rq),
			       req->retried ? " again, it fails" : ", trying again");
	if (!req->retried) {
		req->retried = true;
		req->retry = true;
		krping_count(s->stats, KRPING_RETRIES, 1);
	}
}

static void trace_done(struct krping_queue *q, struct request *rq, u32 crc, int error)
{
	struct krping_cmd_event event;

	if (!trace_krping_cmd_done_enabled())
		return;
	event = krping_rq_event(q, rq, crc);
	event.status = error;
	trace_krping_cmd_done(&event);
}

static void finish_request(struct krping_queue *q, struct request *rq, int error)
{
	struct krping_session *s = q->session;
	struct krping_request *req = krping_req(rq);

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

static void finish_large_read(struct request *rq)
{
	bool matches = krping_rq_crc(rq) == krping_req(rq)->crc;

	if (matches && krping_req(rq)->copy)
		krping_copy_deliver(rq);
	finish_request(rq->mq_hctx->driver_data, rq, matches ? 0 : -EBADMSG);
}

static void finish_large_read_work(struct work_struct *work)
{
	finish_large_read(blk_mq_rq_from_pdu(container_of(work, struct krping_request, work)));
}

/**
 * krping_recv_finish_unchecked - complete large READs of a poll queue
 * @unchecked:	taken out of queue->unchecked
 *
 * Process context.
 */
void krping_recv_finish_unchecked(struct list_head *unchecked)
{
	struct krping_request *req, *next;

	list_for_each_entry_safe(req, next, unchecked, unchecked)
		finish_large_read(blk_mq_rq_from_pdu(req));
}

/* Bytes to checksum in a softirq, about 10 us. */
#define SOFTIRQ_CRC	SZ_64K

/*
 * More goes to a workqueue. But the CPU of who polls may be busy with that: it does the work
 * itself, behind krping_poll(). Outside of it, a poll queue is being drained in a process.
 */
static void check_large_read(struct krping_queue *q, struct request *rq)
{
	struct krping_request *req = krping_req(rq);

	if (blk_rq_bytes(rq) <= SOFTIRQ_CRC || (q->polls && !q->is_polling)) {
		finish_large_read(rq);
	} else if (q->polls) {
		list_add_tail(&req->unchecked, &q->unchecked);
	} else {
		INIT_WORK(&req->work, finish_large_read_work);
		queue_work(krping_crc_wq, &req->work);
	}
}

/**
 * krping_recv_accept - complete a request that was answered
 * @q:		its queue
 * @rq:		out of its slot
 * @rsp:	its answer; nothing the target does can change its memory any more
 */
void krping_recv_accept(struct krping_queue *q, struct request *rq,
			const struct krping_decoded_rsp *rsp)
{
	struct krping_request *req = krping_req(rq);
	int error = status_error(rsp->status);
	bool large = req->nents;

	krping_suspect_back(q->session, rq);
	req->losses = 0;
	WRITE_ONCE(q->last_answer, jiffies);
	krping_rq_unmap(q, &q->slots[rsp->tag & KRPING_TAG_MASK], rq);
	if (req_op(rq) != REQ_OP_WRITE)
		req->crc = rsp->crc;
	if (!error && req_op(rq) == REQ_OP_READ) {
		if (large) {
			check_large_read(q, rq);
			return;
		}
		error = finish_inline_read(q, rq, rsp);
	} else if (!error && krping_rq_is_digest(rq)) {
		finish_digest(rq, rsp);
	}
	finish_request(q, rq, error);
}

static int read_message(struct krping_queue *q, const void *msg, const struct ib_wc *wc)
{
	bool invalidated = !(wc->wc_flags & IB_WC_WITH_INVALIDATE);
	u32 left = wc->byte_len;
	struct krping_decoded_rsp rsp;
	struct krping_violation violation;
	struct request *rq;
	int ret;

	if (!left)
		return krping_queue_violation(q, "empty message", 0);
	for (; left; left -= rsp.size, msg += rsp.size) {
		ret = krping_read_response(msg, left, q->session->grant.max_inline, &rsp,
					   &violation);
		if (ret)
			return krping_queue_violation(q, violation.what, violation.value);
		if (rsp.tag == KRPING_TAG_KEEP_ALIVE) {
			ret = krping_keepalive_answered(q, rsp.status, rsp.data, rsp.length);
			if (ret)
				return ret;
			continue;
		}
		ret = claim_request(q, &rsp, wc, &rq);
		if (ret)
			return ret;
		invalidated |= !rq || krping_req(rq)->nents > 0;
		if (rq)
			krping_recv_accept(q, rq, &rsp);
	}
	if (!invalidated)
		return krping_queue_violation(q, "invalidated key of no request",
					      wc->ex.invalidate_rkey);
	if (READ_ONCE(q->open))		/* it may have waited for another message to be answered */
		krping_send_commit(q);
	return 0;
}

void krping_recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_buf *buf = container_of(wc->wr_cqe, struct krping_buf, cqe);
	struct krping_conn *conn = cq->cq_context;
	struct krping_queue *q = container_of(conn, struct krping_queue, conn);
	const char *name = q->session->opt.block;
	int ret;

	if (!krping_buf_received(conn, buf, wc))
		return;
	ret = 0;
	if (!krping_fault(KRPING_FAULT_RECV_DROP, name))
		ret = read_message(q, buf->data, wc);
	if (!ret && krping_fault(KRPING_FAULT_RECV_DUPLICATE, name))
		ret = read_message(q, buf->data, wc);
	if (!ret) {
		WRITE_ONCE(q->last_rx, jiffies);
		/* Not after the drain that follows a loss: nothing would wait for it. */
		spin_lock_bh(&q->lock);
		if (READ_ONCE(conn->state) == KRPING_CONN_LIVE)
			ret = krping_buf_post_recv(conn, buf);
		spin_unlock_bh(&q->lock);
	}
	if (ret)
		krping_conn_fail(conn, ret);
}

/* The key of a command whose answer was held is invalid for good. */
void krping_recv_inv_done(struct ib_cq *cq, struct ib_wc *wc)
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
	rq = krping_early_finish(q, slot, &answer);
	krping_recv_accept(q, rq, &answer);
	krping_send_commit(q);
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
	case -ENOTCONN:
		return BLK_STS_TRANSPORT;
	default:
		return BLK_STS_IOERR;
	}
}

void krping_complete_rq(struct request *rq)
{
	struct krping_request *req = krping_req(rq);

	if (req->retry) {
		req->retry = false;
		blk_mq_requeue_request(rq, true);
		return;
	}
	krping_copy_free(rq);
	blk_mq_end_request(rq, blk_status(req->error));
}
