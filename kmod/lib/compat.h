/* SPDX-License-Identifier: GPL-2.0 */
/* All differences between the supported kernels. */
#ifndef KRPING_COMPAT_H
#define KRPING_COMPAT_H

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/mmzone.h>
#include <linux/workqueue.h>

#include "probe/answers.h"	/* probe/probes.c; probe/log says why an answer is no */

#if KRPING_HAS_LINUX_HEX_H
#include <linux/hex.h>
#endif
#if KRPING_HAS_LINUX_UNALIGNED_H
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif

/* Number of orders of the page allocator. */
#define KRPING_NR_PAGE_ORDERS ARRAY_SIZE(((struct zone *)NULL)->free_area)

/* Limits of a disk, in bytes where they are sizes. */
struct krping_disk_limits {
	unsigned int block_size;
	unsigned int max_bytes;
	unsigned int max_segments;
	unsigned int max_discard;
	unsigned int max_zeroes;
	bool write_cache;
};

#define KRPING_DMA_ALIGNMENT	3	/* mask: as nvme */

#if KRPING_HAS_BLK_MODE_T
#define krping_blk_mode_t blk_mode_t
#define KRPING_BLK_READ BLK_OPEN_READ
#define KRPING_BLK_WRITE BLK_OPEN_WRITE
#define KRPING_BLK_EXCL 0	/* follows from a holder */
#else
#define krping_blk_mode_t fmode_t
#define KRPING_BLK_READ FMODE_READ
#define KRPING_BLK_WRITE FMODE_WRITE
#define KRPING_BLK_EXCL FMODE_EXCL
#endif

#if KRPING_HAS_BLK_MQ_F_SHOULD_MERGE
#define KRPING_MQ_F_MERGE BLK_MQ_F_SHOULD_MERGE
#else
#define KRPING_MQ_F_MERGE 0
#endif

/* Return: the number of entries of @sg that the data of @rq needs. */
static inline int krping_rq_map_sg(struct request *rq, struct scatterlist *sg)
{
#if KRPING_HAS_BLK_RQ_MAP_SG
	return blk_rq_map_sg(rq, sg);
#else
	return blk_rq_map_sg(rq->q, rq, sg);
#endif
}

static inline krping_blk_mode_t krping_bdev_mode(bool write)
{
	return KRPING_BLK_READ | KRPING_BLK_EXCL | (write ? KRPING_BLK_WRITE : 0);
}

/*
 * krping_bdev_open() opens a block device by its path, exclusively for @holder; *@handle is for
 * krping_bdev_close(). It returns 0 or a negative errno.
 */
#if KRPING_HAS_BDEV_FILE_OPEN_BY_PATH
static inline int krping_bdev_open(const char *path, bool write, void *holder,
				   struct block_device **bdev, void **handle)
{
	struct file *file = bdev_file_open_by_path(path, krping_bdev_mode(write), holder, NULL);

	if (IS_ERR(file))
		return PTR_ERR(file);
	*bdev = file_bdev(file);
	*handle = file;
	return 0;
}

static inline void krping_bdev_close(void *handle, void *holder, bool write)
{
	bdev_fput(handle);
}
#elif KRPING_HAS_BDEV_OPEN_BY_PATH
static inline int krping_bdev_open(const char *path, bool write, void *holder,
				   struct block_device **bdev, void **handle)
{
	struct bdev_handle *h = bdev_open_by_path(path, krping_bdev_mode(write), holder, NULL);

	if (IS_ERR(h))
		return PTR_ERR(h);
	*bdev = h->bdev;
	*handle = h;
	return 0;
}

static inline void krping_bdev_close(void *handle, void *holder, bool write)
{
	bdev_release(handle);
}
#elif KRPING_HAS_BLKDEV_GET_BY_PATH_HOPS || KRPING_HAS_BLKDEV_GET_BY_PATH
static inline int krping_bdev_open(const char *path, bool write, void *holder,
				   struct block_device **bdev, void **handle)
{
#if KRPING_HAS_BLKDEV_GET_BY_PATH_HOPS
	struct block_device *dev = blkdev_get_by_path(path, krping_bdev_mode(write), holder, NULL);
#else
	struct block_device *dev = blkdev_get_by_path(path, krping_bdev_mode(write), holder);
#endif

	if (IS_ERR(dev))
		return PTR_ERR(dev);
	*bdev = dev;
	*handle = dev;
	return 0;
}

static inline void krping_bdev_close(void *handle, void *holder, bool write)
{
#if KRPING_HAS_BLKDEV_GET_BY_PATH_HOPS
	blkdev_put(handle, holder);
#else
	blkdev_put(handle, krping_bdev_mode(write));
#endif
}
#else
#error "no function that opens a block device by its path: see the probes bdev_* in probe/log"
#endif

#if !KRPING_HAS_LIMITS_FEATURES
/* What newer kernels take as features in the limits. */
static inline void krping_set_features(struct request_queue *q, bool write_cache)
{
	blk_queue_flag_set(QUEUE_FLAG_STABLE_WRITES, q);
	blk_queue_flag_set(QUEUE_FLAG_NONROT, q);
	blk_queue_flag_clear(QUEUE_FLAG_ADD_RANDOM, q);
	blk_queue_write_cache(q, write_cache, write_cache);
}
#endif

/*
 * Stable writes, as data must not change after its checksum is taken. The virtual boundary makes
 * segments start and end on page boundaries except at both ends, so that one memory region can
 * register them.
 */
#if KRPING_HAS_ALLOC_DISK_LIMITS
static inline struct gendisk *krping_alloc_disk(struct blk_mq_tag_set *set,
						const struct krping_disk_limits *limits,
						void *queuedata)
{
	struct queue_limits lim = {
		.logical_block_size = limits->block_size,
		.physical_block_size = limits->block_size,
		.max_hw_sectors = limits->max_bytes >> SECTOR_SHIFT,
		.max_segments = limits->max_segments,
		.virt_boundary_mask = PAGE_SIZE - 1,
		.dma_alignment = KRPING_DMA_ALIGNMENT,
		.max_hw_discard_sectors = limits->max_discard >> SECTOR_SHIFT,
		.discard_granularity = limits->max_discard ? limits->block_size : 0,
		.max_write_zeroes_sectors = limits->max_zeroes >> SECTOR_SHIFT,
	};
	struct gendisk *disk;

#if KRPING_HAS_LIMITS_FEATURES
	lim.features = BLK_FEAT_STABLE_WRITES;
	if (limits->write_cache)
		lim.features |= BLK_FEAT_WRITE_CACHE | BLK_FEAT_FUA;
#endif
	disk = blk_mq_alloc_disk(set, &lim, queuedata);
#if !KRPING_HAS_LIMITS_FEATURES
	if (!IS_ERR(disk))
		krping_set_features(disk->queue, limits->write_cache);
#endif
	return disk;
}
#elif KRPING_HAS_ALLOC_DISK
static inline struct gendisk *krping_alloc_disk(struct blk_mq_tag_set *set,
						const struct krping_disk_limits *limits,
						void *queuedata)
{
	struct gendisk *disk = blk_mq_alloc_disk(set, queuedata);
	struct request_queue *q;

	if (IS_ERR(disk))
		return disk;
	q = disk->queue;
	blk_queue_logical_block_size(q, limits->block_size);
	blk_queue_physical_block_size(q, limits->block_size);
	blk_queue_max_hw_sectors(q, limits->max_bytes >> SECTOR_SHIFT);
	blk_queue_max_segments(q, limits->max_segments);
	blk_queue_virt_boundary(q, PAGE_SIZE - 1);
	blk_queue_dma_alignment(q, KRPING_DMA_ALIGNMENT);
	blk_queue_max_discard_sectors(q, limits->max_discard >> SECTOR_SHIFT);
	q->limits.discard_granularity = limits->max_discard ? limits->block_size : 0;
	blk_queue_max_write_zeroes_sectors(q, limits->max_zeroes >> SECTOR_SHIFT);
	krping_set_features(q, limits->write_cache);
	return disk;
}
#else
#error "no function that allocates a disk: see the probes alloc_disk* in probe/log"
#endif

/**
 * struct krping_head_limits - limits of a disk on top of another
 * @backing:	the disk below it, or NULL
 * @block_size:	bytes
 * @max_bytes:	of one operation
 * @max_discard: sectors of one DISCARD, 0: not supported
 * @max_zeroes:	sectors of one WRITE_ZEROES, 0: not supported
 * @write_cache: the disk below has a write cache
 */
struct krping_head_limits {
	struct block_device *backing;
	unsigned int block_size;
	unsigned int max_bytes;
	unsigned int max_discard;
	unsigned int max_zeroes;
	bool write_cache;
};

static inline void krping_stack_limits(struct queue_limits *lim, struct block_device *bdev)
{
	if (bdev)
		blk_stack_limits(lim, &bdev_get_queue(bdev)->limits, get_start_sect(bdev));
}

/* Return: a disk for a bio-based driver, or an ERR_PTR. */
#if KRPING_HAS_ALLOC_DISK_LIMITS
static inline struct gendisk *krping_alloc_head(const struct krping_head_limits *limits)
{
	struct queue_limits lim;
	struct gendisk *disk;

	blk_set_stacking_limits(&lim);
	lim.dma_alignment = KRPING_DMA_ALIGNMENT;
	krping_stack_limits(&lim, limits->backing);
	lim.logical_block_size = max(lim.logical_block_size, limits->block_size);
	lim.physical_block_size = max(lim.physical_block_size, limits->block_size);
	lim.io_min = max(lim.io_min, limits->block_size);
	lim.max_hw_sectors = min(lim.max_hw_sectors, limits->max_bytes >> SECTOR_SHIFT);
	lim.max_hw_discard_sectors = limits->max_discard;
	lim.max_write_zeroes_sectors = limits->max_zeroes;
	lim.max_secure_erase_sectors = 0;
	lim.max_zone_append_sectors = 0;
#if KRPING_HAS_WZEROES_UNMAP_LIMIT
	lim.max_hw_wzeroes_unmap_sectors = 0;
#endif
#if KRPING_HAS_LIMITS_FEATURES
	lim.features = BLK_FEAT_IO_STAT | BLK_FEAT_STABLE_WRITES;
	if (limits->write_cache)
		lim.features |= BLK_FEAT_WRITE_CACHE | BLK_FEAT_FUA;
#endif
	disk = blk_alloc_disk(&lim, NUMA_NO_NODE);
#if !KRPING_HAS_LIMITS_FEATURES
	if (!IS_ERR(disk)) {
		blk_queue_flag_set(QUEUE_FLAG_IO_STAT, disk->queue);
		krping_set_features(disk->queue, limits->write_cache);
	}
#endif
	return disk;
}
#else
static inline struct gendisk *krping_alloc_head(const struct krping_head_limits *limits)
{
	struct gendisk *disk = blk_alloc_disk(NUMA_NO_NODE);
	struct request_queue *q;
	struct queue_limits *lim;

	if (!disk)
		return ERR_PTR(-ENOMEM);
	q = disk->queue;
	lim = &q->limits;
	blk_set_stacking_limits(lim);
	lim->dma_alignment = KRPING_DMA_ALIGNMENT;
	krping_stack_limits(lim, limits->backing);
	blk_queue_logical_block_size(q, max(lim->logical_block_size, limits->block_size));
	blk_queue_max_hw_sectors(q, min(lim->max_hw_sectors, limits->max_bytes >> SECTOR_SHIFT));
	if (!lim->discard_granularity)
		lim->discard_granularity = lim->logical_block_size;
	blk_queue_max_discard_sectors(q, limits->max_discard);
	blk_queue_max_write_zeroes_sectors(q, limits->max_zeroes);
	blk_queue_max_secure_erase_sectors(q, 0);
	lim->max_zone_append_sectors = 0;
	blk_queue_flag_set(QUEUE_FLAG_IO_STAT, q);
	krping_set_features(q, limits->write_cache);
	return disk;
}
#endif

/* Work runs on the CPU that queues it. */
#if KRPING_HAS_WQ_PERCPU
#define KRPING_WQ_PERCPU WQ_PERCPU
#else
#define KRPING_WQ_PERCPU 0
#endif

#if KRPING_HAS_SHA256_CTX
#define krping_sha256 sha256_ctx
#else
#define krping_sha256 sha256_state
#endif

#endif /* KRPING_COMPAT_H */
