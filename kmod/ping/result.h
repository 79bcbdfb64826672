/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Measurements of a ping/pong command (INTERFACE.md section 1.1): totals, and a histogram of the
 * times of operations.
 */
#ifndef KRPING_RESULT_H
#define KRPING_RESULT_H

#include <linux/kref.h>
#include <linux/ktime.h>
#include <linux/seq_file.h>
#include <rdma/ib_verbs.h>

#include "options.h"

/*
 * Log-linear buckets: 128 of 1 ns, then 64 for each doubling, so that the width of a
 * bucket is at most 1/64 of its value. The last one also holds all times from 2^36 ns (68 s).
 */
#define KRPING_HIST_SUB_BITS	6
#define KRPING_HIST_VALUE_BITS	36
#define KRPING_HIST_BUCKETS \
	((KRPING_HIST_VALUE_BITS - KRPING_HIST_SUB_BITS + 1) << KRPING_HIST_SUB_BITS)

enum krping_result_state {
	KRPING_RESULT_CONNECTING,
	KRPING_RESULT_LISTENING,	/* a server: clients find it now */
	KRPING_RESULT_RUNNING,
	KRPING_RESULT_DONE,
};

/**
 * struct krping_verbs_counts - what a verbs test counts
 * @sent:	messages that this side has sent, or operations on the peer's memory
 * @received:	different messages that have arrived at this side
 * @lost:	messages of both sides that did not arrive
 * @repeated:	messages of both sides that arrived twice
 * @reordered:	messages of both sides that arrived after a later one
 * @damaged:	messages of both sides that arrived with wrong data
 * @peak_ops:	operations a second over the best 100 ms; 0: not known
 * @posts:	work requests posted
 * @completions: completions polled
 */
struct krping_verbs_counts {
	u64 sent;
	u64 received;
	u64 lost;
	u64 repeated;
	u64 reordered;
	u64 damaged;
	u64 peak_ops;
	u64 posts;
	u64 completions;
};

/**
 * struct krping_result - measurements of a command
 * @ref:	held by its thread, by the open file that it was written to, and by the
 *		list of the last results
 * @id:		number of the command, from 1
 * @pid:	thread that wrote the command
 * @opt:	the command
 * @test:	what it runs: @opt, or a verbs server's with what its client says; constant from
 *		KRPING_RESULT_RUNNING on
 * @peer:	address of the command
 * @ibdev:	RDMA device; constant from KRPING_RESULT_RUNNING on
 * @state:	written with release semantics, after the fields that it makes valid
 * @error:	errno of the command, 0 while it runs
 * @size:	bytes of one operation; a server uses its client's size
 * @ops:	operations completed
 * @start:	when the first operation began
 * @ns:		from @start to the end of the last operation that completed
 * @min:	shortest operation in ns; meaningful if @timed is not 0
 * @max:	longest operation in ns
 * @sum:	sum of all timed operations in ns
 * @timed:	operations in @hist
 * @verbs:	what a verbs test counts
 * @hist:	timed operations per bucket
 *
 * Written by the command's thread only. Readers take no lock: they may see an operation in one
 * member and not yet in another.
 */
struct krping_result {
	struct kref ref;
	u64 id;
	pid_t pid;
	struct krping_options opt;
	struct krping_options test;
	char peer[64];
	char ibdev[IB_DEVICE_NAME_MAX];
	enum krping_result_state state;
	int error;
	u32 size;
	u64 ops;
	ktime_t start;
	u64 ns;
	u64 min;
	u64 max;
	u64 sum;
	u64 timed;
	struct krping_verbs_counts verbs;
	u64 hist[KRPING_HIST_BUCKETS];
};

struct krping_result *krping_result_new(const struct krping_options *opt);
void krping_result_get(struct krping_result *result);
void krping_result_put(struct krping_result *result);
void krping_result_listening(struct krping_result *result);
void krping_result_running(struct krping_result *result, const char *ibdev);
void krping_result_count(struct krping_result *result, u64 ops, ktime_t now);
ktime_t krping_result_time(struct krping_result *result, ktime_t from);
void krping_result_done(struct krping_result *result, int error);
void krping_result_show(struct seq_file *seq, struct krping_result *result);
void krping_results_show(struct seq_file *seq);
void krping_results_exit(void);

#endif /* KRPING_RESULT_H */
