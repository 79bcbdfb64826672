// SPDX-License-Identifier: GPL-2.0
#include <linux/bitops.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "ping/result.h"

#define KEPT	16	/* results that /proc/krping_results shows */

static DEFINE_MUTEX(kept_lock);	/* protects kept and nr_done */
static struct krping_result *kept[KEPT];	/* a ring, in the order in which commands ended */
static u64 nr_done;

static atomic64_t last_id = ATOMIC64_INIT(0);

static const char *const test_names[] = {
	[KRPING_TEST_PING]	= "ping",
	[KRPING_TEST_WLAT]	= "wlat",
	[KRPING_TEST_RLAT]	= "rlat",
	[KRPING_TEST_BW]	= "bw",
	[KRPING_TEST_FR]	= "fr",
	[KRPING_TEST_VERBS]	= "verbs",
};

static const char *const state_names[] = {
	[KRPING_RESULT_CONNECTING]	= "connecting",
	[KRPING_RESULT_LISTENING]	= "listening",
	[KRPING_RESULT_RUNNING]		= "running",
	[KRPING_RESULT_DONE]		= "done",
};

/* Return: a result with one reference, or NULL. */
struct krping_result *krping_result_new(const struct krping_options *opt)
{
	struct krping_result *result = kvzalloc(sizeof(*result), GFP_KERNEL);

	if (!result)
		return NULL;
	kref_init(&result->ref);
	result->id = atomic64_inc_return(&last_id);
	result->pid = task_pid_vnr(current);
	result->opt = *opt;
	result->test = *opt;
	result->size = opt->size;
	return result;
}

void krping_result_get(struct krping_result *result)
{
	kref_get(&result->ref);
}

static void krping_result_release(struct kref *ref)
{
	kvfree(container_of(ref, struct krping_result, ref));
}

/* NULL is allowed. */
void krping_result_put(struct krping_result *result)
{
	if (result)
		kref_put(&result->ref, krping_result_release);
}

void krping_result_listening(struct krping_result *result)
{
	WRITE_ONCE(result->state, KRPING_RESULT_LISTENING);
}

void krping_result_running(struct krping_result *result, const char *ibdev)
{
	strscpy(result->ibdev, ibdev, sizeof(result->ibdev));
	result->start = ktime_get();
	/* pairs with krping_result_show() */
	smp_store_release(&result->state, KRPING_RESULT_RUNNING);
}

static u32 bucket_of(u64 ns)
{
	u32 shift;

	ns = min_t(u64, ns, BIT_ULL(KRPING_HIST_VALUE_BITS) - 1);
	shift = max(fls64(ns), KRPING_HIST_SUB_BITS + 1) - (KRPING_HIST_SUB_BITS + 1);
	return (shift << KRPING_HIST_SUB_BITS) + (ns >> shift);
}

/* The longest time, in ns, that bucket_of() puts into @bucket. */
static u64 bucket_end(u32 bucket)
{
	u32 shift, base;

	if (bucket < 2 << KRPING_HIST_SUB_BITS)
		return bucket;
	shift = (bucket >> KRPING_HIST_SUB_BITS) - 1;
	base = bucket - (shift << KRPING_HIST_SUB_BITS);
	return (((u64)base + 1) << shift) - 1;
}

/* @ops more operations have completed. */
void krping_result_count(struct krping_result *result, u64 ops, ktime_t now)
{
	WRITE_ONCE(result->ops, result->ops + ops);
	WRITE_ONCE(result->ns, ktime_to_ns(ktime_sub(now, result->start)));
}

/*
 * An operation that began at @from has completed. Reading the clock may cost more than the rest of
 * a poll (it traps in a VM), so a test that starts its next operation at once uses the returned
 * time as its start.
 *
 * Return: now.
 */
ktime_t krping_result_time(struct krping_result *result, ktime_t from)
{
	ktime_t now = ktime_get();
	u64 ns = max_t(s64, ktime_to_ns(ktime_sub(now, from)), 0);
	u64 *bucket = &result->hist[bucket_of(ns)];

	WRITE_ONCE(*bucket, *bucket + 1);
	WRITE_ONCE(result->min, result->timed ? min(result->min, ns) : ns);
	WRITE_ONCE(result->max, max(result->max, ns));
	WRITE_ONCE(result->sum, result->sum + ns);
	WRITE_ONCE(result->timed, result->timed + 1);
	krping_result_count(result, 1, now);
	return now;
}

/* The command has ended; the list of the last results gets a reference. */
void krping_result_done(struct krping_result *result, int error)
{
	struct krping_result *oldest;

	WRITE_ONCE(result->error, -error);
	smp_store_release(&result->state, KRPING_RESULT_DONE);	/* as above */
	krping_result_get(result);
	mutex_lock(&kept_lock);
	oldest = kept[nr_done % KEPT];
	kept[nr_done++ % KEPT] = result;
	mutex_unlock(&kept_lock);
	krping_result_put(oldest);
}

static void show_histogram(struct seq_file *seq, struct krping_result *result)
{
	const char *separator = "";
	u32 i;
	u64 n;

	seq_puts(seq, " hist=");
	for (i = 0; i < KRPING_HIST_BUCKETS; i++) {
		n = READ_ONCE(result->hist[i]);
		if (!n)
			continue;
		seq_printf(seq, "%s%llu:%llu", separator, bucket_end(i), n);
		separator = ",";
	}
}

static void show_verbs(struct seq_file *seq, struct krping_result *result,
		       const struct krping_options *opt)
{
	struct krping_verbs_counts *counts = &result->verbs;

	seq_printf(seq, " verb=%s qp=%s sent=%llu received=%llu lost=%llu repeated=%llu",
		   krping_verb_names[opt->verb], krping_verbs_qp_names[opt->qp_type],
		   READ_ONCE(counts->sent), READ_ONCE(counts->received), READ_ONCE(counts->lost),
		   READ_ONCE(counts->repeated));
	seq_printf(seq, " reordered=%llu damaged=%llu peak_ops=%llu posts=%llu completions=%llu",
		   READ_ONCE(counts->reordered), READ_ONCE(counts->damaged),
		   READ_ONCE(counts->peak_ops), READ_ONCE(counts->posts),
		   READ_ONCE(counts->completions));
}

/* One line of key=value pairs. */
void krping_result_show(struct seq_file *seq, struct krping_result *result)
{
	const struct krping_options *opt = &result->opt;
	enum krping_result_state state;

	/* pairs with krping_result_running() and krping_result_done() */
	state = smp_load_acquire(&result->state);
	if (state >= KRPING_RESULT_RUNNING)
		opt = &result->test;

	seq_printf(seq, "id=%llu pid=%d role=%s test=%s state=%s error=%d peer=%s ibdev=%s",
		   result->id, result->pid,
		   opt->role == KRPING_PING_CLIENT ? "client" : "server",
		   test_names[opt->test], state_names[state], READ_ONCE(result->error),
		   result->peer, state < KRPING_RESULT_RUNNING ? "" : result->ibdev);
	seq_printf(seq, " size=%u count=%u qps=%u txdepth=%u poll=%d duplex=%d",
		   READ_ONCE(result->size), opt->count, opt->qps, opt->txdepth, opt->poll,
		   opt->duplex);
	seq_printf(seq, " ops=%llu ns=%llu timed=%llu min_ns=%llu max_ns=%llu sum_ns=%llu",
		   READ_ONCE(result->ops), READ_ONCE(result->ns), READ_ONCE(result->timed),
		   READ_ONCE(result->min), READ_ONCE(result->max), READ_ONCE(result->sum));
	show_histogram(seq, result);
	seq_printf(seq, " start_ns=%lld", ktime_to_ns(READ_ONCE(result->start)));
	if (opt->test == KRPING_TEST_VERBS)
		show_verbs(seq, result, opt);
	seq_putc(seq, '\n');
}

/* The last commands that ended, oldest first. */
void krping_results_show(struct seq_file *seq)
{
	u64 i;

	mutex_lock(&kept_lock);
	for (i = nr_done > KEPT ? nr_done - KEPT : 0; i < nr_done; i++)
		krping_result_show(seq, kept[i % KEPT]);
	mutex_unlock(&kept_lock);
}

/* Called when no command runs and no file is open. */
void krping_results_exit(void)
{
	int i;

	for (i = 0; i < KEPT; i++)
		krping_result_put(kept[i]);
}
