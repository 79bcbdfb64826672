/* SPDX-License-Identifier: GPL-2.0 */
/* All differences between the supported kernels. */
#ifndef KRPING_COMPAT_H
#define KRPING_COMPAT_H

#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/mmzone.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0) || \
	(LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0) && \
	 LINUX_VERSION_CODE < KERNEL_VERSION(6, 11, 0))
#error "supported are Linux 6.1 to 6.4, and 6.11 and later"
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif

/* Number of orders of the page allocator. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
#define KRPING_NR_PAGE_ORDERS NR_PAGE_ORDERS
#elif LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
#define KRPING_NR_PAGE_ORDERS (MAX_ORDER + 1)
#else
#define KRPING_NR_PAGE_ORDERS MAX_ORDER
#endif

/* rxe reports completions from a tasklet, for which destroying a completion queue does not wait. */
#define KRPING_RXE_TASKLETS (LINUX_VERSION_CODE < KERNEL_VERSION(6, 4, 0))

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

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 5, 0)
#define krping_blk_mode_t blk_mode_t
#define KRPING_BLK_READ BLK_OPEN_READ
#else
#define krping_blk_mode_t fmode_t
#define KRPING_BLK_READ FMODE_READ
#endif

/*
 * Opens a block device by its path, exclusively for @holder. *@handle is for krping_bdev_close().
 * Return: 0 or a negative errno.
 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
static inline int krping_bdev_open(const char *path, bool write, void *holder,
				   struct block_device **bdev, void **handle)
{
	blk_mode_t mode = BLK_OPEN_READ | (write ? BLK_OPEN_WRITE : 0);
	struct file *file = bdev_file_open_by_path(path, mode, holder, NULL);

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
#else
static inline int krping_bdev_open(const char *path, bool write, void *holder,
				   struct block_device **bdev, void **handle)
{
	fmode_t mode = FMODE_READ | FMODE_EXCL | (write ? FMODE_WRITE : 0);
	struct block_device *dev = blkdev_get_by_path(path, mode, holder);

	if (IS_ERR(dev))
		return PTR_ERR(dev);
	*bdev = dev;
	*handle = dev;
	return 0;
}

static inline void krping_bdev_close(void *handle, void *holder, bool write)
{
	blkdev_put(handle, FMODE_READ | FMODE_EXCL | (write ? FMODE_WRITE : 0));
}
#endif

/*
 * Stable writes, as data must not change after its checksum is taken. The virtual boundary makes
 * segments start and end on page boundaries except at both ends, so that one memory region can
 * register them.
 */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
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
		.features = BLK_FEAT_STABLE_WRITES,
	};

	if (limits->write_cache)
		lim.features |= BLK_FEAT_WRITE_CACHE | BLK_FEAT_FUA;
	return blk_mq_alloc_disk(set, &lim, queuedata);
}
#else
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
	blk_queue_flag_set(QUEUE_FLAG_STABLE_WRITES, q);
	blk_queue_flag_set(QUEUE_FLAG_NONROT, q);
	blk_queue_flag_clear(QUEUE_FLAG_ADD_RANDOM, q);
	blk_queue_write_cache(q, limits->write_cache, limits->write_cache);
	return disk;
}
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
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
static inline struct gendisk *krping_alloc_head(const struct krping_head_limits *limits)
{
	struct queue_limits lim;

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
	lim.features = BLK_FEAT_IO_STAT | BLK_FEAT_STABLE_WRITES;
	if (limits->write_cache)
		lim.features |= BLK_FEAT_WRITE_CACHE | BLK_FEAT_FUA;
	return blk_alloc_disk(&lim, NUMA_NO_NODE);
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
	blk_queue_flag_set(QUEUE_FLAG_STABLE_WRITES, q);
	blk_queue_flag_set(QUEUE_FLAG_IO_STAT, q);
	blk_queue_flag_set(QUEUE_FLAG_NONROT, q);
	blk_queue_write_cache(q, limits->write_cache, limits->write_cache);
	return disk;
}
#endif

#endif /* KRPING_COMPAT_H */
