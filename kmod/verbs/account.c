// SPDX-License-Identifier: GPL-2.0
#include "verbs/account.h"

#ifdef __KERNEL__
#include <linux/bits.h>
#include <linux/kernel.h>
#include <linux/log2.h>
#include <linux/math64.h>
#endif

#define WINDOW		KRPING_ACCOUNT_WINDOW
#define INTERVAL_NS	100000000u
#define SECOND_NS	1000000000u

static u64 *word_of(struct krping_account *account, u64 number)
{
	return &account->seen[number % WINDOW / 64];
}

static void advance(struct krping_account *account, u64 next)
{
	u64 n = account->next;

	if (next - n > WINDOW)
		n = next - WINDOW;
	for (; n < next; n++)
		*word_of(account, n) &= ~BIT_ULL(n % 64);
	account->next = next;
}

/* A message has arrived. */
void krping_account_add(struct krping_account *account, u64 number)
{
	u64 bit = BIT_ULL(number % 64);

	if (number >= account->next) {
		advance(account, number + 1);
	} else {
		if (account->next - number > WINDOW || *word_of(account, number) & bit) {
			account->repeated++;
			return;
		}
		account->reordered++;
	}
	*word_of(account, number) |= bit;
	account->received++;
}

/* A message will not arrive. */
void krping_account_miss(struct krping_account *account, u64 number)
{
	if (number >= account->next)
		advance(account, number + 1);
}

/* Return: whether a message has not arrived that is before others, but could still count. */
bool krping_account_lacks(const struct krping_account *account, u64 number)
{
	return number < account->next && account->next - number <= WINDOW &&
	       !(account->seen[number % WINDOW / 64] & BIT_ULL(number % 64));
}

/* @ops: operations since the last call. */
void krping_peak_add(struct krping_peak *peak, u64 now, u64 ops)
{
	u64 ns = now - peak->start, rate;

	peak->ops += ops;
	if (ns < INTERVAL_NS)
		return;
	rate = div64_u64(peak->ops * SECOND_NS, ns);
	if (rate > peak->best)
		peak->best = rate;
	peak->start = now;
	peak->ops = 0;
	peak->intervals++;
}

/* Return: operations a second of the best interval; 0 if there were less than two. */
u64 krping_peak_rate(const struct krping_peak *peak)
{
	return peak->intervals < 2 ? 0 : peak->best;
}

/* Return: how many operations of @rate a second are allowed in the first @ns nanoseconds. */
u64 krping_rate_total(u32 rate, u64 ns)
{
	u64 seconds = div64_u64(ns, SECOND_NS), rest = ns - seconds * SECOND_NS;

	return rate * seconds + div64_u64(rate * rest, SECOND_NS) + 1;
}

/* Bytes of an entry of a queue, as with Soft-RoCE, which has it all in the host's memory. */
#define SEND_BYTES	192u
#define RECV_BYTES	64u
#define CQE_BYTES	64u

/* Return: about how many bytes the queues of a queue pair take, or those of a shared queue. */
u64 krping_work_bytes(u32 sends, u32 inline_len, u32 receives)
{
	u64 send = roundup_pow_of_two(SEND_BYTES + inline_len), bytes = 0;

	if (sends)
		bytes += roundup_pow_of_two(sends) * send;
	if (receives)
		bytes += roundup_pow_of_two(receives) * RECV_BYTES;
	if (sends + receives)
		bytes += roundup_pow_of_two(sends + receives) * CQE_BYTES;
	return bytes;
}
