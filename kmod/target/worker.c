// SPDX-License-Identifier: GPL-2.0
/*
 * A connection of a client: messages are decoded, commands executed, large data moved,
 * responses packed and sent. All in the connection's worker (target.h).
 */
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "lib/compat.h"
#include "wire/crc.h"
#include "lib/fault.h"
#include "lib/log.h"
#include "target/target.h"

static bool is_closed(const struct krping_tqueue *q)
{
	return READ_ONCE(q->conn.state) == KRPING_CONN_CLOSED;
}

static void kick(struct krping_tqueue *q)
{
	unsigned long flags;

	spin_lock_irqsave(&q->kick_lock, flags);
	if (!q->deaf)
		queue_work(krping_poll_wq, &q->poll);
	spin_unlock_irqrestore(&q->kick_lock, flags);
}

static void completions_ready(struct ib_cq *cq, void *context)
{
	kick(container_of((struct krping_conn *)context, struct krping_tqueue, conn));
}

static void retry(struct work_struct *work)
{
	kick(container_of(to_delayed_work(work), struct krping_tqueue, retry));
}

#define LOOK_TIME	(2 * HZ)

static void look(struct work_struct *work)
{
	struct krping_tqueue *q = container_of(to_delayed_work(work), struct krping_tqueue, look);

	kick(q);
	queue_delayed_work(krping_target_wq, &q->look, LOOK_TIME);
}

#define RETRY_DELAY	(HZ / 50)

/* Nobody tells when there is memory again. */
static bool out_of_memory(struct krping_tqueue *q)
{
	queue_delayed_work(krping_target_wq, &q->retry, RETRY_DELAY);
	return false;
}

/* The store is done with a command; any context. @cmd is not the caller's any more. */
void krping_tcmd_finished(struct krping_tcmd *cmd)
{
	struct krping_tqueue *q = cmd->q;

	llist_add(&cmd->finished, &q->finished);
	/* In the worker itself, which looks again before it ends. */
	if (!in_task() || current_work() != &q->poll)
		kick(q);
	if (atomic_dec_and_test(&q->async))
		complete(&q->async_done);
}

/* Return: false if it has to wait. */
static void run(struct krping_tcmd *cmd, struct list_head *list,
		bool (*step)(struct krping_tcmd *cmd))
{
	if (list_empty(list) && step(cmd))
		return;
	cmd->resume = step;
	list_add_tail(&cmd->entry, list);
}

static void resume(struct list_head *list)
{
	struct krping_tcmd *cmd;

	while ((cmd = list_first_entry_or_null(list, struct krping_tcmd, entry))) {
		list_del(&cmd->entry);
		if (!cmd->resume(cmd)) {
			list_add(&cmd->entry, list);
			return;
		}
	}
}

static void release(struct krping_tcmd *cmd)
{
	struct krping_tqueue *q = cmd->q;

	krping_free_large(cmd);
	if (cmd == q->keep_alive)
		q->asked = false;
	else
		list_add(&cmd->entry, &q->free_cmds);
}

/* ---- sending ---- */

static void post_send(struct krping_tqueue *q, struct ib_send_wr *wr)
{
	int ret = -ENOMEM;

	if (!krping_fault(KRPING_FAULT_TARGET_POST_FAIL, q->volume->opt.block))
		ret = krping_conn_post_send(&q->conn, wr);
	if (!ret)
		return;
	if (!is_closed(q))
		krping_err_ratelimited(q->log_prefix, "cannot post a work request: %d", ret);
	krping_conn_fail(&q->conn, ret);
}

/* A signalled work request that was posted after that many sends has completed. */
static void sent(struct krping_tqueue *q, u32 sends)
{
	if ((s32)(sends - q->tx_tail) > 0)
		q->tx_tail = sends;
}

static enum dma_data_direction dma_dir(const struct krping_tcmd *cmd)
{
	return cmd->op == KRPING_OP_WRITE ? DMA_FROM_DEVICE : DMA_TO_DEVICE;
}

/* Return: 1 if the data can be moved, 0 if it has to wait, or a negative errno. */
static int begin_transfer(struct krping_tcmd *cmd)
{
	struct krping_tqueue *q = cmd->q;
	int ret;

	if (!cmd->nr_wrs) {
		ret = rdma_rw_ctx_init(&cmd->rw, q->conn.qp, q->conn.id->port_num, cmd->sg,
				       cmd->nents, 0, cmd->addr, cmd->rkey, dma_dir(cmd));
		if (ret == -ENOMEM || ret == -EAGAIN)
			return out_of_memory(q);
		if (ret < 0)
			return ret;
		cmd->nr_wrs = ret;
	}
	return cmd->nr_wrs <= q->rw_room;
}

static void take_room(struct krping_tqueue *q, u32 nr_wrs)
{
	if (q->rw_room == q->rw_size)
		q->rw_moved = jiffies;
	q->rw_room -= nr_wrs;
}

static void end_transfer(struct krping_tcmd *cmd)
{
	struct krping_tqueue *q = cmd->q;

	rdma_rw_ctx_destroy(&cmd->rw, q->conn.qp, q->conn.id->port_num, cmd->sg, cmd->nents,
			    dma_dir(cmd));
	cmd->nr_wrs = 0;
}

/* Of a transfer that has begun: its data has been moved. */
static void finish_transfer(struct krping_tcmd *cmd)
{
	cmd->q->rw_room += cmd->nr_wrs;
	cmd->q->rw_moved = jiffies;
	end_transfer(cmd);
}

static bool cannot_transfer(struct krping_tcmd *cmd, int error)
{
	krping_err_ratelimited(cmd->q->log_prefix, "cannot move %u bytes: %d", cmd->length, error);
	krping_conn_fail(&cmd->q->conn, error);
	return true;
}

/*
 * What is sent over TCP has ended when TCP has it. Of a work request that nobody is told the end
 * of, siw gives TCP the pages themselves, and they would be used again while it sends them:
 * signalled, it copies them.
 */
static bool must_signal(const struct krping_tqueue *q)
{
	return rdma_protocol_iwarp(q->conn.id->device, q->conn.id->port_num);
}

static void signal_writes(struct ib_send_wr *first, const struct ib_send_wr *end)
{
	struct ib_send_wr *wr;

	for (wr = first; wr != end; wr = wr->next)
		wr->send_flags |= IB_SEND_SIGNALED;
}

/*
 * The message that is being filled goes out, with the data of @cmd in front of it if @cmd
 * has some to send. One send in KRPING_TARGET_TX / 4 is signalled, and those that data goes
 * with: buffers come back in time, and few completions are made.
 */
static void post_open(struct krping_tqueue *q, struct krping_tcmd *cmd)
{
	struct krping_ttx *tx = &q->tx[q->tx_head % KRPING_TARGET_TX];
	struct ib_sge sge = krping_buf_sge(&q->conn, &tx->buf, q->open_len);
	struct ib_send_wr send = {
		.wr_cqe = &tx->buf.cqe,
		.opcode = cmd ? IB_WR_SEND_WITH_INV : IB_WR_SEND,
		.ex.invalidate_rkey = cmd ? cmd->rkey : 0,
		.sg_list = &sge,
		.num_sge = 1,
	};
	struct ib_send_wr *first = &send;

	ib_dma_sync_single_for_device(q->conn.id->device, tx->buf.dma, q->open_len,
				      DMA_TO_DEVICE);
	q->open_len = 0;
	tx->sends = ++q->tx_head;
	tx->cmd = NULL;
	if (cmd && cmd->nr_wrs) {
		tx->cmd = cmd;
		take_room(q, cmd->nr_wrs);
		first = rdma_rw_ctx_wrs(&cmd->rw, q->conn.qp, q->conn.id->port_num, NULL, &send);
		if (must_signal(q))
			signal_writes(first, &send);
	}
	if (tx->cmd || must_signal(q) || ++q->unsignalled >= KRPING_TARGET_TX / 4) {
		send.send_flags = IB_SEND_SIGNALED;
		q->unsignalled = 0;
	}
	krping_count(q->volume->stats, KRPING_MESSAGES, 1);
	post_send(q, first);
}

static void send_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_ttx *tx = container_of(wc->wr_cqe, struct krping_ttx, buf.cqe);
	struct krping_tqueue *q = tx->q;
	struct krping_tcmd *cmd = tx->cmd;

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&q->conn, wc, "SEND");
		return;
	}
	sent(q, tx->sends);
	if (!cmd)
		return;
	tx->cmd = NULL;
	finish_transfer(cmd);
	release(cmd);
}

/* Return: @need bytes of a message, or NULL if none is free. */
static void *reserve(struct krping_tqueue *q, u32 need)
{
	if (q->open_len + need > KRPING_TARGET_MAX_MESSAGE)
		post_open(q, NULL);
	if (q->tx_head - q->tx_tail == KRPING_TARGET_TX)
		return NULL;
	return q->tx[q->tx_head % KRPING_TARGET_TX].buf.data + q->open_len;
}

static bool moves_data(const struct krping_tcmd *cmd)
{
	return cmd->op == KRPING_OP_READ || cmd->op == KRPING_OP_WRITE;
}

/* A step: the response goes into the open message; with a key to invalidate it ends it. */
static bool respond(struct krping_tcmd *cmd)
{
	struct krping_tqueue *q = cmd->q;
	bool ok = cmd->status == KRPING_ST_OK;
	u32 len = ok && cmd->data ? cmd->data_len : 0;
	u32 padded = ALIGN(len, KRPING_ALIGN);
	struct krping_rsp rsp = {
		.tag = cpu_to_be16(cmd->tag),
		.status = cmd->status,
		.flags = len ? KRPING_RSP_INLINE : 0,
	};
	void *to = reserve(q, sizeof(rsp) + padded);

	if (!to)
		return false;
	if (len) {
		memcpy(to + sizeof(rsp), cmd->data, len);
		memset(to + sizeof(rsp) + len, 0, padded - len);
		if (cmd->op == KRPING_OP_READ) {
			cmd->crc = krping_crc(to + sizeof(rsp), len);
			krping_fault_corrupt(KRPING_FAULT_TARGET_SEND_CORRUPT,
					     q->volume->opt.block, to + sizeof(rsp));
		}
	}
	if (ok)
		rsp.length = cpu_to_be32(moves_data(cmd) ? cmd->length : len);
	if (ok && cmd->op == KRPING_OP_READ)
		rsp.crc32c = cpu_to_be32(cmd->crc);
	memcpy(to, &rsp, sizeof(rsp));
	q->open_len += sizeof(rsp) + padded;

	if (ok)
		krping_count_command(q->volume->stats, cmd->op, cmd->length);
	else
		krping_count(q->volume->stats, KRPING_ERRORS, 1);
	if (cmd != q->keep_alive) {
		__clear_bit(cmd->tag, q->tags);
		WRITE_ONCE(q->nr_inflight, q->nr_inflight - 1);
	}
	if (cmd->rkey)
		post_open(q, cmd);
	if (!cmd->nr_wrs)	/* else when the data is sent */
		release(cmd);
	return true;
}

static void answer(struct krping_tcmd *cmd)
{
	run(cmd, &cmd->q->wait_send, respond);
}

static void answer_status(struct krping_tcmd *cmd, u8 status)
{
	cmd->status = status;
	answer(cmd);
}

/* A step: the data of a large READ is there; it goes out, with the response behind it. */
static bool send_large(struct krping_tcmd *cmd)
{
	int ret = begin_transfer(cmd);

	if (ret < 0)
		return cannot_transfer(cmd, ret);
	return ret && respond(cmd);
}

/* A step: the data of a large WRITE is asked for. */
static bool fetch_large(struct krping_tcmd *cmd)
{
	struct krping_tqueue *q = cmd->q;
	int ret = begin_transfer(cmd);

	if (ret < 0)
		return cannot_transfer(cmd, ret);
	if (!ret)
		return false;
	take_room(q, cmd->nr_wrs);
	q->unsignalled = 0;
	cmd->sends = q->tx_head;
	post_send(q, rdma_rw_ctx_wrs(&cmd->rw, q->conn.qp, q->conn.id->port_num, &cmd->rw_cqe,
				     NULL));
	return true;
}

/* ---- executing ---- */

static void submit(struct krping_tcmd *cmd)
{
	atomic_inc(&cmd->q->async);
	krping_store_submit(cmd);
}

static void *ram_of(const struct krping_tcmd *cmd)
{
	void *ram = cmd->q->volume->backing.ram;

	return ram ? ram + cmd->offset : NULL;
}

static void refuse_crc(struct krping_tcmd *cmd, u32 crc)
{
	krping_count(cmd->q->volume->stats, KRPING_CRC_ERRORS, 1);
	krping_err_ratelimited(cmd->q->log_prefix,
			       "write of %u bytes at %llu refused: CRC 0x%08x, not 0x%08x",
			       cmd->length, cmd->offset, crc, cmd->crc);
	answer_status(cmd, KRPING_ST_CRC);
}

static void write_inline(struct krping_tcmd *cmd)
{
	u32 crc = krping_crc(cmd->data, cmd->length);
	const void *data = cmd->data;
	void *ram = ram_of(cmd);

	cmd->data = NULL;
	if (crc != cmd->crc) {
		refuse_crc(cmd, crc);
	} else if (ram) {
		memcpy(ram, data, cmd->length);
		answer(cmd);
	} else {
		/* The receive is posted again before the disk has it. */
		memcpy(page_address(cmd->page), data, cmd->length);
		cmd->small.length = cmd->length;
		submit(cmd);
	}
}

static void read_inline(struct krping_tcmd *cmd)
{
	cmd->data = ram_of(cmd);
	cmd->data_len = cmd->length;
	if (cmd->data) {
		answer(cmd);
		return;
	}
	cmd->small.length = cmd->length;
	submit(cmd);
}

static void rdma_read_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_tcmd *cmd = container_of(wc->wr_cqe, struct krping_tcmd, rw_cqe);
	struct krping_tqueue *q = cmd->q;
	void *ram = ram_of(cmd);
	u32 crc;

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&q->conn, wc, "RDMA READ");
		return;
	}
	sent(q, cmd->sends);
	finish_transfer(cmd);
	if (is_closed(q))
		return;
	krping_fault_corrupt(KRPING_FAULT_TARGET_RECV_CORRUPT, q->volume->opt.block,
			     sg_virt(cmd->sg));
	crc = krping_large_crc(cmd);
	if (crc != cmd->crc) {
		refuse_crc(cmd, crc);
	} else if (ram) {
		krping_copy_large(cmd, ram, true);
		answer(cmd);
	} else {
		submit(cmd);
	}
}

/* The data of a large READ. */
static void checksum_and_send(struct krping_tcmd *cmd)
{
	cmd->crc = krping_large_crc(cmd);
	krping_fault_corrupt(KRPING_FAULT_TARGET_SEND_CORRUPT, cmd->q->volume->opt.block,
			     sg_virt(cmd->sg));
	run(cmd, &cmd->q->wait_send, send_large);
}

/* A step: memory for large data, and what is to be done with it. */
static bool begin_large(struct krping_tcmd *cmd)
{
	struct krping_tqueue *q = cmd->q;
	void *ram = ram_of(cmd);

	if (q->buffered && q->buffered + cmd->length > KRPING_TARGET_BUFFERS)
		return false;
	if (!krping_alloc_large(cmd))
		return out_of_memory(q);
	if (cmd->op == KRPING_OP_WRITE) {
		run(cmd, &q->wait_send, fetch_large);
	} else if (ram) {
		krping_copy_large(cmd, ram, false);
		checksum_and_send(cmd);
	} else {
		submit(cmd);
	}
	return true;
}

static bool writes(const struct krping_tcmd *cmd)
{
	return cmd->op == KRPING_OP_WRITE || cmd->op == KRPING_OP_DISCARD ||
	       cmd->op == KRPING_OP_WRITE_ZEROES;
}

static void keep_alive(struct krping_tcmd *cmd)
{
	if (krping_fault(KRPING_FAULT_TARGET_ALIVE_LOST, cmd->q->volume->opt.block)) {
		release(cmd);
		return;
	}
	put_unaligned_be64(krping_volume_size(cmd->q->volume), cmd->digest);
	cmd->data = cmd->digest;
	cmd->data_len = sizeof(__be64);
	if (respond(cmd))
		return;
	cmd->resume = respond;	/* it waits for no store, and not behind others that do */
	list_add(&cmd->entry, &cmd->q->wait_send);
}

static void execute(struct krping_tcmd *cmd)
{
	struct krping_volume *volume = cmd->q->volume;
	u64 size = krping_volume_size(volume);

	if (cmd->op == KRPING_OP_KEEP_ALIVE) {
		keep_alive(cmd);
		return;
	}
	if (cmd->offset > size || cmd->length > size - cmd->offset) {
		cmd->data = NULL;
		answer_status(cmd, KRPING_ST_RANGE);
		return;
	}
	if (volume->opt.read_only && writes(cmd)) {
		cmd->data = NULL;
		answer_status(cmd, KRPING_ST_READ_ONLY);
		return;
	}
	switch (cmd->op) {
	case KRPING_OP_READ:
	case KRPING_OP_WRITE:
		if (cmd->rkey)
			run(cmd, &cmd->q->wait_data, begin_large);
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
		atomic_inc(&cmd->q->async);
		krping_store_begin_work(cmd);
		break;
	}
}

/* The client takes the answer for a promise that what it wrote before is stable. */
static bool promises(const struct krping_tcmd *cmd)
{
	return cmd->op == KRPING_OP_FLUSH || cmd->flags & KRPING_CMD_FUA;
}

/*
 * The disk has failed a flush since the client came, perhaps one of another client: what this one
 * was answered may be gone. It sees that when it connects anew.
 */
static bool is_outdated(const struct krping_tqueue *q)
{
	return q->epoch != atomic64_read(&q->volume->epoch);
}

/* What the store has finished. */
static void go_on(struct krping_tcmd *cmd)
{
	struct krping_tqueue *q = cmd->q;
	bool by_bio = moves_data(cmd) || cmd->op == KRPING_OP_FLUSH;

	if (by_bio)
		cmd->status = krping_store_status(cmd->bio_status);
	if (cmd->op == KRPING_OP_READ &&
	    krping_fault(KRPING_FAULT_TARGET_STORE_SHORT, q->volume->opt.block))
		cmd->status = KRPING_ST_IO;
	if (cmd->status != KRPING_ST_OK && cmd->status != KRPING_ST_UNSUPPORTED)
		krping_err_ratelimited(q->log_prefix,
				       "the store failed: op %u of %u bytes at %llu, status %u",
				       cmd->op, cmd->length, cmd->offset, cmd->status);
	if (cmd->status == KRPING_ST_OK && promises(cmd) && is_outdated(q)) {
		krping_err_ratelimited(q->log_prefix,
				       "the disk has failed a flush: the client has to connect anew");
		krping_conn_fail(&q->conn, -ESTALE);
	} else if (cmd->op != KRPING_OP_READ || cmd->status != KRPING_ST_OK) {
		answer(cmd);
	} else if (cmd->rkey) {
		checksum_and_send(cmd);
	} else {
		cmd->data = page_address(cmd->page);
		answer(cmd);
	}
}

/* ---- receiving ---- */

static int read_message(struct krping_tqueue *q, const void *msg, const struct ib_wc *wc)
{
	struct krping_tcmd *cmd, *next;
	LIST_HEAD(cmds);
	int ret;

	ret = krping_target_decode(q, msg, wc, &cmds);
	if (ret)
		return ret;
	list_for_each_entry_safe(cmd, next, &cmds, entry)
		execute(cmd);
	return 0;
}

static void recv_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_buf *buf = container_of(wc->wr_cqe, struct krping_buf, cqe);
	struct krping_conn *conn = cq->cq_context;
	struct krping_tqueue *q = container_of(conn, struct krping_tqueue, conn);
	int ret;

	if (!krping_buf_received(conn, buf, wc) || is_closed(q))
		return;
	q->heard = jiffies;
	ret = 0;
	if (krping_fault(KRPING_FAULT_TARGET_DISCONNECT, q->volume->opt.block))
		ret = -ECONNRESET;
	else if (!krping_fault(KRPING_FAULT_TARGET_RECV_DROP, q->volume->opt.block))
		ret = read_message(q, buf->data, wc);
	if (!ret && !is_closed(q))
		ret = krping_buf_post_recv(conn, buf);
	if (ret)
		krping_conn_fail(conn, ret);
}

/* ---- the client's life ---- */

static void probe_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_tqueue *q = container_of(wc->wr_cqe, struct krping_tqueue, probe_cqe);

	if (wc->status != IB_WC_SUCCESS)
		krping_conn_wc_failed(&q->conn, wc, "looking for the client");
	q->probing = false;
	q->heard = jiffies;	/* of its device; it is looked for again when that is long ago */
}

/*
 * A client may die without a word, as its host does. One that lives answers, without knowing it,
 * an RDMA WRITE of no bytes, which needs no key. Not every device gives up by itself: to rxe
 * seven retries are endless.
 */
static void look_for_client(struct krping_tqueue *q)
{
	struct ib_rdma_wr probe = {
		.wr = {
			.wr_cqe = &q->probe_cqe,
			.opcode = IB_WR_RDMA_WRITE,
			.send_flags = IB_SEND_SIGNALED,
		},
	};

	if (READ_ONCE(q->conn.state) != KRPING_CONN_LIVE ||
	    time_before(jiffies, q->heard + KRPING_TARGET_SILENCE))
		return;
	if (q->probing) {
		if (time_before(jiffies, q->probed + KRPING_TARGET_SILENCE))
			return;
		krping_warn_ratelimited(q->log_prefix, "the client is gone");
		krping_conn_fail(&q->conn, -ETIMEDOUT);
		return;
	}
	q->probing = true;
	q->probed = jiffies;
	post_send(q, &probe.wr);
}

/* A device gives up by itself, but not rxe, which may lose an RDMA READ for good. */
static void look_for_data(struct krping_tqueue *q)
{
	if (READ_ONCE(q->conn.state) != KRPING_CONN_LIVE || q->rw_room == q->rw_size ||
	    time_before(jiffies, q->rw_moved + KRPING_TARGET_STUCK))
		return;
	krping_warn_ratelimited(q->log_prefix, "data that is moved does not arrive");
	krping_conn_fail(&q->conn, -ETIMEDOUT);
}

/* Memory is not kept for a client that moves no large data. */
static void free_idle_chunks(struct krping_tqueue *q)
{
	if (time_after(jiffies, q->rw_moved + KRPING_TARGET_SILENCE))
		krping_free_chunks(q);
}

/* ---- the worker ---- */

#define POLL_BATCH	16
#define POLL_BUDGET	256	/* completions, then others have their turn */

static int take_completions(struct krping_tqueue *q)
{
	struct ib_wc wc[POLL_BATCH];
	int i, n = ib_poll_cq(q->conn.cq, POLL_BATCH, wc);

	for (i = 0; i < n; i++) {
		if (wc[i].wr_cqe)
			wc[i].wr_cqe->done(q->conn.cq, &wc[i]);
		else if (wc[i].status != IB_WC_SUCCESS)	/* of rdma_rw, in front of the last one */
			krping_conn_wc_failed(&q->conn, &wc[i], "moving data");
	}
	return max(n, 0);
}

static int take_finished(struct krping_tqueue *q)
{
	struct llist_node *all = llist_reverse_order(llist_del_all(&q->finished));
	struct krping_tcmd *cmd, *next;
	int n = 0;

	llist_for_each_entry_safe(cmd, next, all, finished) {
		n++;
		if (!is_closed(q))
			go_on(cmd);
	}
	return n;
}

/* Responses of all that is found ready go out together. */
static void poll(struct work_struct *work)
{
	struct krping_tqueue *q = container_of(work, struct krping_tqueue, poll);
	unsigned int flags = memalloc_noio_save();	/* we may be what memory is written to */
	int n, total = 0;

	do {
		n = take_completions(q);
		n += take_finished(q);
		total += n;
		if (!is_closed(q)) {
			resume(&q->wait_send);
			resume(&q->wait_data);
		}
	} while ((n || !llist_empty(&q->finished)) && total < POLL_BUDGET);
	if (q->open_len && !is_closed(q))
		post_open(q, NULL);
	look_for_client(q);
	look_for_data(q);
	free_idle_chunks(q);
	memalloc_noio_restore(flags);
	if (n || ib_req_notify_cq(q->conn.cq, IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS) > 0)
		kick(q);
}

/* ---- what a connection uses ---- */

void krping_tqueue_init(struct krping_tqueue *q)
{
	INIT_WORK(&q->poll, poll);
	INIT_DELAYED_WORK(&q->retry, retry);
	INIT_DELAYED_WORK(&q->look, look);
	q->probe_cqe.done = probe_done;
	spin_lock_init(&q->kick_lock);
	init_llist_head(&q->finished);
	atomic_set(&q->async, 1);
	init_completion(&q->async_done);
	INIT_LIST_HEAD(&q->free_cmds);
	INIT_LIST_HEAD(&q->chunks);
	INIT_LIST_HEAD(&q->wait_data);
	INIT_LIST_HEAD(&q->wait_send);
}

/*
 * Commands that are answered but whose data is still on the way hold a message each, so
 * there are @depth and KRPING_TARGET_TX of them at most; and one KEEP_ALIVE.
 */
static int alloc_cmds(struct krping_tqueue *q)
{
	u32 nr = q->depth + KRPING_TARGET_TX + 1, i;

	q->tags = bitmap_zalloc(KRPING_TAG_KEEP_ALIVE + 1, GFP_KERNEL);
	q->cmds = kvcalloc(nr, sizeof(*q->cmds), GFP_KERNEL);
	if (!q->tags || !q->cmds)
		return -ENOMEM;
	q->nr_cmds = nr;
	for (i = 0; i < nr; i++) {
		struct krping_tcmd *cmd = &q->cmds[i];

		cmd->q = q;
		cmd->rw_cqe.done = rdma_read_done;
		INIT_WORK(&cmd->work, krping_store_work);
		sg_init_table(&cmd->small, 1);
		if (i)
			list_add_tail(&cmd->entry, &q->free_cmds);
		if (!i || !q->volume->backing.bdev)
			continue;
		cmd->page = alloc_page(GFP_KERNEL);
		if (!cmd->page)
			return -ENOMEM;
		sg_set_page(&cmd->small, cmd->page, PAGE_SIZE, 0);
	}
	q->keep_alive = &q->cmds[0];
	return 0;
}

static void free_cmds(struct krping_tqueue *q)
{
	u32 i;

	for (i = 0; i < q->nr_cmds; i++) {
		struct krping_tcmd *cmd = &q->cmds[i];

		if (cmd->nr_wrs)
			end_transfer(cmd);
		krping_free_large(cmd);
		if (cmd->page)
			__free_page(cmd->page);
	}
	krping_free_chunks(q);
	kvfree(q->cmds);
	bitmap_free(q->tags);
	q->cmds = NULL;
	q->nr_cmds = 0;
	q->tags = NULL;
}

static int alloc_tx(struct krping_tqueue *q)
{
	u32 i;
	int ret = 0;

	q->tx = kvcalloc(KRPING_TARGET_TX, sizeof(*q->tx), GFP_KERNEL);
	if (!q->tx)
		return -ENOMEM;
	for (i = 0; !ret && i < KRPING_TARGET_TX; i++) {
		q->tx[i].q = q;
		q->tx[i].buf.cqe.done = send_done;
		ret = krping_buf_alloc(&q->conn, &q->tx[i].buf, KRPING_TARGET_MAX_MESSAGE,
				       DMA_TO_DEVICE);
	}
	return ret;
}

static void free_tx(struct krping_tqueue *q)
{
	u32 i;

	if (!q->tx)
		return;
	for (i = 0; i < KRPING_TARGET_TX; i++)
		krping_buf_free(&q->conn, &q->tx[i].buf);
	kvfree(q->tx);
	q->tx = NULL;
}

/*
 * The client may have @depth messages and a KEEP_ALIVE without a response: so many receives
 * are posted at any time, while the worker reads one more.
 */
static u32 nr_receives(const struct krping_tqueue *q)
{
	return q->depth + 2;
}

static int alloc_rx(struct krping_tqueue *q)
{
	u32 nr = nr_receives(q);

	q->rx = kvcalloc(nr, sizeof(*q->rx), GFP_KERNEL);
	if (!q->rx)
		return -ENOMEM;
	q->nr_rx = nr;
	return krping_bufs_alloc_recv(&q->conn, q->rx, nr, KRPING_TARGET_MAX_MESSAGE, recv_done);
}

static void free_rx(struct krping_tqueue *q)
{
	u32 i;

	for (i = 0; i < q->nr_rx; i++)
		krping_buf_free(&q->conn, &q->rx[i]);
	kvfree(q->rx);
	q->rx = NULL;
	q->nr_rx = 0;
}

/* Pieces of a READ or WRITE. Over iWARP a READ has one, a memory region, whatever its data is. */
static u32 rw_pieces(const struct krping_tqueue *q)
{
	const struct rdma_cm_id *id = q->conn.id;
	int sge = krping_dev_max_send_sge(id->device);

	if (!rdma_protocol_iwarp(id->device, id->port_num))
		sge = min(sge, id->device->attrs.max_sge_rd);
	return clamp(sge, 1, 32);
}

#define MIN_RW_CTXS	32	/* large commands of one piece each that move data at a time */

/* READs and WRITEs that the send queue is made for, of which a command takes @most. */
static u32 rw_ctxs(const struct krping_tqueue *q, u32 most, u32 send_wr)
{
	/* 3: see krping_conn_alloc(), which says so if there is no room for one command. */
	int fit = ((int)krping_dev_max_wr(q->conn.id->device) - (int)send_wr - 1) / 3;

	return min_t(u32, max_t(u32, 4 * most, MIN_RW_CTXS), max_t(int, fit, most));
}

/**
 * krping_tqueue_alloc - queue pair, commands, messages and posted receives
 * @q:		with the request of a client
 *
 * The send queue holds KRPING_TARGET_TX messages and @rw_ctxs RDMA READs and WRITEs. Of
 * these one command takes at most DIV_ROUND_UP(256 pages, pieces of a work request); there
 * is room for four such, and they are counted in @q->rw_room. So a command never needs more
 * than there is, and what it needs comes back by completions.
 *
 * Return: 0 or a negative errno: krping_tqueue_drain() and krping_tqueue_free() follow.
 */
int krping_tqueue_alloc(struct krping_tqueue *q)
{
	const struct rdma_cm_id *id = q->conn.id;
	u32 pages = KRPING_TARGET_MAX_DATA / PAGE_SIZE, pieces = rw_pieces(q);
	u32 most = max(rdma_rw_mr_factor(id->device, id->port_num, pages),
		       DIV_ROUND_UP(pages, pieces));
	struct krping_qp_attr attr = {
		.send_wr = KRPING_TARGET_TX + 1,	/* 1 = probe */
		.recv_wr = nr_receives(q),
		.vector = q->index,
		.notify = completions_ready,
		.send_sge = pieces,
		.rw_ctxs = rw_ctxs(q, most, KRPING_TARGET_TX + 1),
	};
	int ret;

	q->chunk_order = krping_chunk_order(id->device);
	q->rw_size = attr.rw_ctxs;
	q->rw_room = attr.rw_ctxs;
	ret = alloc_cmds(q);
	if (!ret)
		ret = krping_conn_alloc(&q->conn, &attr);
	if (ret)
		return ret;
	ib_req_notify_cq(q->conn.cq, IB_CQ_NEXT_COMP);	/* a drain waits for completions, too */
	ret = alloc_tx(q);
	if (!ret)
		ret = alloc_rx(q);
	if (ret)
		return ret;
	q->heard = jiffies;
	queue_delayed_work(krping_target_wq, &q->look, LOOK_TIME);
	return 0;
}

/**
 * krping_tqueue_drain - until nothing of a closed connection is under way
 * @q:		closed; no setup runs
 *
 * Afterwards neither the client nor the store touches memory of the connection.
 */
void krping_tqueue_drain(struct krping_tqueue *q)
{
	flush_work(&q->poll);	/* one that begins now sees that it is closed, and posts nothing */
	krping_conn_drain(&q->conn);
	if (!atomic_dec_and_test(&q->async))
		wait_for_completion(&q->async_done);
	spin_lock_irq(&q->kick_lock);
	q->deaf = true;
	spin_unlock_irq(&q->kick_lock);
	cancel_delayed_work_sync(&q->retry);
	cancel_delayed_work_sync(&q->look);
	cancel_work_sync(&q->poll);
}

/* Twin of krping_tqueue_alloc(); drained. */
void krping_tqueue_free(struct krping_tqueue *q)
{
	free_cmds(q);
	free_rx(q);
	free_tx(q);
	krping_conn_free(&q->conn);
}
