//go:build ignore

// SPDX-License-Identifier: GPL-2.0
/*
 * One event a bio: where it was submitted and by whom, when its request was issued,
 * when it ended. Works on any block device, on kernels 6.1 to 6.12. The end is that of
 * its request (block_rq_complete); block_bio_complete is for devices that have none.
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

/* A bio in flight. The parts of one that is split end one by one. */
struct tracked {
	struct event event;
	__s64 left;		/* bytes that have not ended */
};

const volatile __u32 only_dev;	/* trace this one; 0 for all */

#define MAX_BIOS	16384	/* in flight */
#define MAX_CHAIN	128	/* bios of one request that are looked at */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_BIOS);
	__type(key, __u64);
	__type(value, struct tracked);
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
	struct tracked t = {};

	t.event.dev = bio->bi_bdev->bd_dev;
	if (only_dev && t.event.dev != only_dev)
		return 0;
	t.event.queued_ns = bpf_ktime_get_ns();
	t.event.sector = bio->bi_iter.bi_sector;
	t.event.bytes = bio->bi_iter.bi_size;
	t.event.opf = bio->bi_opf;
	t.event.pid = id >> 32;
	t.event.tid = (__u32)id;
	bpf_get_current_comm(t.event.comm, sizeof(t.event.comm));
	t.left = t.event.bytes;
	if (bpf_map_update_elem(&bios, &key, &t, BPF_ANY))
		count_lost(1);
	return 0;
}

/* The front of a split bio is a clone that points to the one that was submitted. */
static struct tracked *find(struct bio *bio, __u64 *key)
{
	struct tracked *t;

	*key = (__u64)bio;
	t = bpf_map_lookup_elem(&bios, key);
	if (t)
		return t;
	*key = (__u64)bio->bi_private;
	return bpf_map_lookup_elem(&bios, key);
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(rq_issue, struct request *rq)
{
	struct bio *bio = rq->bio;
	__u64 now = bpf_ktime_get_ns(), key;
	struct tracked *t;
	int i;

	for (i = 0; i < MAX_CHAIN && bio; i++) {
		t = find(bio, &key);
		if (t && !t->event.issued_ns)
			t->event.issued_ns = now;
		bio = bio->bi_next;
	}
	return 0;
}

static void end(struct tracked *t, __u64 key, __u32 status)
{
	struct event *out = bpf_ringbuf_reserve(&events, sizeof(*out), 0);

	if (out) {
		*out = t->event;
		out->done_ns = bpf_ktime_get_ns();
		out->status = status;
		bpf_ringbuf_submit(out, 0);
	} else {
		count_lost(0);
	}
	bpf_map_delete_elem(&bios, &key);
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(rq_complete, struct request *rq, __u8 error, unsigned int nr_bytes)
{
	struct bio *bio = rq->bio;
	__s64 left = nr_bytes, size;
	struct tracked *t;
	__u64 key;
	int i;

	for (i = 0; i < MAX_CHAIN && bio; i++) {
		size = bio->bi_iter.bi_size;
		if (size > left)
			break;	/* it ends with a later part of the request */
		left -= size;
		t = find(bio, &key);
		if (t && __sync_fetch_and_sub(&t->left, size) <= size)
			end(t, key, error);
		bio = bio->bi_next;
	}
	return 0;
}

SEC("tp_btf/block_bio_complete")
int BPF_PROG(bio_complete, struct request_queue *q, struct bio *bio)
{
	__u64 key = (__u64)bio;
	struct tracked *t = bpf_map_lookup_elem(&bios, &key);

	if (t)
		end(t, key, bio->bi_status);
	return 0;
}
