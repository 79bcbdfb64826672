//go:build ignore

// SPDX-License-Identifier: GPL-2.0
/*
 * Holds a process where its request is inserted into the block layer's queue: behind the look at
 * whether the queue is quiesced, in front of the insertion.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_helpers.h>

char __license[] SEC("license") = "GPL";

const volatile __u32 process;	/* thread group that is held, once */
const volatile __u64 hold_ns;
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

SEC("tp_btf/block_rq_insert")
int hold(void *ctx)
{
	__u64 until = bpf_ktime_get_ns() + hold_ns;

	if (bpf_get_current_pid_tgid() >> 32 != process || stage)
		return 0;
	stage = 1;
	bpf_loop(MAX_LOOKS, look, &until, 0);
	stage = 2;
	return 0;
}
