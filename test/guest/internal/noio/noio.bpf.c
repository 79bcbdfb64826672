//go:build ignore

// SPDX-License-Identifier: GPL-2.0
/* Counts the calls of a kernel function by whether its allocations may do I/O. */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

char __license[] SEC("license") = "GPL";

#define PF_MEMALLOC_NOIO	0x00080000	/* include/linux/sched.h; a test sees both values, in case it changes */

struct task_struct {
	unsigned int flags;
} __attribute__((preserve_access_index));

__u32 with, without;

SEC("kprobe")
int call(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	if (BPF_CORE_READ(task, flags) & PF_MEMALLOC_NOIO)
		__sync_fetch_and_add(&without, 1);
	else
		__sync_fetch_and_add(&with, 1);
	return 0;
}
