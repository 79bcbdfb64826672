/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Block sessions: /dev/krpingN and the connections to its target. This is what main.c, control.c
 * and local/ may use; the rest is in internal.h.
 *
 *	attach.c	starts and stops a session
 *	session.c	references, state, the list and its listing
 *	connect.c	connects and closes the queues: handshake, limits
 *	recovery.c	notices a lost connection and reconnects
 *	monitor.c	the timer of a session
 *	keepalive.c	asks a silent target whether it is still there
 *	poll.c		takes the completions of poll queues
 *	disk.c		tag set, disk, what the block layer calls
 *	request.c	a request's fields on the wire
 *	copy.c		a private copy of a request's data
 *	suspect.c	finds the request that kills its connection
 *	send.c		puts requests into messages as commands
 *	recv.c		completes requests when their responses arrive
 *	receives.c	how many receives a queue has
 *	queue.c		allocates what a queue needs
 *
 * Lock order: krping_sessions_lock, queue->poll_lock, queue->lock, then conn->lock or
 * session->lock.
 */
#ifndef KRPING_CLIENT_H
#define KRPING_CLIENT_H

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/kref.h>
#include <linux/mempool.h>
#include <linux/mutex.h>
#include <linux/semaphore.h>
#include <linux/seq_file.h>
#include <linux/uuid.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include "lib/compat.h"
#include "lib/log.h"
#include "lib/stats.h"
#include "options.h"
#include "wire/wire.h"

struct crypto_shash;
struct krping_queue;
struct krping_session;

/* The largest data of a request: bytes, and segments, as it may start in the middle of a page. */
#define KRPING_DATA_MAX		SZ_1M
#define KRPING_SEGMENTS_MAX	(KRPING_DATA_MAX / PAGE_SIZE + 1)

/**
 * struct krping_session_ops - a local disk on top of a session's own disk
 * @open:	called before the session connects; sets @s->upper. Return: 0 or a negative errno,
 *		with nothing left behind
 * @close:	undoes a successful @open; @s->upper stays
 * @free:	frees @s->upper, which may be NULL; called when the session is freed
 * @add:	adds the disk that applications open; the session is live and its own, hidden disk
 *		was added. Return: as @open
 * @del:	undoes @add; afterwards nothing uses the hidden disk
 * @disk:	returns the disk that applications open, between @add and @close
 * @data_lost:	the target has lost data that it had acknowledged
 * @show:	adds keys to the session's line in /proc/krping_sessions, each after a space;
 *		@s->upper may be NULL
 *
 * All may sleep.
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
	KRPING_SESSION_CONNECTING,	/* krping_session_start() sets it up */
	KRPING_SESSION_LIVE,
	KRPING_SESSION_RECONNECTING,	/* requests wait */
	KRPING_SESSION_FAILED,		/* requests fail until the session is stopped */
	KRPING_SESSION_STOPPING,
};

/**
 * struct krping_session - a block session
 * @entry:	in krping_sessions; under krping_sessions_lock
 * @ref:	one for the list, one for the disk (until its last opener closes it)
 * @id:		number of the session and of its disk
 * @opt:	the command, constant but for fast_fail, which sysfs changes (WRITE_ONCE)
 * @log_prefix:	for log messages
 * @uuid:	identifies the session to the target
 * @key:	proves client and target to each other; NULL: no proofs. Constant
 * @net:	referenced: network namespace of the process that started the session
 * @peer:	address and port of the target
 * @ibdev:	name of the RDMA device of the last connection; under @lock
 * @lock:	protects @state, @lost_since, @outage_since, @ibdev
 * @state:	enum krping_session_state
 * @no_wait:	being started or stopped: a lost connection fails the session at once
 * @aborted:	the connecting thread shall give up
 * @forced:	@recovery_work shall fail the session even if it is live
 * @lost_since:	jiffies when the session stopped being live
 * @outage_since: as @lost_since, of the first of @early_losses; fast_fail counts from here
 * @failing:	the outage exceeds fast_fail: requests fail until the session is live
 * @recovery_work: the connecting thread of a session that has a disk
 * @torn_down:	the queues are closed and no queue_rq() uses them; under @hold_lock
 * @hold_lock:	a mutex; protects @held, @failing, @torn_down
 * @held:	the block layer holds requests back
 * @attempts:	to reconnect since the loss; the connecting thread's
 * @target_changed: the last welcome does not fit the session; the connecting thread's
 * @old_target:	it does not know KRPING_HELLO_FEW; the connecting thread's
 * @early_losses: consecutive losses that came before the target had sent anything; written by
 *		the connecting thread, read by others
 * @live_since:	jiffies; written by the connecting thread, read by others
 * @monitor_work: the session's timer while it has a disk
 * @capacity:	bytes, last reported by the target; the disk follows
 * @grant:	written by the connecting thread while no request can run
 * @buf_size:	bytes of a message buffer: max_message of the first grant
 * @max_segments: of a request, at most KRPING_SEGMENTS_MAX
 * @max_bytes:	of a request
 * @sg_pool:	scatterlists of KRPING_SEGMENTS_MAX entries; @nr_queues + 1 are always there
 * @queues:	@nr_queues of them, the last @nr_poll of which are polled
 * @write_seq:	counts acknowledged writes that a crash of the target may lose
 * @flushed_seq: value of @write_seq that the last flush covered
 * @tag_set:	one hardware queue per queue
 * @disk:	NULL until the first connection
 * @ops:	of the local disk on top of @disk, which is hidden then; NULL without. Constant
 * @upper:	for @ops; set by @ops->open()
 * @suspect:	the one request in flight that may kill its connection (suspect.c), or NULL;
 *		changed with cmpxchg() by its owner
 * @digests:	limits those in flight, which could take all tags; a target runs as many
 * @stats:	enum krping_block_counter
 */
struct krping_session {
	struct list_head entry;
	struct kref ref;
	int id;
	struct krping_options opt;
	char log_prefix[KRPING_LOG_PREFIX];
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
	unsigned long outage_since;
	bool failing;
	struct delayed_work recovery_work;
	struct mutex hold_lock;	/* what it protects: above */
	bool torn_down;
	bool held;
	unsigned int attempts;
	bool target_changed;
	bool old_target;
	unsigned int early_losses;
	unsigned long live_since;
	struct delayed_work monitor_work;
	u64 capacity;
	struct krping_grant grant;
	u32 buf_size;
	u32 max_segments;
	u32 max_bytes;
	mempool_t sg_pool;
	struct krping_queue *queues;
	u32 nr_queues;
	u32 nr_poll;
	atomic64_t write_seq;
	atomic64_t flushed_seq;
	struct blk_mq_tag_set tag_set;
	struct gendisk *disk;
	const struct krping_session_ops *ops;
	void *upper;
	struct request *suspect;
	struct semaphore digests;
	struct krping_stats __percpu *stats;
};

/* attach.c */
int krping_client_init(void);
void krping_client_exit(void);
int krping_session_start(const struct krping_options *opt,
			 const struct krping_session_ops *ops);
int krping_session_stop(const char *name, bool force);

/* session.c */
void krping_session_put(struct krping_session *s);
void krping_sessions_show(struct seq_file *seq);

/* recovery.c */
void krping_session_abort(struct krping_session *s, bool force);

/* disk.c */
int krping_disk_ioctl(struct block_device *bdev, krping_blk_mode_t mode, unsigned int cmd,
		      unsigned long arg);
int krping_disk_add_head(struct gendisk *head);

/* recv.c: computes CRCs, blocks on nothing */
extern struct workqueue_struct *krping_crc_wq;

#endif /* KRPING_CLIENT_H */
