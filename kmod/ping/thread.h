/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A ping/pong thread: the thread that wrote the command. It connects, runs one test (ping.c,
 * perf.c) over one or more connections (conn.c), and tears them down.
 */
#ifndef KRPING_THREAD_H
#define KRPING_THREAD_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/seq_file.h>
#include <linux/wait.h>

#include "rdma/conn.h"
#include "options.h"
#include "rdma/buf.h"
#include "rdma/region.h"
#include "ping/result.h"
#include "lib/stats.h"

/*
 * One message is in flight each way. The second receive distinguishes a peer that sends out of
 * turn from one that is late.
 */
#define KRPING_NR_RECV	2

struct krping_thread;

/**
 * struct krping_ping_conn - one connection of a thread
 * @thread:	the thread that it belongs to
 * @conn:	the connection
 * @recv:	receive buffers, taken in turn
 * @send:	the one send buffer, free when @posted equals @completed
 * @source:	memory that this side reads into and writes from; for a ping client, the memory
 *		that the server reads
 * @sink:	memory that the peer writes to or reads from; unused by a ping server
 * @read_cqe:	completion of an RDMA READ
 * @write_cqe:	completion of an RDMA WRITE
 * @rdma_len:	bytes of each RDMA READ or WRITE in flight
 * @posted:	signalled work requests posted, of those that krping_ping_conn_wait() waits for
 * @completed:	those that have completed; written by completions, read by the thread
 * @received:	messages received; written by completions, read by the thread
 * @consumed:	messages that the thread has taken; read by completions
 * @invalidated: per receive buffer, the key that its message invalidated, 0 for none; written
 *		before @received grows
 * @writes_posted: RDMA WRITEs of a latency or bandwidth test posted; used by the thread only
 * @writes_done: those that have completed; written by completions, read by the thread
 *
 * The thread owns the connection. Completions of its CQ run one after another.
 */
struct krping_ping_conn {
	struct krping_thread *thread;
	struct krping_conn conn;
	struct krping_buf recv[KRPING_NR_RECV];
	struct krping_buf send;
	struct krping_region source;
	struct krping_region sink;
	struct ib_cqe read_cqe;
	struct ib_cqe write_cqe;
	u32 rdma_len;
	u32 posted;
	u32 completed;
	u32 received;
	u32 consumed;
	u32 invalidated[KRPING_NR_RECV];
	u64 writes_posted;
	u64 writes_done;
};

/**
 * struct krping_test - a test that a thread runs
 * @send_wr:	returns the send queue depth that it needs
 * @prepare:	allocates memory of a connection that has a queue pair; on failure the thread frees
 *		it
 * @run:	runs the test; all connections are established
 */
struct krping_test {
	u32 (*send_wr)(const struct krping_options *opt);
	int (*prepare)(struct krping_ping_conn *pc);
	int (*run)(struct krping_thread *thread);
};

/**
 * struct krping_thread - a running command
 * @entry:	in the list of all threads
 * @opt:	the command
 * @test:	the test that it runs; unused by a verbs test
 * @log_prefix:	in front of log messages
 * @listed_dev:	name of the RDMA device, "" while there is none; under the list's lock
 * @stats:	the nine columns of /proc/krping
 * @result:	the thread's reference
 * @wait:	woken by completions and by the loss of a connection
 * @failed:	a connection was lost, so all are failed
 * @group:	distinguishes this client's connections from others'
 * @progress:	grows with each completion and loss, to wait for any connection
 * @nr_conns:	connections; 0 in a verbs test, which has its own
 * @conns:	@nr_conns of them
 */
struct krping_thread {
	struct list_head entry;
	const struct krping_options *opt;
	const struct krping_test *test;
	char log_prefix[96];
	char listed_dev[IB_DEVICE_NAME_MAX];
	struct krping_stats __percpu *stats;
	struct krping_result *result;
	wait_queue_head_t wait;
	atomic_t failed;
	u16 group;
	atomic_t progress;
	u32 nr_conns;
	struct krping_ping_conn *conns;
};

extern const struct krping_test krping_ping_test;	/* ping.c */
extern const struct krping_test krping_perf_test;	/* perf.c */

/* A server's or client's own request parameters start from these. */
extern const struct rdma_conn_param krping_conn_param;

int krping_thread_init(struct krping_thread *thread, const struct krping_options *opt,
		       struct krping_result *result, const struct sockaddr_storage *addr);
void krping_thread_exit(struct krping_thread *thread);
int krping_thread_list(struct krping_thread *thread);
void krping_thread_unlist(struct krping_thread *thread);
void krping_thread_show_device(struct krping_thread *thread, const char *name);
bool krping_same_host(const struct rdma_cm_id *a, const struct rdma_cm_id *b);
int krping_thread_run(const struct krping_options *opt, struct krping_result *result);
void krping_threads_show(struct seq_file *seq);

/* Helpers for the tests. */
static inline struct krping_ping_conn *krping_ping_conn_of(struct ib_cq *cq)
{
	return container_of((struct krping_conn *)cq->cq_context, struct krping_ping_conn, conn);
}

static inline bool krping_is_client(const struct krping_thread *thread)
{
	return thread->opt->role == KRPING_PING_CLIENT;
}

static inline unsigned long krping_step_timeout(const struct krping_thread *thread)
{
	return thread->opt->timeout * HZ;
}

/* Runs completions of a CQ that only its thread polls; does nothing for other CQs. */
static inline void krping_ping_conn_poll(struct krping_ping_conn *pc)
{
	if (pc->conn.cq->poll_ctx == IB_POLL_DIRECT)
		ib_process_cq_direct(pc->conn.cq, -1);
}

void krping_thread_progress(struct krping_thread *thread);
void krping_ping_conn_completed(struct krping_ping_conn *pc);
void krping_ping_reg_done(struct ib_cq *cq, struct ib_wc *wc);
void krping_ping_read_done(struct ib_cq *cq, struct ib_wc *wc);
int krping_ping_conn_post(struct krping_ping_conn *pc, struct ib_send_wr *wr, u32 signalled);
bool krping_ping_conn_has_message(struct krping_ping_conn *pc);
int krping_ping_conn_wait(struct krping_ping_conn *pc, bool for_message);
int krping_ping_conn_take(struct krping_ping_conn *pc, struct krping_ping_msg *msg,
			  u32 *invalidated);
int krping_ping_conn_send(struct krping_ping_conn *pc, const struct krping_ping_msg *msg,
			  u32 invalidate, struct ib_rdma_wr *before);
int krping_ping_conn_advertise(struct krping_ping_conn *pc, struct krping_region *region);
int krping_ping_conn_register(struct krping_ping_conn *pc, struct krping_region *region,
			      int access);
struct ib_rdma_wr krping_rdma_wr(const struct krping_ping_msg *peer, struct ib_cqe *cqe,
				 enum ib_wr_opcode opcode, struct ib_sge *sge);
int krping_ping_check_size(struct krping_ping_conn *pc);
unsigned int krping_shared_memory(const struct krping_ping_conn *pc);
unsigned int krping_read_memory(const struct krping_ping_conn *pc);
int krping_read_access(const struct krping_ping_conn *pc);
int krping_ping_conn_prepare(struct krping_ping_conn *pc, u32 index);
void krping_ping_conn_down(struct krping_ping_conn *pc);

#endif /* KRPING_THREAD_H */
