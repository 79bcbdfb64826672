// SPDX-License-Identifier: GPL-2.0
/*
 * mode=tap. The backing serves the application. Bios that match the filter are then forwarded to
 * the target, in the order in which the backing completed them. The application never waits for
 * this: if there is no room or memory for a private copy, the bio is not forwarded ("dropped"); it
 * is counted and its chunks are marked dirty.
 *
 * A copy waits for earlier ones that overlap it, so that the target ends up with the backing's
 * data. A flush waits for all earlier copies, and all later ones wait for a flush or FUA write, so
 * that the target is at any time what the backing would be after a crash at some earlier time.
 * A flush that is dropped is owed: the target is flushed before its next change. The backing stores
 * the private copy too, so both get the same data even if the application changes its memory.
 *
 * For a read, the target's data is compared with what was read.
 */
#include <linux/bio.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "client/client.h"
#include "wire/crc.h"
#include "lib/fault.h"
#include "lib/log.h"
#include "local/stack.h"
#include "local/tap.h"
#include "lib/trace.h"

#define MAX_COPIES	1024		/* per session, waiting or in flight */
#define MAX_COPY_BYTES	SZ_32M		/* of data in these */

/* Submits copies; may wait for the target, unlike krping_crc_wq. */
static struct workqueue_struct *tap_wq;

int krping_tap_init(void)
{
	tap_wq = alloc_workqueue("krping_tap", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	return tap_wq ? 0 : -ENOMEM;
}

void krping_tap_exit(void)
{
	destroy_workqueue(tap_wq);
}

/**
 * struct krping_tap_copy - a private copy of an io, to be forwarded
 * @entry:	in one of the tap's lists
 * @tap:	its tap
 * @sector:	first sector
 * @end:	sector after the last one; @sector for a flush
 * @bytes:	bytes of data
 * @flush:	has REQ_PREFLUSH, which submit_bio() clears if the target has no write cache
 * @fua:	has REQ_FUA, likewise
 * @owed:	a flush before it was dropped
 * @fails:	it is not submitted: see flush_before()
 * @crc:	read: CRC32C of what the application got
 * @compare:	read: the target should have the same data
 * @drops:	read: @tap->nr_drops when it was queued
 * @bio:	for the hidden disk, with pages of its own; last, because of the bio set's front
 *		padding
 *
 * Owned by its io until the backing has completed the io, then by the tap's lists.
 */
struct krping_tap_copy {
	struct list_head entry;
	struct krping_tap *tap;
	sector_t sector;
	sector_t end;
	u32 bytes;
	bool flush;
	bool fua;
	bool owed;
	bool fails;
	u32 crc;
	bool compare;
	u32 drops;
	struct bio bio;
};

/**
 * struct krping_tap - the private part of a stack
 * @stack:	its stack
 * @copies:	bio set of struct krping_tap_copy
 * @nr_copies:	copies that are not freed yet
 * @nr_bytes:	bytes of memory for data in these
 * @idle:	woken when @nr_copies is zero
 * @waiting:	copies to be submitted, in order; under @stack->lock
 * @in_flight:	copies submitted to the hidden disk; under @stack->lock
 * @answered:	completed reads to be compared; under @stack->lock
 * @barrier:	the flush or FUA write in @in_flight, for which all others wait, or NULL; under
 *		@stack->lock
 * @owed:	the target must be flushed before the next copy that changes it; under @stack->lock
 * @owed_last:	likewise, after all of @waiting
 * @nr_drops:	counts events after which the target may differ; under @stack->lock
 * @forward:	submits and compares copies
 * @flush:	a flush that is owed; in @in_flight or unused. Not counted in @nr_copies: it is in
 *		flight only while a counted copy waits for it. Last, because its bio is
 */
struct krping_tap {
	struct krping_stack *stack;
	struct bio_set copies;
	atomic_t nr_copies;
	atomic64_t nr_bytes;
	wait_queue_head_t idle;
	struct list_head waiting;
	struct list_head in_flight;
	struct list_head answered;
	struct krping_tap_copy *barrier;
	bool owed;
	bool owed_last;
	u32 nr_drops;
	struct work_struct forward;
	struct krping_tap_copy flush;
};

static bool is_read(const struct bio *bio)
{
	return bio_op(bio) == REQ_OP_READ;
}

static u32 tap_op(const struct bio *bio, bool flush)
{
	switch (bio_op(bio)) {
	case REQ_OP_READ:
		return KRPING_TAP_READ;
	case REQ_OP_WRITE:
		return flush ? KRPING_TAP_FLUSH : KRPING_TAP_WRITE;
	default:
		return KRPING_TAP_DISCARD;
	}
}

/* Called in the submitter's context. */
static bool matches(const struct krping_options *opt, const struct krping_io *io)
{
	bool flush = io->sector == io->end;

	if (opt->ops && !(opt->ops & tap_op(io->orig, flush)))
		return false;
	if (opt->pid && opt->pid != task_tgid_nr(current))
		return false;
	if (opt->comm[0] && strncmp(current->comm, opt->comm, TASK_COMM_LEN))
		return false;
	/* A flush concerns all sectors. */
	return flush || (io->sector <= opt->last_sector && io->end > opt->first_sector);
}

static void drop(struct krping_tap *tap, const struct bio *bio, sector_t sector, sector_t end,
		 enum krping_stack_counter reason)
{
	static const char *const reasons[] = {
		[KRPING_DROPS_LOST]	= "the target is lost",
		[KRPING_DROPS_FULL]	= "too much is queued",
		[KRPING_DROPS_MEMORY]	= "no memory",
		[KRPING_DROPS_ERROR]	= "it failed",
	};
	struct krping_stack *st = tap->stack;
	struct krping_session *s = st->session;
	u64 bytes = (u64)(end - sector) << SECTOR_SHIFT;

	krping_count(st->stats, KRPING_DROPPED, 1);
	krping_count(st->stats, KRPING_DROPPED_BYTES, bytes);
	krping_count(st->stats, reason, 1);
	trace_krping_tap_drop(s->id, tap_op(bio, !bytes), reason - KRPING_DROPS_LOST, sector,
			      bytes);
	krping_warn_ratelimited(s->log_prefix, "not forwarded: %s of %llu bytes at sector %llu: %s",
				is_read(bio) ? "read" : "write", bytes, (u64)sector,
				reasons[reason]);
}

static void drop_io(struct krping_tap *tap, const struct krping_io *io,
		    enum krping_stack_counter reason)
{
	drop(tap, io->orig, io->sector, io->end, reason);
}

/* Memory of a copy of so many bytes: alloc_bio() takes whole pages. */
static long copy_memory(u32 bytes)
{
	return PAGE_ALIGN((unsigned long)bytes);
}

static bool reserve(struct krping_tap *tap, u32 bytes)
{
	if (atomic_inc_return(&tap->nr_copies) <= MAX_COPIES) {
		if (atomic64_add_return(copy_memory(bytes), &tap->nr_bytes) <= MAX_COPY_BYTES)
			return true;
		atomic64_sub(copy_memory(bytes), &tap->nr_bytes);
	}
	if (atomic_dec_and_test(&tap->nr_copies))
		wake_up(&tap->idle);
	return false;
}

static void unreserve(struct krping_tap *tap, u32 bytes)
{
	atomic64_sub(copy_memory(bytes), &tap->nr_bytes);
	if (atomic_dec_and_test(&tap->nr_copies))
		wake_up(&tap->idle);
}

static void free_bio(struct bio *bio)
{
	struct bvec_iter_all iter;
	struct bio_vec *bv;

	bio_for_each_segment_all(bv, bio, iter)
		__free_page(bv->bv_page);
	bio_put(bio);
}

static void free_tap_copy(struct krping_tap_copy *copy)
{
	struct krping_tap *tap = copy->tap;
	u32 bytes = copy->bytes;

	free_bio(&copy->bio);
	unreserve(tap, bytes);
}

static void copy_done(struct bio *bio);

/* Does not sleep. Return: a bio with pages, or NULL if memory is short. */
static struct bio *alloc_bio(struct krping_tap *tap, struct bio *orig, u32 bytes)
{
	const blk_opf_t keep = REQ_OP_MASK | REQ_SYNC | REQ_META | REQ_PRIO | REQ_FUA |
			       REQ_PREFLUSH | REQ_NOUNMAP;
	const gfp_t gfp = GFP_NOWAIT | __GFP_NOWARN | __GFP_NOMEMALLOC;
	u32 left = bytes;
	struct bio *bio;

	if (krping_fault(KRPING_FAULT_TAP_ALLOC_FAIL, tap->stack->session->opt.block))
		return NULL;
	bio = bio_alloc_bioset(tap->stack->session->disk->part0, DIV_ROUND_UP(bytes, PAGE_SIZE),
			       orig->bi_opf & keep, gfp, &tap->copies);
	if (!bio)
		return NULL;
	while (left) {
		u32 len = min_t(u32, left, PAGE_SIZE);
		struct page *page = alloc_page(gfp);

		if (!page) {
			free_bio(bio);
			return NULL;
		}
		__bio_add_page(bio, page, len, 0);
		left -= len;
	}
	bio->bi_iter.bi_sector = orig->bi_iter.bi_sector;
	bio->bi_iter.bi_size = orig->bi_iter.bi_size;
	bio->bi_end_io = copy_done;
	return bio;
}

/* Return: a private copy of a write, room for a read's data, or NULL if the io was dropped. */
static struct krping_tap_copy *take_copy(struct krping_tap *tap, struct krping_io *io)
{
	u32 bytes = bio_has_data(io->orig) ? io->orig->bi_iter.bi_size : 0;
	struct krping_tap_copy *copy;
	struct bio *bio;

	if (!krping_stack_is_live(tap->stack)) {
		drop_io(tap, io, KRPING_DROPS_LOST);
		return NULL;
	}
	if (!reserve(tap, bytes)) {
		drop_io(tap, io, KRPING_DROPS_FULL);
		return NULL;
	}
	bio = alloc_bio(tap, io->orig, bytes);
	if (!bio) {
		unreserve(tap, bytes);
		drop_io(tap, io, KRPING_DROPS_MEMORY);
		return NULL;
	}
	copy = container_of(bio, struct krping_tap_copy, bio);
	copy->tap = tap;
	copy->sector = io->sector;
	copy->end = io->end;
	copy->bytes = bytes;
	copy->flush = bio->bi_opf & REQ_PREFLUSH;
	copy->fua = bio->bi_opf & REQ_FUA;
	copy->owed = false;
	if (bytes && !is_read(bio))
		bio_copy_data(bio, io->orig);
	return copy;
}

/*
 * Lets the backing store the copy's data. The application may change its own during direct I/O.
 * The copy is freed after @io->local has been completed, since it is only queued then.
 */
static void store_copy(struct krping_io *io)
{
	struct bio *bio = &io->copy->bio;

	io->local.bi_io_vec = bio->bi_io_vec;
	io->local.bi_iter = bio->bi_iter;
}

/* Overlapping ios in flight have no defined order. */
static void note_races(struct krping_stack *st, struct krping_io *io)
{
	bool read = is_read(io->orig);
	struct krping_io *other;

	list_for_each_entry(other, &st->flight, entry) {
		if (!krping_io_overlaps(other, io->sector, io->end) ||
		    (read && is_read(other->orig)))
			continue;
		other->raced = true;
		io->raced = true;
	}
}

static void tap_submit(struct krping_io *io)
{
	struct krping_stack *st = io->stack;
	struct krping_tap *tap = st->private;
	unsigned long flags;

	if (!matches(&st->session->opt, io)) {
		krping_count(st->stats, KRPING_SKIPPED, 1);
	} else {
		io->copy = take_copy(tap, io);
		io->owes_flush = !io->copy && io->orig->bi_opf & REQ_PREFLUSH;
		if (io->copy && io->copy->bytes && !is_read(io->orig))
			store_copy(io);
	}
	/* Reads matter only if they will be compared. */
	if (io->copy || !is_read(io->orig)) {
		spin_lock_irqsave(&st->lock, flags);
		note_races(st, io);
		list_add_tail(&io->entry, &st->flight);
		spin_unlock_irqrestore(&st->lock, flags);
	}
	krping_backing_submit(&st->backing, &io->local);
}

/* Called with st->lock held, which decides the order of copies. */
static void queue_copy(struct krping_tap *tap, struct krping_tap_copy *copy)
{
	if (!is_read(&copy->bio)) {
		copy->owed = tap->owed_last;
		tap->owed_last = false;
	}
	list_add_tail(&copy->entry, &tap->waiting);
	queue_work(tap_wq, &tap->forward);
}

/* Whether the failure of @bio may be that of a flush: the backing may have lost any write then. */
static bool may_have_flushed(const struct krping_stack *st, const struct bio *bio)
{
	struct block_device *bdev = st->backing.bdev;

	return bio->bi_opf & REQ_PREFLUSH ||
	       (bio->bi_opf & REQ_FUA && bdev && krping_fua_may_flush(bdev));
}

static void tap_write_done(struct krping_io *io)
{
	struct krping_stack *st = io->stack;
	u64 from = (u64)io->sector << SECTOR_SHIFT, to = (u64)io->end << SECTOR_SHIFT;
	struct krping_tap_copy *failed = NULL;
	struct krping_tap *tap = st->private;
	unsigned long flags;

	spin_lock_irqsave(&st->lock, flags);
	list_del(&io->entry);
	if (io->copy && !io->status) {
		/* note_loss() marks them again if this fails. */
		krping_dirty_clear(&st->dirty, from, to);
		queue_copy(tap, io->copy);
	} else {
		failed = io->copy;
	}
	if (io->owes_flush && !io->status)
		tap->owed_last = true;
	if (!io->copy || io->status || io->raced)
		krping_dirty_set(&st->dirty, from, to);
	if (io->status && may_have_flushed(st, io->orig))
		krping_dirty_set_all(&st->dirty);
	spin_unlock_irqrestore(&st->lock, flags);
	if (failed) {
		drop_io(tap, io, KRPING_DROPS_ERROR);
		free_tap_copy(failed);
	}
	krping_io_end(io);
}

static u32 bio_crc(struct bio *bio)
{
	struct bvec_iter iter;
	struct bio_vec bv;
	u32 crc = krping_crc_begin();

	krping_bio_for_each_piece(bv, bio, iter)
		crc = krping_crc_bvec(crc, &bv);
	return krping_crc_end(crc);
}

/* The read is completed after this, without waiting for the target. */
static void tap_check(struct work_struct *work)
{
	struct krping_io *io = container_of(work, struct krping_io, check);
	struct krping_tap_copy *copy = io->copy;
	struct krping_stack *st = io->stack;
	struct krping_tap *tap = st->private;

	copy->crc = bio_crc(io->orig);
	spin_lock_irq(&st->lock);
	list_del(&io->entry);
	copy->compare = !io->raced && !krping_dirty_test(&st->dirty,
							 (u64)io->sector << SECTOR_SHIFT,
							 (u64)io->end << SECTOR_SHIFT);
	copy->drops = tap->nr_drops;
	queue_copy(tap, copy);
	spin_unlock_irq(&st->lock);
	krping_io_end(io);
}

static void tap_read_done(struct krping_io *io)
{
	struct krping_stack *st = io->stack;
	unsigned long flags;

	if (!io->copy) {
		krping_io_end(io);
		return;
	}
	if (!io->status) {
		INIT_WORK(&io->check, tap_check);
		queue_work(krping_crc_wq, &io->check);
		return;
	}
	spin_lock_irqsave(&st->lock, flags);
	list_del(&io->entry);
	spin_unlock_irqrestore(&st->lock, flags);
	drop_io(st->private, io, KRPING_DROPS_ERROR);
	free_tap_copy(io->copy);
	krping_io_end(io);
}

static void tap_local_done(struct krping_io *io)
{
	if (is_read(io->orig))
		tap_read_done(io);
	else
		tap_write_done(io);
}

/*
 * A copy failed, so its chunks may now differ. After a failed flush any chunk may differ, except
 * that after a lost connection the target's next epoch shows whether it has lost data; if it has
 * not, the flush is still owed. Called with st->lock held.
 */
static void note_loss(struct krping_tap *tap, const struct krping_tap_copy *copy)
{
	const struct bio *bio = &copy->bio;

	if (is_read(bio))
		return;
	tap->nr_drops++;
	if (bio->bi_status == BLK_STS_TRANSPORT)
		tap->owed |= copy->flush;
	else if (bio->bi_opf & REQ_PREFLUSH)
		krping_dirty_set_all(&tap->stack->dirty);
	krping_dirty_set(&tap->stack->dirty, (u64)copy->sector << SECTOR_SHIFT,
			 (u64)copy->end << SECTOR_SHIFT);
}

static void count_result(struct krping_tap_copy *copy, blk_status_t status)
{
	struct krping_tap *tap = copy->tap;
	struct krping_stack *st = tap->stack;

	if (!status) {
		krping_count(st->stats, KRPING_FORWARDED, 1);
		krping_count(st->stats, KRPING_FORWARDED_BYTES,
			     (u64)(copy->end - copy->sector) << SECTOR_SHIFT);
	} else if (status == BLK_STS_TRANSPORT || !krping_stack_is_live(st)) {
		drop(tap, &copy->bio, copy->sector, copy->end, KRPING_DROPS_LOST);
	} else {
		drop(tap, &copy->bio, copy->sector, copy->end, KRPING_DROPS_ERROR);
	}
}

/* Called with st->lock held. */
static void leave_flight(struct krping_tap *tap, struct krping_tap_copy *copy)
{
	list_del_init(&copy->entry);
	if (tap->barrier == copy)
		tap->barrier = NULL;
	if (copy->flush && copy->bio.bi_status != BLK_STS_TRANSPORT)
		tap->owed = false;
	if (copy->bio.bi_status)
		note_loss(tap, copy);
	if (!list_empty(&tap->waiting))
		queue_work(tap_wq, &tap->forward);
}

/* The hidden disk has completed the flush that was owed. Any context. */
static void owed_flush_done(struct bio *bio)
{
	struct krping_tap_copy *copy = container_of(bio, struct krping_tap_copy, bio);
	struct krping_tap *tap = copy->tap;
	unsigned long flags;

	spin_lock_irqsave(&tap->stack->lock, flags);
	leave_flight(tap, copy);
	spin_unlock_irqrestore(&tap->stack->lock, flags);
}

static void init_owed_flush(struct krping_tap *tap)
{
	struct bio *bio = &tap->flush.bio;

	bio_init(bio, tap->stack->session->disk->part0, NULL, 0, REQ_OP_WRITE | REQ_PREFLUSH);
	bio->bi_end_io = owed_flush_done;
}

/* The hidden disk has completed a copy. Any context. */
static void copy_done(struct bio *bio)
{
	struct krping_tap_copy *copy = container_of(bio, struct krping_tap_copy, bio);
	struct krping_tap *tap = copy->tap;
	struct krping_stack *st = tap->stack;
	bool compare = is_read(bio) && !bio->bi_status;
	unsigned long flags;

	if (!compare)
		count_result(copy, bio->bi_status);
	spin_lock_irqsave(&st->lock, flags);
	leave_flight(tap, copy);
	if (compare) {
		list_add_tail(&copy->entry, &tap->answered);
		queue_work(tap_wq, &tap->forward);
	}
	spin_unlock_irqrestore(&st->lock, flags);
	if (!compare)
		free_tap_copy(copy);
}

static u32 tap_copy_crc(struct krping_tap_copy *copy)
{
	struct bvec_iter_all iter;
	struct bio_vec *bv;
	u32 crc = krping_crc_begin();

	bio_for_each_segment_all(bv, &copy->bio, iter)
		crc = krping_crc_bvec(crc, bv);
	return krping_crc_end(crc);
}

/* Compares the target's data with what the application has read. */
static void compare(struct krping_tap_copy *copy)
{
	struct krping_tap *tap = copy->tap;
	struct krping_session *s = tap->stack->session;
	u32 crc = tap_copy_crc(copy);

	count_result(copy, BLK_STS_OK);
	if (!copy->compare || (crc != copy->crc && READ_ONCE(tap->nr_drops) != copy->drops)) {
		krping_count(tap->stack->stats, KRPING_UNCHECKED, 1);
	} else if (crc != copy->crc) {
		krping_count(tap->stack->stats, KRPING_MISMATCHES, 1);
		trace_krping_tap_mismatch(s->id, copy->sector, copy->bytes, copy->crc, crc);
		krping_err_ratelimited(s->log_prefix,
				       "the target has other data: CRC of %u bytes at sector %llu is %08x here, %08x there",
				       copy->bytes, (u64)copy->sector, copy->crc, crc);
	}
	free_tap_copy(copy);
}

/* Called with st->lock held. */
static bool must_wait(struct krping_tap *tap, const struct krping_tap_copy *copy)
{
	const struct krping_tap_copy *other;

	if (tap->barrier)
		return true;
	if (copy->flush)
		return !list_empty(&tap->in_flight);
	list_for_each_entry(other, &tap->in_flight, entry)
		if (copy->sector < other->end && other->sector < copy->end &&
		    !(is_read(&copy->bio) && is_read(&other->bio)))
			return true;
	return false;
}

/*
 * Return: @copy, or the flush that is owed before it. While the target is lost @copy fails, and the
 * flush remains owed. It is not submitted then: the target may be back by the time it is sent, and
 * would get it before the flush. Called with st->lock held.
 */
static struct krping_tap_copy *flush_before(struct krping_tap *tap, struct krping_tap_copy *copy)
{
	tap->owed |= copy->owed;
	copy->owed = false;
	copy->fails = false;
	if (!tap->owed || copy->flush || is_read(&copy->bio) || tap->barrier)
		return copy;
	if (krping_stack_is_live(tap->stack))
		return &tap->flush;
	copy->fails = true;
	return copy;
}

/* Return: the next copy, now in flight, or NULL; if it has to wait, leave_flight() continues. */
static struct krping_tap_copy *next_copy(struct krping_tap *tap)
{
	struct krping_tap_copy *copy;

	spin_lock_irq(&tap->stack->lock);
	copy = list_first_entry_or_null(&tap->waiting, struct krping_tap_copy, entry);
	if (copy)
		copy = flush_before(tap, copy);
	if (copy && must_wait(tap, copy))
		copy = NULL;
	if (copy) {
		list_move_tail(&copy->entry, &tap->in_flight);
		if (copy->flush || copy->fua)
			tap->barrier = copy;
	}
	spin_unlock_irq(&tap->stack->lock);
	return copy;
}

static struct krping_tap_copy *next_answered(struct krping_tap *tap)
{
	struct krping_tap_copy *copy;

	spin_lock_irq(&tap->stack->lock);
	copy = list_first_entry_or_null(&tap->answered, struct krping_tap_copy, entry);
	if (copy)
		list_del(&copy->entry);
	spin_unlock_irq(&tap->stack->lock);
	return copy;
}

/* May block on the hidden disk. If the session is lost, copies fail at once. */
static void tap_forward(struct work_struct *work)
{
	struct krping_tap *tap = container_of(work, struct krping_tap, forward);
	struct krping_tap_copy *copy;
	struct blk_plug plug;

	blk_start_plug(&plug);
	while ((copy = next_copy(tap))) {
		if (copy == &tap->flush)
			init_owed_flush(tap);
		if (copy->fails) {
			copy->bio.bi_status = BLK_STS_TRANSPORT;
			bio_endio(&copy->bio);
		} else {
			submit_bio(&copy->bio);
		}
	}
	blk_finish_plug(&plug);
	while ((copy = next_answered(tap)))
		compare(copy);
}

static int tap_alloc(struct krping_stack *st)
{
	struct krping_tap *tap;
	int ret;

	tap = kzalloc(sizeof(*tap), GFP_KERNEL);
	if (!tap)
		return -ENOMEM;
	ret = bioset_init(&tap->copies, 1, offsetof(struct krping_tap_copy, bio),
			  BIOSET_NEED_BVECS);
	if (ret) {
		kfree(tap);
		return ret;
	}
	tap->stack = st;
	init_waitqueue_head(&tap->idle);
	INIT_LIST_HEAD(&tap->waiting);
	INIT_LIST_HEAD(&tap->in_flight);
	INIT_LIST_HEAD(&tap->answered);
	INIT_LIST_HEAD(&tap->flush.entry);
	tap->flush.tap = tap;
	tap->flush.flush = true;
	INIT_WORK(&tap->forward, tap_forward);
	st->private = tap;
	return 0;
}

static void tap_free(struct krping_stack *st)
{
	struct krping_tap *tap = st->private;

	bioset_exit(&tap->copies);
	kfree(tap);
}

/* Reads in flight can no longer be compared. */
static void tap_data_lost(struct krping_stack *st)
{
	struct krping_tap *tap = st->private;

	spin_lock_irq(&st->lock);
	tap->nr_drops++;
	spin_unlock_irq(&st->lock);
}

/* Queued copies are still forwarded unless the session fails first. */
static void tap_drain(struct krping_stack *st)
{
	struct krping_tap *tap = st->private;

	wait_event(tap->idle, !atomic_read(&tap->nr_copies));
	cancel_work_sync(&tap->forward);
}

static void tap_show(struct krping_stack *st, struct seq_file *seq)
{
	static const char *const names[] = {
		[KRPING_FORWARDED]		= "forwarded",
		[KRPING_FORWARDED_BYTES]	= "forwarded_bytes",
		[KRPING_SKIPPED]		= "skipped",
		[KRPING_DROPPED]		= "dropped",
		[KRPING_DROPPED_BYTES]		= "dropped_bytes",
		[KRPING_DROPS_LOST]		= "drops_lost",
		[KRPING_DROPS_FULL]		= "drops_full",
		[KRPING_DROPS_MEMORY]		= "drops_memory",
		[KRPING_DROPS_ERROR]		= "drops_error",
		[KRPING_MISMATCHES]		= "mismatches",
		[KRPING_UNCHECKED]		= "unchecked",
	};
	struct krping_tap *tap = st->private;
	int i;

	BUILD_BUG_ON(ARRAY_SIZE(names) != KRPING_STACK_COUNTERS);
	for (i = 0; i < KRPING_STACK_COUNTERS; i++)
		seq_printf(seq, " %s=%llu", names[i], krping_stats_sum(st->stats, i));
	seq_printf(seq, " queued=%d", atomic_read(&tap->nr_copies));
}

static const struct krping_stack_ops tap_ops = {
	.alloc		= tap_alloc,
	.free		= tap_free,
	.submit		= tap_submit,
	.local_done	= tap_local_done,
	.data_lost	= tap_data_lost,
	.drain		= tap_drain,
	.show		= tap_show,
};

static int tap_open(struct krping_session *s)
{
	return krping_stack_open(s, &tap_ops);
}

static const struct krping_session_ops tap_session_ops = {
	.open		= tap_open,
	.close		= krping_stack_close,
	.free		= krping_stack_free,
	.add		= krping_stack_add,
	.del		= krping_stack_del,
	.disk		= krping_stack_disk,
	.data_lost	= krping_stack_data_lost,
	.show		= krping_stack_show,
};

/* Like krping_session_start(), but with the backing in @opt. */
int krping_tap_start(const struct krping_options *opt)
{
	return krping_session_start(opt, &tap_session_ops);
}
