//go:build ignore

// SPDX-License-Identifier: GPL-2.0
/* Holds a process or a function of the kernel for a while, once, where it is in a window. */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

char __license[] SEC("license") = "GPL";

const volatile __u32 process;	/* of insertions: thread group that is held */
const volatile __u32 before;	/* of calls: so many come before the one that is held */
const volatile __u64 hold_ns;
__u32 calls;
__u32 stage;			/* 0, 1 while it is held, 2 behind that */

#define MAX_LOOKS	(1 << 23)	/* that bpf_loop() takes: alone they last for about a second */
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

/* Behind the look at whether the queue is quiesced, in front of the insertion. */
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
