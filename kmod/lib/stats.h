/* SPDX-License-Identifier: GPL-2.0 */
/* Per-CPU counters, summed when they are read. */
#ifndef KRPING_STATS_H
#define KRPING_STATS_H

#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/types.h>

/* Counters of a ping/pong thread, in the order in which they are printed. */
enum krping_ping_counter {
	KRPING_SEND_BYTES, KRPING_SEND_MSGS,
	KRPING_RECV_BYTES, KRPING_RECV_MSGS,
	KRPING_WRITE_BYTES, KRPING_WRITE_MSGS,
	KRPING_READ_BYTES, KRPING_READ_MSGS,
	KRPING_PING_COUNTERS,
};

/* Counters of a block session and of a volume, in the order in which they are printed. */
enum krping_block_counter {
	KRPING_READS, KRPING_WRITES, KRPING_FLUSHES, KRPING_DIGESTS, KRPING_DISCARDS,
	KRPING_ZEROES,
	KRPING_BYTES_READ, KRPING_BYTES_WRITTEN,
	KRPING_MESSAGES, KRPING_ERRORS, KRPING_CRC_ERRORS,
	KRPING_TARGET_COUNTERS,	/* a volume has those above */
	KRPING_RETRIES = KRPING_TARGET_COUNTERS, KRPING_RECONNECTS, KRPING_STALLS,
	KRPING_BLOCK_COUNTERS,
};

#define KRPING_MAX_COUNTERS	KRPING_BLOCK_COUNTERS

struct krping_stats {
	u64 count[KRPING_MAX_COUNTERS];
};

static inline void krping_count(struct krping_stats __percpu *stats, int counter, u64 by)
{
	this_cpu_add(stats->count[counter], by);
}

u64 krping_stats_sum(struct krping_stats __percpu *stats, int counter);
void krping_count_command(struct krping_stats __percpu *stats, u8 op, u32 bytes);
void krping_block_stats_show(struct krping_stats __percpu *stats, int nr, struct seq_file *seq);

#endif /* KRPING_STATS_H */
