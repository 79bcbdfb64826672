// SPDX-License-Identifier: GPL-2.0
/* The target: what has arrived, whether it is right, and the report. */
#include "lib/log.h"
#include "verbs/verbs.h"

/* Messages whose numbers are further apart are not of one test. */
#define NEAR	1000000u

/* For so long a slot may be written after its last byte was seen, or its message given up. */
#define WRITING_NS	NSEC_PER_MSEC

/* If it has a part of a message: the CPU that copies may be one of a VM, and wait. */
#define PARTLY_WRITTEN_NS	(100 * NSEC_PER_MSEC)

static int violation(struct krping_verbs_queue *q, const char *what, u64 value)
{
	krping_err_ratelimited(q->v->thread.log_prefix, "queue pair %u: the peer sent %s: %llu",
			       q->index, what, value);
	return -EPROTO;
}

/* ---- checks ---- */

static void check_data(struct krping_verbs_queue *q, u8 *data, u64 number,
		       struct krping_finding *finding)
{
	krping_verbs_corrupt(q, data, number);
	krping_message_check(data, q->v->test.size, q->rx_tag, number, finding);
}

/* Return: the slot of a message that was written. */
static u8 *slot_of(struct krping_verbs_queue *q, u64 number)
{
	u32 offset = krping_verbs_mod(number, q->nr_sink) * KRPING_VERBS_SLOT(q->v->test.size);

	krping_region_part_for_cpu(&q->v->control, &q->sink, offset, q->v->test.size);
	return q->sink.vaddr + offset;
}

static void check_slot(struct krping_verbs_queue *q, u64 number, struct krping_finding *finding)
{
	check_data(q, slot_of(q, number), number, finding);
}

/*
 * Whether loss explains a slot that is wrong. LAT: a client that has given up an answer writes the
 * next message to the same slot.
 */
static bool is_missing(const struct krping_verbs_queue *q, const struct krping_finding *finding)
{
	return finding->damage && !krping_verbs_is_reliable(&q->v->test) &&
	       krping_message_is_missing(finding, krping_verbs_is_lat(q->v) ? 0 : q->nr_sink);
}

static bool is_overwritten(const struct krping_verbs_queue *q,
			   const struct krping_finding *finding)
{
	return krping_verbs_is_lat(q->v) && is_missing(q, finding);
}

/* Return: for how long slots may be waited for now, in ns. */
static s64 patience(const struct krping_verbs *v)
{
	s64 age = ktime_to_ns(ktime_sub(ktime_get(), v->began));

	return max(KRPING_VERBS_PATIENCE_NS + div_s64(age, 10) - v->waited_ns, 0LL);
}

/*
 * Checks a slot again that is not right, as it may be written now: software RDMA copies by the
 * CPU. With LAT also if loss would explain it: its last byte has arrived. The time for this is
 * limited in all, as a peer can spoil thousands of slots at once. A signal ends the test: then the
 * slot is not judged.
 */
static void check_again(struct krping_verbs_queue *q, u64 number, struct krping_finding *finding)
{
	struct krping_verbs *v = q->v;
	s64 limit, most, passed = 0;
	ktime_t start;

	if (!finding->damage)
		return;
	start = ktime_get();
	most = patience(v);
	while (finding->damage && (krping_verbs_is_lat(v) || !is_missing(q, finding))) {
		if (signal_pending(current)) {
			finding->damage = KRPING_VERBS_INTACT;
			break;
		}
		limit = WRITING_NS;
		if (!is_missing(q, finding) && krping_message_may_be_written(finding))
			limit = PARTLY_WRITTEN_NS;
		passed = ktime_to_ns(ktime_sub(ktime_get(), start));
		if (passed >= min(limit, most))
			break;
		cond_resched();
		krping_message_check(slot_of(q, number), v->test.size, q->rx_tag, number, finding);
	}
	v->waited_ns += min(passed, most);
}

/*
 * WRITE_IMM on UC: a message of an earlier lap that comes only now has written to the slot, too.
 * Its immediate has not been seen yet.
 */
static bool is_overtaken(const struct krping_verbs_queue *q, u64 number,
			 const struct krping_finding *finding)
{
	u64 late = krping_number_near(finding->number, 4, number);

	return is_missing(q, finding) && krping_account_lacks(&q->account, late);
}

/* ---- arrivals ---- */

static void count_received(struct krping_verbs *v, u32 bytes)
{
	if (v->test.verb != KRPING_VERB_SEND)
		return;
	krping_count(v->thread.stats, KRPING_RECV_BYTES, bytes);
	krping_count(v->thread.stats, KRPING_RECV_MSGS, 1);
}

static void account(struct krping_verbs_queue *q, u64 number)
{
	u64 before = q->account.received;

	krping_account_add(&q->account, number);
	q->v->arrived += q->account.received - before;
	q->v->last_arrival = jiffies;
}

/* LAT on UC and UD, server: lost messages are not answered. */
static void skip_to(struct krping_verbs_queue *q, u64 number)
{
	if (number == q->posted)
		return;
	q->completed += number - q->posted;
	q->posted = number;
}

/* LAT: an answer, or a message to answer. */
static int take_turn(struct krping_verbs_queue *q, u64 number)
{
	struct krping_verbs *v = q->v;
	bool reliable = krping_verbs_is_reliable(&v->test);

	if (krping_verbs_is_client(v)) {
		if (q->answers == q->posted || number != q->posted - 1)
			return violation(q, "an answer out of turn", number);
		q->started = krping_result_time(v->thread.result, q->started);
		q->answers = q->posted;
		return 0;
	}
	if (number >= q->end)
		return violation(q, "a message after the last one", number);
	if (number >= q->posted && !q->owes) {
		if (reliable && number != q->posted)
			return violation(q, "a message out of turn", number);
		skip_to(q, number);
		q->owes = true;
		return 0;
	}
	return reliable ? violation(q, "a message before the answer", number) : 0;
}

/* Everything before @number has arrived, or will not. */
static void grant(struct krping_verbs_queue *q, u64 number, u32 slots)
{
	q->checked = number;
	if (q->v->uses_credit && number - q->credited >= KRPING_VERBS_BATCH(slots))
		q->credit_due = true;
}

/* Slots that the peer may use before credit is given. */
u32 krping_verbs_granted_slots(const struct krping_verbs_queue *q)
{
	const struct krping_options *t = &q->v->test;

	if (t->verb != KRPING_VERB_SEND)
		return q->nr_sink;
	return t->srq ? t->rxdepth / q->v->nr_queues : t->rxdepth;
}

/* LAT on UC and UD: the answer to a message that the client has given up. */
static bool is_late(const struct krping_verbs_queue *q, u64 number)
{
	return krping_verbs_is_lat(q->v) && krping_verbs_is_client(q->v) &&
	       !krping_verbs_is_reliable(&q->v->test) &&
	       (q->answers == q->posted || number != q->posted - 1);
}

static int arrived(struct krping_verbs_queue *q, u64 number)
{
	if (is_late(q, number))
		return 0;
	account(q, number);
	if (krping_verbs_is_lat(q->v))
		return take_turn(q, number);
	grant(q, q->account.next, krping_verbs_granted_slots(q));
	return 0;
}

/* The number of a SEND, as far as it is known: UC and UD lose messages. */
static u64 number_of(const struct krping_verbs_queue *q, const u8 *data)
{
	const struct krping_options *t = &q->v->test;
	u64 next = q->account.next, number = next;

	if (krping_verbs_is_reliable(t))
		return next;
	if (t->validate)
		number = krping_message_number(data, t->size, 4, next);
	else if (krping_verbs_is_lat(q->v))
		number = krping_message_number(data, t->size, 1, next);
	if (krping_verbs_is_lat(q->v) && number >= q->end)
		return next;	/* damaged */
	return number + NEAR > next && number < next + NEAR ? number : next;
}

static int take_send(struct krping_verbs_queue *q, struct krping_verbs_recv *recv,
		     const struct ib_wc *wc)
{
	const struct krping_options *t = &q->v->test;
	bool datagram = t->qp_type == KRPING_VERBS_UD;
	u8 *data = krping_verbs_ring_data(recv->ring, recv->index);
	struct krping_finding finding = {};
	u64 number;

	if (datagram && wc->src_qp != q->peer.qpn) {
		q->v->ignored++;
		return 0;	/* anyone may send to this queue pair */
	}
	if (wc->opcode != IB_WC_RECV || wc->byte_len != recv->ring->len)
		return violation(q, "a message of another length", wc->byte_len);
	if (datagram)
		data += KRPING_VERBS_GRH_LEN;
	count_received(q->v, t->size);
	number = number_of(q, data);
	if (t->validate)
		check_data(q, data, number, &finding);
	if (finding.damage) {
		krping_verbs_damage(q, number, &finding);
		number = q->account.next;	/* what it says of its number may be wrong, too */
	}
	return arrived(q, number);
}

static int take_write_imm(struct krping_verbs_queue *q, const struct ib_wc *wc)
{
	u32 low = be32_to_cpu(wc->ex.imm_data);
	struct krping_finding finding = {};
	u64 next = q->account.next, number = krping_number_near(low, 4, next);
	bool reliable = krping_verbs_is_reliable(&q->v->test);

	if (wc->opcode != IB_WC_RECV_RDMA_WITH_IMM || !(wc->wc_flags & IB_WC_WITH_IMM))
		return violation(q, "a message without immediate data, of length", wc->byte_len);
	if (wc->byte_len != q->v->test.size)
		return violation(q, "a message of another length", wc->byte_len);
	if (reliable ? number != next : number > next + NEAR)
		return violation(q, "a wrong immediate", low);
	if (q->v->uses_credit && number >= q->credited + q->nr_sink)
		return violation(q, "a message without credit", number);
	if (is_late(q, number))
		return 0;	/* the next answer may be in its slot */
	/* With credit for the next lap, the slot of a late one may have been written again. */
	if (q->v->test.validate && number >= q->credited)
		check_slot(q, number, &finding);
	if (!reliable)
		check_again(q, number, &finding);
	if (finding.damage && !is_overwritten(q, &finding) && !is_overtaken(q, number, &finding))
		krping_verbs_damage(q, number, &finding);
	return arrived(q, number);
}

/* A receive of a ring has completed. */
void krping_verbs_rx_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_verbs_recv *recv = container_of(wc->wr_cqe, struct krping_verbs_recv, cqe);
	struct krping_verbs_queue *q = wc->qp->qp_context;
	struct krping_verbs *v = q->v;
	int ret;

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(krping_verbs_conn_of(q), wc, "RECV");
		return;
	}
	krping_conn_confirm(krping_verbs_conn_of(q));
	ret = v->test.verb == KRPING_VERB_SEND ? take_send(q, recv, wc) : take_write_imm(q, wc);
	if (!ret && krping_verbs_ring_repost(recv->ring, recv))
		krping_conn_fail(krping_verbs_conn_of(q), -ECONNRESET);
	krping_verbs_fail(v, ret);
}

/**
 * krping_verbs_take_check - check messages that were written, or take them as lost
 * @q:		of a test that uses credit
 * @number:	messages that were sent
 *
 * On UC a CHECK may come on either connection, and after one with a larger number on the other.
 *
 * Return: 0 or -EPROTO.
 */
int krping_verbs_take_check(struct krping_verbs_queue *q, u64 number)
{
	bool reliable = krping_verbs_is_reliable(&q->v->test);
	u64 i;

	if (!reliable && number <= q->checked) {
		q->credit_due |= number > q->credited;
		return 0;
	}
	if (number < q->checked || number > q->credited + q->nr_sink)
		return violation(q, "a CHECK up to a wrong number", number);
	for (i = q->checked; i < number; i++) {
		struct krping_finding finding = {};

		if (!q->v->uses_check) {
			krping_account_miss(&q->account, i);
			continue;
		}
		check_slot(q, i, &finding);
		if (!reliable)
			check_again(q, i, &finding);
		if (is_missing(q, &finding)) {
			krping_account_miss(&q->account, i);
			continue;
		}
		if (finding.damage)
			krping_verbs_damage(q, i, &finding);
		account(q, i);
	}
	q->checked = number;
	q->credit_due = true;
	return 0;
}

/*
 * A CHECK on the control connection is taken after everything that arrived before it has been
 * polled. Otherwise those messages would count as lost, and then as reordered.
 */
void krping_verbs_defer_check(struct krping_verbs_queue *q, u64 number)
{
	if (!number)
		return;
	if (!q->to_check)
		q->v->to_check++;
	q->to_check = max(q->to_check, number);
	q->polled = 0;
}

/*
 * Takes the CHECKs of the queue pairs of @cq, if it was empty since they came, or as many
 * completions as it holds were taken: other queue pairs may keep it busy.
 * @polled: completions that were taken now; U32_MAX: it is empty
 */
void krping_verbs_take_deferred(struct krping_verbs *v, const struct ib_cq *cq, u32 polled)
{
	u32 i;

	for (i = 0; i < v->nr_queues && v->to_check; i++) {
		struct krping_verbs_queue *q = &v->queues[i];
		u64 number = q->to_check;

		if (!number || q->cq != cq)
			continue;
		q->polled += polled;
		if (q->polled < cq->cqe)
			continue;
		q->to_check = 0;
		v->to_check--;
		krping_verbs_fail(v, krping_verbs_take_check(q, number));
	}
}

/* LAT with WRITE on UC: checks what the slot has instead of message @number. Return: its number. */
static u64 check_other(struct krping_verbs_queue *q, u64 number, struct krping_finding *finding)
{
	u64 other = krping_number_near(finding->number, 4, q->account.next);
	struct krping_finding of_other;

	krping_message_check(slot_of(q, other), q->v->test.size, q->rx_tag, other, &of_other);
	if (of_other.damage && krping_message_is_missing(&of_other, 0))
		return number;
	*finding = of_other;
	return other;
}

/*
 * LAT with WRITE: checks the slot, of which a new last byte was seen. On UC that byte says which
 * message it is, but the byte may be wrong; and a client that has given up an answer may write the
 * next message meanwhile. Then the first word says what it is.
 *
 * Return: number of the message.
 */
static u64 check_written(struct krping_verbs_queue *q, u64 number, struct krping_finding *finding)
{
	check_slot(q, number, finding);
	check_again(q, number, finding);
	if (is_overwritten(q, finding) && !finding->blank)
		number = check_other(q, number, finding);
	if (!finding->damage || is_overwritten(q, finding))
		return number;
	krping_verbs_damage(q, number, finding);
	/* so that the next message changes it */
	((u8 *)q->sink.vaddr)[q->v->test.size - 1] = number;
	krping_region_part_for_device(&q->v->control, &q->sink, 0, q->v->test.size);
	return number;
}

/* LAT with WRITE: looks for a new last byte. */
void krping_verbs_watch(struct krping_verbs *v)
{
	struct krping_verbs_queue *q = &v->queues[0];
	struct krping_finding finding = {};
	u32 size = v->test.size;
	u64 number;
	u8 last;

	krping_region_part_for_cpu(&v->control, &q->sink, 0, size);
	last = READ_ONCE(((u8 *)q->sink.vaddr)[size - 1]);
	if (last == q->last_byte)
		return;
	rmb();	/* the rest is read after it */
	number = krping_number_near(last, 1, q->account.next);
	if (v->test.validate) {
		if (krping_verbs_is_reliable(&v->test))
			number = q->account.next;
		number = check_written(q, number, &finding);
		last = is_overwritten(q, &finding) ? last : number;
	}
	q->last_byte = last;
	krping_verbs_fail(v, arrived(q, number));
}

/* ---- the report ---- */

/* Whether nothing has arrived for some jiffies, DONE included. */
static bool is_quiet(const struct krping_verbs *v, unsigned long since)
{
	return time_after(jiffies, v->done_at + since) &&
	       time_after(jiffies, v->last_arrival + since);
}

/*
 * Return: whether the REPORT can be sent. RC: a message that has completed has arrived, so what is
 * missing after a while is lost; the peer waits for longer than that.
 */
bool krping_verbs_all_arrived(struct krping_verbs *v)
{
	if (!v->peer_done || !v->is_target)
		return false;
	if (krping_verbs_is_lat(v) || !krping_verbs_takes_receive(&v->test))
		return true;
	if (v->arrived >= v->peer_sent)
		return true;
	if (krping_verbs_is_reliable(&v->test))
		return is_quiet(v, krping_step_timeout(&v->thread) / 2);
	return is_quiet(v, msecs_to_jiffies(KRPING_VERBS_QUIET_MS));
}

static u64 sum_of_counters(struct krping_verbs *v)
{
	u64 sum = 0, value;
	u32 i;

	for (i = 0; i < v->nr_queues; i++) {
		krping_region_part_for_cpu(&v->control, &v->queues[i].sink, 0, sizeof(value));
		memcpy(&value, v->queues[i].sink.vaddr, sizeof(value));
		sum += value;
	}
	return sum;
}

/* Whether a target sees what arrives. */
bool krping_verbs_sees_arrivals(const struct krping_verbs *v)
{
	if (v->test.verb == KRPING_VERB_READ)
		return false;
	return v->test.verb != KRPING_VERB_WRITE || v->uses_check || krping_verbs_is_lat(v);
}

/**
 * krping_verbs_fill_report - count what has arrived
 * @v:		krping_verbs_all_arrived()
 * @msg:	filled in with the REPORT
 *
 * Return: 0, or -EPROTO if more has arrived than was sent.
 */
int krping_verbs_fill_report(struct krping_verbs *v, struct krping_verbs_msg *msg)
{
	u64 received = v->arrived, repeated = 0, reordered = 0;
	u32 i;

	if (krping_verbs_is_atomic(&v->test))
		received = sum_of_counters(v);
	for (i = 0; i < v->nr_queues; i++) {
		repeated += v->queues[i].account.repeated;
		reordered += v->queues[i].account.reordered;
	}
	if (received > v->peer_sent && !krping_verbs_is_reliable(&v->test)) {
		repeated += received - v->peer_sent;	/* they had no numbers */
		received = v->peer_sent;
	}
	if (received > v->peer_sent) {
		krping_err(v->thread.log_prefix, "%llu messages have arrived, %llu were sent",
			   received, v->peer_sent);
		return -EPROTO;
	}
	v->report.lost = krping_verbs_sees_arrivals(v) ? v->peer_sent - received : 0;
	v->report.received = received;
	v->report.repeated = repeated;
	v->report.reordered = reordered;
	*msg = (struct krping_verbs_msg){
		.type = KRPING_VERBS_REPORT,
		.queue = cpu_to_be16(v->report.queue),
		.report = {
			.received = cpu_to_be64(received),
			.lost = cpu_to_be64(v->report.lost),
			.repeated = cpu_to_be64(repeated),
			.reordered = cpu_to_be64(reordered),
			.damaged = cpu_to_be64(v->report.damaged),
			.number = cpu_to_be64(v->report.number),
			.offset = cpu_to_be32(v->report.offset),
			.damage = v->report.damage,
		},
	};
	return 0;
}
