/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The target: volumes that this host serves to block clients (PROTOCOL.md section 2).
 *
 *	volume.c	volumes: start, stop, list
 *	listener.c	listens for volumes
 *	accept.c	the handshake
 *	challenge.c	unanswered challenges of the handshake
 *	writer.c	which session may write
 *	conn.c		the life cycle of a connection
 *	worker.c	messages in, data moved, messages out
 *	decode.c	turns a message that wire.c decodes into commands in flight
 *	transfer.c	RDMA READs and WRITEs of large data
 *	memory.c	pages for data
 *	store.c		carries out a command on the backing
 *
 * Each connection has one worker, krping_target_conn.poll_work. It alone polls the completion
 * queue, takes finished commands from the store, decodes, executes, posts and answers: none of
 * this needs a lock. Commands that finish elsewhere (in a bio or a work item) come back through
 * krping_target_conn.finished.
 *
 * Lock order: the listener's lock, rdma_cm's handler locks, the listener's volumes_lock,
 * volume->lock, conn->lock. krping_volumes_lock comes before volume->lock.
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
#include "lib/log.h"
#include "target/challenge.h"
#include "rdma/conn.h"
#include "wire/key.h"
#include "rdma/buf.h"
#include "lib/stats.h"
#include "wire/wire.h"

/* Limits, the same as krping-bridge's. The first four are counts, the others bytes. */
#define KRPING_TARGET_DEPTH		128	/* commands in flight on a connection */
#define KRPING_TARGET_QUEUES		64	/* connections of a session */
#define KRPING_TARGET_CONNECTIONS	256	/* of a volume */
#define KRPING_TARGET_OF_ADDRESS	128	/* those of a volume from one address */
#define KRPING_TARGET_MAX_DATA		SZ_1M
#define KRPING_TARGET_MAX_INLINE	SZ_16K
#define KRPING_TARGET_MAX_INLINE_V1	SZ_4K
/* Seven writes of 4 KiB, just below 32 KiB. */
#define KRPING_TARGET_MAX_MESSAGE	(7 * (sizeof(struct krping_cmd) + SZ_4K))

static_assert(sizeof(struct krping_cmd) + KRPING_TARGET_MAX_INLINE <= KRPING_TARGET_MAX_MESSAGE);

/* In front of a received message, so that its first data is aligned for any disk. */
#define KRPING_TARGET_RX_HEAD		(SZ_4K - sizeof(struct krping_cmd))

/* Messages of responses in flight on a connection. */
#define KRPING_TARGET_TX		16

/* Page order of 64 KiB: larger pieces of memory for data are fewer SGEs and work requests. */
#define KRPING_CHUNK_ORDER		(PAGE_SHIFT < 16 ? 16 - PAGE_SHIFT : 0)

/* Jiffies of silence until a client is probed; it has the same time to answer. */
#define KRPING_TARGET_SILENCE		(10 * HZ)

/* Jiffies without progress of a transfer until the connection counts as stuck. */
#define KRPING_TARGET_STUCK		(4 * HZ)

/* Bytes of memory for data of more than a page that a connection may hold. */
#define KRPING_TARGET_BUFFERS		SZ_4M

enum krping_volume_state {
	KRPING_VOLUME_STARTING,
	KRPING_VOLUME_LIVE,
	KRPING_VOLUME_NO_DEVICE,	/* the RDMA device is gone: listening is retried */
	KRPING_VOLUME_STOPPING,
};

/**
 * struct krping_volume_wqs - work that may block, of one volume
 * @setup:	set-ups of connections, which wait for older connections
 * @teardown:	the ends of connections, which wait for the set-up, the worker, the store and the
 *		RDMA device
 * @store:	READ, WRITE and FLUSH where submitting a bio may block
 * @ranges:	DISCARD and WRITE_ZEROES
 * @digests:	DIGEST
 *
 * A peer or a disk that blocks one of them delays only its own volume. The first two have a place
 * for each connection: those that hang, because of a device or a peer, delay no other.
 */
struct krping_volume_wqs {
	struct workqueue_struct *setup;
	struct workqueue_struct *teardown;
	struct workqueue_struct *store;
	struct workqueue_struct *ranges;
	struct workqueue_struct *digests;
};

/**
 * struct krping_writer - the session that writes to a volume, or was the last to do so
 * @session:	its UUID
 * @addr:	address of its client, IPv6 or IPv4-mapped
 * @epoch:	of the volume, that @ordinal belongs to
 * @ordinal:	how many sessions have written since then; 0: none has
 * @left:	it has said that it ends
 * @lost:	jiffies, when the last of its unlisted connections was closed
 */
struct krping_writer {
	u8 session[KRPING_UUID_LEN];
	u8 addr[16];
	u64 epoch;
	u32 ordinal;
	bool left;
	unsigned long lost;
};

/**
 * struct krping_volume - a volume that is served
 * @entry:	in krping_volumes; under krping_volumes_lock
 * @ref:	one for the list, one for a stop that waits
 * @id:		number of the volume
 * @opt:	the command, constant
 * @log_prefix:	in front of log messages
 * @net:	network namespace of the process that started it; referenced
 * @addr:	address and port that it listens on
 * @key:	shared with clients, NULL for none; constant
 * @challenges:	unanswered challenges; NULL without @key
 * @backing:	open until no connection is left
 * @wq:		its work queues
 * @uuid:	identifies it; constant once it is served
 * @caps:	KRPING_CAP_*; constant once it is served
 * @epoch:	new at each start, and when a writeback disk fails a flush
 * @listener:	listens for it; NULL before and afterwards. Belongs to the start, later to
 *		@finish_work
 * @at_listener: in its list of volumes
 * @finish_work: waits for the last connection and closes the backing
 * @finished:	@finish_work is done
 * @lock:	protects @state, @served, @conns, @nr_conns, @writer to @last_ordinal, @ibdev
 * @state:	enum krping_volume_state
 * @served:	it was live
 * @conns:	connections, oldest first, from the client's request to the end of the teardown
 * @nr_conns:	entries of @conns
 * @writer:	the session that writes
 * @writer_before: the one that it has replaced; valid until @writer_is_served
 * @writer_is_served: a command of @writer was taken; until then its session may come to nothing
 * @last_ordinal: the highest ordinal in this epoch of a session that was served
 * @ibdev:	name of the RDMA device of the last connection
 * @wait:	woken when a connection closes, when it is quiet, and when it has been removed from
 *		@conns
 * @stats:	enum krping_block_counter
 * @violations:	connections ended because the client violated the protocol
 * @connections: connections accepted
 * @rejected:	requests rejected
 */
struct krping_volume {
	struct list_head entry;
	struct kref ref;
	int id;
	struct krping_options opt;
	char log_prefix[KRPING_LOG_PREFIX];
	struct net *net;
	struct sockaddr_storage addr;
	struct crypto_shash *key;
	struct krping_challenges *challenges;
	struct krping_backing backing;
	struct krping_volume_wqs wq;
	u8 uuid[KRPING_UUID_LEN];
	u32 caps;
	atomic64_t epoch;
	struct krping_listener *listener;
	struct list_head at_listener;
	struct work_struct finish_work;
	struct completion finished;
	spinlock_t lock;	/* what it protects: above */
	enum krping_volume_state state;
	bool served;
	struct list_head conns;
	u32 nr_conns;
	struct krping_writer writer;
	struct krping_writer writer_before;
	bool writer_is_served;
	u32 last_ordinal;
	char ibdev[IB_DEVICE_NAME_MAX];
	wait_queue_head_t wait;
	struct krping_stats __percpu *stats;
	atomic64_t violations;
	atomic64_t connections;
	atomic64_t rejected;
};

/**
 * struct krping_target_cmd - a command in flight
 * @tc:		its connection
 * @entry:	in tc->free_cmds, tc->wait_data, tc->wait_send, or the list of a message that is
 *		being decoded
 * @resume:	next step of a command in a waiting list; returns false to keep waiting
 * @op:		enum krping_op
 * @flags:	KRPING_CMD_*
 * @tag:	chosen by the client
 * @length:	bytes, checked
 * @offset:	bytes, checked
 * @addr:	address in the client's memory
 * @rkey:	its remote key, 0 for none
 * @crc:	CRC32C of the data: sent by the client for a WRITE, computed for a READ
 * @status:	enum krping_status
 * @message:	of a WRITE with inline data: holds @data until it is copied or stored; else NULL
 * @data:	inline data of a WRITE, or of the response if it is not in @sg
 * @data_len:	bytes of inline data of the response, 0 for none
 * @digest:	holds @data of a DIGEST or KEEP_ALIVE
 * @page:	inline data that fits, on its way to or from a block device; constant, NULL if the
 *		backing is memory
 * @small:	a scatterlist of @page or of @data
 * @sg:		the data: &@small, or allocated and counted in tc->buffered; NULL if it is in the
 *		memory that is the backing, or not allocated yet
 * @nents:	entries of @sg, 0 for none
 * @rw:		transfer of @sg; valid while @nr_wrs is not 0
 * @nr_wrs:	send queue entries that @rw takes
 * @rw_cqe:	completion of the RDMA READ
 * @sends:	tc->tx_head when the RDMA READ was posted
 * @finished:	in tc->finished
 * @work:	runs what may sleep
 * @bio_status:	result of the bio
 *
 * Belongs to the worker of @tc. While the store has the command, it owns @bio_status, @status,
 * @data, @data_len and @digest.
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
	struct krping_buf *message;
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
 * @buf:	KRPING_TARGET_MAX_MESSAGE bytes
 * @tc:		its connection
 * @sends:	tc->tx_head after this message was posted
 * @cmd:	READ whose data is sent before the message, or NULL
 */
struct krping_target_tx {
	struct krping_buf buf;
	struct krping_target_conn *tc;
	u32 sends;
	struct krping_target_cmd *cmd;
};

/**
 * struct krping_target_conn - the target's side of a connection
 * @conn:	valid from the CM's request to @teardown_work
 * @volume:	the volume that it serves
 * @entry:	in volume->conns
 * @log_prefix:	in front of log messages
 * @version:	of the protocol
 * @addr:	the client's address, IPv6 or IPv4-mapped
 * @session:	the client's session
 * @index:	index of the queue in its session
 * @depth:	commands that may be in flight
 * @messages:	messages that may be unanswered, besides a KEEP_ALIVE
 * @pages:	memory that it takes of krping_pages_get() while it is listed
 * @quiet:	closed, and nothing of it is in the store or can get there; under volume->lock
 * @writes:	the client may write
 * @take_over:	its session replaces the one that writes
 * @epoch:	the volume's epoch as sent to the client
 * @peer_reads:	RDMA READs that the client serves at the same time
 * @peer_read_from: RDMA READs that the client may have in flight
 * @transcript:	input of the proofs, if the volume has a key
 * @is_served:	a command was taken; belongs to the worker
 * @closed_at:	jiffies, when the connection was closed; 0 before
 * @setup_work:	waits for older connections to end, makes the queue pair, accepts
 * @teardown_work:	waits for the store, drains and frees; queued once, when the connection is
 *		closed
 * @deadline_work: fails a connection that the client does not confirm in time
 * @poll_work:	the worker
 * @retry_work:	queues the worker again after memory was short
 * @monitor_work: queues the worker to check whether the client is still there
 * @kick_lock:	protects @stopped; from any context
 * @stopped:	the worker must not be queued any more
 * @finished:	commands that the store has finished, from any context
 * @async:	commands in the store, plus one for the connection
 * @async_done:	@async is 0
 * @cmds:	@nr_cmds commands
 * @nr_cmds:	entries of @cmds
 * @free_cmds:	commands not in use
 * @keep_alive:	reserved for KEEP_ALIVE
 * @keep_alive_pending: a KEEP_ALIVE is not answered yet
 * @tags:	tags in flight
 * @nr_inflight: commands without a response; read without a lock elsewhere
 * @tx:		ring of messages
 * @tx_head:	messages posted; @tx[@tx_head % KRPING_TARGET_TX] is filled next
 * @tx_tail:	messages whose buffers are free again
 * @open_len:	bytes of responses in the message that is being filled
 * @unsignalled: sends posted since the last work request with a completion
 * @rw_size:	send queue entries for RDMA READs and WRITEs
 * @rw_room:	those that are free
 * @rw_moved:	jiffies of the last progress: some were freed, or taken while all were free
 * @buffered:	bytes of allocated memory for data, in whole pages
 * @chunk_order: page order of the largest pieces of such memory; constant
 * @chunks:	free pieces by page order, and the jiffies at which one was last used
 * @wait_data:	commands that wait for memory and hold nothing but their message
 * @wait_send:	commands that wait for room in the send queue or for a message; completions
 *		alone free these, so the wait always ends
 * @rx:		receive buffers
 * @nr_rx:	entries of @rx
 * @message:	the message that is being executed
 * @last_rx:	jiffies, when the last message or the answer to a probe arrived
 * @probe_cqe:	completion of the probe, an RDMA WRITE of no bytes
 * @probing:	a probe is in flight
 * @probed:	jiffies, when it was posted
 *
 * All from @cmds on belongs to the worker once the connection is accepted.
 */
struct krping_target_conn {
	struct krping_conn conn;
	struct krping_volume *volume;
	struct list_head entry;
	char log_prefix[KRPING_LOG_PREFIX];
	u8 version;
	u8 addr[16];
	u8 session[KRPING_UUID_LEN];
	u16 index;
	u16 depth;
	u16 messages;
	u32 pages;
	bool quiet;
	bool writes;
	bool take_over;
	u64 epoch;
	u8 peer_reads;
	u8 peer_read_from;
	struct krping_transcript transcript;
	bool is_served;
	unsigned long closed_at;
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
	struct {
		struct list_head free;
		unsigned long used;
	} chunks[KRPING_CHUNK_ORDER + 1];
	struct list_head wait_data;
	struct list_head wait_send;
	struct krping_buf *rx;
	u32 nr_rx;
	struct krping_buf *message;
	unsigned long last_rx;
	struct ib_cqe probe_cqe;
	bool probing;
	unsigned long probed;
};

/* Current size for clients in bytes, rounded down to whole blocks. */
static inline u64 krping_volume_size(const struct krping_volume *v)
{
	return round_down(krping_backing_size(&v->backing), v->opt.block_size);
}

/* Most bytes of inline data granted. Clients of version 1 take no other after a reconnect. */
static inline u32 krping_target_max_inline(const struct krping_target_conn *tc)
{
	return tc->version == 1 ? KRPING_TARGET_MAX_INLINE_V1 : KRPING_TARGET_MAX_INLINE;
}

/* volume.c */
int krping_volume_start(const struct krping_options *opt);
int krping_volume_stop(const char *name);
void krping_volumes_show(struct seq_file *seq);

/* listener.c */
int krping_listener_join(struct krping_volume *v);
void krping_listener_leave(struct krping_volume *v);

/* accept.c */
int krping_target_accept(struct list_head *volumes, const char *log_prefix, struct rdma_cm_id *id,
			 const struct rdma_cm_event *event);

/* writer.c */
bool krping_writer_admit(struct krping_target_conn *tc, bool take_over);
bool krping_writer_serves(struct krping_target_conn *tc);
int krping_writer_ordinal(struct krping_target_conn *tc, u64 *epoch, u32 *ordinal);
bool krping_writer_replaces(const struct krping_target_conn *tc,
			    const struct krping_target_conn *other);
void krping_writer_leave(struct krping_target_conn *tc);
void krping_writer_closed(struct krping_target_conn *tc);
bool krping_writer_addr(struct krping_volume *v, u8 addr[16]);

/* conn.c */
int krping_target_init(void);
void krping_target_exit(void);
extern struct workqueue_struct *krping_target_wq;	/* work that does not block */
extern struct workqueue_struct *krping_poll_wq;		/* the connections' workers */
extern struct workqueue_struct *krping_volume_wq;	/* listening again, the end of volumes */
int krping_volume_wqs_alloc(struct krping_volume *v);
void krping_volume_wqs_free(struct krping_volume *v);
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
void krping_target_cmd_finished(struct krping_target_cmd *cmd);

/* decode.c */
int krping_target_decode(struct krping_target_conn *tc, const void *msg, const struct ib_wc *wc,
			 struct list_head *cmds);

/* transfer.c */
int krping_transfer_prepare(struct krping_target_cmd *cmd);
void krping_transfer_begin(const struct krping_target_cmd *cmd);
void krping_transfer_free(struct krping_target_cmd *cmd);
void krping_transfer_done(struct krping_target_cmd *cmd);
void krping_transfers_check(struct krping_target_conn *tc);

/* memory.c */
bool krping_pages_get(struct krping_target_conn *tc, u32 pages);
void krping_pages_put(u32 pages);
bool krping_pages_are_short(struct krping_target_conn *tc);
void krping_data_set(struct krping_target_cmd *cmd, struct page *page, u32 offset);
bool krping_data_alloc(struct krping_target_cmd *cmd);
void krping_data_free(struct krping_target_cmd *cmd);
int krping_chunk_order(const struct ib_device *device);
void krping_chunks_init(struct krping_target_conn *tc);
void krping_free_chunks(struct krping_target_conn *tc, unsigned long unused);
u32 krping_data_crc(struct krping_target_cmd *cmd);
void krping_data_copy_to(struct krping_target_cmd *cmd, void *to);
void krping_data_copy_from(struct krping_target_cmd *cmd, const void *from);

/* store.c */
u8 krping_store_status(blk_status_t status);
void krping_store_submit(struct krping_target_cmd *cmd);
void krping_store_begin_work(struct krping_target_cmd *cmd);
void krping_store_work(struct work_struct *work);

#endif /* KRPING_TARGET_H */
