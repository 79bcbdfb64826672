/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A block session: /dev/krpingN and the connections to its target.
 *
 *	session.c	references, state, the list and its listing
 *	attach.c	start, stop
 *	connect.c	connects the queues and closes them
 *	recovery.c	notices the loss of a queue, connects again
 *	keepalive.c	asks a silent target for a sign of life
 *	monitor.c	the session's timer
 *	disk.c		tag set, disk, what the block layer calls
 *	request.c	what a request is on the wire
 *	copy.c		a private copy of a request's data
 *	send.c		a request becomes a command in a message
 *	recv.c		a response ends it
 *	queue.c		what a queue uses
 *	stack.h		a local backing beside the target, with a disk on top of both
 *
 * Lock order: krping_sessions_lock, queue->lock, then conn->lock or session->lock.
 */
#ifndef KRPING_BLOCK_H
#define KRPING_BLOCK_H

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/uuid.h>
#include <linux/workqueue.h>

#include "lib/compat.h"
#include "rdma/conn.h"
#include "rdma/buf.h"
#include "lib/stats.h"
#include "wire/wire.h"

struct crypto_shash;
struct krping_copy;
struct krping_session;

/**
 * struct krping_session_ops - what a local disk on top of a session's own does
 * @open:	before the session connects: sets @s->upper. Return: 0 or a negative errno, with
 *		nothing left behind. Sleeps, as all do
 * @close:	undoes @open, if that was called and did not fail; @s->upper may still be shown
 * @free:	the last reference to the session is gone: frees @s->upper, which may be NULL
 * @add:	the session is live and its disk, which is hidden, was added: adds the one that
 *		applications open. Return: as @open
 * @del:	undoes @add: nothing uses the hidden disk any more
 * @disk:	what @add has added
 * @data_lost:	the target has lost some of what it answered; nobody knows what
 * @show:	adds keys to the session's line of /proc/krping_sessions, each with a space in
 *		front; @s->upper may be NULL
 */
struct krping_session_ops {
	int (*open)(struct krping_session *s);
	void (*close)(struct krping_session *s);
	void (*free)(struct krping_session *s);
	int (*add)(struct krping_session *s);
	void (*del)(struct krping_session *s);
	struct gendisk *(*disk)(struct krping_session *s);
	void (*data_lost)(struct krping_session *s, const char *what);
	void (*show)(struct krping_session *s, struct seq_file *seq);
};

enum krping_session_state {
	KRPING_SESSION_CONNECTING,	/* the writer of the command sets it up */
	KRPING_SESSION_LIVE,
	KRPING_SESSION_RECONNECTING,	/* requests wait */
	KRPING_SESSION_FAILED,		/* requests fail, until it is stopped */
	KRPING_SESSION_STOPPING,
};

/**
 * struct krping_request - the driver's part of a request
 * @expires:	jiffies; a request that is still unanswered then is not sent again
 * @retried:	its data did not match its CRC once
 * @retry:	for krping_complete_rq(): send it again instead of ending it
 * @error:	for krping_complete_rq(): negative errno or 0
 * @crc:	CRC32C of the data that was sent, or that the target says it has sent
 * @wire_tag:	generation << KRPING_TAG_BITS | tag
 * @nents:	mapped entries of the slot's scatterlist; 0 if nothing is registered
 * @unflushed:	@session->write_seq when a flush was sent
 * @work:	checks the data of a large READ
 * @copy:	of large data, with which a second attempt is made; NULL in a first one
 * @digest:	what KRPING_IOC_DIGEST asks for, NULL for others
 *
 * Owned by the block layer until queue_rq, then by whoever takes it out of its slot
 * under queue->lock: the response, or recovery once the queue pair is drained.
 */
struct krping_request {
	unsigned long expires;
	bool retried;
	bool retry;
	int error;
	u32 crc;
	u16 wire_tag;
	int nents;
	u64 unflushed;
	struct work_struct work;
	struct krping_copy *copy;
	struct krping_digest *digest;
};

/* A tag on the wire: 4 bits of generation tell a late response from a current one. */
#define KRPING_TAG_BITS		12
#define KRPING_TAG_MASK		((1u << KRPING_TAG_BITS) - 1)

/**
 * struct krping_slot - what belongs to a driver tag
 * @rq:		the request in flight with this tag or NULL; under queue->lock
 * @generation:	counted at each use; under queue->lock
 * @mr:		registers the data of a large request
 * @reg_wr:	its REG_MR, posted in front of the message
 * @sg:		@session->max_segments entries
 */
struct krping_slot {
	struct request *rq;
	u8 generation;
	struct ib_mr *mr;
	struct ib_reg_wr reg_wr;
	struct scatterlist *sg;
};

/**
 * struct krping_tx - a message to send: 1..N commands with inline data
 * @buf:	max_message bytes; on the wire between post and its completion
 * @entry:	in queue->tx_free
 * @queue:	its queue
 * @len:	bytes filled so far
 * @reg:	REG_MR to post in front, or NULL; a command that has one ends its message
 */
struct krping_tx {
	struct krping_buf buf;
	struct list_head entry;
	struct krping_queue *queue;
	u32 len;
	struct krping_slot *reg;
};

/**
 * struct krping_alive - the KEEP_ALIVE command of a queue
 * @buf:	the message
 * @asked:	jiffies, when it was posted
 * @sending:	its SEND is not complete
 * @unanswered:	its response has not come
 *
 * Posted again only when it is neither.
 */
struct krping_alive {
	struct krping_buf buf;
	unsigned long asked;
	bool sending;
	bool unanswered;
};

/**
 * struct krping_queue - a connection of a session and what is in flight on it
 * @conn:	opened and closed by the session's one connecting thread
 * @session:	its session
 * @index:	from 0, also that of the hardware context
 * @lock:	protects slots[].rq, slots[].generation, @tx_free, @open, @nr_inflight,
 *		@nr_sending, @alive; but for queue_rq(), which recovery stops, posts are made
 *		under it while @conn is live
 * @slots:	by driver tag; NULL while not connected
 * @nr_slots:	commands in flight at most
 * @tx:		messages; fewer than slots, as they are gathered. From the first connection on,
 *		mapped while connected; NULL before
 * @nr_tx:	of them
 * @tx_free:	messages that are free
 * @open:	the message that is being filled, not posted yet
 * @rx:		receive buffers: one more than @nr_slots, as one is in the hands of the
 *		completion while the commands that it answers are issued anew; and one for
 *		a sign of life. As @tx
 * @nr_rx:	of them
 * @reg_cqe:	completion of REG_MR, which is unsignalled: sees errors only
 * @nr_inflight: slots in use
 * @nr_sending:	messages posted whose SEND is not complete
 * @heard:	jiffies, when the last message arrived
 * @alive:	the question for a sign of life
 */
struct krping_queue {
	struct krping_conn conn;
	struct krping_session *session;
	u16 index;
	spinlock_t lock;	/* what it protects: above */
	struct krping_slot *slots;
	u32 nr_slots;
	struct krping_tx *tx;
	u32 nr_tx;
	struct list_head tx_free;
	struct krping_tx *open;
	struct krping_buf *rx;
	u32 nr_rx;
	struct ib_cqe reg_cqe;
	u32 nr_inflight;
	u32 nr_sending;
	unsigned long heard;
	struct krping_alive alive;
};

/**
 * struct krping_session - a block session
 * @entry:	in krping_sessions; under krping_sessions_lock
 * @ref:	one for the list, one for the disk (until its last opener is gone)
 * @id:		number of the session and of its disk
 * @opt:	the command, constant
 * @log_prefix:	for the log
 * @uuid:	names the session to the target
 * @key:	proves the client to the target and the reverse; NULL: neither does. Constant
 * @net:	referenced: the name space of whoever started the session
 * @peer:	address and port of the target
 * @ibdev:	name of the RDMA device of the last connection; under @lock
 * @lock:	protects @state, @lost_since, @away_since, @ibdev
 * @state:	enum krping_session_state
 * @no_wait:	being started or stopped: a loss fails the session instead of waiting
 * @aborted:	the connecting thread is to give up
 * @forced:	the recovery work is to fail the session even if it is live
 * @lost_since:	jiffies, when the session stopped being live
 * @away_since:	the same, of the first of @unheard losses: for fast_fail
 * @failing:	the loss lasts longer than fast_fail: requests fail until the session is live
 * @recovery:	the connecting thread of a session that is set up
 * @torn_down:	the queues are closed, no queue_rq() uses them; under @hold_lock
 * @hold_lock:	a mutex; protects @held, @failing, @torn_down
 * @held:	requests wait in the block layer
 * @attempts:	to reconnect since the loss; the connecting thread's
 * @unfit:	the target's welcome is not one to go on with; the connecting thread's
 * @unheard:	losses in a row, each soon and before the target had said anything; the
 *		connecting thread's, others read it
 * @live_since:	jiffies; the connecting thread's
 * @beat:	looks after the session while it has a disk
 * @capacity:	what the target said last, in bytes; the disk follows
 * @grant:	written by the connecting thread while no request can run
 * @max_segments: of a request
 * @max_bytes:	of a request
 * @queues:	@nr_queues of them
 * @write_seq:	counts writes that were answered but may be lost by a target's crash
 * @flushed_seq: value of @write_seq that the last flush covered
 * @tag_set:	one hardware queue per queue
 * @disk:	NULL until the first connection
 * @ops:	of what stacks a local disk on @disk, which is hidden then; NULL if nothing does.
 *		Constant
 * @upper:	its own, from @ops->open() on; constant while there is a @disk
 * @stats:	enum krping_block_counter
 */
struct krping_session {
	struct list_head entry;
	struct kref ref;
	int id;
	struct krping_options opt;
	char log_prefix[96];
	uuid_t uuid;
	struct crypto_shash *key;
	struct net *net;
	struct sockaddr_storage peer;
	char ibdev[IB_DEVICE_NAME_MAX];
	spinlock_t lock;	/* what it protects: above */
	enum krping_session_state state;
	bool no_wait;
	bool aborted;
	bool forced;
	unsigned long lost_since;
	unsigned long away_since;
	bool failing;
	struct delayed_work recovery;
	struct mutex hold_lock;	/* what it protects: above */
	bool torn_down;
	bool held;
	unsigned int attempts;
	bool unfit;
	unsigned int unheard;
	unsigned long live_since;
	struct delayed_work beat;
	u64 capacity;
	struct krping_grant grant;
	u32 max_segments;
	u32 max_bytes;
	struct krping_queue *queues;
	u32 nr_queues;
	atomic64_t write_seq;
	atomic64_t flushed_seq;
	struct blk_mq_tag_set tag_set;
	struct gendisk *disk;
	const struct krping_session_ops *ops;
	void *upper;
	struct krping_stats __percpu *stats;
};

/* A local disk is on top: then no request waits for a lost target, it fails. */
static inline bool krping_session_is_stacked(const struct krping_session *s)
{
	return s->ops;
}

/* session.c */
struct krping_session *krping_session_alloc(const struct krping_options *opt,
					    const struct krping_session_ops *ops);
void krping_session_put(struct krping_session *s);
void krping_session_set_state(struct krping_session *s, enum krping_session_state state);
int krping_queue_violation(struct krping_queue *q, const char *what, u64 value);
int krping_session_list(struct krping_session *s);
void krping_session_unlist(struct krping_session *s);
struct krping_session *krping_session_take(const char *name, bool force);
struct gendisk *krping_session_disk(struct krping_session *s);
void krping_sessions_show(struct seq_file *seq);

/* attach.c */
int krping_client_init(void);
void krping_client_exit(void);
int krping_session_start(const struct krping_options *opt,
			 const struct krping_session_ops *ops);
int krping_session_stop(const char *name, bool force);

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
void krping_session_abort(struct krping_session *s, bool force);
void krping_session_fast_fail(struct krping_session *s);
extern struct workqueue_struct *krping_wq;		/* recovery.c, monitor.c */

/* monitor.c */
void krping_heartbeat_prepare(struct krping_session *s);
void krping_heartbeat_start(struct krping_session *s);
void krping_heartbeat_stop(struct krping_session *s);

/* keepalive.c */
unsigned long krping_look_interval(const struct krping_session *s);
void krping_look_after(struct krping_session *s);
int krping_alive_alloc(struct krping_queue *q);
void krping_alive_free(struct krping_queue *q);
int krping_alive_check(struct krping_session *s, unsigned long timeout);
int krping_alive_answer(struct krping_queue *q, u8 status, const void *data, u32 len);

/* disk.c */
int krping_disk_alloc(struct krping_session *s);
int krping_disk_add(struct krping_session *s);
void krping_disk_resize(struct krping_session *s, u64 capacity);
void krping_disk_del(struct krping_session *s);
void krping_disk_free(struct krping_session *s);
int krping_disk_ioctl(struct block_device *bdev, krping_blk_mode_t mode, unsigned int cmd,
		      unsigned long arg);

/* send.c */
blk_status_t krping_queue_request(struct krping_queue *q, struct request *rq, bool last);
void krping_queue_commit(struct krping_queue *q);
void krping_send_done(struct ib_cq *cq, struct ib_wc *wc);
void krping_reg_done(struct ib_cq *cq, struct ib_wc *wc);

/* recv.c */
int krping_recv_init(void);
void krping_recv_exit(void);
extern struct workqueue_struct *krping_check_wq;	/* computes CRCs; waits for nothing */
void krping_recv_done(struct ib_cq *cq, struct ib_wc *wc);
void krping_complete_rq(struct request *rq);

/* queue.c */
int krping_queue_alloc(struct krping_queue *q);
void krping_queue_free(struct krping_queue *q);
void krping_queue_free_messages(struct krping_queue *q);
void krping_queue_cancel(struct krping_queue *q);

#endif /* KRPING_BLOCK_H */
