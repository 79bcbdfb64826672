// SPDX-License-Identifier: GPL-2.0
/* The initiator: posts messages, and learns that they have completed. */
#include "lib/log.h"
#include "verbs/verbs.h"

/* ---- how much may be posted ---- */

static u32 batch_of(const struct krping_verbs_queue *q)
{
	return KRPING_VERBS_BATCH(q->peer.slots);
}

/* Whether a CHECK comes before the next message. */
static bool owes_check(const struct krping_verbs_queue *q)
{
	if (!q->v->uses_check || q->checked_upto == q->posted)
		return false;
	return q->posted == q->end || !krping_verbs_mod(q->posted, batch_of(q));
}

/* Messages that the target's credit still allows. */
static u64 credit_left(const struct krping_verbs_queue *q)
{
	return q->v->uses_credit ? q->peer.slots + q->credit - q->posted : U64_MAX;
}

/* Messages that can be in flight on each queue pair, in the direction of this side. */
u32 krping_verbs_in_flight(const struct krping_verbs_queue *q)
{
	const struct krping_verbs *v = q->v;
	u32 slots = v->is_initiator ? q->peer.slots : krping_verbs_granted_slots(q);
	u32 depth = v->is_initiator ? q->depth : v->test.txdepth;

	return v->uses_credit ? min(depth, slots) : depth;
}

/* LAT with SEND or WRITE: a client waits for the answer, a server answers. */
static bool is_turn(const struct krping_verbs_queue *q)
{
	const struct krping_verbs *v = q->v;

	if (!krping_verbs_is_lat(v))
		return true;
	if (krping_verbs_is_read(&v->test))
		return q->completed == q->posted;
	return krping_verbs_is_client(v) ? q->answers == q->posted : q->owes;
}

/* Messages that may be posted now; @most: those that the rate allows. */
static u32 room(const struct krping_verbs_queue *q, u64 most)
{
	u64 n = q->depth - (q->posted - q->completed);

	if (!is_turn(q) || owes_check(q))
		return 0;
	n = min(n, q->end - q->posted);
	n = min(n, credit_left(q));
	n = min(n, most);
	if (q->v->uses_check)	/* a CHECK follows each batch */
		n = min_t(u64, n, batch_of(q) - krping_verbs_mod(q->posted, batch_of(q)));
	if (krping_verbs_is_lat(q->v))
		n = min_t(u64, n, 1);
	return min_t(u64, n, KRPING_VERBS_CHAIN);
}

static u64 rate_left(const struct krping_verbs *v)
{
	s64 ns;

	if (!v->test.rate)
		return U64_MAX;
	ns = ktime_to_ns(ktime_sub(ktime_get(), v->thread.result->start));
	return krping_rate_total(v->test.rate, max_t(s64, ns, 0)) - v->sent;
}

/* Whether the next message, or the end of a validated WRITE, waits for credit. */
static bool lacks_credit(const struct krping_verbs_queue *q)
{
	return q->credit < q->posted &&
	       (!credit_left(q) || (q->v->uses_check && q->checked_upto == q->posted));
}

/* Return: whether a queue pair waits for credit, which is then due from the peer. */
bool krping_verbs_lacks_credit(const struct krping_verbs *v)
{
	u32 i;

	for (i = 0; v->uses_credit && v->is_initiator && i < v->nr_queues; i++)
		if (lacks_credit(&v->queues[i]))
			return true;
	return false;
}

/**
 * krping_verbs_is_stalled - find a UC queue pair that has to ask for credit
 * @q:		of a UC test that uses credit
 *
 * Return: whether it has lacked credit for KRPING_VERBS_STALL_MS and has not asked yet.
 */
bool krping_verbs_is_stalled(struct krping_verbs_queue *q)
{
	if (!lacks_credit(q) || q->asked) {
		q->is_blocked = false;
		return false;
	}
	if (!q->is_blocked) {
		q->is_blocked = true;
		q->blocked = jiffies;
	}
	return time_after(jiffies, q->blocked + msecs_to_jiffies(KRPING_VERBS_STALL_MS));
}

/* ---- posting ---- */

static u32 slot_offset(const struct krping_verbs_queue *q, u64 number)
{
	return krping_verbs_mod(number, q->nr_source) * KRPING_VERBS_SLOT(q->v->test.size);
}

/* What is in the source slot before it is sent from or read into. */
static void fill_slot(struct krping_verbs_queue *q, u64 number, u32 offset)
{
	const struct krping_options *t = &q->v->test;
	u8 *data = q->source.vaddr + offset;

	if (krping_verbs_is_read(t)) {
		if (!q->wipe)
			return;
		memset(data, 0, t->size);
	} else if (t->validate) {
		krping_message_fill(data, t->size, q->tx_tag, number);
	} else if (krping_verbs_is_lat(q->v)) {
		data[t->size - 1] = number;
	} else {
		return;
	}
	krping_region_part_for_device(&q->v->control, &q->source, offset, t->size);
}

static void set_rdma(struct krping_verbs_queue *q, struct krping_verbs_wr *wr, u64 number,
		     enum ib_wr_opcode opcode)
{
	u64 slot = krping_verbs_mod(number, q->peer.slots);

	wr->rdma.wr.opcode = opcode;
	wr->rdma.remote_addr = q->peer.addr + slot * KRPING_VERBS_SLOT(q->v->test.size);
	wr->rdma.rkey = q->peer.rkey;
	if (opcode == IB_WR_RDMA_WRITE_WITH_IMM)
		wr->send.ex.imm_data = cpu_to_be32((u32)number);
}

static void set_atomic(struct krping_verbs_queue *q, struct krping_verbs_wr *wr, u64 number)
{
	bool add = q->v->test.verb == KRPING_VERB_FETCH_ADD;

	wr->atomic.wr.opcode = add ? IB_WR_ATOMIC_FETCH_AND_ADD : IB_WR_ATOMIC_CMP_AND_SWP;
	wr->atomic.remote_addr = q->peer.addr;
	wr->atomic.rkey = q->peer.rkey;
	wr->atomic.compare_add = add ? 1 : number;
	wr->atomic.swap = number + 1;
}

static void set_send(struct krping_verbs_queue *q, struct krping_verbs_wr *wr)
{
	wr->send.opcode = IB_WR_SEND;
	if (q->v->test.qp_type != KRPING_VERBS_UD)
		return;
	wr->ud.ah = q->v->ah;
	wr->ud.remote_qpn = q->peer.qpn;
	wr->ud.remote_qkey = q->peer.qkey;
}

static void build(struct krping_verbs_queue *q, struct krping_verbs_wr *wr, u64 number)
{
	const struct krping_options *t = &q->v->test;
	u32 offset = slot_offset(q, number);

	fill_slot(q, number, offset);
	memset(wr, 0, sizeof(*wr));
	wr->sge = (struct ib_sge){
		.addr = t->inline_len ? (uintptr_t)q->source.vaddr + offset :
					q->source.mr->iova + offset,
		.length = t->size,
		.lkey = q->source.mr->lkey,
	};
	wr->send.sg_list = &wr->sge;
	wr->send.num_sge = 1;
	wr->send.wr_cqe = &q->tx_cqe;
	if (!krping_verbs_mod(number + 1, q->signal) || number + 1 == q->end)
		wr->send.send_flags = IB_SEND_SIGNALED;
	if (t->inline_len)
		wr->send.send_flags |= IB_SEND_INLINE;
	switch (t->verb) {
	case KRPING_VERB_SEND:
		set_send(q, wr);
		break;
	case KRPING_VERB_WRITE:
		set_rdma(q, wr, number, IB_WR_RDMA_WRITE);
		break;
	case KRPING_VERB_WRITE_IMM:
		set_rdma(q, wr, number, IB_WR_RDMA_WRITE_WITH_IMM);
		break;
	case KRPING_VERB_READ:
		set_rdma(q, wr, number, IB_WR_RDMA_READ);
		break;
	default:
		set_atomic(q, wr, number);
		break;
	}
}

/* With bottom halves off: see krping_conn_post_send(). */
static int post_chain(struct krping_verbs_queue *q, const struct ib_send_wr *first, u32 nr)
{
	struct krping_verbs *v = q->v;
	int ret;

	local_bh_disable();
	ret = ib_post_send(q->qp, first, NULL);
	local_bh_enable();
	if (ret)
		return krping_verbs_post_failed(v, "a work request", ret);
	WRITE_ONCE(v->thread.result->verbs.posts, v->thread.result->verbs.posts + nr);
	return 0;
}

static int post_messages(struct krping_verbs_queue *q, u32 nr)
{
	struct krping_verbs *v = q->v;
	int ret;
	u32 i;

	for (i = 0; i < nr; i++) {
		build(q, &v->wrs[i], q->posted + i);
		if (i)
			v->wrs[i - 1].send.next = &v->wrs[i].send;
	}
	if (krping_verbs_is_lat(v)) {
		q->posted_at = jiffies;
		if (!q->started)
			q->started = ktime_get();
	}
	ret = post_chain(q, &v->wrs[0].send, nr);
	if (ret)
		return ret;
	q->posted += nr;
	q->owes = false;
	v->sent += nr;
	return 0;
}

/* Asks for credit on the data queue pair, behind the WRITEs. */
static int post_check(struct krping_verbs_queue *q)
{
	struct krping_buf *buf = &q->checks[q->checks_posted % KRPING_VERBS_CHECK_DEPTH].buf;
	struct ib_sge sges[KRPING_BUF_SGES];
	struct ib_send_wr wr = {
		.wr_cqe = &buf->cqe,
		.opcode = IB_WR_SEND,
		.send_flags = IB_SEND_SIGNALED,
		.sg_list = sges,
	};
	struct krping_verbs_msg msg = {
		.type = KRPING_VERBS_CHECK,
		.queue = cpu_to_be16(q->index),
		.number = cpu_to_be64(q->posted),
	};
	int ret;

	memcpy(buf->data, &msg, sizeof(msg));
	wr.num_sge = krping_buf_send_sges(&q->v->control, buf, sizeof(msg), sges);
	ret = post_chain(q, &wr, 1);
	if (ret)
		return ret;
	q->checks_posted++;
	q->checked_upto = q->posted;
	return 0;
}

/* Return: messages posted, or a negative errno. */
static int post_queue(struct krping_verbs_queue *q, u64 most)
{
	u32 n = room(q, most);
	int ret = 0;

	if (n)
		ret = post_messages(q, n);
	if (!ret && owes_check(q) &&
	    q->checks_posted - q->checks_done < KRPING_VERBS_CHECK_DEPTH)
		ret = post_check(q);
	return ret ?: n;
}

/**
 * krping_verbs_post - post what can be posted, once round all queue pairs
 * @v:		initiator
 *
 * The round begins where a rate limit has ended the last one.
 *
 * Return: messages posted, or a negative errno.
 */
int krping_verbs_post(struct krping_verbs *v)
{
	u64 left = rate_left(v);
	int posted = 0, ret;
	u32 i;

	for (i = 0; i < v->nr_queues && left; i++) {
		ret = post_queue(&v->queues[v->next_queue], left);
		if (ret < 0)
			return ret;
		posted += ret;
		if (v->test.rate)
			left -= ret;
		v->next_queue = (v->next_queue + 1) % v->nr_queues;
		cond_resched();	/* much data may have been filled in */
	}
	return posted;
}

/* ---- completions ---- */

/* Checks what READ number @number has read, or an atomic operation has returned. */
static void check_read(struct krping_verbs_queue *q, u64 number)
{
	const struct krping_options *t = &q->v->test;
	u32 offset = slot_offset(q, number);
	u8 *data = q->source.vaddr + offset;
	struct krping_finding finding = {};
	u64 value;

	krping_region_part_for_cpu(&q->v->control, &q->source, offset, t->size);
	krping_verbs_corrupt(q, data, number);
	if (!krping_verbs_is_atomic(t)) {
		krping_message_check(data, t->size, q->tx_tag,
				     krping_verbs_mod(number, q->peer.slots), &finding);
	} else {
		memcpy(&value, data, sizeof(value));
		finding.damage = value == number ? KRPING_VERBS_INTACT : KRPING_VERBS_DAMAGED;
		finding.want = number;
		finding.got = value;
	}
	if (finding.damage)
		krping_verbs_damage(q, number, &finding);
}

static void count_sent(struct krping_verbs *v, u64 n)
{
	struct krping_stats __percpu *stats = v->thread.stats;
	u64 bytes = n * v->test.size;

	if (v->test.verb == KRPING_VERB_SEND) {
		krping_count(stats, KRPING_SEND_BYTES, bytes);
		krping_count(stats, KRPING_SEND_MSGS, n);
	} else if (krping_verbs_is_write(&v->test)) {
		krping_count(stats, KRPING_WRITE_BYTES, bytes);
		krping_count(stats, KRPING_WRITE_MSGS, n);
	} else {
		krping_count(stats, KRPING_READ_BYTES, bytes);
		krping_count(stats, KRPING_READ_MSGS, n);
	}
}

/* A queue pair completes its work requests in order: the unsignalled ones before this are done. */
void krping_verbs_tx_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_verbs_queue *q = container_of(wc->wr_cqe, struct krping_verbs_queue, tx_cqe);
	struct krping_verbs *v = q->v;
	u64 done, n;

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(krping_verbs_conn_of(q), wc, krping_verb_names[v->test.verb]);
		return;
	}
	done = min(q->completed - krping_verbs_mod(q->completed, q->signal) + q->signal, q->posted);
	n = done - q->completed;
	if (v->test.validate && krping_verbs_is_read(&v->test))
		for (; q->completed < done; q->completed++)
			check_read(q, q->completed);
	q->completed = done;
	v->done += n;
	count_sent(v, n);
	if (krping_verbs_is_lat(v) && krping_verbs_is_read(&v->test)) {
		q->started = krping_result_time(v->thread.result, q->started);
		q->answers = done;
	}
}

/* A CHECK has left. */
void krping_verbs_check_sent(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_verbs_queue *q = wc->qp->qp_context;

	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(krping_verbs_conn_of(q), wc, "SEND of a CHECK");
	else
		q->checks_done++;
}

/* A CREDIT has arrived. Return: 0 or -EPROTO. */
int krping_verbs_take_credit(struct krping_verbs_queue *q, u64 number)
{
	if (!q->v->is_initiator || !q->v->uses_credit || number < q->credit ||
	    number > q->posted) {
		krping_err_ratelimited(q->v->thread.log_prefix,
				       "the peer sent a CREDIT up to %llu of queue pair %u, which must be %llu to %llu",
				       number, q->index, q->credit, q->posted);
		return -EPROTO;
	}
	if (number == q->credit)
		q->v->ignored++;
	q->credit = number;
	q->is_blocked = false;
	if (number >= q->asked)
		q->asked = 0;
	return 0;
}

/* ---- the end ---- */

/* No more messages are begun, except those up to the next signalled one. */
void krping_verbs_stop(struct krping_verbs *v)
{
	u32 i;

	v->stopping = true;
	for (i = 0; i < v->nr_queues; i++) {
		struct krping_verbs_queue *q = &v->queues[i];
		u32 rest = krping_verbs_mod(q->posted, q->signal);

		q->end = min(q->end, q->posted + (rest ? q->signal - rest : 0));
	}
}

/* Return: whether everything has been sent, has completed, and was checked where it is. */
bool krping_verbs_all_sent(const struct krping_verbs *v)
{
	u32 i;

	if (v->sent != v->done)
		return false;
	for (i = 0; i < v->nr_queues; i++) {
		const struct krping_verbs_queue *q = &v->queues[i];

		if (q->posted != q->end || (v->uses_check && q->credit != q->posted))
			return false;
		if (krping_verbs_is_lat(v) && q->answers != q->posted)
			return false;
	}
	return true;
}
