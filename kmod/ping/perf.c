// SPDX-License-Identifier: GPL-2.0
/*
 * Micro-benchmarks (PROTOCOL.md section 1.2): write latency, read latency, bandwidth and
 * registration. Measurements go to the thread's result.
 */
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "lib/log.h"
#include "ping/thread.h"

/* LOCAL_INV, REG_MR, LOCAL_INV; or at most two WRITEs in flight, and a SEND or READ. */
#define MIN_SEND_WR	3

static u32 perf_send_wr(const struct krping_options *opt)
{
	return opt->test == KRPING_TEST_BW ? max_t(u32, opt->txdepth, MIN_SEND_WR) : MIN_SEND_WR;
}

/* One WRITE in a batch is signalled: few completions, but the queue does not run dry. */
static u32 batch_of(const struct krping_options *opt)
{
	return opt->test == KRPING_TEST_BW ? clamp_t(u32, opt->txdepth / 4, 1, 64) : 1;
}

/* ---- completions ---- */

/* On a reliable connection the unsignalled WRITEs before this one are done, too. */
static void krping_perf_write_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct krping_ping_conn *pc = krping_ping_conn_of(cq);
	struct krping_thread *thread = pc->thread;
	u64 done, n;

	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(&pc->conn, wc, "RDMA WRITE");
		return;
	}
	done = pc->writes_done + batch_of(thread->opt);
	if (thread->opt->count)	/* the last one ends a shorter batch */
		done = min_t(u64, done, thread->opt->count);
	n = done - pc->writes_done;
	krping_count(thread->stats, KRPING_WRITE_BYTES, n * pc->rdma_len);
	krping_count(thread->stats, KRPING_WRITE_MSGS, n);
	/* pairs with the loops that post */
	smp_store_release(&pc->writes_done, done);
	krping_thread_progress(thread);
}

/* ---- the start of every test: both sides advertise their sinks ---- */

static int perf_prepare(struct krping_ping_conn *pc)
{
	const struct krping_options *opt = pc->thread->opt;
	unsigned int source;
	int ret;

	pc->read_cqe.done = krping_ping_read_done;
	pc->write_cqe.done = krping_perf_write_done;
	source = krping_read_memory(pc);
	if (opt->local_dma_lkey && !krping_conn_is_iwarp(&pc->conn))
		source = KRPING_REGION_CONTIGUOUS;
	if (opt->test == KRPING_TEST_FR)
		source |= KRPING_REGION_MR;
	ret = krping_region_alloc(&pc->conn, &pc->source, opt->size, source,
				  krping_ping_reg_done) ?: krping_ping_check_size(pc);
	if (ret)
		return ret;
	return krping_region_alloc(&pc->conn, &pc->sink, opt->size,
				   krping_shared_memory(pc), krping_ping_reg_done);
}

static int register_both(struct krping_ping_conn *pc)
{
	int ret;

	ret = krping_ping_conn_register(pc, &pc->source, krping_read_access(pc));
	if (ret)
		return ret;
	return krping_ping_conn_register(pc, &pc->sink, IB_ACCESS_LOCAL_WRITE |
				    IB_ACCESS_REMOTE_WRITE | IB_ACCESS_REMOTE_READ);
}

/* Checks the memory that the peer advertises. */
static int check_sink(struct krping_ping_conn *pc, const struct krping_ping_msg *peer)
{
	struct krping_thread *thread = pc->thread;
	u32 len = be32_to_cpu(peer->length), size = thread->opt->size;

	if (!peer->rkey || !len) {
		krping_err_ratelimited(thread->log_prefix,
				       "the peer advertised no memory: run the same test on both sides");
		return -EPROTO;
	}
	if (krping_is_client(thread) ? len >= size : len <= size)
		return 0;
	krping_err_ratelimited(thread->log_prefix, "the peer advertised %u bytes: must be %s %u",
			       len, krping_is_client(thread) ? "at least" : "at most", size);
	return -EPROTO;
}

static int exchange_sinks(struct krping_ping_conn *pc, struct krping_ping_msg *peer)
{
	bool client = krping_is_client(pc->thread);
	u32 invalidated;
	int ret;

	ret = register_both(pc);
	if (!ret && client)
		ret = krping_ping_conn_advertise(pc, &pc->sink);
	if (!ret)
		ret = krping_ping_conn_take(pc, peer, &invalidated);
	if (!ret)
		ret = check_sink(pc, peer);
	if (!ret && !client)
		ret = krping_ping_conn_advertise(pc, &pc->sink);
	if (ret)
		return ret;
	pc->rdma_len = client ? pc->thread->opt->size : be32_to_cpu(peer->length);
	return client ? 0 : krping_ping_conn_wait(pc, false);
}

/* Builds an RDMA READ into, or an RDMA WRITE from, the whole source. */
static struct ib_rdma_wr whole_wr(struct krping_ping_conn *pc, const struct krping_ping_msg *peer,
				  enum ib_wr_opcode opcode, struct ib_sge *sge)
{
	bool write = opcode == IB_WR_RDMA_WRITE;

	*sge = krping_region_sge(&pc->conn, &pc->source, pc->rdma_len,
				 write && pc->thread->opt->local_dma_lkey);
	return krping_rdma_wr(peer, write ? &pc->write_cqe : &pc->read_cqe, opcode, sge);
}

/* ---- the passive side, whose memory the peer accesses ---- */

static bool disturbed(struct krping_ping_conn *pc)
{
	return krping_conn_error(&pc->conn) || krping_ping_conn_has_message(pc);
}

/* Detects a peer that has vanished: its device does not answer a READ of one byte. */
static int probe(struct krping_ping_conn *pc, const struct krping_ping_msg *peer)
{
	struct ib_rdma_wr read;
	struct ib_sge sge;

	read = whole_wr(pc, peer, IB_WR_RDMA_READ, &sge);
	sge.length = 1;
	return krping_ping_conn_post(pc, &read.wr, 1) ?: krping_ping_conn_wait(pc, false);
}

static unsigned long probe_interval(const struct krping_ping_conn *pc)
{
	return max(krping_step_timeout(pc->thread) / 2, (unsigned long)HZ);
}

/* Waits until the client disconnects or has vanished. */
static int lend(struct krping_ping_conn *pc, const struct krping_ping_msg *peer)
{
	long left;
	int ret;

	for (;;) {
		left = wait_event_interruptible_timeout(pc->thread->wait, disturbed(pc),
							probe_interval(pc));
		if (left < 0)
			return -EINTR;
		krping_ping_conn_poll(pc);
		if (krping_ping_conn_has_message(pc)) {
			krping_err_ratelimited(pc->thread->log_prefix,
					       "the client sent a message during the test: run the same test on both sides");
			return -EPROTO;
		}
		ret = left ? krping_conn_error(&pc->conn) : probe(pc, peer);
		if (ret)
			return ret;
	}
}

/* ---- rlat ---- */

static int rlat_client(struct krping_ping_conn *pc, const struct krping_ping_msg *peer)
{
	struct krping_thread *thread = pc->thread;
	u32 count = thread->opt->count, i;
	ktime_t start = ktime_get();
	struct ib_rdma_wr read;
	struct ib_sge sge;
	int ret;

	for (i = 0; !count || i < count; i++) {
		if (signal_pending(current))
			return -EINTR;
		read = whole_wr(pc, peer, IB_WR_RDMA_READ, &sge);
		ret = krping_ping_conn_post(pc, &read.wr, 1);
		if (!ret)
			ret = krping_ping_conn_wait(pc, false);
		if (ret)
			return ret;
		start = krping_result_time(thread->result, start);
		cond_resched();
	}
	return 0;
}

/* ---- wlat ---- */

/* The last byte of each write is its number, and arrives last. */
static int await_write(struct krping_ping_conn *pc, u8 number)
{
	const u8 *last = pc->sink.vaddr + pc->rdma_len - 1;
	unsigned long deadline = jiffies + krping_step_timeout(pc->thread);

	while (READ_ONCE(*last) != number) {
		if (signal_pending(current))
			return -EINTR;
		if (READ_ONCE(pc->conn.state) == KRPING_CONN_CLOSED)
			return krping_conn_error(&pc->conn);
		if (time_after(jiffies, deadline)) {
			krping_err_ratelimited(pc->thread->log_prefix,
					       "the peer did not write within %u s",
					       pc->thread->opt->timeout);
			return -ETIMEDOUT;
		}
		krping_ping_conn_poll(pc);
		krping_region_for_cpu(&pc->conn, &pc->sink);
		cond_resched();
		cpu_relax();
	}
	return 0;
}

/* Waits for the write before the last one, so the queue never holds more than two. */
static int write_number(struct krping_ping_conn *pc, const struct krping_ping_msg *peer, u8 number)
{
	unsigned long deadline = jiffies + krping_step_timeout(pc->thread);
	struct ib_rdma_wr write;
	struct ib_sge sge;
	int ret;

	/* pairs with krping_perf_write_done() */
	while (smp_load_acquire(&pc->writes_done) + 1 < pc->writes_posted) {
		ret = krping_conn_error(&pc->conn);
		if (ret)
			return ret;
		if (signal_pending(current))
			return -EINTR;
		if (time_after(jiffies, deadline)) {
			krping_err_ratelimited(pc->thread->log_prefix,
					       "no RDMA WRITE completed within %u s",
					       pc->thread->opt->timeout);
			return -ETIMEDOUT;
		}
		krping_ping_conn_poll(pc);
		cond_resched();
	}
	write = whole_wr(pc, peer, IB_WR_RDMA_WRITE, &sge);
	((u8 *)pc->source.vaddr)[pc->rdma_len - 1] = number;
	krping_region_for_device(&pc->conn, &pc->source);
	pc->writes_posted++;
	return krping_ping_conn_post(pc, &write.wr, 0);
}

static int wlat_client(struct krping_ping_conn *pc, const struct krping_ping_msg *peer)
{
	struct krping_thread *thread = pc->thread;
	u32 count = thread->opt->count, i;
	ktime_t start = ktime_get();
	int ret;

	for (i = 0; !count || i < count; i++) {
		ret = write_number(pc, peer, i + 1);
		if (!ret)
			ret = await_write(pc, i + 1);
		if (ret)
			return ret;
		start = krping_result_time(thread->result, start);
	}
	return 0;
}

static int wlat_server(struct krping_ping_conn *pc, const struct krping_ping_msg *peer)
{
	struct krping_thread *thread = pc->thread;
	u32 count = thread->opt->count, i;
	int ret;

	for (i = 0; !count || i < count; i++) {
		ret = await_write(pc, i + 1);
		if (!ret)
			ret = write_number(pc, peer, i + 1);
		if (ret)
			return ret;
		krping_result_count(thread->result, 1, ktime_get());
	}
	return lend(pc, peer);
}

/* ---- bw ---- */

static u64 writes_left(const struct krping_ping_conn *pc)
{
	u32 count = pc->thread->opt->count;

	return count ? count - pc->writes_posted : U64_MAX;
}

/*
 * Posts one batch if the queue has room for it. Not more, because completions may keep pace with
 * posts, and other connections, signals and the scheduler need their turn.
 *
 * Return: work requests posted, or a negative errno.
 */
static int post_writes(struct krping_ping_conn *pc, const struct krping_ping_msg *peer)
{
	u32 txdepth = pc->thread->opt->txdepth, batch = batch_of(pc->thread->opt), n, i;
	struct ib_rdma_wr write;
	struct ib_sge sge;
	int ret;

	/* pairs with krping_perf_write_done() */
	if (pc->writes_posted + batch - smp_load_acquire(&pc->writes_done) > txdepth)
		return 0;
	write = whole_wr(pc, peer, IB_WR_RDMA_WRITE, &sge);
	n = min_t(u64, batch, writes_left(pc));
	for (i = 1; i <= n; i++) {
		write.wr.send_flags = i == n ? IB_SEND_SIGNALED : 0;
		ret = krping_ping_conn_post(pc, &write.wr, 0);
		if (ret)
			return ret;
		pc->writes_posted++;
	}
	return n;
}

/* Return: 0 when progress differs from @seen, or a negative errno. */
static int wait_for_progress(struct krping_thread *thread, int seen)
{
	unsigned long deadline = jiffies + krping_step_timeout(thread);
	long left;

	if (!thread->opt->poll) {
		left = wait_event_interruptible_timeout(thread->wait,
							atomic_read(&thread->progress) != seen,
							krping_step_timeout(thread));
		if (left)
			return left < 0 ? -EINTR : 0;
	} else {
		while (time_before(jiffies, deadline)) {
			krping_ping_conn_poll(&thread->conns[0]);
			if (atomic_read(&thread->progress) != seen)
				return 0;
			if (signal_pending(current))
				return -EINTR;
			cond_resched();
			cpu_relax();
		}
	}
	krping_err_ratelimited(thread->log_prefix, "no RDMA WRITE completed within %u s",
			       thread->opt->timeout);
	return -ETIMEDOUT;
}

static int bw_write(struct krping_thread *thread, const struct krping_ping_msg *peers)
{
	u64 wanted = (u64)thread->opt->count * thread->nr_conns, counted = 0, done;
	int ret, seen;
	bool posted;
	u32 i;

	for (;;) {
		seen = atomic_read(&thread->progress);
		ret = krping_conn_error(&thread->conns[0].conn);	/* all fail together */
		if (ret)
			return ret;
		posted = false;
		done = 0;
		for (i = 0; i < thread->nr_conns; i++) {
			ret = post_writes(&thread->conns[i], &peers[i]);
			if (ret < 0)
				return ret;
			posted |= ret > 0;
			done += READ_ONCE(thread->conns[i].writes_done);
		}
		if (done != counted)
			krping_result_count(thread->result, done - counted, ktime_get());
		counted = done;
		if (wanted && done == wanted)
			return 0;
		if (signal_pending(current))
			return -EINTR;
		ret = posted ? 0 : wait_for_progress(thread, seen);
		if (ret)
			return ret;
		cond_resched();
	}
}

/* ---- fr ---- */

static int register_and_invalidate(struct krping_ping_conn *pc)
{
	struct krping_region *region = &pc->source;
	struct ib_send_wr *first;
	struct ib_send_wr inv;
	int ret;

	first = krping_region_prepare(region, krping_read_access(pc));
	if (!first)
		return -EIO;
	inv = (struct ib_send_wr){
		.wr_cqe = &region->cqe,
		.opcode = IB_WR_LOCAL_INV,
		.send_flags = IB_SEND_SIGNALED,
		.ex.invalidate_rkey = region->mr->rkey,
	};
	region->reg_wr.wr.next = &inv;
	ret = krping_ping_conn_post(pc, first, 2) ?: krping_ping_conn_wait(pc, false);
	region->valid = ret;
	return ret;
}

/* The peer takes no part in the test, but is probed from time to time. */
static int fr_run(struct krping_ping_conn *pc, const struct krping_ping_msg *peer)
{
	unsigned long next_probe = jiffies + probe_interval(pc);
	struct krping_thread *thread = pc->thread;
	u32 count = thread->opt->count, i;
	ktime_t start = ktime_get();
	int ret;

	for (i = 0; !count || i < count; i++) {
		if (signal_pending(current))
			return -EINTR;
		ret = register_and_invalidate(pc);
		if (ret)
			return ret;
		start = krping_result_time(thread->result, start);
		if (time_after(jiffies, next_probe)) {
			ret = krping_ping_conn_register(pc, &pc->source, krping_read_access(pc));
			if (!ret)
				ret = probe(pc, peer);
			if (ret)
				return ret;
			next_probe = jiffies + probe_interval(pc);
			start = ktime_get();
		}
		cond_resched();
	}
	return 0;
}

static int run_fr(struct krping_thread *thread)
{
	struct krping_ping_conn *pc = &thread->conns[0];
	struct krping_ping_msg peer;
	int ret;

	ret = exchange_sinks(pc, &peer);
	if (!ret)
		ret = fr_run(pc, &peer);
	if (ret || krping_is_client(thread))
		return ret;
	/* A server that finishes first waits until the client ends. */
	ret = krping_ping_conn_register(pc, &pc->source, krping_read_access(pc));
	return ret ?: lend(pc, &peer);
}

/* ---- all ---- */

static int run_latency(struct krping_thread *thread)
{
	bool write = thread->opt->test == KRPING_TEST_WLAT;
	struct krping_ping_conn *pc = &thread->conns[0];
	struct krping_ping_msg peer;
	int ret;

	ret = exchange_sinks(pc, &peer);
	if (ret)
		return ret;
	WRITE_ONCE(thread->result->size, pc->rdma_len);
	if (krping_is_client(thread))
		return write ? wlat_client(pc, &peer) : rlat_client(pc, &peer);
	return write ? wlat_server(pc, &peer) : lend(pc, &peer);
}

static int run_bandwidth(struct krping_thread *thread)
{
	struct krping_ping_msg *peers;
	int ret = 0;
	u32 i;

	peers = kvcalloc(thread->nr_conns, sizeof(*peers), GFP_KERNEL);
	if (!peers)
		return -ENOMEM;
	for (i = 0; i < thread->nr_conns && !ret; i++)
		ret = exchange_sinks(&thread->conns[i], &peers[i]);
	if (!ret) {
		WRITE_ONCE(thread->result->size, thread->conns[0].rdma_len);
		WRITE_ONCE(thread->result->start, ktime_get());
		if (krping_is_client(thread) || thread->opt->duplex)
			ret = bw_write(thread, peers);
		if (!ret && !krping_is_client(thread))
			ret = lend(&thread->conns[0], &peers[0]);
	}
	kvfree(peers);
	return ret;
}

static int perf_run(struct krping_thread *thread)
{
	int ret;

	switch (thread->opt->test) {
	case KRPING_TEST_FR:
		ret = run_fr(thread);
		break;
	case KRPING_TEST_BW:
		ret = run_bandwidth(thread);
		break;
	default:
		ret = run_latency(thread);
		break;
	}
	/* A server's test ends with the client's disconnect. */
	if (ret == -ECONNRESET && !krping_is_client(thread))
		ret = 0;
	krping_info(thread->log_prefix, "%llu operations of %u bytes%s", thread->result->ops,
		    thread->result->size, ret ? ", then stopped" : "");
	return ret;
}

const struct krping_test krping_perf_test = {
	.send_wr = perf_send_wr,
	.prepare = perf_prepare,
	.run = perf_run,
};
