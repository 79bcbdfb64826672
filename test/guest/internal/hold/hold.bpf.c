//go:build ignore

// SPDX-License-Identifier: GPL-2.0
/* Delays a process or a kernel function once, to widen a race window. */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

char __license[] SEC("license") = "GPL";

const volatile __u32 process;	/* insertion: the thread group that is delayed */
const volatile __u32 before;	/* call: number of calls before the delayed one */
const volatile __u64 hold_ns;
__u32 calls;
__u32 stage;			/* 0; 1 during the delay; 2 after it */

#define MAX_LOOKS	(1 << 23)	/* limit of bpf_loop(); without PAUSE about a second */
#define PAUSE		32

static int look(__u32 index, __u64 *until)
{
	__u64 now = 0;

	for (int i = 0; i < PAUSE; i++)
		now = bpf_ktime_get_ns();
	return now >= *until;
}

static int hold(void)
{
	__u64 until = bpf_ktime_get_ns() + hold_ns;

	stage = 1;
	bpf_loop(MAX_LOOKS, look, &until, 0);
	stage = 2;
	return 0;
}

/* Between the check for a quiesced queue and the insertion. */
SEC("tp_btf/block_rq_insert")
int insertion(void *ctx)
{
	if (bpf_get_current_pid_tgid() >> 32 != process || stage)
		return 0;
	return hold();
}

SEC("kprobe")
int call(void *ctx)
{
	if (__sync_fetch_and_add(&calls, 1) != before)
		return 0;
	return hold();
}
