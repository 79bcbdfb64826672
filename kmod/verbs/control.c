// SPDX-License-Identifier: GPL-2.0
/* Control messages: their buffers, and what each one means. */
#include <linux/slab.h>

#include "lib/log.h"
#include "verbs/verbs.h"

static struct krping_verbs *test_of(struct ib_cq *cq)
{
	return container_of((struct krping_conn *)cq->cq_context, struct krping_verbs, control);
}

/* ---- to the peer ---- */

static void krping_verbs_control_sent(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_verbs *v = test_of(cq);

	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(&v->control, wc, "SEND of a control message");
	else
		v->tx_done++;
}

static void krping_verbs_probe_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_verbs *v = test_of(cq);

	v->probing = false;
	v->ignored++;
	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(&v->control, wc, "the probe of the peer");
}

/* Return: whether krping_verbs_control_send() has a free buffer. */
bool krping_verbs_control_has_room(const struct krping_verbs *v)
{
	return v->tx_posted - v->tx_done < KRPING_VERBS_CONTROL_TX;
}

/**
 * krping_verbs_control_send - send a control message
 * @v:		with room
 * @msg:	the message
 *
 * Return: 0 or a negative errno.
 */
int krping_verbs_control_send(struct krping_verbs *v, const struct krping_verbs_msg *msg)
{
	struct krping_buf *buf = &v->tx[v->tx_posted % KRPING_VERBS_CONTROL_TX].buf;
	struct ib_sge sges[KRPING_BUF_SGES];
	struct ib_send_wr wr = {
		.wr_cqe = &buf->cqe,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
		.sg_list = sges,
	};
	int ret;

	memcpy(buf->data, msg, sizeof(*msg));
	wr.num_sge = krping_buf_send_sges(&v->control, buf, sizeof(*msg), sges);
	ret = krping_conn_post_send(&v->control, &wr);
	if (ret)
		return krping_verbs_post_failed(v, "a control message", ret);
	v->tx_posted++;
	WRITE_ONCE(v->thread.result->verbs.posts, v->thread.result->verbs.posts + 1);
	return 0;
}

/* An RDMA WRITE of no bytes, which needs no key: the peer's device answers it. */
int krping_verbs_control_probe(struct krping_verbs *v)
{
	struct ib_rdma_wr probe = {
		.wr = {
			.wr_cqe = &v->probe_cqe,
			.opcode = IB_WR_RDMA_WRITE,
			.send_flags = IB_SEND_SIGNALED,
		},
	};
	int ret = krping_conn_post_send(&v->control, &probe.wr);

	if (ret)
		return krping_verbs_post_failed(v, "a control message", ret);
	v->probing = true;
	return 0;
}

/* ---- from the peer ---- */

static int violation(struct krping_verbs *v, const char *what, u64 value)
{
	krping_err_ratelimited(v->thread.log_prefix, "the peer sent %s: %llu", what, value);
	return -EPROTO;
}

static bool is_zero(const u8 *data, size_t from, size_t to)
{
	return from >= to || !memchr_inv(data + from, 0, to - from);
}

/* Bytes of @body that a type of message uses. */
static size_t body_len(u8 type)
{
	switch (type) {
	case KRPING_VERBS_QUEUE:
		return sizeof(struct krping_verbs_info);
	case KRPING_VERBS_REPORT:
		return sizeof(struct krping_verbs_report);
	case KRPING_VERBS_GO:
		return 0;
	default:
		return sizeof(__be64);
	}
}

/*
 * READ: message n is read into a slot that held message n - @nr_source. Different slots of the peer
 * must have been read there; if that is not possible, the slot is wiped.
 */
static void avoid_same_slots(struct krping_verbs_queue *q)
{
	while (q->nr_source > 1 && !(q->nr_source % q->peer.slots))
		q->nr_source--;
	q->wipe = !(q->nr_source % q->peer.slots);
	q->depth = min(q->depth, q->nr_source);
	q->signal = min(q->signal, q->depth);
}

static int take_queue(struct krping_verbs *v, struct krping_verbs_queue *q,
		      const struct krping_verbs_info *info)
{
	bool datagram = v->test.qp_type == KRPING_VERBS_UD;
	bool memory = v->is_initiator && v->test.verb != KRPING_VERB_SEND;
	struct krping_verbs_peer peer = {
		.known = true,
		.qpn = be32_to_cpu(info->qpn),
		.psn = be32_to_cpu(info->psn),
		.qkey = be32_to_cpu(info->qkey),
		.slots = be32_to_cpu(info->slots),
		.addr = be64_to_cpu(info->addr),
		.rkey = be32_to_cpu(info->rkey),
	};

	if (q->peer.known || q->index != v->known)
		return violation(v, "a QUEUE out of order", q->index);
	if (krping_verbs_is_reliable(&v->test) ? peer.qpn || peer.psn : !peer.qpn)
		return violation(v, "a queue pair number that does not fit", peer.qpn);
	if ((peer.qpn | peer.psn) >> 24)
		return violation(v, "a queue pair or packet number that is too large", peer.qpn);
	if (datagram ? peer.qkey >> 31 : peer.qkey)
		return violation(v, "a queue key that does not fit", peer.qkey);
	if (!peer.slots != !v->is_initiator || peer.slots > KRPING_VERBS_SLOTS_MAX)
		return violation(v, "a number of slots that does not fit", peer.slots);
	if (memory ? !peer.rkey : peer.rkey || peer.addr)
		return violation(v, "a remote key that does not fit", peer.rkey);
	if (memory && krping_verbs_is_atomic(&v->test) && (peer.addr % 8 || peer.slots != 1))
		return violation(v, "a counter that is not aligned", peer.addr);
	if (memory && krping_verbs_is_lat(v) && krping_verbs_is_write(&v->test) && peer.slots != 1)
		return violation(v, "a number of slots that does not fit", peer.slots);
	q->peer = peer;
	v->known++;
	if (v->is_initiator && v->test.verb == KRPING_VERB_READ && v->test.validate)
		avoid_same_slots(q);
	return 0;
}

/* Whether the first damage of a REPORT is one, or is not there. */
static bool is_damage(const struct krping_verbs *v, u16 queue, const struct krping_verbs_report *r)
{
	if (!r->damaged)
		return !queue && !r->number && !r->offset && !r->damage;
	return r->damage > KRPING_VERBS_INTACT && r->damage <= KRPING_VERBS_DAMAGED &&
	       be32_to_cpu(r->offset) < v->test.size;
}

static int take_report(struct krping_verbs *v, u16 queue, const struct krping_verbs_report *r)
{
	u64 received = be64_to_cpu(r->received), lost = be64_to_cpu(r->lost);
	u64 damaged = be64_to_cpu(r->damaged);
	u64 seen = krping_verbs_sees_arrivals(v) ? v->sent : 0;
	struct krping_verbs_counts *counts = &v->thread.result->verbs;

	if (!v->done_sent || v->reported)
		return violation(v, "a REPORT without DONE", 0);
	if (received > seen || lost != seen - received)
		return violation(v, "a REPORT that does not account for all messages; lost", lost);
	if (damaged > v->sent)
		return violation(v, "a REPORT of more damage than messages", damaged);
	if (!is_zero(r->reserved, 0, sizeof(r->reserved)) || !is_damage(v, queue, r))
		return violation(v, "a REPORT with a wrong damage or reserved bits", r->damage);
	v->reported = true;
	v->peer_lost = lost;
	v->peer_damaged = damaged;
	WRITE_ONCE(counts->repeated, counts->repeated + be64_to_cpu(r->repeated));
	WRITE_ONCE(counts->reordered, counts->reordered + be64_to_cpu(r->reordered));
	if (damaged)
		krping_err(v->thread.log_prefix,
			   "the peer found %llu damaged messages, the first is %llu of queue pair %u, from byte %u on: %s",
			   damaged, be64_to_cpu(r->number), queue, be32_to_cpu(r->offset),
			   krping_damage_text(r->damage));
	return 0;
}

static int take_error(struct krping_verbs *v, u64 code)
{
	static const char *const texts[] = {
		"for a reason that it does not say",
		[KRPING_VERBS_E_RESOURCES] = "it is out of memory or RDMA resources",
		[KRPING_VERBS_E_PROTOCOL] = "this side broke the protocol",
		[KRPING_VERBS_E_STOPPED] = "it was interrupted",
		[KRPING_VERBS_E_TIMEOUT] = "this side did not go on",
		[KRPING_VERBS_E_DEVICE] = "its device failed",
	};
	bool endless = !v->test.count && !v->test.duration;

	v->told = true;
	if (code == KRPING_VERBS_E_STOPPED && endless && !krping_verbs_is_client(v)) {
		v->client_stopped = true;
		return -ECONNRESET;
	}
	krping_err(v->thread.log_prefix, "the peer has ended the test: %s",
		   texts[code < ARRAY_SIZE(texts) ? code : 0]);
	return -ECONNRESET;
}

static int take_done(struct krping_verbs *v, u64 sent)
{
	bool expected = v->is_target && (krping_verbs_is_client(v) ? v->test.duplex : true);

	if (!expected || v->peer_done || !v->going)
		return violation(v, "a DONE that was not expected", sent);
	v->peer_done = true;
	v->peer_sent = sent;
	v->done_at = jiffies;
	return 0;
}

static int take_message(struct krping_verbs *v, const struct krping_verbs_msg *msg)
{
	u32 index = be16_to_cpu(msg->queue);
	u64 number = be64_to_cpu(msg->number);
	struct krping_verbs_queue *q;

	if (msg->reserved || msg->reserved2 ||
	    !is_zero(msg->body, body_len(msg->type), sizeof(msg->body)))
		return violation(v, "a control message with reserved bits, of type", msg->type);
	if (index >= v->nr_queues)
		return violation(v, "a control message of an unknown queue pair", index);
	q = &v->queues[index];
	switch (msg->type) {
	case KRPING_VERBS_QUEUE:
		return msg->info.reserved ? violation(v, "a QUEUE with reserved bits", 0) :
					    take_queue(v, q, &msg->info);
	case KRPING_VERBS_CHECK:
		if (!v->going || krping_verbs_is_reliable(&v->test) || !v->uses_credit ||
		    !v->is_target)
			return violation(v, "a CHECK that was not expected", number);
		krping_verbs_defer_check(q, number);
		return 0;
	case KRPING_VERBS_CREDIT:
		return krping_verbs_take_credit(q, number);
	case KRPING_VERBS_REPORT:
		return take_report(v, index, &msg->report);
	default:
		break;
	}
	if (index)
		return violation(v, "a control message that has no queue pair, of type", msg->type);
	switch (msg->type) {
	case KRPING_VERBS_GO:
		if (v->going || !v->ready)
			return violation(v, "a GO that was not expected", 0);
		v->going = true;
		return 0;
	case KRPING_VERBS_DONE:
		return take_done(v, number);
	case KRPING_VERBS_ERROR:
		return take_error(v, number);
	default:
		return violation(v, "a control message of an unknown type", msg->type);
	}
}

/* The receive is posted again before the message is used. Return: whether there is a message. */
static bool copy_message(struct krping_verbs *v, struct krping_verbs_control *rx, struct ib_qp *qp,
			 const struct ib_wc *wc, struct krping_verbs_msg *msg)
{
	struct ib_sge sges[KRPING_BUF_SGES];
	struct ib_recv_wr wr = { .wr_cqe = &rx->buf.cqe, .sg_list = sges };

	if (!krping_buf_received(&v->control, &rx->buf, wc))
		return false;
	if (wc->byte_len != sizeof(*msg)) {
		krping_verbs_fail(v, violation(v, "a control message of another length",
					       wc->byte_len));
		return false;
	}
	memcpy(msg, rx->buf.data, sizeof(*msg));
	wr.num_sge = krping_buf_send_sges(&v->control, &rx->buf, sizeof(*msg), sges);
	if (ib_post_recv(qp, &wr, NULL))
		krping_conn_fail(&v->control, -ECONNRESET);	/* the message still counts */
	return true;
}

static void krping_verbs_control_received(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_verbs_control *rx = container_of(wc->wr_cqe, struct krping_verbs_control,
						       buf.cqe);
	struct krping_verbs *v = rx->v;
	struct krping_verbs_msg msg;

	if (v->told || !copy_message(v, rx, v->control.qp, wc, &msg))
		return;
	krping_verbs_fail(v, take_message(v, &msg));
}

/* A CHECK on a data queue pair. */
void krping_verbs_check_recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_verbs_control *rx = container_of(wc->wr_cqe, struct krping_verbs_control,
						       buf.cqe);
	struct krping_verbs_queue *q = wc->qp->qp_context;
	struct krping_verbs *v = rx->v;
	struct krping_verbs_msg msg;

	if (!copy_message(v, rx, q->qp, wc, &msg))
		return;
	if (krping_verbs_is_reliable(&v->test))
		krping_conn_confirm(&q->conn);
	if (msg.type != KRPING_VERBS_CHECK || be16_to_cpu(msg.queue) != q->index || msg.reserved ||
	    msg.reserved2 || !is_zero(msg.body, sizeof(__be64), sizeof(msg.body)))
		krping_verbs_fail(v, violation(v, "no CHECK on a data queue pair, but type",
					       msg.type));
	else
		krping_verbs_fail(v, krping_verbs_take_check(q, be64_to_cpu(msg.number)));
}

/* ---- set-up ---- */

static int alloc_buf(struct krping_verbs *v, struct krping_verbs_control *control,
		     enum dma_data_direction dir, void (*done)(struct ib_cq *, struct ib_wc *))
{
	control->v = v;
	control->buf.cqe.done = done;
	return krping_buf_alloc(&v->control, &control->buf, sizeof(struct krping_verbs_msg), dir);
}

/**
 * krping_verbs_control_alloc - make the control connection's queue pair, and post its receives
 * @v:		with a control connection that has a device, and with queues
 *
 * Return: 0 or a negative errno: krping_verbs_control_free() frees what was allocated.
 */
int krping_verbs_control_alloc(struct krping_verbs *v)
{
	u32 nr = KRPING_VERBS_CONTROL_DEPTH(v->nr_queues), i;
	struct krping_qp_attr attr = {
		.send_wr = KRPING_VERBS_CONTROL_TX + 2,	/* a probe; a registration */
		.recv_wr = nr,
		.notify = krping_verbs_notify,
		.inline_len = v->test.inline_len,	/* only to learn whether it is possible */
	};
	int ret;

	ret = krping_conn_alloc(&v->control, &attr);
	if (ret)
		return ret;
	v->probe_cqe.done = krping_verbs_probe_done;
	v->rx = kvcalloc(nr, sizeof(*v->rx), GFP_KERNEL);
	if (!v->rx)
		return -ENOMEM;
	v->nr_rx = nr;
	for (i = 0; i < KRPING_VERBS_CONTROL_TX && !ret; i++)
		ret = alloc_buf(v, &v->tx[i], DMA_TO_DEVICE, krping_verbs_control_sent);
	for (i = 0; i < nr && !ret; i++) {
		ret = alloc_buf(v, &v->rx[i], DMA_FROM_DEVICE, krping_verbs_control_received);
		if (!ret)
			ret = krping_buf_post_recv(&v->control, &v->rx[i].buf);
	}
	return ret;
}

/* The queue pair is destroyed. */
void krping_verbs_control_free(struct krping_verbs *v)
{
	u32 i;

	for (i = 0; i < KRPING_VERBS_CONTROL_TX; i++)
		krping_buf_free(&v->control, &v->tx[i].buf);
	for (i = 0; i < v->nr_rx; i++)
		krping_buf_free(&v->control, &v->rx[i].buf);
	kvfree(v->rx);
	v->rx = NULL;
	v->nr_rx = 0;
}

/**
 * krping_verbs_checks_alloc - allocate the buffers for CHECK of a data queue pair
 * @q:		of a test that uses CHECK
 * @done:	completion of those that are sent
 *
 * Return: 0 or a negative errno: krping_verbs_checks_free() frees what was allocated.
 */
int krping_verbs_checks_alloc(struct krping_verbs_queue *q,
			      void (*done)(struct ib_cq *cq, struct ib_wc *wc))
{
	u32 i;
	int ret = 0;

	q->checks = kcalloc(2 * KRPING_VERBS_CHECK_DEPTH, sizeof(*q->checks), GFP_KERNEL);
	if (!q->checks)
		return -ENOMEM;
	for (i = 0; i < 2 * KRPING_VERBS_CHECK_DEPTH && !ret; i++) {
		bool sent = i < KRPING_VERBS_CHECK_DEPTH;

		ret = alloc_buf(q->v, &q->checks[i], sent ? DMA_TO_DEVICE : DMA_FROM_DEVICE,
				sent ? done : krping_verbs_check_recv_done);
	}
	return ret;
}

void krping_verbs_checks_free(struct krping_verbs_queue *q)
{
	u32 i;

	if (!q->checks)
		return;
	for (i = 0; i < 2 * KRPING_VERBS_CHECK_DEPTH; i++)
		krping_buf_free(&q->v->control, &q->checks[i].buf);
	kfree(q->checks);
	q->checks = NULL;
}

/* Posts the receives for CHECK. */
int krping_verbs_checks_post(struct krping_verbs_queue *q)
{
	u32 i;
	int ret = 0;

	for (i = KRPING_VERBS_CHECK_DEPTH; i < 2 * KRPING_VERBS_CHECK_DEPTH && !ret; i++) {
		struct krping_buf *buf = &q->checks[i].buf;
		struct ib_sge sges[KRPING_BUF_SGES];
		struct ib_recv_wr wr = { .wr_cqe = &buf->cqe, .sg_list = sges };

		wr.num_sge = krping_buf_send_sges(&q->v->control, buf, buf->size, sges);
		ret = ib_post_recv(q->qp, &wr, NULL);
	}
	return ret;
}
