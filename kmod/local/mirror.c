// SPDX-License-Identifier: GPL-2.0
/*
 * mode=mirror. Reads are local. Whatever changes data goes to the backing and to the
 * target and ends when both have it. What a lost target lacks is dirty, and is copied when
 * it is back: a window of chunks at a time, which no write enters meanwhile.
 *
 * Writes of the same sectors go one after the other, in the order in which they came, so that
 * both sides end up with the same and none waits for ever.
 */
#include <linux/slab.h>

#include "client/client.h"
#include "lib/log.h"
#include "local/stack.h"

#define WINDOW_PAGES	BIO_MAX_VECS		/* what is copied at a time */
#define REMOTE_POOL	64			/* clones that memory is set aside for */
#define RETRY_DELAY	(2 * HZ)		/* after a copy that failed with the target there */

static struct workqueue_struct *resync_wq;

int krping_mirror_init(void)
{
	resync_wq = alloc_workqueue("krping_resync", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	return resync_wq ? 0 : -ENOMEM;
}

void krping_mirror_exit(void)
{
	destroy_workqueue(resync_wq);
}

/**
 * struct krping_mirror - a stack's private part
 * @stack:	its stack; @stack->flight has every io that changes data, as they came
 * @remotes:	bio set of the clones for the hidden disk
 * @copies:	bio set of what it copies: that must not wait for bios which wait for the window
 * @sector:	first of the window that is being copied; under @stack->lock
 * @end:	behind its last, 0 if there is none; under @stack->lock
 * @nr_waiting:	of @stack->flight; under @stack->lock
 * @wait:	woken when an io leaves @stack->flight
 * @resync:	copies what is dirty while the target is there
 * @running:	it does
 * @stopping:	it is to end
 * @pages:	WINDOW_PAGES that it copies through
 */
struct krping_mirror {
	struct krping_stack *stack;
	struct bio_set remotes;
	struct bio_set copies;
	sector_t sector;
	sector_t end;
	u32 nr_waiting;
	wait_queue_head_t wait;
	struct delayed_work resync;
	bool running;
	bool stopping;
	struct page *pages[WINDOW_PAGES];
};

/* What was dirty before the target came back is copied then; this may be later. */
static void copy_soon(struct krping_stack *st)
{
	struct krping_mirror *m = st->private;

	smp_mb();	/* either we see the session live, or mirror_live() sees what is dirty */
	if (krping_stack_is_live(st))
		queue_delayed_work(resync_wq, &m->resync, RETRY_DELAY);
}

static void make_dirty(struct krping_io *io)
{
	struct krping_stack *st = io->stack;

	krping_dirty_set(&st->dirty, (u64)io->sector << SECTOR_SHIFT,
			 (u64)io->end << SECTOR_SHIFT);
	copy_soon(st);
}

/*
 * One side has failed it. A flush that fails tells nothing of what was written before it: anything
 * may be missing there.
 */
static void may_differ(struct krping_io *io)
{
	if (io->orig->bi_opf & REQ_PREFLUSH)
		krping_dirty_set_all(&io->stack->dirty);
	make_dirty(io);
}

/* ---- the way of an io ---- */

/* Called with st->lock held: for the window, and for those before it, whether they wait or not. */
static bool has_to_wait(struct krping_stack *st, struct krping_io *io)
{
	struct krping_mirror *m = st->private;
	struct krping_io *other = io;

	if (io->sector < m->end && m->sector < io->end)
		return true;
	list_for_each_entry_continue_reverse(other, &st->flight, entry)
		if (krping_io_overlaps(other, io->sector, io->end))
			return true;
	return false;
}

static void enter(struct krping_io *io)
{
	struct krping_stack *st = io->stack;
	struct krping_mirror *m = st->private;
	bool entered;

	init_completion(&io->turn);
	spin_lock_irq(&st->lock);
	list_add_tail(&io->entry, &st->flight);
	entered = !has_to_wait(st, io);
	io->entered = entered;
	m->nr_waiting += !entered;
	spin_unlock_irq(&st->lock);
	if (!entered)
		wait_for_completion_io(&io->turn);
}

/* Called with st->lock held, when something has left these sectors: whose turn is it? */
static void let_enter(struct krping_stack *st, sector_t sector, sector_t end)
{
	struct krping_mirror *m = st->private;
	struct krping_io *io;

	if (!m->nr_waiting)
		return;
	list_for_each_entry(io, &st->flight, entry) {
		if (io->entered || !krping_io_overlaps(io, sector, end) || has_to_wait(st, io))
			continue;
		io->entered = true;
		m->nr_waiting--;
		complete(&io->turn);
	}
}

static void leave(struct krping_io *io)
{
	struct krping_stack *st = io->stack;
	struct krping_mirror *m = st->private;
	unsigned long flags;

	spin_lock_irqsave(&st->lock, flags);
	list_del(&io->entry);
	let_enter(st, io->sector, io->end);
	spin_unlock_irqrestore(&st->lock, flags);
	wake_up_all(&m->wait);
}

/* One of the two sides has ended it. */
static void put_io(struct krping_io *io)
{
	if (!atomic_dec_and_test(&io->pending))
		return;
	if (io->status)
		may_differ(io);		/* whatever the backing has now, the target gets it */
	leave(io);
	krping_io_end(io);
}

/* The target does not have it. */
static void remote_failed(struct krping_io *io, blk_status_t status)
{
	if (status == BLK_STS_TRANSPORT) {
		make_dirty(io);		/* what a flush lost is known when the target is back */
		return;
	}
	may_differ(io);
	krping_warn_ratelimited(io->stack->session->subject,
				"the target failed a write of the mirror: %d",
				blk_status_to_errno(status));
}

static void remote_done(struct bio *bio)
{
	struct krping_io *io = bio->bi_private;

	if (bio->bi_status)
		remote_failed(io, bio->bi_status);
	bio_put(bio);
	put_io(io);
}

static void submit_remote(struct krping_io *io)
{
	struct krping_stack *st = io->stack;
	struct krping_mirror *m = st->private;
	struct bio *bio;

	bio = bio_alloc_clone(st->session->disk->part0, io->orig, GFP_NOIO, &m->remotes);
	bio->bi_private = io;
	bio->bi_end_io = remote_done;
	submit_bio_noacct(bio);
}

static void mirror_submit(struct krping_io *io)
{
	struct krping_stack *st = io->stack;

	atomic_set(&io->pending, 1);
	if (bio_op(io->orig) == REQ_OP_READ) {
		krping_backing_submit(&st->backing, &io->local);
		return;
	}
	enter(io);
	if (krping_stack_is_live(st)) {
		atomic_inc(&io->pending);
		submit_remote(io);
	} else {
		make_dirty(io);
	}
	krping_backing_submit(&st->backing, &io->local);
}

static void mirror_local_done(struct krping_io *io)
{
	if (bio_op(io->orig) == REQ_OP_READ)
		krping_io_end(io);
	else
		put_io(io);
}

/* ---- what the target lacks is copied ---- */

static bool is_entered(struct krping_stack *st, sector_t sector, sector_t end)
{
	struct krping_io *io;
	bool entered = false;

	spin_lock_irq(&st->lock);
	list_for_each_entry(io, &st->flight, entry)
		entered |= io->entered && krping_io_overlaps(io, sector, end);
	spin_unlock_irq(&st->lock);
	return entered;
}

/* From here on no write is under way in the window, and none begins. */
static void open_window(struct krping_mirror *m, sector_t sector, sector_t end)
{
	struct krping_stack *st = m->stack;

	spin_lock_irq(&st->lock);
	m->sector = sector;
	m->end = end;
	spin_unlock_irq(&st->lock);
	wait_event(m->wait, !is_entered(st, sector, end));
}

static void close_window(struct krping_mirror *m)
{
	struct krping_stack *st = m->stack;
	sector_t sector = m->sector, end = m->end;

	spin_lock_irq(&st->lock);
	m->sector = 0;
	m->end = 0;
	let_enter(st, sector, end);
	spin_unlock_irq(&st->lock);
}

static void fill_bio(struct krping_mirror *m, struct bio *bio, sector_t sector, u32 bytes)
{
	u32 i, len;

	bio->bi_iter.bi_sector = sector;
	for (i = 0; bytes; i++, bytes -= len) {
		len = min_t(u32, bytes, PAGE_SIZE);
		__bio_add_page(bio, m->pages[i], len, 0);
	}
}

static void read_done(struct bio *bio)
{
	complete(bio->bi_private);
}

static int read_local(struct krping_mirror *m, sector_t sector, u32 bytes)
{
	DECLARE_COMPLETION_ONSTACK(done);
	struct bio *bio;
	int ret;

	bio = bio_alloc_bioset(m->stack->backing.bdev, WINDOW_PAGES, REQ_OP_READ, GFP_NOIO,
			       &m->copies);
	fill_bio(m, bio, sector, bytes);
	bio->bi_private = &done;
	bio->bi_end_io = read_done;
	krping_backing_submit(&m->stack->backing, bio);
	wait_for_completion_io(&done);
	ret = blk_status_to_errno(bio->bi_status);
	bio_put(bio);
	return ret;
}

static int write_remote(struct krping_mirror *m, sector_t sector, u32 bytes)
{
	struct bio *bio;
	int ret;

	bio = bio_alloc_bioset(m->stack->session->disk->part0, WINDOW_PAGES, REQ_OP_WRITE, GFP_NOIO,
			       &m->copies);
	fill_bio(m, bio, sector, bytes);
	ret = submit_bio_wait(bio);
	bio_put(bio);
	return ret;
}

static int copy_range(struct krping_mirror *m, u64 from, u64 to)
{
	u32 bytes;
	int ret = 0;

	for (; from < to && !ret; from += bytes) {
		bytes = min_t(u64, to - from, WINDOW_PAGES * PAGE_SIZE);
		ret = read_local(m, from >> SECTOR_SHIFT, bytes);
		if (!ret)
			ret = write_remote(m, from >> SECTOR_SHIFT, bytes);
	}
	return ret;
}

static int copy_window(struct krping_mirror *m, u64 from, u64 to)
{
	struct krping_stack *st = m->stack;
	int ret;

	open_window(m, from >> SECTOR_SHIFT, to >> SECTOR_SHIFT);
	krping_dirty_clear(&st->dirty, from, to);
	ret = copy_range(m, from, to);
	if (ret)
		krping_dirty_set(&st->dirty, from, to);
	close_window(m);
	return ret;
}

static bool may_copy(struct krping_mirror *m)
{
	return !READ_ONCE(m->stopping) && krping_stack_is_live(m->stack);
}

/* Return: 0, or the error of what could not be copied. */
static int copy_all(struct krping_mirror *m, u64 *copied)
{
	u64 from, to;
	int ret, error = 0;

	for (from = 0; may_copy(m); from = to) {
		if (!krping_dirty_next(&m->stack->dirty, WINDOW_PAGES * PAGE_SIZE, &from, &to))
			break;
		ret = copy_window(m, from, to);
		if (ret)
			error = ret;
		else
			*copied += to - from;
		cond_resched();
	}
	return error;
}

static void mirror_resync(struct work_struct *work)
{
	struct krping_mirror *m = container_of(to_delayed_work(work), struct krping_mirror,
					       resync);
	struct krping_stack *st = m->stack;
	u64 copied = 0, left;
	int error;

	if (!may_copy(m) || !krping_dirty_bytes(&st->dirty))
		return;
	WRITE_ONCE(m->running, true);
	error = copy_all(m, &copied);
	WRITE_ONCE(m->running, false);
	left = krping_dirty_bytes(&st->dirty);
	if (!left)
		krping_info_ratelimited(st->session->subject, "in sync, %llu bytes were copied",
					copied);
	else if (error && may_copy(m))
		krping_warn_ratelimited(st->session->subject,
					"%llu bytes of the mirror could not be copied: %d, trying again",
					left, error);
	if (left && may_copy(m))
		queue_delayed_work(resync_wq, &m->resync, error ? RETRY_DELAY : 0);
}

/* ---- a mirror ---- */

static void free_pages_of(struct krping_mirror *m)
{
	int i;

	for (i = 0; i < WINDOW_PAGES && m->pages[i]; i++)
		__free_page(m->pages[i]);
}

static int alloc_pages_of(struct krping_mirror *m)
{
	int i;

	for (i = 0; i < WINDOW_PAGES; i++) {
		m->pages[i] = alloc_page(GFP_KERNEL);
		if (!m->pages[i]) {
			free_pages_of(m);
			return -ENOMEM;
		}
	}
	return 0;
}

/* Nobody knows what the target has: all is dirty. */
static int mirror_alloc(struct krping_stack *st)
{
	struct krping_mirror *m;
	int ret;

	m = kzalloc(sizeof(*m), GFP_KERNEL);
	if (!m)
		return -ENOMEM;
	ret = alloc_pages_of(m);
	if (ret)
		goto free_mirror;
	ret = bioset_init(&m->remotes, REMOTE_POOL, 0, BIOSET_NEED_RESCUER);
	if (ret)
		goto free_pages;
	ret = bioset_init(&m->copies, 1, 0, BIOSET_NEED_BVECS);
	if (ret)
		goto exit_remotes;
	m->stack = st;
	init_waitqueue_head(&m->wait);
	INIT_DELAYED_WORK(&m->resync, mirror_resync);
	krping_dirty_set_all(&st->dirty);
	st->private = m;
	return 0;

exit_remotes:
	bioset_exit(&m->remotes);
free_pages:
	free_pages_of(m);
free_mirror:
	kfree(m);
	return ret;
}

static void mirror_free(struct krping_stack *st)
{
	struct krping_mirror *m = st->private;

	cancel_delayed_work_sync(&m->resync);	/* a recovery that ended late may have queued it */
	bioset_exit(&m->copies);
	bioset_exit(&m->remotes);
	free_pages_of(m);
	kfree(m);
}

static void mirror_live(struct krping_stack *st)
{
	struct krping_mirror *m = st->private;

	mod_delayed_work(resync_wq, &m->resync, 0);
}

static void mirror_drain(struct krping_stack *st)
{
	struct krping_mirror *m = st->private;

	WRITE_ONCE(m->stopping, true);
	cancel_delayed_work_sync(&m->resync);
}

static void mirror_show(struct krping_stack *st, struct seq_file *seq)
{
	struct krping_mirror *m = st->private;
	const char *state = "degraded";

	if (krping_stack_is_live(st)) {
		if (READ_ONCE(m->running))
			state = "resync";
		else if (!krping_dirty_bytes(&st->dirty))
			state = "insync";
	}
	seq_printf(seq, " mirror=%s", state);
}

const struct krping_stack_ops krping_mirror_ops = {
	.alloc		= mirror_alloc,
	.free		= mirror_free,
	.submit		= mirror_submit,
	.local_done	= mirror_local_done,
	.live		= mirror_live,
	.drain		= mirror_drain,
	.show		= mirror_show,
};
