// SPDX-License-Identifier: GPL-2.0
/* A bitmap of the chunks in which two disks may differ. */
#include <linux/bitmap.h>
#include <linux/mm.h>
#include <linux/sizes.h>

#include "local/dirty.h"

#define CHUNK_SHIFT	16
#define MAX_CHUNKS	(8UL << 20)	/* 1 MiB of bits: 512 GiB in chunks of 64 KiB */

/* Return: 0, with nothing dirty, or -ENOMEM. Undone by krping_dirty_free(). */
int krping_dirty_alloc(struct krping_dirty *d, u64 size)
{
	spin_lock_init(&d->lock);
	d->size = size;
	d->shift = CHUNK_SHIFT;
	while ((size - 1) >> d->shift >= MAX_CHUNKS)
		d->shift++;
	d->nr = ((size - 1) >> d->shift) + 1;
	d->count = 0;
	d->bits = kvcalloc(BITS_TO_LONGS(d->nr), sizeof(long), GFP_KERNEL);
	return d->bits ? 0 : -ENOMEM;
}

/* Idempotent. */
void krping_dirty_free(struct krping_dirty *d)
{
	kvfree(d->bits);
	d->bits = NULL;
}

/* Return: number of dirty chunks in [@first, @end). Called with d->lock held. */
static unsigned long count_dirty(struct krping_dirty *d, unsigned long first, unsigned long end)
{
	unsigned long n = 0, from = first, to;

	for_each_set_bitrange_from(from, to, d->bits, end)
		n += to - from;
	return n;
}

/* Marks every chunk that overlaps the bytes [@from, @to). */
void krping_dirty_set(struct krping_dirty *d, u64 from, u64 to)
{
	unsigned long first, end, flags;

	to = min(to, d->size);
	if (from >= to)
		return;
	first = from >> d->shift;
	end = ((to - 1) >> d->shift) + 1;
	spin_lock_irqsave(&d->lock, flags);
	d->count += end - first - count_dirty(d, first, end);
	bitmap_set(d->bits, first, end - first);
	spin_unlock_irqrestore(&d->lock, flags);
}

/* Writes the whole bitmap, at most 1 MiB, with interrupts off. */
void krping_dirty_set_all(struct krping_dirty *d)
{
	unsigned long flags;

	spin_lock_irqsave(&d->lock, flags);
	bitmap_fill(d->bits, d->nr);
	d->count = d->nr;
	spin_unlock_irqrestore(&d->lock, flags);
}

/* Clears every chunk that lies within the bytes [@from, @to). */
void krping_dirty_clear(struct krping_dirty *d, u64 from, u64 to)
{
	unsigned long first, end, flags;

	first = (from + (1ULL << d->shift) - 1) >> d->shift;
	end = to >= d->size ? d->nr : to >> d->shift;
	if (first >= end)
		return;
	spin_lock_irqsave(&d->lock, flags);
	if (d->count) {
		d->count -= count_dirty(d, first, end);
		bitmap_clear(d->bits, first, end - first);
	}
	spin_unlock_irqrestore(&d->lock, flags);
}

/* Return: whether a dirty chunk overlaps the bytes [@from, @to). */
bool krping_dirty_test(struct krping_dirty *d, u64 from, u64 to)
{
	unsigned long end, flags;
	bool dirty;

	to = min(to, d->size);
	if (from >= to)
		return false;
	end = ((to - 1) >> d->shift) + 1;
	spin_lock_irqsave(&d->lock, flags);
	dirty = d->count && find_next_bit(d->bits, end, from >> d->shift) < end;
	spin_unlock_irqrestore(&d->lock, flags);
	return dirty;
}

u64 krping_dirty_bytes(struct krping_dirty *d)
{
	return min((u64)READ_ONCE(d->count) << d->shift, d->size);
}
