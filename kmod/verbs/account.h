/* SPDX-License-Identifier: GPL-2.0 */
/* Which messages have arrived; rates. Pure, as options.h. */
#ifndef KRPING_VERBS_ACCOUNT_H
#define KRPING_VERBS_ACCOUNT_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include "fuzz/kernel_shim.h"
#endif

#define KRPING_ACCOUNT_WINDOW	1024	/* a message that is later than this counts as repeated */

/**
 * struct krping_account - the messages that have arrived at one side of a queue pair
 * @next:	one more than the largest number so far
 * @received:	different numbers
 * @repeated:	messages whose number had arrived already
 * @reordered:	messages that arrived after one with a larger number; also in @received
 * @seen:	which of the last KRPING_ACCOUNT_WINDOW numbers before @next have arrived
 *
 * @next - @received are missing.
 */
struct krping_account {
	u64 next;
	u64 received;
	u64 repeated;
	u64 reordered;
	u64 seen[KRPING_ACCOUNT_WINDOW / 64];
};

void krping_account_add(struct krping_account *account, u64 number);
void krping_account_miss(struct krping_account *account, u64 number);
bool krping_account_lacks(const struct krping_account *account, u64 number);

/**
 * struct krping_peak - the best rate over an interval
 * @start:	when the interval began, in ns
 * @ops:	operations in it
 * @best:	operations a second of the best one that has ended
 * @intervals:	how many have ended
 */
struct krping_peak {
	u64 start;
	u64 ops;
	u64 best;
	u64 intervals;
};

void krping_peak_add(struct krping_peak *peak, u64 now, u64 ops);
u64 krping_peak_rate(const struct krping_peak *peak);
u64 krping_rate_total(u32 rate, u64 ns);
u64 krping_work_bytes(u32 sends, u32 inline_len, u32 receives);

#endif /* KRPING_VERBS_ACCOUNT_H */
