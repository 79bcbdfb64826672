/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A verbs test (PROTOCOL.md section 1.3). The thread that wrote the command does all of it: it
 * polls the completion queues, fills, posts, checks and accounts. So nothing here needs a lock,
 * except what struct krping_conn has of its own; completion queues only wake the thread.
 */
#ifndef KRPING_VERBS_H
#define KRPING_VERBS_H

#include <linux/math64.h>

#include "ping/thread.h"
#include "rdma/buf.h"
#include "rdma/region.h"
#include "verbs/account.h"
#include "verbs/message.h"
#include "verbs/params.h"

struct krping_verbs;
struct krping_verbs_queue;

#define KRPING_VERBS_CONTROL_TX	16	/* control messages in flight */
#define KRPING_VERBS_CHAIN	32	/* work requests posted at once */
/* How long a test may wait for slots that are being written; a tenth of its time is added. */
#define KRPING_VERBS_PATIENCE_NS NSEC_PER_SEC

/* LAT: an answer overtakes the completion of its message. Each one that is saved is a wake-up. */
#define KRPING_VERBS_LAT_DEPTH	16
#define KRPING_VERBS_LAT_SIGNAL	8	/* half of it: the next ones are posted meanwhile */

/* Work requests in the send queue of a data queue pair besides messages: CHECK, and the drain. */
#define KRPING_VERBS_SPARE_WR	(KRPING_VERBS_CHECK_DEPTH + 1)

/**
 * struct krping_verbs_control - a message buffer of the control connection, or for CHECK
 * @v:		the test
 * @buf:	64 bytes
 */
struct krping_verbs_control {
	struct krping_verbs *v;
	struct krping_buf buf;
};

/**
 * struct krping_verbs_recv - a receive of a ring
 * @cqe:	its completion
 * @ring:	that it belongs to
 * @index:	in the ring
 */
struct krping_verbs_recv {
	struct ib_cqe cqe;
	struct krping_verbs_ring *ring;
	u32 index;
};

/**
 * struct krping_verbs_ring - the receives of a queue pair, or of a shared receive queue
 * @conn:	whose device and PD the memory is for
 * @recvs:	@nr receives; NULL: there is no ring
 * @nr:		receives
 * @regions:	@nr_regions of slots, each with @slots_each of @stride bytes; none for WRITE_IMM,
 *		whose receives have no memory
 * @nr_regions:	regions allocated
 * @slots_each:	slots of a region
 * @nr_slots:	slots: @nr, or 1 if nobody looks at the data
 * @stride:	bytes from a slot to the next
 * @len:	bytes of a receive
 * @qp:		posts to this queue pair, or
 * @srq:	to this shared receive queue
 */
struct krping_verbs_ring {
	struct krping_conn *conn;
	struct krping_verbs_recv *recvs;
	u32 nr;
	struct krping_region *regions;
	u32 nr_regions;
	u32 slots_each;
	u32 nr_slots;
	u32 stride;
	u32 len;
	struct ib_qp *qp;
	struct ib_srq *srq;
};

/**
 * struct krping_verbs_peer - what the peer says about its end of a data queue pair
 * @known:	its QUEUE has arrived; the rest is valid
 * @qpn:	UC, UD: queue pair number
 * @psn:	UC, UD: first packet sequence number
 * @qkey:	UD: queue key
 * @slots:	of its memory, or its receives
 * @addr:	address of its memory
 * @rkey:	its remote key
 */
struct krping_verbs_peer {
	bool known;
	u32 qpn;
	u32 psn;
	u32 qkey;
	u32 slots;
	u64 addr;
	u32 rkey;
};

/**
 * struct krping_verbs_queue - a data queue pair
 * @v:		the test
 * @index:	from 0
 * @conn:	RC: its connection
 * @qp:		the queue pair; of @conn if RC
 * @cq:		of both queues; shared with other queue pairs
 * @psn:	UC, UD: first packet sequence number of this side
 * @peer:	the other end
 * @tx_tag:	tag of the data that is sent, or read
 * @source:	initiator: @nr_source slots that are sent from or read into
 * @nr_source:	slots; 0: not an initiator
 * @wipe:	READ: a slot has to be wiped before the next message is read into it
 * @depth:	messages that may be in flight
 * @signal:	one message in so many is signalled
 * @end:	messages to send; U64_MAX while there is no end
 * @posted:	messages posted
 * @completed:	of those, known to have completed
 * @credit:	number of the last CREDIT
 * @checked_upto: WRITE with VALIDATE: messages for which a CHECK was posted
 * @checks:	buffers for CHECK, KRPING_VERBS_CHECK_DEPTH each way: sent, then received; or NULL
 * @checks_posted: CHECKs posted
 * @checks_done: those that have completed
 * @asked:	UC: number of the CHECK on the control connection that is unanswered, 0: none
 * @blocked:	jiffies since when credit is lacking; valid if @is_blocked
 * @is_blocked:	a message or CHECK waits for credit
 * @started:	LAT: when the operation in flight began, which is when the one before it ended;
 *		0 before the first
 * @posted_at:	LAT: jiffies when the last message was posted
 * @answers:	LAT, client: messages that are answered or lost
 * @owes:	LAT, server: message @posted is to be sent as an answer
 * @tx_cqe:	completion of a signalled message
 * @rx_tag:	tag of the data that arrives
 * @sink:	target: @nr_sink slots that the peer writes to or reads from, or its counter
 * @nr_sink:	slots; 0: none
 * @ring:	target: receives, unless they are in v->srq
 * @account:	messages that have arrived
 * @checked:	WRITE: messages before this one were checked; others: messages that were received
 * @to_check:	UC: number of a CHECK on the control connection that is not answered yet, 0: none
 * @polled:	completions of @cq that were taken since that CHECK came
 * @credited:	number of the last CREDIT that was sent
 * @credit_due:	a CREDIT of @checked is to be sent
 * @last_byte:	LAT with WRITE: last byte of slot 0
 */
struct krping_verbs_queue {
	struct krping_verbs *v;
	u16 index;
	struct krping_conn conn;
	struct ib_qp *qp;
	struct ib_cq *cq;
	u32 psn;
	struct krping_verbs_peer peer;
	/* initiator */
	u16 tx_tag;
	struct krping_region source;
	u32 nr_source;
	bool wipe;
	u32 depth;
	u32 signal;
	u64 end;
	u64 posted;
	u64 completed;
	u64 credit;
	u64 checked_upto;
	struct krping_verbs_control *checks;
	u32 checks_posted;
	u32 checks_done;
	u64 asked;
	unsigned long blocked;
	bool is_blocked;
	ktime_t started;
	unsigned long posted_at;
	u64 answers;
	bool owes;
	struct ib_cqe tx_cqe;
	/* target */
	u16 rx_tag;
	struct krping_region sink;
	u32 nr_sink;
	struct krping_verbs_ring ring;
	struct krping_account account;
	u64 checked;
	u64 to_check;
	u64 polled;
	u64 credited;
	bool credit_due;
	u8 last_byte;
};

/**
 * struct krping_verbs_wr - a work request of any verb, with its SGE
 * @send:	first member of all
 * @rdma:	WRITE, READ
 * @atomic:	FETCH_ADD, CMP_SWAP
 * @ud:		SEND on UD
 * @sge:	local memory
 */
struct krping_verbs_wr {
	union {
		struct ib_send_wr send;
		struct ib_rdma_wr rdma;
		struct ib_atomic_wr atomic;
		struct ib_ud_wr ud;
	};
	struct ib_sge sge;
};

/**
 * struct krping_verbs - a verbs test that runs
 * @thread:	its place among the threads, its log and result; its @progress grows when there is
 *		something to poll
 * @test:	what is tested: the command, or a server's with what its client says
 * @control:	the control connection; its PD is that of all
 * @rx:		receives of the control connection, @nr_rx of them
 * @nr_rx:	entries of @rx
 * @tx:		messages to the peer
 * @tx_posted:	messages posted
 * @tx_done:	those that have completed
 * @probe_cqe:	completion of a probe
 * @probing:	a probe is in flight
 * @ignored:	completions that are no progress of the test: probes, datagrams of others,
 *		CREDIT that grants nothing
 * @regs_pending: registrations in flight
 * @cqs:	completion queues of the data queue pairs
 * @nr_cqs:	entries of @cqs
 * @queues:	data queue pairs
 * @nr_queues:	entries of @queues; written once, after them, because the loss of the control
 *		connection fails their connections
 * @known:	queue pairs whose QUEUE has arrived
 * @srq:	shared receive queue, or NULL
 * @srq_ring:	its receives
 * @ah:		UD: address of the peer
 * @is_initiator: this side sends, or accesses the peer's memory
 * @is_target:	the peer does
 * @uses_credit: messages need credit
 * @uses_check:	WRITEs are checked when a CHECK arrives
 * @to_check:	queue pairs whose to_check is not 0
 * @ready:	server: all is prepared, and GO may arrive
 * @going:	GO was sent or has arrived; there is memory before that
 * @error:	negative errno of what went wrong in a completion or message, or 0
 * @told:	the peer has sent ERROR
 * @client_stopped: it was a client that ended an endless test
 * @stopping:	no more messages are begun
 * @sent:	messages posted on all queue pairs
 * @done:	messages completed on all queue pairs
 * @arrived:	messages that have arrived on all queue pairs
 * @next_queue:	the queue pair that posts next
 * @next_credit: the queue pair that gives or asks for credit next
 * @done_sent:	DONE was sent
 * @reported:	REPORT has arrived
 * @peer_lost:	messages that it has lost, by its REPORT
 * @peer_damaged: messages that it found damaged, by its REPORT
 * @done_at:	jiffies when DONE has arrived
 * @peer_done:	DONE has arrived
 * @peer_sent:	its number
 * @report_sent: REPORT was sent
 * @report:	what this side has counted for its REPORT
 * @last_arrival: jiffies when the last message arrived
 * @moved:	jiffies when the test last made progress
 * @probed:	jiffies when the last probe was posted
 * @deadline:	jiffies when no more messages are begun, if there is a duration
 * @began:	when the test was set up
 * @waited_ns:	for how long it has waited for slots that are being written
 * @peak:	rate over intervals
 * @counted:	operations that are in the result
 * @charged:	bytes of memory that it may use; of all tests together there is a limit
 * @wrs:	for chains of work requests
 */
struct krping_verbs {
	struct krping_thread thread;
	struct krping_options test;
	struct krping_conn control;
	struct krping_verbs_control *rx;
	u32 nr_rx;
	struct krping_verbs_control tx[KRPING_VERBS_CONTROL_TX];
	u32 tx_posted;
	u32 tx_done;
	struct ib_cqe probe_cqe;
	bool probing;
	u32 ignored;
	u32 regs_pending;
	struct ib_cq **cqs;
	u32 nr_cqs;
	struct krping_verbs_queue *queues;
	u32 nr_queues;
	u32 known;
	struct ib_srq *srq;
	struct krping_verbs_ring srq_ring;
	struct ib_ah *ah;
	bool is_initiator;
	bool is_target;
	bool uses_credit;
	bool uses_check;
	u32 to_check;
	bool ready;
	bool going;
	int error;
	bool told;
	bool client_stopped;
	bool stopping;
	u64 sent;
	u64 done;
	u64 arrived;
	u32 next_queue;
	u32 next_credit;
	bool done_sent;
	bool reported;
	u64 peer_lost;
	u64 peer_damaged;
	bool peer_done;
	u64 peer_sent;
	bool report_sent;
	struct {
		u64 received;
		u64 lost;
		u64 repeated;
		u64 reordered;
		u64 damaged;
		u16 queue;
		u64 number;
		u32 offset;
		enum krping_verbs_damage damage;
	} report;
	unsigned long done_at;
	unsigned long last_arrival;
	unsigned long moved;
	unsigned long probed;
	unsigned long deadline;
	ktime_t began;
	s64 waited_ns;
	struct krping_peak peak;
	u64 counted;
	u64 charged;
	struct krping_verbs_wr wrs[KRPING_VERBS_CHAIN];
};

static inline bool krping_verbs_is_client(const struct krping_verbs *v)
{
	return krping_is_client(&v->thread);
}

static inline bool krping_verbs_is_lat(const struct krping_verbs *v)
{
	return v->test.measure == KRPING_VERBS_LAT;
}

/* 32-bit CPUs have no division of this kind. */
static inline u32 krping_verbs_mod(u64 number, u32 by)
{
	u32 rest;

	div_u64_rem(number, by, &rest);
	return rest;
}

/* The connection that fails with the queue pair. */
static inline struct krping_conn *krping_verbs_conn_of(struct krping_verbs_queue *q)
{
	return krping_verbs_is_reliable(&q->v->test) ? &q->conn : &q->v->control;
}

/* Jiffies that a step of the set-up may take: the peer may be preparing its queue pairs. */
static inline unsigned long krping_verbs_setup_timeout(const struct krping_verbs *v)
{
	return krping_step_timeout(&v->thread) * (1 + v->nr_queues / 64);
}

/* Keeps the first error: the test ends with it. */
static inline void krping_verbs_fail(struct krping_verbs *v, int error)
{
	if (!v->error)
		v->error = error;
}

/* device.c */
int krping_verbs_check_device(struct krping_verbs *v, u32 *need);
u32 krping_verbs_path_mtu(const struct krping_conn *conn);
const char *krping_need_text(u32 need);

/* memory.c */
int krping_verbs_plan(struct krping_verbs *v);
int krping_verbs_memory_alloc(struct krping_verbs *v);
void krping_verbs_memory_free(struct krping_verbs *v);

/* ring.c */
int krping_verbs_ring_fill(struct krping_verbs_ring *ring);
int krping_verbs_ring_repost(struct krping_verbs_ring *ring, struct krping_verbs_recv *recv);
u8 *krping_verbs_ring_data(struct krping_verbs_ring *ring, u32 index);

/* queue.c */
u32 krping_verbs_send_wr(const struct krping_verbs_queue *q);
u32 krping_verbs_recv_wr(const struct krping_verbs_queue *q);
int krping_verbs_queues_alloc(struct krping_verbs *v);
int krping_verbs_rc_prepare(struct krping_verbs_queue *q);
int krping_verbs_queues_prepare(struct krping_verbs *v);
int krping_verbs_queues_connect(struct krping_verbs *v);
void krping_verbs_describe(const struct krping_verbs_queue *q, struct krping_verbs_msg *msg);
void krping_verbs_queues_stop(struct krping_verbs *v);
void krping_verbs_queues_free(struct krping_verbs *v);

/* control.c */
int krping_verbs_control_alloc(struct krping_verbs *v);
void krping_verbs_control_free(struct krping_verbs *v);
bool krping_verbs_control_has_room(const struct krping_verbs *v);
int krping_verbs_control_send(struct krping_verbs *v, const struct krping_verbs_msg *msg);
int krping_verbs_control_probe(struct krping_verbs *v);
void krping_verbs_check_recv_done(struct ib_cq *cq, struct ib_wc *wc);
int krping_verbs_checks_alloc(struct krping_verbs_queue *q,
			      void (*done)(struct ib_cq *cq, struct ib_wc *wc));
void krping_verbs_checks_free(struct krping_verbs_queue *q);
int krping_verbs_checks_post(struct krping_verbs_queue *q);

/* send.c */
u32 krping_verbs_in_flight(const struct krping_verbs_queue *q);
int krping_verbs_post(struct krping_verbs *v);
void krping_verbs_stop(struct krping_verbs *v);
bool krping_verbs_all_sent(const struct krping_verbs *v);
bool krping_verbs_lacks_credit(const struct krping_verbs *v);
bool krping_verbs_is_stalled(struct krping_verbs_queue *q);
int krping_verbs_take_credit(struct krping_verbs_queue *q, u64 number);
void krping_verbs_tx_done(struct ib_cq *cq, struct ib_wc *wc);
void krping_verbs_check_sent(struct ib_cq *cq, struct ib_wc *wc);

/* recv.c */
u32 krping_verbs_granted_slots(const struct krping_verbs_queue *q);
void krping_verbs_rx_done(struct ib_cq *cq, struct ib_wc *wc);
int krping_verbs_take_check(struct krping_verbs_queue *q, u64 number);
void krping_verbs_defer_check(struct krping_verbs_queue *q, u64 number);
void krping_verbs_take_deferred(struct krping_verbs *v, const struct ib_cq *cq, u32 polled);
void krping_verbs_watch(struct krping_verbs *v);
bool krping_verbs_sees_arrivals(const struct krping_verbs *v);
bool krping_verbs_all_arrived(struct krping_verbs *v);
int krping_verbs_fill_report(struct krping_verbs *v, struct krping_verbs_msg *msg);

/* damage.c */
void krping_verbs_damage(struct krping_verbs_queue *q, u64 number,
			 const struct krping_finding *finding);
void krping_verbs_corrupt(const struct krping_verbs_queue *q, u8 *data, u64 number);

/* poll.c */
void krping_verbs_notify(struct ib_cq *cq, void *context);
u32 krping_verbs_poll(struct krping_verbs *v);
bool krping_verbs_watches_memory(const struct krping_verbs *v);
int krping_verbs_post_failed(struct krping_verbs *v, const char *what, int ret);
void krping_verbs_settle(struct krping_verbs *v);

/* loop.c */
int krping_verbs_wait(struct krping_verbs *v, bool (*is_done)(struct krping_verbs *v));
int krping_verbs_tell(struct krping_verbs *v, const struct krping_verbs_msg *msg);
int krping_verbs_loop(struct krping_verbs *v);

/* run.c */
int krping_verbs_run(const struct krping_options *opt, struct krping_result *result);

#endif /* KRPING_VERBS_H */
