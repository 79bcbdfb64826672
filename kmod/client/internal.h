/* SPDX-License-Identifier: GPL-2.0 */
/* Block sessions: what only the files of client/ use. */
#ifndef KRPING_CLIENT_INTERNAL_H
#define KRPING_CLIENT_INTERNAL_H

#include "client/client.h"
#include "rdma/conn.h"
#include "rdma/buf.h"
#include "wire/wire.h"

struct krping_copy;

/**
 * struct krping_request - the driver's part of a request
 * @expires:	jiffies; an unanswered request is not sent again after this. Valid if @posted
 * @posted:	@expires is set: krping_slot_start_time() does that when the connection is lost or
 *		the answer is late
 * @losses:	connections lost in a row while it was in flight
 * @retried:	its data did not match its CRC once
 * @retry:	tells krping_complete_rq() to send it again instead of ending it
 * @error:	for krping_complete_rq(): negative errno or 0
 * @crc:	CRC32C of the data sent, or of the data received according to the target
 * @wire_tag:	generation << KRPING_TAG_BITS | tag
 * @nents:	mapped entries of the slot's scatterlist; 0 if nothing is registered
 * @unflushed:	@session->write_seq when a flush was sent
 * @work:	checks the data of a large READ
 * @unchecked:	instead, in queue->unchecked
 * @copy:	of large data, for a second attempt; NULL in the first
 * @digest:	argument of KRPING_IOC_DIGEST, NULL for other requests
 *
 * Owned by the block layer until queue_rq, then by whoever takes the request out of its slot
 * under queue->lock: the response, or recovery once the queue pair is drained.
 */
struct krping_request {
	unsigned long expires;
	bool posted;
	u8 losses;
	bool retried;
	bool retry;
	int error;
	u32 crc;
	u16 wire_tag;
	int nents;
	u64 unflushed;
	union {
		struct work_struct work;
		struct list_head unchecked;
	};
	struct krping_copy *copy;
	struct krping_digest *digest;
};

/* A tag on the wire has 4 bits of generation, which tell a late response from a current one. */
#define KRPING_TAG_BITS		12
#define KRPING_TAG_MASK		((1u << KRPING_TAG_BITS) - 1)

/* Segments of a request up to which a slot has a scatterlist of its own: 64 KiB in single pages. */
#define KRPING_FEW_SEGMENTS	18

/**
 * struct krping_slot - per driver tag
 * @rq:		the request in flight with this tag or NULL; under queue->lock
 * @tx:		the message that has its command; valid while @rq is, under queue->lock
 * @generation:	incremented at each use; under queue->lock
 * @mr:		registers the data of a large request; NULL while not connected
 * @reg_wr:	its REG_MR, posted in front of the message; part of @queue->open until then
 * @small:	a scatterlist for up to KRPING_FEW_SEGMENTS
 * @sg:		that of the request: @small, allocated, or one of @session->sg_pool
 * @sg_is_pooled: it is one of @session->sg_pool
 * @answered:	@answer came early and is held (early.c); under queue->lock
 * @answer:	of a command of large data: no inline data; under queue->lock
 * @early:	in queue->early while @answered
 * @inv_cqe:	completion of its LOCAL_INV
 */
struct krping_slot {
	struct request *rq;
	struct krping_tx *tx;
	u8 generation;
	struct ib_mr *mr;
	struct ib_reg_wr reg_wr;
	struct scatterlist small[KRPING_FEW_SEGMENTS];
	struct scatterlist *sg;
	bool sg_is_pooled;
	bool answered;
	struct krping_decoded_rsp answer;
	struct list_head early;
	struct ib_cqe inv_cqe;
};

/**
 * struct krping_tx - a message to send: 1..N commands with inline data
 * @buf:	@session->buf_size bytes; belongs to the hardware between post and completion
 * @users:	its SEND, until that has completed, and its commands in flight. The last one puts it
 *		on queue->tx_free: so no more than @queue->nr_tx messages are unanswered, which the
 *		hello promises
 * @entry:	in queue->tx_free; in queue->unsignalled until its SEND is known to have completed
 * @queue:	its queue
 * @len:	bytes filled so far
 * @message:	its number
 * @posted_at:	jiffies when it was posted
 * @send:	its SEND
 * @first:	what to post: the REG_MRs of its commands, in any order, then @send
 * @nr_regs:	number of these REG_MRs
 */
struct krping_tx {
	struct krping_buf buf;
	u32 users;
	struct list_head entry;
	struct krping_queue *queue;
	u32 len;
	u64 message;
	unsigned long posted_at;
	struct ib_send_wr send;
	struct ib_send_wr *first;
	u32 nr_regs;
};

/**
 * struct krping_keepalive - the KEEP_ALIVE command of a queue
 * @buf:	the message
 * @sent_at:	jiffies when it was last posted
 * @sending:	its SEND has not completed
 * @unanswered:	its response has not arrived
 *
 * Posted again only when both are false.
 */
struct krping_keepalive {
	struct krping_buf buf;
	unsigned long sent_at;
	bool sending;
	bool unanswered;
};

/* Receives besides those for commands in flight. */
#define KRPING_MORE_RX		2

/**
 * struct krping_queue - a connection of a session and what is in flight on it
 * @conn:	opened and closed by the session's one connecting thread
 * @session:	its session
 * @index:	from 0, also of the hardware context
 * @polls:	its completions are taken by krping_poll() alone (poll.c). Constant
 * @poll_lock:	serializes krping_poll(); taken in process context only, before @lock
 * @may_poll:	the completion queue may be used; under @poll_lock
 * @is_polling:	krping_poll() takes completions; under @poll_lock
 * @unchecked:	large READs whose data krping_poll() has to check; under @poll_lock
 * @lock:	protects slots[].rq, .generation, .tx, .answered and .answer, @tx to @sent,
 *		@early, @invalidating, @nr_rx, @nr_inflight, @nr_sending, @nr_regs, @keepalive;
 *		posts are made under it while @conn is live, except by queue_rq(), which recovery
 *		stops
 * @slots:	by driver tag; allocated at the first connection; NULL before
 * @nr_slots:	the most commands in flight
 * @tx:		messages; at most KRPING_FEW_MESSAGES. Allocated at the first connection, mapped
 *		while connected; NULL before
 * @nr_tx:	number of @tx
 * @tx_free:	free messages
 * @nr_free:	entries of @tx_free
 * @unsignalled: posted messages whose SEND causes no completion, in the order of their numbers
 * @nr_unsignalled: entries of @unsignalled
 * @refused:	a request waits for a message
 * @open:	the message that is being filled, not posted yet
 * @opened:	messages that have been opened: number of the last one
 * @posted:	number of the last one that has been posted
 * @sent:	number of the last one whose SEND has completed
 * @early:	slots that were answered before that, until their LOCAL_INV has completed
 * @invalidating: the first of @early has its LOCAL_INV posted
 * @rx:		receive buffers, the first @nr_rx of which are in use: one for each command in
 *		flight, one more because the completion handler still holds one when the commands
 *		that it answers are issued again, and one for a keep-alive. Allocated as @tx
 * @nr_rx:	at first a few; @rx_work adds some when commands wait for them
 * @rx_work:	queued by queue_rq(), so not while the queue is being connected or closed
 * @rx_short:	it found too little memory; written by it
 * @reg_cqe:	completion of unsignalled REG_MRs: called on errors only
 * @nr_inflight: slots in use
 * @nr_sending:	posted messages whose SEND is signalled and has not completed
 * @nr_regs:	REG_MRs of these and of @open, and a LOCAL_INV: at most @nr_slots, for which the
 *		send queue has room
 * @last_rx:	jiffies when the last message arrived
 * @last_answer: jiffies when the last request was answered
 * @keepalive:	the KEEP_ALIVE command
 */
struct krping_queue {
	struct krping_conn conn;
	struct krping_session *session;
	u16 index;
	bool polls;
	spinlock_t poll_lock;	/* what it protects: above */
	bool may_poll;
	bool is_polling;
	struct list_head unchecked;
	spinlock_t lock;	/* what it protects: above */
	struct krping_slot *slots;
	u32 nr_slots;
	struct krping_tx *tx;
	u32 nr_tx;
	struct list_head tx_free;
	u32 nr_free;
	struct list_head unsignalled;
	u32 nr_unsignalled;
	bool refused;
	struct krping_tx *open;
	u64 opened;
	u64 posted;
	u64 sent;
	struct list_head early;
	bool invalidating;
	struct krping_buf *rx;
	u32 nr_rx;
	struct delayed_work rx_work;
	bool rx_short;
	struct ib_cqe reg_cqe;
	u32 nr_inflight;
	u32 nr_sending;
	u32 nr_regs;
	unsigned long last_rx;
	unsigned long last_answer;
	struct krping_keepalive keepalive;
};

/* Called with q->lock held. */
static inline void krping_tx_put(struct krping_queue *q, struct krping_tx *tx)
{
	if (--tx->users)
		return;
	list_add(&tx->entry, &q->tx_free);
	WRITE_ONCE(q->nr_free, q->nr_free + 1);
}

/* Takes the request out of its slot. Called with q->lock held. */
static inline struct request *krping_slot_take(struct krping_queue *q, struct krping_slot *slot)
{
	struct request *rq = slot->rq;

	krping_tx_put(q, slot->tx);
	slot->rq = NULL;
	slot->answered = false;
	q->nr_inflight--;
	return rq;
}

/* With a local disk on top, requests fail instead of waiting for a lost target. */
static inline bool krping_session_is_stacked(const struct krping_session *s)
{
	return s->ops;
}

/* session.c */
struct krping_session *krping_session_alloc(const struct krping_options *opt,
					    const struct krping_session_ops *ops);
void krping_session_set_state(struct krping_session *s, enum krping_session_state state);
int krping_queue_violation(struct krping_queue *q, const char *what, u64 value);
int krping_session_list(struct krping_session *s);
void krping_session_unlist(struct krping_session *s);
struct krping_session *krping_session_take(const char *name, bool force);
struct gendisk *krping_session_disk(struct krping_session *s);

/* connect.c */
int krping_session_connect(struct krping_session *s, unsigned long timeout);
void krping_session_disconnect(struct krping_session *s);
void krping_session_close(struct krping_session *s);

/* recovery.c */
int krping_recovery_init(void);
void krping_recovery_exit(void);
void krping_recovery_prepare(struct krping_session *s);
void krping_session_lost(struct krping_session *s, int error);
void krping_session_go_live(struct krping_session *s);
void krping_session_fast_fail(struct krping_session *s);
extern struct workqueue_struct *krping_session_wq;	/* runs recovery_work, monitor_work */

/* monitor.c */
void krping_monitor_prepare(struct krping_session *s);
void krping_monitor_start(struct krping_session *s);
void krping_monitor_stop(struct krping_session *s);

/* keepalive.c */
int krping_keepalive_alloc(struct krping_queue *q);
void krping_keepalive_unmap(struct krping_queue *q);
void krping_keepalive_free(struct krping_queue *q);
int krping_keepalive_ask(struct krping_queue *q);
bool krping_keepalive_is_answered(const struct krping_queue *q);
bool krping_keepalive_target_answered(const struct krping_session *s);
unsigned long krping_keepalive_interval(const struct krping_session *s);
void krping_keepalive_check_queues(struct krping_session *s);
void krping_keepalive_bye(struct krping_session *s);
int krping_keepalive_answered(struct krping_queue *q, u8 status, const void *data, u32 len);

/* poll.c */
int krping_poll(struct krping_queue *q);
void krping_poll_start(struct krping_queue *q);
void krping_poll_stop(struct krping_queue *q);

/* disk.c */
int krping_disk_alloc(struct krping_session *s);
int krping_disk_add(struct krping_session *s);
void krping_disk_resize(struct krping_session *s, u64 capacity);
void krping_disk_del(struct krping_session *s);
void krping_disk_free(struct krping_session *s);

/* send.c */
blk_status_t krping_send_request(struct krping_queue *q, struct request *rq, bool last);
void krping_send_commit(struct krping_queue *q);
void krping_send_done(struct ib_cq *cq, struct ib_wc *wc);
void krping_send_reg_done(struct ib_cq *cq, struct ib_wc *wc);

/* recv.c */
int krping_recv_init(void);
void krping_recv_exit(void);
void krping_recv_done(struct ib_cq *cq, struct ib_wc *wc);
void krping_recv_inv_done(struct ib_cq *cq, struct ib_wc *wc);
void krping_recv_finish_unchecked(struct list_head *unchecked);
void krping_recv_accept(struct krping_queue *q, struct request *rq,
			const struct krping_decoded_rsp *rsp);
void krping_complete_rq(struct request *rq);

/* early.c */
bool krping_early_hold(struct krping_queue *q, struct krping_slot *slot,
		       const struct krping_decoded_rsp *rsp);
bool krping_early_is_due(const struct krping_queue *q);
void krping_early_next(struct krping_queue *q);
struct request *krping_early_finish(struct krping_queue *q, struct krping_slot *slot,
				    struct krping_decoded_rsp *answer);

/* receives.c */
u64 krping_memory_reserve(void);
u64 krping_memory_available(void);
u32 krping_receives_first(u32 depth);
bool krping_receives_suffice(struct krping_queue *q);
void krping_receives_init(struct krping_queue *q);

/* queue.c */
u64 krping_queue_bytes(const struct krping_session *s);
int krping_queue_alloc(struct krping_queue *q);
void krping_queue_free(struct krping_queue *q);
void krping_queue_free_kept(struct krping_queue *q);
void krping_slot_start_time(struct krping_queue *q, const struct krping_slot *slot);
void krping_queue_cancel(struct krping_queue *q, int error);

#endif /* KRPING_CLIENT_INTERNAL_H */
