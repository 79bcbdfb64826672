/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The target: volumes that this host serves to block clients (PROTOCOL.md section 2).
 *
 *	volume.c	volumes: start, stop, list
 *	accept.c	the listener of a volume, the handshake
 *	challenge.c	challenges of the handshake that are not answered yet
 *	conn.c		the life of a connection
 *	worker.c	messages in, data moved, messages out
 *	decode.c	a message becomes commands in flight, or a violation (wire.c: its bytes)
 *	memory.c	memory for large data
 *	store.c		carries out a command on the backing
 *
 * A connection has one worker, krping_target_conn.poll_work: it alone polls the completion queue,
 * looks at what the store has finished, decodes, executes, posts and answers. So nothing of
 * this needs a lock; what ends elsewhere (a bio, a work item) is handed over through
 * krping_target_conn.finished.
 *
 * Lock order: krping_volumes_lock, then volume->lock, then conn->lock.
 */
#ifndef KRPING_TARGET_H
#define KRPING_TARGET_H

#include <linux/bitmap.h>
#include <linux/completion.h>
#include <linux/kref.h>
#include <linux/llist.h>
#include <linux/scatterlist.h>
#include <linux/seq_file.h>
#include <linux/workqueue.h>
#include <rdma/rw.h>

#include "lib/backing.h"
#include "target/challenge.h"
#include "rdma/conn.h"
#include "wire/key.h"
#include "rdma/buf.h"
#include "lib/stats.h"
#include "wire/wire.h"

/* Limits of this target, the same as krping-bridge has; in bytes but for the first three. */
#define KRPING_TARGET_DEPTH		128	/* commands in flight on a connection */
#define KRPING_TARGET_QUEUES		64	/* connections of a session */
#define KRPING_TARGET_CONNECTIONS	256	/* of a volume */
#define KRPING_TARGET_MAX_DATA		SZ_1M
#define KRPING_TARGET_MAX_INLINE	4096
#define KRPING_TARGET_MAX_MESSAGE	(8 * (sizeof(struct krping_cmd) + KRPING_TARGET_MAX_INLINE))

/* Messages of responses that a connection sends at a time. */
#define KRPING_TARGET_TX		32

/* A client that was silent for so long, in jiffies, is looked for, and has as long to answer. */
#define KRPING_TARGET_SILENCE		(10 * HZ)

/* Data that is moved while none of it arrives for so long, in jiffies: the connection is stuck. */
#define KRPING_TARGET_STUCK		(4 * HZ)

/* Memory for large data that a connection has at a time, in bytes. */
#define KRPING_TARGET_BUFFERS		SZ_4M

enum krping_volume_state {
	KRPING_VOLUME_STARTING,
	KRPING_VOLUME_LIVE,
	KRPING_VOLUME_NO_DEVICE,	/* that of its address is gone: it looks for it */
	KRPING_VOLUME_STOPPING,
};

/**
 * struct krping_volume - a volume that is served
 * @entry:	in krping_volumes; under krping_volumes_lock
 * @ref:	one for the list, one for a stop that waits
 * @id:		number of the volume
 * @opt:	the command, constant
 * @log_prefix:	for the log
 * @net:	referenced: the name space of whoever started it
 * @addr:	address and port that it listens on
 * @key:	proves clients to us and the reverse; NULL: neither does. Constant
 * @challenges:	to clients that have it, NULL if there is no @key
 * @backing:	open until no connection is left
 * @store_wq:	of what may wait for the backing, which is nothing to another volume
 * @epoch:	new at each start, and when a writeback disk fails a flush
 * @listen_lock: protects @listener and @served; outermost
 * @listener:	NULL while there is none
 * @served:	it has begun
 * @listen_work:	looks for the RDMA device again, and listens
 * @finish_work:	the end: no connection is left, the backing is closed
 * @finished:	it is over
 * @lock:	protects @state, @conns, @nr_conns, @ibdev
 * @state:	enum krping_volume_state
 * @conns:	connections, oldest first, from their request until nothing is left of them
 * @nr_conns:	of them
 * @ibdev:	name of the RDMA device of the last connection
 * @wait:	woken when a connection is gone or is going to
 * @stats:	enum krping_block_counter
 * @violations:	connections ended for a violation of the protocol
 * @connections: that were accepted
 * @rejected:	clients that were refused
 */
struct krping_volume {
	struct list_head entry;
	struct kref ref;
	int id;
	struct krping_options opt;
	char log_prefix[96];
	struct net *net;
	struct sockaddr_storage addr;
	struct crypto_shash *key;
	struct krping_challenges *challenges;
	struct krping_backing backing;
	struct workqueue_struct *store_wq;
	atomic64_t epoch;
	struct mutex listen_lock;	/* what it protects: above */
	struct rdma_cm_id *listener;
	bool served;
	struct delayed_work listen_work;
	struct work_struct finish_work;
	struct completion finished;
	spinlock_t lock;	/* what it protects: above */
	enum krping_volume_state state;
	struct list_head conns;
	u32 nr_conns;
	char ibdev[IB_DEVICE_NAME_MAX];
	wait_queue_head_t wait;
	struct krping_stats __percpu *stats;
	atomic64_t violations;
	atomic64_t connections;
	atomic64_t rejected;
};

/**
 * struct krping_target_cmd - a command
 * @tc:		its connection
 * @entry:	in tc->free_cmds, tc->wait_data or tc->wait_send, or in the list of a message that
 *		is decoded
 * @resume:	what it waits to do in a list of tc; false: it has to go on waiting
 * @op:		enum krping_op
 * @flags:	KRPING_CMD_*
 * @tag:	of the client
 * @length:	bytes, checked
 * @offset:	bytes, checked
 * @addr:	the client's memory
 * @rkey:	its key, 0 for a command without
 * @crc:	of the data: of a WRITE as the client says, of a READ as it is
 * @status:	enum krping_status
 * @data:	inline: of a WRITE while its message is decoded, then of the response
 * @data_len:	bytes of @data
 * @digest:	where @data of a DIGEST or KEEP_ALIVE is
 * @page:	for inline data between the message and a block device; constant, NULL if the
 *		backing is memory
 * @small:	@page as a scatterlist
 * @sg:		the data: &@small, or allocated and counted in tc->buffered
 * @nents:	entries of @sg, 0 for none
 * @rw:		moves @sg, while @nr_wrs is not 0
 * @nr_wrs:	send queue entries that it takes
 * @rw_cqe:	completion of the RDMA READ
 * @sends:	tc->tx_head when the RDMA READ was posted
 * @finished:	in tc->finished
 * @work:	carries out what may sleep
 * @bio_status:	of the store
 *
 * Belongs to the worker of @tc, but for @bio_status, @status, @data, @data_len and @digest while
 * the store has it.
 */
struct krping_target_cmd {
	struct krping_target_conn *tc;
	struct list_head entry;
	bool (*resume)(struct krping_target_cmd *cmd);
	u8 op;
	u8 flags;
	u16 tag;
	u32 length;
	u64 offset;
	u64 addr;
	u32 rkey;
	u32 crc;
	u8 status;
	const void *data;
	u32 data_len;
	u8 digest[32];
	struct page *page;
	struct scatterlist small;
	struct scatterlist *sg;
	u32 nents;
	struct rdma_rw_ctx rw;
	u32 nr_wrs;
	struct ib_cqe rw_cqe;
	u32 sends;
	struct llist_node finished;
	struct work_struct work;
	blk_status_t bio_status;
};

/**
 * struct krping_target_tx - a message of responses
 * @buf:	max_message bytes
 * @tc:		its connection
 * @sends:	tc->tx_head after it was posted
 * @cmd:	a READ whose data is sent in front of it, or NULL
 */
struct krping_target_tx {
	struct krping_buf buf;
	struct krping_target_conn *tc;
	u32 sends;
	struct krping_target_cmd *cmd;
};

/**
 * struct krping_target_conn - a connection of a client
 * @conn:	from the CM's request to @teardown_work
 * @volume:	what it is connected to
 * @entry:	in volume->conns
 * @log_prefix:	for the log
 * @session:	of the client
 * @index:	of the queue in its session
 * @depth:	commands that may be in flight
 * @epoch:	of the volume, as the client was told
 * @peer_reads:	RDMA READs of the client's memory that it serves at a time
 * @peer_read_from: that it may have in flight
 * @transcript:	of the client's proof, if the volume has a key; then of ours
 * @setup_work:	fences the old connection, makes the queue pair, accepts
 * @teardown_work:	drains and frees; queued once, when the connection is closed
 * @deadline_work:	fails a connection that the client does not complete
 * @poll_work:	the worker
 * @retry_work:	kicks it when memory was short
 * @monitor_work:	kicks it for a look whether the client is still there
 * @kick_lock:	protects @stopped; from any context
 * @stopped:	the worker is not to be queued any more
 * @finished:	commands that the store has finished, from any context
 * @async:	commands that the store has, and one for the connection
 * @async_done:	@async is 0
 * @cmds:	@nr_cmds of them
 * @free_cmds:	those that are not in use
 * @keep_alive:	for KEEP_ALIVE alone
 * @keep_alive_pending:	a KEEP_ALIVE is not answered yet
 * @tags:	in flight
 * @nr_inflight: commands without a response; others may read it
 * @tx:		ring of messages
 * @tx_head:	messages posted; @tx[@tx_head % KRPING_TARGET_TX] is filled next
 * @tx_tail:	messages whose buffers may be filled again
 * @open_len:	bytes of responses in the message that is being filled
 * @unsignalled: sends posted since the last work request with a completion
 * @rw_size:	send queue entries for RDMA READs and WRITEs
 * @rw_room:	those of them that are free
 * @rw_moved:	jiffies, when some were freed, or taken while all were free
 * @buffered:	bytes of memory for large data
 * @chunk_order: of the largest pieces of large data, constant
 * @chunks:	pages for large data that no command uses
 * @wait_data:	commands that wait for memory, and have nothing
 * @wait_send:	commands that wait for room in the send queue or for a message; what they
 *		wait for is given back by completions alone, so it comes
 * @rx:		receives
 * @nr_rx:	of them
 * @last_rx:	jiffies, when the last message or the answer to a probe arrived
 * @probe_cqe:	completion of the RDMA WRITE of no bytes that looks for the client
 * @probing:	it is under way
 * @probed:	jiffies, when it was posted
 *
 * From @cmds on it belongs to the worker once the connection is accepted.
 */
struct krping_target_conn {
	struct krping_conn conn;
	struct krping_volume *volume;
	struct list_head entry;
	char log_prefix[96];
	u8 session[KRPING_UUID_LEN];
	u16 index;
	u16 depth;
	u64 epoch;
	u8 peer_reads;
	u8 peer_read_from;
	struct krping_transcript transcript;
	struct work_struct setup_work;
	struct work_struct teardown_work;
	struct delayed_work deadline_work;
	struct work_struct poll_work;
	struct delayed_work retry_work;
	struct delayed_work monitor_work;
	spinlock_t kick_lock;	/* what it protects: above */
	bool stopped;
	struct llist_head finished;
	atomic_t async;
	struct completion async_done;
	struct krping_target_cmd *cmds;
	u32 nr_cmds;
	struct list_head free_cmds;
	struct krping_target_cmd *keep_alive;
	bool keep_alive_pending;
	unsigned long *tags;
	u32 nr_inflight;
	struct krping_target_tx *tx;
	u32 tx_head;
	u32 tx_tail;
	u32 open_len;
	u32 unsignalled;
	u32 rw_size;
	u32 rw_room;
	unsigned long rw_moved;
	u32 buffered;
	int chunk_order;
	struct list_head chunks;
	struct list_head wait_data;
	struct list_head wait_send;
	struct krping_buf *rx;
	u32 nr_rx;
	unsigned long last_rx;
	struct ib_cqe probe_cqe;
	bool probing;
	unsigned long probed;
};

/* Bytes that a client may use now: whole blocks. */
static inline u64 krping_volume_size(const struct krping_volume *v)
{
	return round_down(krping_backing_size(&v->backing), v->opt.block_size);
}

/* volume.c */
int krping_volume_start(const struct krping_options *opt);
int krping_volume_stop(const char *name);
void krping_volumes_show(struct seq_file *seq);

/* accept.c */
int krping_volume_listen(struct krping_volume *v, const char *log_prefix);
void krping_volume_listen_again(struct work_struct *work);
void krping_volume_stop_listening(struct krping_volume *v);

/* conn.c */
int krping_target_init(void);
void krping_target_exit(void);
extern struct workqueue_struct *krping_target_wq;	/* of what is done later */
extern struct workqueue_struct *krping_poll_wq;		/* of the connections' workers */
extern struct workqueue_struct *krping_setup_wq;	/* of set-ups, and of a volume's end */
void krping_target_conn_init(struct krping_target_conn *tc);
int krping_target_conn_alloc(struct krping_target_conn *tc);
enum krping_reject_reason krping_target_conn_list(struct krping_target_conn *tc, u32 *value);
void krping_target_conn_fence(struct krping_target_conn *tc);

/* worker.c */
void krping_worker_init(struct krping_target_conn *tc);
void krping_worker_start(struct krping_target_conn *tc);
void krping_worker_stop(struct krping_target_conn *tc);
void krping_worker_notify(struct ib_cq *cq, void *context);
void krping_worker_send_done(struct ib_cq *cq, struct ib_wc *wc);
void krping_worker_recv_done(struct ib_cq *cq, struct ib_wc *wc);
void krping_worker_read_done(struct ib_cq *cq, struct ib_wc *wc);
void krping_worker_end_transfer(struct krping_target_cmd *cmd);
void krping_target_cmd_finished(struct krping_target_cmd *cmd);

/* decode.c */
int krping_target_decode(struct krping_target_conn *tc, const void *msg, const struct ib_wc *wc,
			 struct list_head *cmds);

/* memory.c */
bool krping_alloc_large(struct krping_target_cmd *cmd);
void krping_free_large(struct krping_target_cmd *cmd);
int krping_chunk_order(const struct ib_device *device);
void krping_free_chunks(struct krping_target_conn *tc);
u32 krping_large_crc(struct krping_target_cmd *cmd);
void krping_copy_large(struct krping_target_cmd *cmd, void *ram, bool to_ram);

/* store.c */
u8 krping_store_status(blk_status_t status);
void krping_store_submit(struct krping_target_cmd *cmd);
void krping_store_begin_work(struct krping_target_cmd *cmd);
void krping_store_work(struct work_struct *work);

#endif /* KRPING_TARGET_H */
