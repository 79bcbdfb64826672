/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A block session whose /dev/krpingN is a local backing, with the target beside it (INTERFACE.md
 * section 5). The session's own disk is hidden; applications open another one, the head.
 *
 *	stack.c		the head, its limits, a bio's way to the backing and back
 *	tap.c		mode=tap: forwards copies of matching bios to the target
 *	dirty.c		the chunks in which target and backing may differ
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

struct krping_tap_copy;
struct krping_session;
struct krping_stack;

/**
 * struct krping_io - a bio of the head in flight
 * @stack:	its stack
 * @orig:	the head's bio, unchanged until krping_io_end()
 * @start:	start time for the head's statistics
 * @entry:	in @stack->flight or empty; under @stack->lock
 * @sector:	first sector
 * @end:	sector after the last one; both are 0 for a flush without data
 * @raced:	another bio touched these sectors meanwhile; under @stack->lock
 * @owes_flush:	a flush that will not be forwarded although it matches the filters
 * @status:	result from the backing
 * @copy:	copy to forward to the target, or NULL
 * @check:	computes the CRC of a read
 * @local:	the clone for the backing; last, because of the bio set's front padding
 *
 * Lives from the head's submit_bio until krping_io_end(), which frees it with @local. Holds a
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
	bool owes_flush;
	blk_status_t status;
	struct krping_tap_copy *copy;
	struct work_struct check;
	struct bio local;
};

/**
 * struct krping_stack_ops - a mode
 * @alloc:	sets @stack->private; the backing is open, the target not connected. May sleep
 * @free:	undoes @alloc; nothing is in flight, and @drain was called if there was a head. May
 *		sleep
 * @submit:	starts an io and calls krping_backing_submit(). Context of the submitter
 * @local_done:	the backing has completed the io with io->status; leads to krping_io_end(). Any
 *		context
 * @data_lost:	the target has lost data that it had acknowledged. May sleep
 * @drain:	called when no io is left and no new one can start; returns when nothing uses the
 *		hidden disk. May sleep
 * @show:	adds the mode's keys to /proc/krping_sessions, each after a space
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

/* Counters of a stack, in the order in which they are printed. */
enum krping_stack_counter {
	KRPING_FORWARDED, KRPING_FORWARDED_BYTES, KRPING_SKIPPED,
	KRPING_DROPPED, KRPING_DROPPED_BYTES,
	KRPING_DROPS_LOST, KRPING_DROPS_FULL, KRPING_DROPS_MEMORY, KRPING_DROPS_ERROR,
	KRPING_MISMATCHES, KRPING_UNCHECKED,
	KRPING_STACK_COUNTERS,
};

/**
 * struct krping_stack - the local half of a session
 * @session:	its owner, which frees it
 * @ops:	operations of its mode
 * @private:	data of its mode
 * @backing:	open from krping_stack_open() to krping_stack_close()
 * @head:	the disk that applications open, NULL until krping_stack_add(); its gendisk has
 *		a reference to the session and one to the hidden disk until its last opener has
 *		closed it
 * @ios:	bio set of struct krping_io
 * @users:	one reference for each io; killed when the head is deleted
 * @idle:	completed when @users is zero
 * @lock:	protects @flight; taken with interrupts off
 * @flight:	writes, and reads that will be compared
 * @dirty:	chunks in which the target may differ from the backing
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

/* stack.c: for a mode's struct krping_session_ops */
int krping_stack_open(struct krping_session *s, const struct krping_stack_ops *ops);
void krping_stack_close(struct krping_session *s);
void krping_stack_free(struct krping_session *s);
int krping_stack_add(struct krping_session *s);
void krping_stack_del(struct krping_session *s);
struct gendisk *krping_stack_disk(struct krping_session *s);
void krping_stack_data_lost(struct krping_session *s, const char *what);
void krping_stack_show(struct krping_session *s, struct seq_file *seq);

/* stack.c: for a mode's struct krping_stack_ops */
void krping_io_end(struct krping_io *io);
bool krping_stack_is_live(struct krping_stack *st);

static inline bool krping_io_overlaps(const struct krping_io *io, sector_t sector, sector_t end)
{
	return io->sector < end && sector < io->end;
}

#endif /* KRPING_STACK_H */
