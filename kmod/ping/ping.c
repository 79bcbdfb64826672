// SPDX-License-Identifier: GPL-2.0
/* Ping/pong (PROTOCOL.md section 1): the loops of client and server, over one connection. */
#include <linux/sched/signal.h>

#include "lib/log.h"
#include "ping/pattern.h"
#include "ping/thread.h"

/* The longest chain posted at once: WRITE, SEND; or LOCAL_INV, REG_MR. */
#define MAX_CHAIN	2

static u32 ping_send_wr(const struct krping_options *opt)
{
	return MAX_CHAIN;
}

/* ---- completions ---- */

static void krping_ping_write_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_ping_conn *pc = krping_ping_conn_of(cq);

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&pc->conn, wc, "RDMA WRITE");
		return;
	}
	krping_count(pc->thread->stats, KRPING_WRITE_BYTES, pc->rdma_len);
	krping_count(pc->thread->stats, KRPING_WRITE_MSGS, 1);
	krping_ping_conn_completed(pc);
}

static int ping_prepare(struct krping_ping_conn *pc)
{
	const struct krping_thread *thread = pc->thread;
	bool client = krping_is_client(thread);
	u32 size = thread->opt->size;
	int ret;

	pc->read_cqe.done = krping_ping_read_done;
	pc->write_cqe.done = krping_ping_write_done;
	ret = krping_region_alloc(&pc->conn, &pc->source, size,
				  client ? krping_shared_memory(pc) : krping_read_memory(pc),
				  krping_ping_reg_done) ?: krping_ping_check_size(pc);
	if (ret || !client)
		return ret;
	return krping_region_alloc(&pc->conn, &pc->sink, size, krping_shared_memory(pc),
				   krping_ping_reg_done);
}

/* With mem_mode=reg a key is used once, otherwise as long as the connection lives. */
static int renew_key(struct krping_ping_conn *pc, struct krping_region *region, int access)
{
	if (region->valid && !pc->thread->opt->mem_reg)
		return 0;
	return krping_ping_conn_register(pc, region, access);
}

static int report_mismatch(struct krping_thread *thread, u32 ping, s64 offset)
{
	krping_err(thread->log_prefix, "ping %u: data differs from byte %lld on", ping, offset);
	return -EBADMSG;
}

static s64 first_difference(const u8 *a, const u8 *b, u32 size)
{
	u32 i;

	for (i = 0; i < size; i++)
		if (a[i] != b[i])
			return i;
	return -1;
}

static void show_data(struct krping_thread *thread, u32 ping, const u8 *data, u32 len)
{
	if (thread->opt->verbose)
		krping_info_ratelimited(thread->log_prefix, "ping %u: |%*pE|", ping,
					(int)min_t(u32, len, 64), data);
}

/* ---- client ---- */

#define SOURCE_ACCESS	IB_ACCESS_REMOTE_READ
#define SINK_ACCESS	(IB_ACCESS_LOCAL_WRITE | IB_ACCESS_REMOTE_WRITE)

/* With server_inv on both sides the server's SEND invalidates the advertised key. */
static int check_invalidation(struct krping_ping_conn *pc, struct krping_region *region,
			      u32 invalidated)
{
	bool wanted = pc->thread->opt->server_inv;

	if (invalidated == (wanted ? region->mr->rkey : 0)) {
		region->valid = region->valid && !wanted;
		return 0;
	}
	if (wanted)
		krping_err_ratelimited(pc->thread->log_prefix,
				       "the server did not invalidate key 0x%x: give server_inv on both sides",
				       region->mr->rkey);
	else
		krping_err_ratelimited(pc->thread->log_prefix,
				       "the server invalidated key 0x%x: give server_inv on both sides or on none",
				       invalidated);
	return -EPROTO;
}

/* Advertises @region and waits for the server's answer. */
static int offer(struct krping_ping_conn *pc, struct krping_region *region, int access)
{
	struct krping_ping_msg go_ahead;
	u32 invalidated;
	int ret;

	ret = renew_key(pc, region, access);
	if (!ret)
		ret = krping_ping_conn_advertise(pc, region);
	if (!ret)
		ret = krping_ping_conn_take(pc, &go_ahead, &invalidated);
	return ret ?: check_invalidation(pc, region, invalidated);
}

static int client_ping(struct krping_ping_conn *pc, u32 ping)
{
	struct krping_thread *thread = pc->thread;
	ktime_t start;
	s64 offset;
	int ret;

	krping_region_for_cpu(&pc->conn, &pc->source);
	krping_pattern_fill(pc->source.vaddr, pc->source.size, ping);
	start = ktime_get();
	ret = offer(pc, &pc->source, SOURCE_ACCESS);
	if (!ret)
		ret = offer(pc, &pc->sink, SINK_ACCESS);
	if (ret)
		return ret;
	krping_result_time(thread->result, start);

	krping_region_for_cpu(&pc->conn, &pc->sink);
	show_data(thread, ping, pc->sink.vaddr, pc->sink.size);
	if (!thread->opt->validate)
		return 0;
	offset = first_difference(pc->source.vaddr, pc->sink.vaddr, pc->sink.size);
	return offset < 0 ? 0 : report_mismatch(thread, ping, offset);
}

static int client_loop(struct krping_ping_conn *pc)
{
	struct krping_thread *thread = pc->thread;
	u32 count = thread->opt->count, ping = 0;
	int ret = 0;

	while (!ret && (!count || ping < count)) {
		ret = signal_pending(current) ? -EINTR : client_ping(pc, ping);
		if (!ret)
			ping++;
		cond_resched();
	}
	krping_info(thread->log_prefix, "%u pings of %u bytes%s", ping, thread->opt->size,
		    ret ? ", then stopped" : thread->opt->validate ? ", all data valid" : "");
	return ret;
}

/* ---- server ---- */

static int check_advert(struct krping_ping_conn *pc, const struct krping_ping_msg *msg, u32 min,
			u32 max)
{
	u32 len = be32_to_cpu(msg->length);

	if (msg->rkey && len >= min && len <= max)
		return 0;
	krping_err_ratelimited(pc->thread->log_prefix,
			       "the client advertised %u bytes with rkey 0x%x: must be %u to %u, with a key",
			       len, be32_to_cpu(msg->rkey), min, max);
	return -EPROTO;
}

static int server_read(struct krping_ping_conn *pc, const struct krping_ping_msg *peer, u32 ping)
{
	struct krping_thread *thread = pc->thread;
	bool read_inv = thread->opt->read_inv;
	enum ib_wr_opcode opcode = read_inv ? IB_WR_RDMA_READ_WITH_INV : IB_WR_RDMA_READ;
	struct ib_rdma_wr read;
	struct ib_sge sge;
	s64 offset;
	int ret;

	ret = check_advert(pc, peer, 1, thread->opt->size);
	if (!ret)
		ret = renew_key(pc, &pc->source, krping_read_access(pc));
	if (ret)
		return ret;
	pc->rdma_len = be32_to_cpu(peer->length);
	sge = krping_region_sge(&pc->conn, &pc->source, pc->rdma_len, false);
	read = krping_rdma_wr(peer, &pc->read_cqe, opcode, &sge);
	if (read_inv)
		read.wr.ex.invalidate_rkey = pc->source.mr->rkey;
	krping_region_for_device(&pc->conn, &pc->source);
	ret = krping_ping_conn_post(pc, &read.wr, 1);
	if (!ret)
		ret = krping_ping_conn_wait(pc, false);
	if (ret)
		return ret;
	pc->source.valid = pc->source.valid && !read_inv;
	krping_region_for_cpu(&pc->conn, &pc->source);
	show_data(thread, ping, pc->source.vaddr, pc->rdma_len);
	if (!thread->opt->validate)
		return 0;
	offset = krping_pattern_mismatch(pc->source.vaddr, pc->rdma_len, ping);
	return offset < 0 ? 0 : report_mismatch(thread, ping, offset);
}

/* The client's key that the SEND after an operation invalidates, 0 for none. */
static u32 key_to_invalidate(const struct krping_ping_conn *pc, const struct krping_ping_msg *peer)
{
	return pc->thread->opt->server_inv ? be32_to_cpu(peer->rkey) : 0;
}

static int server_write(struct krping_ping_conn *pc, const struct krping_ping_msg *peer)
{
	const struct krping_options *opt = pc->thread->opt;
	struct krping_ping_msg go_ahead = {};
	struct ib_rdma_wr write;
	struct ib_sge sge;
	int ret;

	ret = check_advert(pc, peer, pc->rdma_len, U32_MAX);
	if (!ret && !opt->local_dma_lkey)
		ret = renew_key(pc, &pc->source, krping_read_access(pc));
	if (ret)
		return ret;
	sge = krping_region_sge(&pc->conn, &pc->source, pc->rdma_len, opt->local_dma_lkey);
	write = krping_rdma_wr(peer, &pc->write_cqe, IB_WR_RDMA_WRITE, &sge);
	krping_region_for_device(&pc->conn, &pc->source);
	return krping_ping_conn_send(pc, &go_ahead, key_to_invalidate(pc, peer), &write);
}

static int server_pong(struct krping_ping_conn *pc, const struct krping_ping_msg *source, u32 ping)
{
	struct krping_ping_msg sink, go_ahead = {};
	u32 invalidated;
	int ret;

	ret = server_read(pc, source, ping);
	if (!ret)
		ret = krping_ping_conn_send(pc, &go_ahead, key_to_invalidate(pc, source), NULL);
	if (!ret)
		ret = krping_ping_conn_take(pc, &sink, &invalidated);
	return ret ?: server_write(pc, &sink);
}

/* The client ends the test with a disconnect between two pings. */
static int server_loop(struct krping_ping_conn *pc)
{
	struct krping_thread *thread = pc->thread;
	struct krping_ping_msg source;
	u32 ping = 0, invalidated;
	ktime_t start;
	int ret = 0;

	while (!ret) {
		ret = signal_pending(current) ? -EINTR : 0;
		if (!ret)
			ret = krping_ping_conn_take(pc, &source, &invalidated);
		start = ktime_get();
		if (ret == -ECONNRESET || (!ret && thread->opt->count == ping && ping)) {
			ret = 0;
			break;
		}
		if (!ret)
			ret = server_pong(pc, &source, ping);
		if (!ret) {
			ping++;
			WRITE_ONCE(thread->result->size, pc->rdma_len);
			krping_result_time(thread->result, start);
		}
		cond_resched();
	}
	krping_info(thread->log_prefix, "%u pings answered%s", ping,
		    ret ? ", then stopped" : thread->opt->validate ? ", all data valid" : "");
	return ret;
}

static int ping_run(struct krping_thread *thread)
{
	struct krping_ping_conn *pc = &thread->conns[0];

	return krping_is_client(thread) ? client_loop(pc) : server_loop(pc);
}

const struct krping_test krping_ping_test = {
	.send_wr = ping_send_wr,
	.prepare = ping_prepare,
	.run = ping_run,
};
