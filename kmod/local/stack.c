// SPDX-License-Identifier: GPL-2.0
/*
 * The head: the disk that applications open when a session has a local backing. Clones its bios
 * for the backing; the mode decides what the target gets.
 */
#include <linux/bio.h>
#include <linux/slab.h>

#include "client/client.h"
#include "lib/compat.h"
#include "lib/log.h"
#include "local/stack.h"

#define IO_POOL		64	/* reserved struct krping_io */

bool krping_stack_is_live(struct krping_stack *st)
{
	return READ_ONCE(st->session->state) == KRPING_SESSION_LIVE;
}

/* Completes the head's bio with @io->status and frees @io. Any context. */
void krping_io_end(struct krping_io *io)
{
	struct krping_stack *st = io->stack;
	struct bio *bio = io->orig;

	if (io->status)		/* keep an error of another bio in its chain */
		bio->bi_status = io->status;
	bio_end_io_acct(bio, io->start);
	bio_put(&io->local);
	bio_endio(bio);
	percpu_ref_put(&st->users);	/* last: the stack may be freed now */
}

static void local_done(struct bio *bio)
{
	struct krping_io *io = container_of(bio, struct krping_io, local);

	io->status = bio->bi_status;
	io->stack->ops->local_done(io);
}

static void head_submit(struct bio *bio)
{
	struct krping_session *s = bio->bi_bdev->bd_disk->private_data;
	struct krping_stack *st = s->upper;
	struct krping_io *io;
	struct bio *local;

	bio = bio_split_to_limits(bio);
	if (!bio)
		return;
	/* The bio holds the queue's usage counter, so the head cannot be deleted. */
	percpu_ref_get(&st->users);
	local = bio_alloc_clone(st->backing.bdev, bio, GFP_NOIO, &st->ios);
	io = container_of(local, struct krping_io, local);
	io->stack = st;
	io->orig = bio;
	INIT_LIST_HEAD(&io->entry);
	io->sector = bio_sectors(bio) ? bio->bi_iter.bi_sector : 0;
	io->end = io->sector + bio_sectors(bio);
	io->raced = false;
	io->owes_flush = false;
	io->status = BLK_STS_OK;
	io->copy = NULL;
	local->bi_end_io = local_done;
	io->start = bio_start_io_acct(bio);
	st->ops->submit(io);
}

static void head_free(struct gendisk *head)
{
	struct krping_session *s = head->private_data;

	put_disk(s->disk);
	krping_session_put(s);
}

static const struct block_device_operations head_ops = {
	.owner		= THIS_MODULE,
	.submit_bio	= head_submit,
	.ioctl		= krping_disk_ioctl,
	.compat_ioctl	= krping_disk_ioctl,	/* same layout for 32-bit callers */
	.free_disk	= head_free,
};

static struct gendisk *alloc_head(struct krping_stack *st)
{
	struct krping_session *s = st->session;
	struct block_device *bdev = st->backing.bdev;
	u32 range = KRPING_RANGE_MAX >> SECTOR_SHIFT;	/* sectors */
	struct krping_head_limits limits = {
		.backing = bdev,
		.block_size = max(st->backing.block_size, s->grant.block_size),
		.max_bytes = s->max_bytes,
		.max_discard = bdev ? min(range, bdev_max_discard_sectors(bdev)) : range,
		.max_zeroes = bdev ? min(range, bdev_write_zeroes_sectors(bdev)) : range,
		.write_cache = true,	/* else flushes, which order writes, end above the head */
	};

	return krping_alloc_head(&limits);
}

static int refuse_target(struct krping_session *s, const char *why)
{
	krping_err(s->log_prefix, "the target cannot hold %s: %s",
		   s->opt.ram ? "the memory" : s->opt.backing, why);
	return -EINVAL;
}

/* Checks that the target can hold a copy of the backing. */
static int check_target(struct krping_stack *st)
{
	struct krping_session *s = st->session;
	u32 block = max(st->backing.block_size, s->grant.block_size);
	bool reads_only = s->opt.ops == KRPING_TAP_READ;

	if (s->grant.capacity < st->backing.size)
		return refuse_target(s, "it is smaller");
	if (s->grant.read_only && !reads_only)
		return refuse_target(s, "it is read-only");
	if (st->backing.size % block)
		return refuse_target(s, "the size is not a multiple of its block size");
	return 0;
}

/**
 * krping_stack_add - add the head of a session
 * @s:		stacked, live, with its hidden disk added
 *
 * Return: 0 or a negative errno, with nothing left behind.
 */
int krping_stack_add(struct krping_session *s)
{
	struct krping_stack *st = s->upper;
	struct gendisk *head;
	int ret;

	ret = check_target(st);
	if (ret)
		return ret;
	head = alloc_head(st);
	if (IS_ERR(head))
		return PTR_ERR(head);
	snprintf(head->disk_name, sizeof(head->disk_name), "krping%d", s->id);
	head->fops = &head_ops;
	head->private_data = s;
	set_capacity(head, st->backing.size >> SECTOR_SHIFT);
	st->head = head;
	kref_get(&s->ref);
	get_device(disk_to_dev(s->disk));
	ret = krping_disk_add_head(head);
	if (!ret)
		return 0;
	/* free_disk is not called for a disk that was never added. */
	st->head = NULL;
	put_disk(head);
	put_disk(s->disk);
	krping_session_put(s);
	return ret;
}

/**
 * krping_stack_del - remove the head and wait for all users of the hidden disk
 * @s:		stacked, being stopped
 *
 * Once the head is gone, a stop waits for the target no longer than a forced stop does.
 */
void krping_stack_del(struct krping_session *s)
{
	struct krping_stack *st = s->upper;

	del_gendisk(st->head);
	percpu_ref_kill(&st->users);
	wait_for_completion(&st->idle);
	krping_session_abort(s, true);
	st->ops->drain(st);
}

static void users_gone(struct percpu_ref *ref)
{
	complete(&container_of(ref, struct krping_stack, users)->idle);
}

static int open_backing(struct krping_session *s, struct krping_stack *st)
{
	int ret = krping_backing_open(&st->backing, &s->opt, false, s->log_prefix);

	if (ret)
		return ret;
	if (!st->backing.bdev || !bdev_is_zoned(st->backing.bdev))
		return 0;
	krping_err(s->log_prefix, "%s is zoned: not supported", s->opt.backing);
	krping_backing_close(&st->backing);
	return -EINVAL;
}

static void stack_init(struct krping_session *s, struct krping_stack *st,
		       const struct krping_stack_ops *ops)
{
	st->session = s;
	st->ops = ops;
	init_completion(&st->idle);
	spin_lock_init(&st->lock);
	INIT_LIST_HEAD(&st->flight);
}

/**
 * krping_stack_open - open the backing of a session
 * @s:		session, not connected yet
 * @ops:	operations of its mode
 *
 * Return: 0 or a negative errno, with nothing left behind.
 */
int krping_stack_open(struct krping_session *s, const struct krping_stack_ops *ops)
{
	struct krping_stack *st;
	int ret = -ENOMEM;

	BUILD_BUG_ON((int)KRPING_STACK_COUNTERS > (int)KRPING_MAX_COUNTERS);
	st = kzalloc(sizeof(*st), GFP_KERNEL);
	if (!st)
		return -ENOMEM;
	stack_init(s, st, ops);
	st->stats = alloc_percpu(struct krping_stats);
	if (!st->stats)
		goto free_stack;
	ret = percpu_ref_init(&st->users, users_gone, 0, GFP_KERNEL);
	if (ret)
		goto free_stats;
	ret = bioset_init(&st->ios, IO_POOL, offsetof(struct krping_io, local),
			  BIOSET_NEED_RESCUER);
	if (ret)
		goto exit_users;
	ret = open_backing(s, st);
	if (ret)
		goto exit_ios;
	ret = krping_dirty_alloc(&st->dirty, st->backing.size);
	if (ret)
		goto close_backing;
	ret = st->ops->alloc(st);
	if (ret)
		goto free_dirty;
	smp_store_release(&s->upper, st);	/* pairs with krping_stack_show() */
	return 0;

free_dirty:
	krping_dirty_free(&st->dirty);
close_backing:
	krping_backing_close(&st->backing);
exit_ios:
	bioset_exit(&st->ios);
exit_users:
	percpu_ref_exit(&st->users);
free_stats:
	free_percpu(st->stats);
free_stack:
	kfree(st);
	return ret;
}

/* Closes the backing. Undoes krping_stack_open(), except for what krping_stack_free() frees. */
void krping_stack_close(struct krping_session *s)
{
	struct krping_stack *st = s->upper;

	if (st->head)
		put_disk(st->head);
	st->ops->free(st);
	krping_dirty_free(&st->dirty);
	krping_backing_close(&st->backing);
	bioset_exit(&st->ios);
	percpu_ref_exit(&st->users);
}

/* Called when the session is freed. */
void krping_stack_free(struct krping_session *s)
{
	struct krping_stack *st = s->upper;

	if (!st)
		return;
	free_percpu(st->stats);
	kfree(st);
}

/* The disk that applications open. */
struct gendisk *krping_stack_disk(struct krping_session *s)
{
	struct krping_stack *st = s->upper;

	return st->head;
}

/* The target has lost acknowledged data, but it is not known which. */
void krping_stack_data_lost(struct krping_session *s, const char *what)
{
	struct krping_stack *st = s->upper;

	krping_warn_ratelimited(s->log_prefix, "the target has lost %s: all chunks are dirty",
				what);
	krping_dirty_set_all(&st->dirty);
	st->ops->data_lost(st);
}

void krping_stack_show(struct krping_session *s, struct seq_file *seq)
{
	struct krping_stack *st = smp_load_acquire(&s->upper);	/* pairs with krping_stack_open() */

	if (!st)
		return;
	if (s->opt.ram)
		seq_printf(seq, " backing=ram:%llu", s->opt.ram);
	else
		seq_printf(seq, " backing=%s", s->opt.backing);
	st->ops->show(st, seq);
	seq_printf(seq, " dirty_bytes=%llu", krping_dirty_bytes(&st->dirty));
}
