//go:build ignore

// SPDX-License-Identifier: GPL-2.0
/*
 * Follows the bios of block devices from submission to completion, on kernels 6.1 to 6.12:
 *
 *	block_bio_queue		a bio is submitted				queued
 *	block_bio_remap		NVMe multipath directs it to a path
 *	block_rq_issue		its request is issued to the driver		issued
 *	krping_cmd_post		its command is posted in a message		posted
 *	krping_cmd_done		the response is accepted			answered
 *	block_rq_complete	the request, and with it its bios, end		done
 *	block_bio_complete	a bio of a device without requests ends		done
 *
 * A bio is identified by its address. A request is identified by its disk, hardware queue and tag,
 * which the module's events have, too, and by its sector. A bio that ends is sent to user space as
 * an event, or counted in histograms.
 */
#include <linux/bpf.h>
#include <linux/types.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

char __license[] SEC("license") = "GPL";

/* Only the members that are read; CO-RE relocates them to their offsets in the running kernel. */
#define relocated __attribute__((preserve_access_index))

typedef __u64 sector_t;

#define DISK_NAME_LEN	32

struct gendisk {
	int major;
	int first_minor;
	int flags;
	char disk_name[DISK_NAME_LEN];
} relocated;

struct block_device {
	__u32 bd_dev;
	struct gendisk *bd_disk;
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

struct kernfs_node {
	__u64 id;
} relocated;

struct cgroup {
	struct kernfs_node *kn;
} relocated;

struct css_set {
	struct cgroup *dfl_cgrp;
} relocated;

struct task_struct {
	int pid;
	int tgid;
	char comm[16];
	struct css_set *cgroups;
} relocated;

struct request_queue {
	struct gendisk *disk;
} relocated;

struct blk_mq_hw_ctx {
	unsigned int queue_num;
} relocated;

struct request {
	struct request_queue *q;
	struct blk_mq_hw_ctx *mq_hctx;
	int tag;
	sector_t __sector;
	struct bio *bio;
} relocated;

/*
 * Argument of the module's events. module.go compares it with the format that tracefs shows for the
 * loaded module.
 */
struct krping_cmd {
	__u64 sector;
	__u32 session;
	__u32 dev;
	__u32 bytes;
	__u32 crc;
	__s32 status;
	__u16 queue;
	__u16 tag;
	__u8 op;
	__u8 flags;
};

const struct krping_cmd *unused_cmd __attribute__((unused));

/* What user space gets of a bio; bio.go decodes it. */
struct event {
	__u64 queued_ns;	/* CLOCK_MONOTONIC */
	__u64 issued_ns;	/* first issue of its first part; 0 without requests (bio-based devices) */
	__u64 posted_ns;	/* last post of the part that ended last; 0 if it had no command */
	__u64 answered_ns;
	__u64 done_ns;		/* 0 if it has not ended */
	__u64 sector;
	__u64 cgroup;		/* inode of the submitter's cgroup v2 */
	__u32 bytes;
	__u32 dev;		/* major << 20 | minor; of the partition, if it was submitted to one */
	__u32 opf;
	__u32 pid;		/* of the process */
	__u32 tid;
	__u32 status;		/* blk_status_t */
	__u32 session;		/* of krping */
	__u32 crc;
	__u16 queue;		/* hardware queue */
	__u16 tag;		/* on the wire, or the driver's */
	__u16 requeues;
	__u16 parts;		/* requests that it was split into; 0 for a bio-based device */
	__u8 merged;		/* shared a request with other bios */
	__u8 pad[7];
	char comm[16];
};

const struct event *unused_event __attribute__((unused));

/* A bio in flight. If it is split, its parts end one by one. */
struct tracked {
	struct event event;
	__u32 disk;		/* as event.dev: the whole disk whose requests carry it */
	__u32 head;		/* the disk that it was submitted to; differs with NVMe multipath */
	__s64 left;		/* bytes that have not ended */
};

/*
 * Bios in flight are found by address in a set-associative table. A hash map would cost more than
 * all the rest of the tracing.
 */
#define SET_BITS	13
#define WAYS		4

struct slot {
	__u64 bio;		/* 0: free */
	struct tracked tracked;
};

struct slot_set {
	struct slot slots[WAYS];
};

const struct slot_set *unused_set __attribute__((unused));

/* ---- parameters, set before loading ---- */

const volatile __u32 only_dev;			/* this partition, or this disk with its partitions; 0: all */
const volatile __u32 only_disk;			/* the whole disk of only_dev */
const volatile char only_hidden[DISK_NAME_LEN];	/* with only_dev: this hidden disk, too */
const volatile __u32 only_pid;
const volatile char only_comm[16];
const volatile __u64 only_ops;			/* bit n is REQ_OP_* n; 0: all */
const volatile __u32 min_bytes;
const volatile __u64 min_ns;			/* no events for bios that were faster */
const volatile _Bool metering;			/* histograms of the devices in series, no events */

/*
 * With metering: bits of the disks that are or were in series, by a hash of their number. Other disks,
 * whose bios are not followed, cost no more than to look at it.
 */
__u64 measured_disks;

/* ---- maps ---- */

#define MAX_CHAIN	4096		/* maximum number of bios of one request that are followed */
#define MAX_COMMANDS	16384		/* a power of two */
#define WAKE_BYTES	(1 << 20)	/* unread bytes at which the reader is woken */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << SET_BITS);
	__type(key, __u32);
	__type(value, struct slot_set);
} bios SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} events SEC(".maps");

/* An issued request. Its index is a hash of its disk, hardware queue and tag. */
struct command {
	__u64 sector;
	__u64 issued_ns;
	__u64 posted_ns;
	__u64 answered_ns;
	__u32 disk;
	__u32 session;
	__u32 crc;
	__u16 queue;
	__u16 tag;		/* the driver's */
	__u16 wire_tag;
	__u16 flush;		/* the block layer's own flush, on behalf of other requests */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_COMMANDS);
	__type(key, __u32);
	__type(value, struct command);
} commands SEC(".maps");

/* Names of hidden disks by number: sysfs does not list them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, char[DISK_NAME_LEN]);
} hidden SEC(".maps");

enum count {
	LOST_EVENTS,	/* the ring buffer was full */
	LOST_BIOS,	/* all ways of the bio's set were in use */
	LOST_STAGES,	/* two requests hashed to the same command */
	ENDED,		/* bios, including those below min_ns */
	COUNTS
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

/* ---- histograms ---- */

enum stage { QUEUE, SEND, PEER, FINISH, DEVICE, TOTAL, STAGES };

/* Bucket i, counted from -LOWEST, is for latencies in (2^((i-1)/8), 2^(i/8)] s: 1 us to 1024 s. */
#define LOWEST	160
#define BUCKETS	(LOWEST + 81)

struct histogram {
	__u64 count;
	__u64 sum_ns;
	__u64 buckets[BUCKETS];
};

struct measured {
	struct histogram stages[STAGES];
};

const struct measured *unused_measured __attribute__((unused));

struct series_key {
	__u32 disk;
	__u32 op;
};

const struct series_key *unused_key __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);		/* here and of histograms: set before loading */
	__type(key, struct series_key);
	__type(value, __u32);
} series SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct measured);
} histograms SEC(".maps");

/* 2^(31 + i/8) */
static const __u32 eighths[] = {
	2341847524u, 2553802834u, 2784941738u, 3037000500u, 3311872529u, 3611622603u, 3938502376u,
};

/*
 * The verifier checks a global function once, on its own, instead of at each call and in each
 * iteration of a loop. Its arguments cannot be typed kernel pointers.
 */
#define verified_once __attribute__((noinline))

/* The index of a latency's bucket in the array. */
verified_once __u32 bucket_of(__u64 ns)
{
	/* ns in units of 2^-34 s; the factor is 2^56 / 10^9. */
	__u64 x = ns >> 37 ? ((ns >> 12) * 72057594) >> 10 : (ns * 72057594) >> 22;
	__u32 log = 0, mantissa, i, bucket;

	if (x > 1)
		x--;	/* a bucket includes its upper limit */
	else
		x = 1;
	for (i = 32; i; i >>= 1)
		if (x >> (log + i))
			log += i;
	mantissa = (x << (63 - log)) >> 32;
	bucket = log * 8 + 1;
	for (i = 0; i < sizeof(eighths) / sizeof(eighths[0]); i++)
		bucket += mantissa >= eighths[i];
	if (bucket < 34 * 8 - LOWEST)
		return 0;
	bucket -= 34 * 8 - LOWEST;
	return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

static void add(struct measured *all, __u32 stage, __u64 from, __u64 to)
{
	struct histogram *h;
	__u32 bucket;

	if (!from || to < from || stage >= STAGES)
		return;
	h = &all->stages[stage];
	bucket = bucket_of(to - from);
	if (bucket >= BUCKETS)
		return;
	__sync_fetch_and_add(&h->count, 1);
	__sync_fetch_and_add(&h->sum_ns, to - from);
	__sync_fetch_and_add(&h->buckets[bucket], 1);
}

/* REQ_OP_*, but an empty write with REQ_PREFLUSH, a file system's flush, is REQ_OP_FLUSH. */
static __u32 op_of(__u32 opf, __u32 bytes)
{
	return opf & 1 << 18 && !bytes ? 2 : opf & 0xff;
}

static __u32 *series_of(__u32 disk, __u32 op)
{
	struct series_key key = { .disk = disk, .op = op };

	return bpf_map_lookup_elem(&series, &key);
}

verified_once int measure(const struct event *e, __u32 disk)
{
	struct measured *all;
	__u32 *index;

	if (!e)
		return 0;
	index = series_of(disk, op_of(e->opf, e->bytes));
	all = index ? bpf_map_lookup_elem(&histograms, index) : NULL;
	if (!all)
		return 0;
	add(all, TOTAL, e->queued_ns, e->done_ns);
	if (!e->issued_ns)
		return 0;
	add(all, QUEUE, e->queued_ns, e->issued_ns);
	add(all, DEVICE, e->issued_ns, e->done_ns);
	if (!e->posted_ns || !e->answered_ns)
		return 0;
	add(all, SEND, e->issued_ns, e->posted_ns);
	add(all, PEER, e->posted_ns, e->answered_ns);
	add(all, FINISH, e->answered_ns, e->done_ns);
	return 0;
}

/* ---- submission ---- */

static void count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&counts, &what);

	if (n)
		(*n)++;
}

static __u32 number(const struct gendisk *disk)
{
	return (__u32)disk->major << 20 | disk->first_minor;
}

static _Bool same(const volatile char *want, const char *name, int size)
{
	int i;

	for (i = 0; i < size; i++) {
		if (want[i] != name[i])
			return 0;
		if (!want[i])
			break;
	}
	return 1;
}

#define GENHD_FL_HIDDEN	(1 << 1)

/* Whether a disk that /dev does not show, such as a tap's target, is to be traced. */
static _Bool wanted_hidden(struct gendisk *disk, __u32 dev)
{
	char name[DISK_NAME_LEN] = {};

	bpf_probe_read_kernel(name, sizeof(name), disk->disk_name);
	if (only_dev && !same(only_hidden, name, sizeof(name)))
		return 0;
	if (!bpf_map_lookup_elem(&hidden, &dev))
		bpf_map_update_elem(&hidden, &dev, name, BPF_ANY);
	return 1;
}

/* Whether bios of a disk may be followed. */
static _Bool followed(__u32 disk)
{
	return !metering || measured_disks >> (disk * 0x9e3779b1u >> 26) & 1;
}

static struct slot_set *set_of(__u64 bio)
{
	__u32 index = (bio >> 6) * 0x9e3779b97f4a7c15ull >> (64 - SET_BITS);

	return bpf_map_lookup_elem(&bios, &index);
}

static struct slot *slot_of(__u64 bio)
{
	struct slot_set *set = bio ? set_of(bio) : NULL;
	int i;

	if (!set)
		return NULL;
	for (i = 0; i < WAYS; i++)
		if (set->slots[i].bio == bio)
			return &set->slots[i];
	return NULL;
}

static struct slot *claim(__u64 bio)
{
	struct slot_set *set = set_of(bio);
	__u32 i, free = WAYS;
	struct slot *slot;

	if (!set)
		return NULL;
	for (i = 0; i < WAYS; i++) {
		if (set->slots[i].bio == bio)	/* left over: its end was missed */
			return &set->slots[i];
		if (!set->slots[i].bio && free == WAYS)
			free = i;
	}
	if (free >= WAYS)
		return NULL;
	/* If another CPU takes the slot first, this bio is lost, and counted. */
	slot = &set->slots[free & (WAYS - 1)];
	return __sync_val_compare_and_swap(&slot->bio, 0, bio) ? NULL : slot;
}

/* An argument as a plain number: the verifier allows no arithmetic on a typed pointer. */
static __u64 address(const __u64 *ctx, int arg)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), ctx + arg);
	return value;
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(bio_queue, struct bio *bio)
{
	/* Members are read directly: a helper call for each costs more. */
	struct task_struct *task = bpf_get_current_task_btf();
	struct gendisk *gendisk = bio->bi_bdev->bd_disk;
	__u32 dev = bio->bi_bdev->bd_dev, bytes = bio->bi_iter.bi_size;
	__u32 opf = bio->bi_opf, op = op_of(opf, bytes), disk = number(gendisk);
	struct tracked *t;
	struct slot *slot;

	if (metering && !(followed(disk) && series_of(disk, op)))
		return 0;
	if (gendisk->flags & GENHD_FL_HIDDEN) {
		if (!wanted_hidden(gendisk, dev))
			return 0;
	} else if (only_dev && dev != only_dev && disk != only_dev) {
		return 0;
	}
	if ((only_pid && task->tgid != only_pid) || bytes < min_bytes ||
	    (only_ops && !(only_ops >> (op & 63) & 1)))
		return 0;
	if (only_comm[0] && !same(only_comm, task->comm, sizeof(task->comm)))
		return 0;
	slot = claim(address(ctx, 0));
	if (!slot) {
		count(LOST_BIOS);
		return 0;
	}
	t = &slot->tracked;
	__builtin_memset(t, 0, sizeof(*t));
	if (!metering) {
		__builtin_memcpy(t->event.comm, task->comm, sizeof(t->event.comm));
		t->event.dev = dev;
		t->event.sector = bio->bi_iter.bi_sector;
		t->event.pid = task->tgid;
		t->event.tid = task->pid;
		t->event.cgroup = task->cgroups->dfl_cgrp->kn->id;
	}
	t->event.bytes = bytes;
	t->event.opf = opf;
	t->event.queued_ns = bpf_ktime_get_ns();
	t->disk = disk;
	t->head = disk;
	t->left = bytes;
	return 0;
}

/*
 * NVMe multipath directs a bio to the hidden disk of a path, and to another path's if the first one
 * has failed, without block_bio_queue. The front of a split bio points to the original.
 */
SEC("tp_btf/block_bio_remap")
int BPF_PROG(bio_remap, struct bio *bio)
{
	struct gendisk *gendisk = bio->bi_bdev->bd_disk;
	__u32 path = number(gendisk);
	struct tracked *t;
	struct slot *slot;

	if (metering || !(gendisk->flags & GENHD_FL_HIDDEN))
		return 0;
	slot = slot_of(address(ctx, 0));
	if (!slot)
		slot = slot_of((__u64)BPF_CORE_READ(bio, bi_private));
	if (!slot)
		return 0;
	t = &slot->tracked;
	if (t->disk != t->head && t->disk != path)
		t->event.requeues++;
	t->disk = path;
	return 0;
}

/*
 * The front of a split bio is a clone whose bi_private is the submitted bio. A stacked device's
 * clone may point to its original, too, but is for another disk.
 */
static struct slot *find(struct bio *bio, __u32 disk)
{
	struct slot *slot = slot_of((__u64)bio);

	if (slot)
		return slot;
	slot = slot_of((__u64)BPF_CORE_READ(bio, bi_private));
	return slot && slot->tracked.disk == disk ? slot : NULL;
}

/* ---- issue, requeue ---- */

static struct command *command_slot(__u32 disk, __u32 queue, __u32 tag)
{
	__u32 index = ((disk >> 20) * 3571 + disk * 7919 + queue * 1031 + tag) & (MAX_COMMANDS - 1);

	return bpf_map_lookup_elem(&commands, &index);
}

/* The issued request, or NULL if another one has taken its slot. */
static struct command *find_command(__u32 disk, __u32 queue, __u32 tag)
{
	struct command *c = command_slot(disk, queue, tag);

	return c && c->issued_ns && c->disk == disk && c->queue == queue && c->tag == tag ? c : NULL;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(rq_issue, struct request *rq)
{
	__u32 disk = number(rq->q->disk), queue = rq->mq_hctx->queue_num;
	struct command *c;

	/* A disk that nobody watches must not take the place of another one's command. */
	if (metering && !(followed(disk) && series_of(disk, 0)))
		return 0;
	/* With NVMe multipath, a hidden disk's request may carry a bio of only_disk. */
	if (only_disk && disk != only_disk && !(rq->q->disk->flags & GENHD_FL_HIDDEN))
		return 0;
	c = command_slot(disk, queue, rq->tag);
	if (!c)
		return 0;
	c->issued_ns = bpf_ktime_get_ns();
	c->posted_ns = 0;
	c->answered_ns = 0;
	c->sector = rq->__sector;
	c->disk = disk;
	c->queue = queue;
	c->tag = rq->tag;
	c->flush = !rq->bio;
	return 0;
}

/* Counts a requeue of the bio at addr, and returns the next bio of the request. */
verified_once __u64 requeue_bio(__u64 addr, __u32 disk, __u64 issued_ns)
{
	struct bio *bio = (struct bio *)addr;
	struct slot *slot = find(bio, disk);
	struct event *e;

	if (slot) {
		e = &slot->tracked.event;
		e->requeues++;
		if (!e->issued_ns)
			e->issued_ns = issued_ns;
	}
	return (__u64)BPF_CORE_READ(bio, bi_next);
}

/* The request will be issued again, perhaps with another tag. */
SEC("tp_btf/block_rq_requeue")
int BPF_PROG(rq_requeue, struct request *rq)
{
	__u32 disk = number(rq->q->disk), i;
	struct command *c;
	__u64 issued, bio;

	if (!followed(disk))
		return 0;
	c = find_command(disk, rq->mq_hctx->queue_num, rq->tag);
	issued = c ? c->issued_ns : bpf_ktime_get_ns();
	bio = (__u64)BPF_CORE_READ(rq, bio);
	for (i = 0; i < MAX_CHAIN && bio; i++)
		bio = requeue_bio(bio, disk, issued);
	return 0;
}

/* ---- the module's command ---- */

#define TAG_MASK	0xfff	/* the driver's tag in a tag on the wire; the rest is a generation */

static struct command *command_of(const struct bpf_raw_tracepoint_args *ctx, struct krping_cmd *cmd)
{
	if (bpf_probe_read_kernel(cmd, sizeof(*cmd), (void *)ctx->args[0]))
		return NULL;
	return find_command(cmd->dev, cmd->queue, cmd->tag & TAG_MASK);
}

SEC("raw_tp/krping_cmd_post")
int cmd_post(struct bpf_raw_tracepoint_args *ctx)
{
	struct krping_cmd cmd;
	struct command *c = command_of(ctx, &cmd);

	if (c) {
		c->posted_ns = bpf_ktime_get_ns();
		c->session = cmd.session;
		c->wire_tag = cmd.tag;
		c->crc = cmd.crc;
	}
	return 0;
}

SEC("raw_tp/krping_cmd_done")
int cmd_done(struct bpf_raw_tracepoint_args *ctx)
{
	struct krping_cmd cmd;
	struct command *c = command_of(ctx, &cmd);

	if (c && c->wire_tag == cmd.tag) {
		c->answered_ns = bpf_ktime_get_ns();
		c->crc = cmd.crc;
	}
	return 0;
}

/* ---- completion ---- */

static void end(struct slot *slot, __u32 status)
{
	struct tracked *t = &slot->tracked;
	__u64 now = bpf_ktime_get_ns(), flags = BPF_RB_NO_WAKEUP;
	struct event *out;

	count(ENDED);
	t->event.done_ns = now;
	t->event.status = status;
	if (metering) {
		measure(&t->event, t->head);
	} else if (now - t->event.queued_ns >= min_ns) {
		out = bpf_ringbuf_reserve(&events, sizeof(*out), 0);
		if (out) {
			*out = t->event;
			/* The reader polls; waking it for each event would cost more than all the rest. */
			if (bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) > WAKE_BYTES)
				flags = BPF_RB_FORCE_WAKEUP;
			bpf_ringbuf_submit(out, flags);
		} else {
			count(LOST_EVENTS);
		}
	}
	slot->bio = 0;
}

/* A request that ends, with a cursor over its bios. */
struct ending {
	__u64 bio;
	__u64 left;		/* bytes that end now, from bio on */
	__u32 size;		/* of bio */
	_Bool more;		/* another bio follows */
	struct command command;	/* issued_ns is 0 if it was not found */
	__u32 disk;
	__u32 status;
};

verified_once int end_bio(struct ending *rq, __u32 before)
{
	struct slot *slot;
	struct event *e;

	if (!rq)
		return 0;
	if (rq->size > rq->left) {	/* it ends later, with another part of the request */
		rq->more = 0;
		return 0;
	}
	rq->left -= rq->size;
	slot = find((struct bio *)rq->bio, rq->disk);
	if (!slot)
		return 0;
	e = &slot->tracked.event;
	e->parts++;
	if (before || rq->more)
		e->merged = 1;
	if (rq->command.issued_ns) {
		if (!e->issued_ns || e->issued_ns > rq->command.issued_ns)
			e->issued_ns = rq->command.issued_ns;
		e->posted_ns = rq->command.posted_ns;
		e->answered_ns = rq->command.answered_ns;
		e->queue = rq->command.queue;
		e->tag = rq->command.tag;
		if (e->posted_ns) {
			e->tag = rq->command.wire_tag;
			e->session = rq->command.session;
			e->crc = rq->command.crc;
		}
	} else if (rq->size) {	/* an empty flush may have shared the request of another */
		count(LOST_STAGES);
	}
	if (__sync_fetch_and_sub(&slot->tracked.left, rq->size) <= (__s64)rq->size)
		end(slot, rq->status);
	return 0;
}

verified_once int next_bio(struct ending *rq)
{
	struct bio *bio;

	if (!rq)
		return 0;
	bio = (struct bio *)rq->bio;
	bio = BPF_CORE_READ(bio, bi_next);
	rq->bio = (__u64)bio;
	rq->size = BPF_CORE_READ(bio, bi_iter.bi_size);
	rq->more = BPF_CORE_READ(bio, bi_next) != NULL;
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(rq_complete, struct request *rq, __u8 error, unsigned int nr_bytes)
{
	struct bio *first = rq->bio;
	struct ending ending = { .left = nr_bytes, .disk = number(rq->q->disk), .status = error };
	struct command *c;
	__u32 i;

	if (!followed(ending.disk))
		return 0;
	ending.bio = (__u64)BPF_CORE_READ(rq, bio);
	if (!ending.bio)	/* the block layer's flush: its bios end with their own requests */
		return 0;
	c = find_command(ending.disk, rq->mq_hctx->queue_num, rq->tag);
	if (c && (c->flush || c->sector == rq->__sector))
		ending.command = *c;
	/* Nearly every request has one bio: read it directly. */
	ending.size = first->bi_iter.bi_size;
	ending.more = first->bi_next != NULL;
	end_bio(&ending, 0);
	for (i = 1; i < MAX_CHAIN && ending.more; i++) {
		next_bio(&ending);
		end_bio(&ending, i);
	}
	return 0;
}

SEC("tp_btf/block_bio_complete")
int BPF_PROG(bio_complete, struct request_queue *q, struct bio *bio)
{
	struct slot *slot;

	if (!followed(number(bio->bi_bdev->bd_disk)))
		return 0;
	slot = slot_of(address(ctx, 1));
	if (!slot)
		return 0;
	/* With NVMe multipath the path's request ends right after this, and has the stages. */
	if (slot->tracked.disk != slot->tracked.head && bio->bi_bdev->bd_disk->flags & GENHD_FL_HIDDEN && !bio->bi_status)
		return 0;
	end(slot, bio->bi_status);
	return 0;
}
