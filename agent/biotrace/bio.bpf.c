//go:build ignore

// SPDX-License-Identifier: GPL-2.0
/*
 * One event a bio: where it was submitted and by whom, when its request was issued,
 * when it ended. Works on any block device, on kernels 6.1 to 6.12.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char __license[] SEC("license") = "GPL";

/* The members that are read; their places are relocated to those of the running kernel. */
#define relocated __attribute__((preserve_access_index))

typedef __u64 sector_t;

struct block_device {
	__u32 bd_dev;
} relocated;

struct bvec_iter {
	sector_t bi_sector;
	unsigned int bi_size;
} relocated;

struct bio {
	struct bio *bi_next;
	struct block_device *bi_bdev;
	unsigned int bi_opf;
	__u8 bi_status;
	struct bvec_iter bi_iter;
	void *bi_private;
} relocated;

struct request {
	struct bio *bio;
} relocated;

struct request_queue;

/* The contract with biotrace.go. */
struct event {
	__u64 queued_ns;	/* CLOCK_MONOTONIC at submit */
	__u64 issued_ns;	/* 0 if no request of it was issued (bio-based devices) */
	__u64 done_ns;
	__u64 sector;
	__u32 bytes;
	__u32 dev;		/* major << 20 | minor */
	__u32 opf;
	__u32 pid;		/* of the process */
	__u32 tid;
	__u32 status;		/* blk_status_t */
	char comm[16];
};

const struct event *unused __attribute__((unused));

const volatile __u32 only_dev;	/* trace this one; 0 for all */

#define MAX_BIOS	16384	/* in flight */
#define MAX_CHAIN	128	/* bios of one request that are looked at */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_BIOS);
	__type(key, __u64);
	__type(value, struct event);
} bios SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} events SEC(".maps");

/* What was not seen: index 0, the ring was full; 1, too many bios were in flight. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

static void count_lost(__u32 why)
{
	__u64 *count = bpf_map_lookup_elem(&lost, &why);

	if (count)
		(*count)++;
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(bio_queue, struct bio *bio)
{
	__u64 key = (__u64)bio, id = bpf_get_current_pid_tgid();
	struct event e = {};

	e.dev = bio->bi_bdev->bd_dev;
	if (only_dev && e.dev != only_dev)
		return 0;
	e.queued_ns = bpf_ktime_get_ns();
	e.sector = bio->bi_iter.bi_sector;
	e.bytes = bio->bi_iter.bi_size;
	e.opf = bio->bi_opf;
	e.pid = id >> 32;
	e.tid = (__u32)id;
	bpf_get_current_comm(e.comm, sizeof(e.comm));
	if (bpf_map_update_elem(&bios, &key, &e, BPF_ANY))
		count_lost(1);
	return 0;
}

static void issued(__u64 key, __u64 now)
{
	struct event *e = bpf_map_lookup_elem(&bios, &key);

	if (e && !e->issued_ns)
		e->issued_ns = now;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(rq_issue, struct request *rq)
{
	struct bio *bio = rq->bio;
	__u64 now = bpf_ktime_get_ns();
	int i;

	for (i = 0; i < MAX_CHAIN && bio; i++) {
		issued((__u64)bio, now);
		/* The front of a split bio is a clone that points to the one that was submitted. */
		issued((__u64)bio->bi_private, now);
		bio = bio->bi_next;
	}
	return 0;
}

SEC("tp_btf/block_bio_complete")
int BPF_PROG(bio_complete, struct request_queue *q, struct bio *bio)
{
	__u64 key = (__u64)bio;
	struct event *e = bpf_map_lookup_elem(&bios, &key), *out;

	if (!e)
		return 0;
	out = bpf_ringbuf_reserve(&events, sizeof(*out), 0);
	if (out) {
		*out = *e;
		out->done_ns = bpf_ktime_get_ns();
		out->status = bio->bi_status;
		bpf_ringbuf_submit(out, 0);
	} else {
		count_lost(0);
	}
	bpf_map_delete_elem(&bios, &key);
	return 0;
}
