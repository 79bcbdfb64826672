/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A block session whose /dev/krpingN stands on a local backing and on the target
 * (PROTOCOL.md section 8). The session's own disk is hidden; the head is what
 * applications open.
 *
 *	stack.c		the head, its limits, a bio's way to the backing and back
 *	tap.c		mode=tap: copies of what matches go to the target
 *	dirty.c		which chunks the target lacks
 *
 * Lock order: krping_stack.lock, then krping_dirty.lock; both may be taken in bi_end_io.
 */
#ifndef KRPING_STACK_H
#define KRPING_STACK_H

#include <linux/bio.h>
#include <linux/completion.h>
#include <linux/percpu-refcount.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "lib/backing.h"
#include "local/dirty.h"
#include "lib/stats.h"

struct krping_copy;
struct krping_session;
struct krping_stack;

/**
 * struct krping_io - a bio of the head on its way
 * @stack:	its stack
 * @orig:	the head's bio, untouched until krping_io_end()
 * @start:	for the head's statistics
 * @entry:	in @stack->flight, if it is there; under @stack->lock
 * @sector:	first sector that it touches
 * @end:	the one behind the last; both are 0 for a flush without data
 * @raced:	something else touched these sectors meanwhile; under @stack->lock
 * @status:	of the local end
 * @copy:	for the target, or NULL
 * @check:	what is to be done after a read
 * @local:	the clone that the backing gets; last, as its bio set has it
 *
 * From the head's submit_bio until krping_io_end(), which frees it with @local; holds a
 * reference to @stack->users.
 */
struct krping_io {
	struct krping_stack *stack;
	struct bio *orig;
	unsigned long start;
	struct list_head entry;
	sector_t sector;
	sector_t end;
	bool raced;
	blk_status_t status;
	struct krping_copy *copy;
	struct work_struct check;
	struct bio local;
};

/**
 * struct krping_stack_ops - what a mode does
 * @alloc:	@stack->private; the backing is open, the target is not connected. Sleeps
 * @free:	its twin; nothing is in flight, and @drain was called if there was a head. Sleeps
 * @submit:	begins an io; ends up in krping_backing_submit(). The submitting process' context
 * @local_done:	the backing has ended it with io->status; ends up in krping_io_end(). Any context
 * @data_lost:	the target has lost some of what it answered. Sleeps
 * @drain:	no io is left and none will come; returns when nothing is left that uses the
 *		hidden disk. Sleeps
 * @show:	keys of its own in /proc/krping_sessions, each with a space in front
 */
struct krping_stack_ops {
	int (*alloc)(struct krping_stack *st);
	void (*free)(struct krping_stack *st);
	void (*submit)(struct krping_io *io);
	void (*local_done)(struct krping_io *io);
	void (*data_lost)(struct krping_stack *st);
	void (*drain)(struct krping_stack *st);
	void (*show)(struct krping_stack *st, struct seq_file *seq);
};

/* Those of a stack, in the order in which they are printed. */
enum krping_stack_counter {
	KRPING_FORWARDED, KRPING_FORWARDED_BYTES, KRPING_SKIPPED,
	KRPING_DROPPED, KRPING_DROPPED_BYTES,
	KRPING_DROPS_LOST, KRPING_DROPS_FULL, KRPING_DROPS_MEMORY, KRPING_DROPS_ERROR,
	KRPING_MISMATCHES, KRPING_UNCHECKED,
	KRPING_STACK_COUNTERS,
};

/**
 * struct krping_stack - the local half of a session
 * @session:	whose; it owns this, and frees it with itself
 * @ops:	of its mode
 * @private:	of its mode
 * @backing:	open from krping_stack_open() to krping_stack_close()
 * @head:	the disk that applications open, NULL until krping_stack_add(); its gendisk has
 *		a reference to the session and one to the hidden disk until its last opener is gone
 * @ios:	of struct krping_io
 * @users:	one for each io, killed when the head is deleted
 * @idle:	@users is zero
 * @lock:	protects @flight; taken with interrupts off
 * @flight:	ios that others may have to wait for or know of
 * @dirty:	what the target lacks
 * @stats:	enum krping_stack_counter
 */
struct krping_stack {
	struct krping_session *session;
	const struct krping_stack_ops *ops;
	void *private;
	struct krping_backing backing;
	struct gendisk *head;
	struct bio_set ios;
	struct percpu_ref users;
	struct completion idle;
	spinlock_t lock;	/* what it protects: above */
	struct list_head flight;
	struct krping_dirty dirty;
	struct krping_stats __percpu *stats;
};

/* stack.c: what a mode's struct krping_session_ops is made of */
int krping_stack_open(struct krping_session *s, const struct krping_stack_ops *ops);
void krping_stack_close(struct krping_session *s);
void krping_stack_free(struct krping_session *s);
int krping_stack_add(struct krping_session *s);
void krping_stack_del(struct krping_session *s);
struct gendisk *krping_stack_disk(struct krping_session *s);
void krping_stack_data_lost(struct krping_session *s, const char *what);
void krping_stack_show(struct krping_session *s, struct seq_file *seq);

/* stack.c: called by the mode */
void krping_io_end(struct krping_io *io);
bool krping_stack_is_live(struct krping_stack *st);

static inline bool krping_io_overlaps(const struct krping_io *io, sector_t sector, sector_t end)
{
	return io->sector < end && sector < io->end;
}

#endif /* KRPING_STACK_H */
