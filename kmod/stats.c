// SPDX-License-Identifier: GPL-2.0
#include <linux/cpumask.h>

#include "stats.h"

/* A reader may miss what is counted at the same time; nothing is counted twice. */
u64 krping_stats_sum(struct krping_stats __percpu *stats, int counter)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu_ptr(stats, cpu)->count[counter]);
	return sum;
}
