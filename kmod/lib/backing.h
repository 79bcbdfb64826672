/* SPDX-License-Identifier: GPL-2.0 */
/* What a volume or a tap stores its data on: a block device, or memory. */
#ifndef KRPING_BACKING_H
#define KRPING_BACKING_H

#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/types.h>

#include "options.h"

/**
 * struct krping_backing - an open backing
 * @bdev:	the block device, NULL for memory; opened exclusively
 * @handle:	for krping_bdev_close()
 * @writable:	opened for writing
 * @is_md:	an md array
 * @is_dm:	a disk of device-mapper
 * @ram:	memory, NULL for a block device
 * @size:	bytes
 * @block_size:	logical block size in bytes
 *
 * Constant while open. Any number of contexts may submit bios. As with any disk, overlapping
 * writes in flight have no defined order.
 */
struct krping_backing {
	struct block_device *bdev;
	void *handle;
	bool writable;
	bool is_md;
	bool is_dm;
	void *ram;
	u64 size;
	u32 block_size;
};

int krping_backing_open(struct krping_backing *b, const struct krping_options *opt,
			bool read_only, const char *log_prefix);
void krping_backing_close(struct krping_backing *b);
u64 krping_backing_size(const struct krping_backing *b);
bool krping_backing_uuid(const struct krping_backing *b, u8 uuid[KRPING_UUID_LEN]);
bool krping_backing_discards(const struct krping_backing *b);
bool krping_backing_tears(const struct krping_backing *b, u32 block_size);
void krping_backing_submit(struct krping_backing *b, struct bio *bio);

/* dm and md map bios to other disks, and may split them. */
static inline bool krping_bdev_maps_bios(struct block_device *bdev)
{
	return !queue_is_mq(bdev_get_queue(bdev));
}

/*
 * Whether a FUA write to a disk may flush a cache: its failure may be that of earlier writes then.
 * A disk without FUA is flushed after the write. What maps bios to other disks, such as dm and md,
 * may offer FUA although they lack it.
 */
static inline bool krping_fua_may_flush(struct block_device *bdev)
{
	return !bdev_fua(bdev) || krping_bdev_maps_bios(bdev);
}

#endif /* KRPING_BACKING_H */
