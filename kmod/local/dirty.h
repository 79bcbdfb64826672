/* SPDX-License-Identifier: GPL-2.0 */
/* A bitmap of the chunks in which two disks may differ; in memory only. */
#ifndef KRPING_DIRTY_H
#define KRPING_DIRTY_H

#include <linux/spinlock.h>
#include <linux/types.h>

/**
 * struct krping_dirty - a bitmap of chunks
 * @size:	size of the disk in bytes
 * @shift:	a chunk has 1 << @shift bytes: 64 KiB, more on disks beyond 512 GiB
 * @nr:		number of chunks
 * @lock:	protects @bits and @count; taken with interrupts off
 * @bits:	a bit per chunk, set if it is dirty
 * @count:	number of dirty chunks
 */
struct krping_dirty {
	u64 size;
	unsigned int shift;
	unsigned long nr;
	spinlock_t lock;	/* what it protects: above */
	unsigned long *bits;
	unsigned long count;
};

int krping_dirty_alloc(struct krping_dirty *d, u64 size);
void krping_dirty_free(struct krping_dirty *d);
void krping_dirty_set(struct krping_dirty *d, u64 from, u64 to);
void krping_dirty_set_all(struct krping_dirty *d);
void krping_dirty_clear(struct krping_dirty *d, u64 from, u64 to);
bool krping_dirty_test(struct krping_dirty *d, u64 from, u64 to);
u64 krping_dirty_bytes(struct krping_dirty *d);

#endif /* KRPING_DIRTY_H */
