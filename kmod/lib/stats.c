// SPDX-License-Identifier: GPL-2.0
#include <linux/cpumask.h>

#include "lib/stats.h"
#include "uapi/krping.h"

/* May miss concurrent increments. */
u64 krping_stats_sum(struct krping_stats __percpu *stats, int counter)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu_ptr(stats, cpu)->count[counter]);
	return sum;
}

/* Counts a successful command: @op is an enum krping_op, @bytes its length. */
void krping_count_command(struct krping_stats __percpu *stats, u8 op, u32 bytes)
{
	static const u8 counters[] = {
		[KRPING_OP_READ]		= KRPING_READS,
		[KRPING_OP_WRITE]		= KRPING_WRITES,
		[KRPING_OP_FLUSH]		= KRPING_FLUSHES,
		[KRPING_OP_DISCARD]		= KRPING_DISCARDS,
		[KRPING_OP_WRITE_ZEROES]	= KRPING_ZEROES,
		[KRPING_OP_DIGEST]		= KRPING_DIGESTS,
	};

	if (op == KRPING_OP_KEEP_ALIVE)
		return;
	krping_count(stats, counters[op], 1);
	if (op == KRPING_OP_READ)
		krping_count(stats, KRPING_BYTES_READ, bytes);
	else if (op == KRPING_OP_WRITE)
		krping_count(stats, KRPING_BYTES_WRITTEN, bytes);
}

/* Prints the first @nr of enum krping_block_counter as keys (INTERFACE.md section 2). */
void krping_block_stats_show(struct krping_stats __percpu *stats, int nr, struct seq_file *seq)
{
	static const char *const names[] = {
		[KRPING_READS]		= "reads",
		[KRPING_WRITES]		= "writes",
		[KRPING_FLUSHES]	= "flushes",
		[KRPING_DIGESTS]	= "digests",
		[KRPING_DISCARDS]	= "discards",
		[KRPING_ZEROES]		= "zeroes",
		[KRPING_BYTES_READ]	= "read_bytes",
		[KRPING_BYTES_WRITTEN]	= "write_bytes",
		[KRPING_MESSAGES]	= "messages",
		[KRPING_ERRORS]		= "errors",
		[KRPING_CRC_ERRORS]	= "crc_errors",
		[KRPING_RETRIES]	= "retries",
		[KRPING_RECONNECTS]	= "reconnects",
		[KRPING_STALLS]		= "stalls",
	};
	int i;

	BUILD_BUG_ON(ARRAY_SIZE(names) != KRPING_BLOCK_COUNTERS);
	for (i = 0; i < nr; i++)
		seq_printf(seq, " %s=%llu", names[i], krping_stats_sum(stats, i));
}
