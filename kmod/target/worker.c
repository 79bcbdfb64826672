// SPDX-License-Identifier: GPL-2.0
/*
 * The worker of a connection (target.h): decodes messages, executes commands, moves large data,
 * packs and sends responses.
 */
#include <linux/blkdev.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "lib/compat.h"
#include "wire/crc.h"
#include "lib/fault.h"
#include "lib/log.h"
#include "target/target.h"

static bool is_closed(const struct krping_target_conn *tc)
{
	return READ_ONCE(tc->conn.state) == KRPING_CONN_CLOSED;
}

static void kick(struct krping_target_conn *tc)
{
	unsigned long flags;

	spin_lock_irqsave(&tc->kick_lock, flags);
	if (!tc->stopped)
		queue_work(krping_poll_wq, &tc->poll_work);
	spin_unlock_irqrestore(&tc->kick_lock, flags);
}

void krping_worker_notify(struct ib_cq *cq, void *context)
{
	kick(container_of((struct krping_conn *)context, struct krping_target_conn, conn));
}

static void krping_worker_retry(struct work_struct *work)
{
	kick(container_of(to_delayed_work(work), struct krping_target_conn, retry_work));
}

#define MONITOR_INTERVAL	(2 * HZ)

static void krping_worker_monitor(struct work_struct *work)
{
	struct krping_target_conn *tc = container_of(to_delayed_work(work),
						     struct krping_target_conn, monitor_work);

	kick(tc);
	queue_delayed_work(krping_target_wq, &tc->monitor_work, MONITOR_INTERVAL);
}

#define RETRY_DELAY	(HZ / 50)

/* No event reports that memory is available again, so retry after a delay. */
static bool out_of_memory(struct krping_target_conn *tc)
{
	queue_delayed_work(krping_target_wq, &tc->retry_work, RETRY_DELAY);
	return false;
}

/* Called by the store in any context. The caller must not use @cmd afterwards. */
void krping_target_cmd_finished(struct krping_target_cmd *cmd)
{
	struct krping_target_conn *tc = cmd->tc;

	llist_add(&cmd->finished, &tc->finished);
	/* The worker itself checks the list again before it ends. */
	if (!in_task() || current_work() != &tc->poll_work)
		kick(tc);
	if (atomic_dec_and_test(&tc->async))
		complete(&tc->async_done);
}

/* Runs @step now, or puts @cmd on @list if others wait there or @step has to wait. */
static void step_or_wait(struct krping_target_cmd *cmd, struct list_head *list,
			 bool (*step)(struct krping_target_cmd *cmd))
{
	if (list_empty(list) && step(cmd))
		return;
	cmd->resume = step;
	list_add_tail(&cmd->entry, list);
}

static void resume_waiting(struct list_head *list)
{
	struct krping_target_cmd *cmd;

	while ((cmd = list_first_entry_or_null(list, struct krping_target_cmd, entry))) {
		list_del(&cmd->entry);
		if (!cmd->resume(cmd)) {
			list_add(&cmd->entry, list);
			return;
		}
	}
}

static void release_cmd(struct krping_target_cmd *cmd)
{
	struct krping_target_conn *tc = cmd->tc;

	krping_data_free(cmd);
	if (cmd == tc->keep_alive)
		tc->keep_alive_pending = false;
	else
		list_add(&cmd->entry, &tc->free_cmds);
}

/* ---- sending ---- */

static void post_send(struct krping_target_conn *tc, struct ib_send_wr *wr)
{
	int ret = -ENOMEM;

	if (!krping_fault(KRPING_FAULT_TARGET_POST_FAIL, tc->volume->opt.block))
		ret = krping_conn_post_send(&tc->conn, wr);
	if (!ret)
		return;
	if (!is_closed(tc))
		krping_err_ratelimited(tc->log_prefix, "cannot post a work request: %d", ret);
	krping_conn_fail(&tc->conn, ret);
}

/* A signalled work request posted after @sends messages has completed. */
static void sent(struct krping_target_conn *tc, u32 sends)
{
	if ((s32)(sends - tc->tx_tail) > 0)
		tc->tx_tail = sends;
}

static bool cannot_transfer(struct krping_target_cmd *cmd, int error)
{
	if (error == -ENOMEM)
		return out_of_memory(cmd->tc);
	krping_err_ratelimited(cmd->tc->log_prefix, "cannot move %u bytes: %d", cmd->length, error);
	krping_conn_fail(&cmd->tc->conn, error);
	return true;
}

/*
 * Over iWARP a send completes once TCP has the data. siw passes the pages of unsignalled work
 * requests to TCP without copying them, so they would be reused while TCP still sends them. It
 * copies the data of signalled ones.
 */
static bool must_signal(const struct krping_target_conn *tc)
{
	return krping_conn_is_iwarp(&tc->conn);
}

static void signal_writes(struct ib_send_wr *first, const struct ib_send_wr *end)
{
	struct ib_send_wr *wr;

	for (wr = first; wr != end; wr = wr->next)
		wr->send_flags |= IB_SEND_SIGNALED;
}

/*
 * Posts the message that is being filled, after the data of @cmd if that has any to send. Sends
 * with data are signalled, and so is one in KRPING_TARGET_TX / 2 of the others: that causes few
 * completions, but returns buffers in time.
 */
static void post_message(struct krping_target_conn *tc, struct krping_target_cmd *cmd)
{
	struct krping_target_tx *tx = &tc->tx[tc->tx_head % KRPING_TARGET_TX];
	struct ib_sge sges[KRPING_BUF_SGES];
	struct ib_send_wr send = {
		.wr_cqe = &tx->buf.cqe,
		.opcode = cmd ? IB_WR_SEND_WITH_INV : IB_WR_SEND,
		.ex.invalidate_rkey = cmd ? cmd->rkey : 0,
		.sg_list = sges,
		.num_sge = krping_buf_send_sges(&tc->conn, &tx->buf, tc->open_len, sges),
	};
	struct ib_send_wr *first = &send;

	tc->open_len = 0;
	tx->sends = ++tc->tx_head;
	tx->cmd = NULL;
	if (cmd && cmd->nr_wrs) {
		tx->cmd = cmd;
		krping_transfer_begin(cmd);
		first = rdma_rw_ctx_wrs(&cmd->rw, tc->conn.qp, tc->conn.id->port_num, NULL, &send);
		if (must_signal(tc))
			signal_writes(first, &send);
	}
	if (tx->cmd || must_signal(tc) || ++tc->unsignalled >= KRPING_TARGET_TX / 2) {
		send.send_flags = IB_SEND_SIGNALED;
		tc->unsignalled = 0;
	}
	krping_count(tc->volume->stats, KRPING_MESSAGES, 1);
	post_send(tc, first);
}

void krping_worker_send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_target_tx *tx = container_of(wc->wr_cqe, struct krping_target_tx, buf.cqe);
	struct krping_target_conn *tc = tx->tc;
	struct krping_target_cmd *cmd = tx->cmd;

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&tc->conn, wc, "SEND");
		return;
	}
	sent(tc, tx->sends);
	if (!cmd)
		return;
	tx->cmd = NULL;
	krping_transfer_done(cmd);
	release_cmd(cmd);
}

/* Return: room for @need bytes in a message, or NULL if no message is free. */
static void *reserve(struct krping_target_conn *tc, u32 need)
{
	if (tc->open_len + need > KRPING_TARGET_MAX_MESSAGE)
		post_message(tc, NULL);
	if (tc->tx_head - tc->tx_tail == KRPING_TARGET_TX)
		return NULL;
	return tc->tx[tc->tx_head % KRPING_TARGET_TX].buf.data + tc->open_len;
}

static bool moves_data(const struct krping_target_cmd *cmd)
{
	return cmd->op == KRPING_OP_READ || cmd->op == KRPING_OP_WRITE;
}

/* Step: puts the response into the open message; one that invalidates a key ends the message. */
static bool respond(struct krping_target_cmd *cmd)
{
	struct krping_target_conn *tc = cmd->tc;
	bool ok = cmd->status == KRPING_ST_OK;
	u32 len = ok ? cmd->data_len : 0;
	u32 padded = ALIGN(len, KRPING_ALIGN);
	struct krping_rsp rsp = {
		.tag = cpu_to_be16(cmd->tag),
		.status = cmd->status,
		.flags = len ? KRPING_RSP_INLINE : 0,
	};
	void *to = reserve(tc, sizeof(rsp) + padded);

	if (!to)
		return false;
	if (len) {
		if (cmd->data)
			memcpy(to + sizeof(rsp), cmd->data, len);
		else
			krping_data_copy_to(cmd, to + sizeof(rsp));
		memset(to + sizeof(rsp) + len, 0, padded - len);
		if (cmd->op == KRPING_OP_READ) {
			cmd->crc = krping_crc(to + sizeof(rsp), len);
			krping_fault_corrupt(KRPING_FAULT_TARGET_SEND_CORRUPT,
					     tc->volume->opt.block, to + sizeof(rsp));
		}
	}
	if (ok)
		rsp.length = cpu_to_be32(moves_data(cmd) ? cmd->length : len);
	if (ok && cmd->op == KRPING_OP_READ)
		rsp.crc32c = cpu_to_be32(cmd->crc);
	memcpy(to, &rsp, sizeof(rsp));
	tc->open_len += sizeof(rsp) + padded;

	if (ok)
		krping_count_command(tc->volume->stats, cmd->op, cmd->length);
	else
		krping_count(tc->volume->stats, KRPING_ERRORS, 1);
	if (cmd != tc->keep_alive) {
		__clear_bit(cmd->tag, tc->tags);
		WRITE_ONCE(tc->nr_inflight, tc->nr_inflight - 1);
	}
	if (cmd->rkey)
		post_message(tc, cmd);
	if (!cmd->nr_wrs)	/* else krping_worker_send_done() does it */
		release_cmd(cmd);
	return true;
}

static void answer(struct krping_target_cmd *cmd)
{
	step_or_wait(cmd, &cmd->tc->wait_send, respond);
}

static void answer_status(struct krping_target_cmd *cmd, u8 status)
{
	cmd->status = status;
	answer(cmd);
}

/* Step: sends the data of a large READ, followed by the response. */
static bool send_large(struct krping_target_cmd *cmd)
{
	int ret = krping_transfer_prepare(cmd);

	if (ret < 0)
		return cannot_transfer(cmd, ret);
	return ret && respond(cmd);
}

/* Step: posts the RDMA READ of a large WRITE's data. */
static bool fetch_large(struct krping_target_cmd *cmd)
{
	struct krping_target_conn *tc = cmd->tc;
	int ret = krping_transfer_prepare(cmd);

	if (ret < 0)
		return cannot_transfer(cmd, ret);
	if (!ret)
		return false;
	krping_transfer_begin(cmd);
	tc->unsignalled = 0;
	cmd->sends = tc->tx_head;
	post_send(tc, rdma_rw_ctx_wrs(&cmd->rw, tc->conn.qp, tc->conn.id->port_num, &cmd->rw_cqe,
				      NULL));
	return true;
}

/* ---- executing ---- */

static void submit(struct krping_target_cmd *cmd)
{
	atomic_inc(&cmd->tc->async);
	krping_store_submit(cmd);
}

static void *ram_of(const struct krping_target_cmd *cmd)
{
	void *ram = cmd->tc->volume->backing.ram;

	return ram ? ram + cmd->offset : NULL;
}

static void refuse_crc(struct krping_target_cmd *cmd, u32 crc)
{
	krping_count(cmd->tc->volume->stats, KRPING_CRC_ERRORS, 1);
	krping_err_ratelimited(cmd->tc->log_prefix,
			       "write of %u bytes at %llu refused: its data has CRC 0x%08x, the command says 0x%08x",
			       cmd->length, cmd->offset, crc, cmd->crc);
	answer_status(cmd, KRPING_ST_CRC);
}

/*
 * Posts the receive of a message again if no command needs its data any more; the last one calls it
 * before it is answered.
 */
static void put_message(struct krping_target_conn *tc, struct krping_buf *message)
{
	int ret;

	if (--message->users || is_closed(tc))
		return;
	ret = krping_buf_post_recv(&tc->conn, message);
	if (ret)
		krping_conn_fail(&tc->conn, ret);
}

static void release_message(struct krping_target_cmd *cmd)
{
	put_message(cmd->tc, cmd->message);
	cmd->message = NULL;
}

void krping_worker_read_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_target_cmd *cmd = container_of(wc->wr_cqe, struct krping_target_cmd, rw_cqe);
	struct krping_target_conn *tc = cmd->tc;
	void *ram = ram_of(cmd);
	u32 crc;

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&tc->conn, wc, "RDMA READ");
		return;
	}
	sent(tc, cmd->sends);
	krping_transfer_done(cmd);
	if (is_closed(tc))
		return;
	krping_fault_corrupt(KRPING_FAULT_TARGET_RECV_CORRUPT, tc->volume->opt.block,
			     sg_virt(cmd->sg));
	crc = krping_data_crc(cmd);
	if (crc != cmd->crc) {
		refuse_crc(cmd, crc);
	} else if (ram) {
		krping_data_copy_to(cmd, ram);
		answer(cmd);
	} else {
		submit(cmd);
	}
}

/* The data of a large READ is in memory. */
static void checksum_and_send(struct krping_target_cmd *cmd)
{
	cmd->crc = krping_data_crc(cmd);
	krping_fault_corrupt(KRPING_FAULT_TARGET_SEND_CORRUPT, cmd->tc->volume->opt.block,
			     sg_virt(cmd->sg));
	step_or_wait(cmd, &cmd->tc->wait_send, send_large);
}

static bool allocate(struct krping_target_cmd *cmd)
{
	struct krping_target_conn *tc = cmd->tc;

	if (tc->buffered && (tc->buffered + PAGE_ALIGN(cmd->length) > KRPING_TARGET_BUFFERS ||
			     krping_pages_are_short(tc)))
		return false;
	return krping_data_alloc(cmd) || out_of_memory(tc);
}

/* Step: allocates memory for large data and starts the transfer or the store. */
static bool begin_large(struct krping_target_cmd *cmd)
{
	void *ram = ram_of(cmd);

	if (!allocate(cmd))
		return false;
	if (cmd->op == KRPING_OP_WRITE) {
		step_or_wait(cmd, &cmd->tc->wait_send, fetch_large);
	} else if (ram) {
		krping_data_copy_from(cmd, ram);
		checksum_and_send(cmd);
	} else {
		submit(cmd);
	}
	return true;
}

/* Step: starts the store, with memory for inline data that the command's page cannot hold. */
static bool begin_inline(struct krping_target_cmd *cmd)
{
	if (!cmd->sg && !allocate(cmd))
		return false;
	if (cmd->op == KRPING_OP_WRITE) {
		krping_data_copy_from(cmd, cmd->data);
		release_message(cmd);
	}
	submit(cmd);
	return true;
}

static void store_inline(struct krping_target_cmd *cmd)
{
	if (cmd->sg)
		begin_inline(cmd);
	else
		step_or_wait(cmd, &cmd->tc->wait_data, begin_inline);
}

/* Whether the disk can take the data of a WRITE from its message, as is. */
static bool fits_disk(const struct krping_target_cmd *cmd)
{
	struct block_device *bdev = cmd->tc->volume->backing.bdev;
	u32 mask = (bdev_logical_block_size(bdev) - 1) | queue_dma_alignment(bdev_get_queue(bdev));

	return cmd->message->nr_pieces == 1 && !((unsigned long)cmd->data & mask);
}

static void write_inline(struct krping_target_cmd *cmd)
{
	u32 crc = krping_crc(cmd->data, cmd->length);
	void *ram = ram_of(cmd);

	if (crc != cmd->crc) {
		refuse_crc(cmd, crc);
	} else if (ram) {
		memcpy(ram, cmd->data, cmd->length);
		answer(cmd);
	} else {
		cmd->message = cmd->tc->message;
		cmd->message->users++;
		if (fits_disk(cmd)) {
			krping_data_set(cmd, virt_to_page(cmd->data), offset_in_page(cmd->data));
			submit(cmd);
		} else {
			store_inline(cmd);
		}
	}
}

static void read_inline(struct krping_target_cmd *cmd)
{
	cmd->data = ram_of(cmd);
	cmd->data_len = cmd->length;
	if (cmd->data)
		answer(cmd);
	else
		store_inline(cmd);
}

static bool writes(const struct krping_target_cmd *cmd)
{
	return cmd->op == KRPING_OP_WRITE || cmd->op == KRPING_OP_DISCARD ||
	       cmd->op == KRPING_OP_WRITE_ZEROES;
}

static void keep_alive(struct krping_target_cmd *cmd)
{
	if (krping_fault(KRPING_FAULT_TARGET_KEEPALIVE_LOST, cmd->tc->volume->opt.block)) {
		release_cmd(cmd);
		return;
	}
	if (cmd->flags & KRPING_CMD_BYE)
		krping_writer_leave(cmd->tc);
	put_unaligned_be64(krping_volume_size(cmd->tc->volume), cmd->digest);
	cmd->data = cmd->digest;
	cmd->data_len = sizeof(__be64);
	if (respond(cmd))
		return;
	cmd->resume = respond;	/* first in the list: it must not wait for other commands */
	list_add(&cmd->entry, &cmd->tc->wait_send);
}

static void execute(struct krping_target_cmd *cmd)
{
	struct krping_volume *volume = cmd->tc->volume;
	u64 size = krping_volume_size(volume);

	if (cmd->op == KRPING_OP_KEEP_ALIVE) {
		keep_alive(cmd);
		return;
	}
	if (cmd->offset > size || cmd->length > size - cmd->offset) {
		answer_status(cmd, KRPING_ST_RANGE);
		return;
	}
	if (!cmd->tc->writes && writes(cmd)) {
		answer_status(cmd, KRPING_ST_READ_ONLY);
		return;
	}
	switch (cmd->op) {
	case KRPING_OP_READ:
	case KRPING_OP_WRITE:
		if (cmd->rkey)
			step_or_wait(cmd, &cmd->tc->wait_data, begin_large);
		else if (cmd->op == KRPING_OP_READ)
			read_inline(cmd);
		else
			write_inline(cmd);
		break;
	case KRPING_OP_FLUSH:
		if (volume->backing.bdev && !volume->opt.read_only)
			submit(cmd);
		else
			answer(cmd);
		break;
	default:
		atomic_inc(&cmd->tc->async);
		krping_store_begin_work(cmd);
		break;
	}
}

/* Success of this command promises the client that earlier writes are stable. */
static bool promises(const struct krping_target_cmd *cmd)
{
	return cmd->op == KRPING_OP_FLUSH || cmd->flags & KRPING_CMD_FUA;
}

/*
 * The disk has failed a flush since the client connected, perhaps another client's: acknowledged
 * writes may be lost. The client sees the new epoch when it reconnects.
 */
static bool is_outdated(const struct krping_target_conn *tc)
{
	return tc->epoch != atomic64_read(&tc->volume->epoch);
}

/* The store has finished a command. */
static void store_done(struct krping_target_cmd *cmd)
{
	struct krping_target_conn *tc = cmd->tc;
	bool by_bio = moves_data(cmd) || cmd->op == KRPING_OP_FLUSH;

	if (by_bio)
		cmd->status = krping_store_status(cmd->bio_status);
	if (cmd->message)
		release_message(cmd);
	if (cmd->op == KRPING_OP_READ &&
	    krping_fault(KRPING_FAULT_TARGET_STORE_SHORT, tc->volume->opt.block))
		cmd->status = KRPING_ST_IO;
	if (cmd->status != KRPING_ST_OK && cmd->status != KRPING_ST_UNSUPPORTED)
		krping_err_ratelimited(tc->log_prefix,
				       "the store failed: op %u, %u bytes at %llu, status %u",
				       cmd->op, cmd->length, cmd->offset, cmd->status);
	if (cmd->status == KRPING_ST_OK && promises(cmd) && is_outdated(tc)) {
		krping_err_ratelimited(tc->log_prefix,
				       "the disk has failed a flush: the client has to reconnect");
		krping_conn_fail(&tc->conn, -ESTALE);
	} else if (cmd->op == KRPING_OP_READ && cmd->rkey && cmd->status == KRPING_ST_OK) {
		checksum_and_send(cmd);
	} else {
		answer(cmd);
	}
}

/* ---- receiving ---- */

/*
 * Gives the disk the commands of a message at once, those for adjacent sectors as one request. Not
 * with md: at the end of a plug it waits for its members.
 */
static void execute_all(struct krping_target_conn *tc, struct list_head *cmds)
{
	struct block_device *bdev = tc->volume->backing.bdev;
	struct krping_target_cmd *cmd, *next;
	bool plugs = bdev && !krping_bdev_maps_bios(bdev);
	struct blk_plug plug;

	if (plugs)
		blk_start_plug(&plug);
	list_for_each_entry_safe(cmd, next, cmds, entry)
		execute(cmd);
	if (plugs)
		blk_finish_plug(&plug);
}

static int read_message(struct krping_target_conn *tc, const void *msg, const struct ib_wc *wc)
{
	LIST_HEAD(cmds);
	int ret;

	if (!tc->is_served && !krping_writer_serves(tc))
		return -ECONNRESET;
	tc->is_served = true;
	ret = krping_target_decode(tc, msg, wc, &cmds);
	if (ret)
		return ret;
	execute_all(tc, &cmds);
	return 0;
}

void krping_worker_recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_buf *buf = container_of(wc->wr_cqe, struct krping_buf, cqe);
	struct krping_conn *conn = cq->cq_context;
	struct krping_target_conn *tc = container_of(conn, struct krping_target_conn, conn);
	int ret;

	if (!krping_buf_received(conn, buf, wc) || is_closed(tc))
		return;
	tc->last_rx = jiffies;
	tc->message = buf;
	buf->users = 1;
	ret = 0;
	if (krping_fault(KRPING_FAULT_TARGET_DISCONNECT, tc->volume->opt.block))
		ret = -ECONNRESET;
	else if (!krping_fault(KRPING_FAULT_TARGET_RECV_DROP, tc->volume->opt.block))
		ret = read_message(tc, buf->data, wc);
	if (ret)
		krping_conn_fail(conn, ret);
	else
		put_message(tc, buf);
}

/* ---- is the client still there? ---- */

static void krping_worker_probe_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_target_conn *tc = container_of(wc->wr_cqe, struct krping_target_conn,
						     probe_cqe);

	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(&tc->conn, wc, "the probe of the client");
	tc->probing = false;
	tc->last_rx = jiffies;	/* the client's device has answered */
}

/*
 * A client may vanish without a disconnect when its host crashes. The device of a live client
 * answers an RDMA WRITE of no bytes, which needs no key. Not every device gives up by itself: rxe
 * takes seven retries to mean no limit.
 */
static void check_client(struct krping_target_conn *tc)
{
	struct ib_rdma_wr probe = {
		.wr = {
			.wr_cqe = &tc->probe_cqe,
			.opcode = IB_WR_RDMA_WRITE,
			.send_flags = IB_SEND_SIGNALED,
		},
	};

	if (READ_ONCE(tc->conn.state) != KRPING_CONN_LIVE ||
	    time_before(jiffies, tc->last_rx + KRPING_TARGET_SILENCE))
		return;
	if (tc->probing) {
		if (time_before(jiffies, tc->probed + KRPING_TARGET_SILENCE))
			return;
		krping_warn_ratelimited(tc->log_prefix, "the client does not answer: it counts as gone");
		krping_conn_fail(&tc->conn, -ETIMEDOUT);
		return;
	}
	tc->probing = true;
	tc->probed = jiffies;
	post_send(tc, &probe.wr);
}

/* ---- the worker ---- */

#define POLL_BATCH	16
#define POLL_BUDGET	256	/* completions, before other work gets its turn */

static int take_completions(struct krping_target_conn *tc)
{
	struct ib_wc wc[POLL_BATCH];
	int i, n = ib_poll_cq(tc->conn.cq, POLL_BATCH, wc);

	for (i = 0; i < n; i++) {
		if (wc[i].wr_cqe)
			wc[i].wr_cqe->done(tc->conn.cq, &wc[i]);
		else if (wc[i].status != IB_WC_SUCCESS)	/* rdma_rw's, except its last one */
			krping_conn_wc_failed(&tc->conn, &wc[i], "moving data");
	}
	return max(n, 0);
}

static int take_finished(struct krping_target_conn *tc)
{
	struct llist_node *all = llist_reverse_order(llist_del_all(&tc->finished));
	struct krping_target_cmd *cmd, *next;
	int n = 0;

	llist_for_each_entry_safe(cmd, next, all, finished) {
		n++;
		if (!is_closed(tc))
			store_done(cmd);
	}
	return n;
}

/* Responses of commands that are ready at the same time share messages. */
static void krping_worker_poll(struct work_struct *work)
{
	struct krping_target_conn *tc = container_of(work, struct krping_target_conn, poll_work);
	unsigned int flags = memalloc_noio_save();	/* reclaim may write to this volume */
	int n, total = 0;

	do {
		n = take_completions(tc);
		n += take_finished(tc);
		total += n;
		if (!is_closed(tc)) {
			resume_waiting(&tc->wait_send);
			resume_waiting(&tc->wait_data);
		}
	} while ((n || !llist_empty(&tc->finished)) && total < POLL_BUDGET);
	if (tc->open_len && !is_closed(tc))
		post_message(tc, NULL);
	check_client(tc);
	krping_transfers_check(tc);
	krping_free_chunks(tc, KRPING_TARGET_SILENCE);
	memalloc_noio_restore(flags);
	if (n || ib_req_notify_cq(tc->conn.cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) > 0)
		kick(tc);
}

void krping_worker_init(struct krping_target_conn *tc)
{
	INIT_WORK(&tc->poll_work, krping_worker_poll);
	INIT_DELAYED_WORK(&tc->retry_work, krping_worker_retry);
	INIT_DELAYED_WORK(&tc->monitor_work, krping_worker_monitor);
	tc->probe_cqe.done = krping_worker_probe_done;
	spin_lock_init(&tc->kick_lock);
	init_llist_head(&tc->finished);
	INIT_LIST_HEAD(&tc->wait_data);
	INIT_LIST_HEAD(&tc->wait_send);
}

/* Called when everything that the worker uses is allocated. */
void krping_worker_start(struct krping_target_conn *tc)
{
	tc->last_rx = jiffies;
	queue_delayed_work(krping_target_wq, &tc->monitor_work, MONITOR_INTERVAL);
}

/* Undoes krping_worker_start(); nothing of the connection is in flight. */
void krping_worker_stop(struct krping_target_conn *tc)
{
	spin_lock_irq(&tc->kick_lock);
	tc->stopped = true;
	spin_unlock_irq(&tc->kick_lock);
	cancel_delayed_work_sync(&tc->retry_work);
	cancel_delayed_work_sync(&tc->monitor_work);
	cancel_work_sync(&tc->poll_work);
}
