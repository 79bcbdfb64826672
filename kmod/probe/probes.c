// SPDX-License-Identifier: GPL-2.0
/*
 * What lib/compat.h asks of the kernel's headers. Kbuild compiles this file once for each section,
 * with the kernel's own flags; probe.sh writes whether the section NAME compiles: KRPING_HAS_NAME.
 * The versions are those of Linux; a distribution's kernel may have taken the change over earlier.
 */

/* Must compile. If it does not, the headers or the compiler cannot build any module. */
#ifdef PROBE_HEADERS
#include <linux/blk-mq.h>
#include <linux/module.h>
#include <rdma/ib_verbs.h>
#endif

/* Must not compile. If it does, the compiler's answers mean nothing. */
#ifdef PROBE_NO_SUCH_FUNCTION
int krping_probe(void)
{
	return krping_no_such_function();
}
#endif

/* 6.4; before, in kernel.h. Not __has_include, which sparse does not know. */
#ifdef PROBE_LINUX_HEX_H
#include <linux/hex.h>
#endif

/* 6.12 */
#ifdef PROBE_LINUX_UNALIGNED_H
#include <linux/unaligned.h>
#endif

/* 6.5 */
#ifdef PROBE_BLK_MODE_T
#include <linux/blkdev.h>
blk_mode_t krping_probe(void)
{
	return BLK_OPEN_READ | BLK_OPEN_WRITE;
}
#endif

/* 6.9 */
#ifdef PROBE_BDEV_FILE_OPEN_BY_PATH
#include <linux/blkdev.h>
struct block_device *krping_probe(const char *path, void *holder)
{
	struct file *file = bdev_file_open_by_path(path, BLK_OPEN_READ, holder, NULL);

	bdev_fput(file);
	return file_bdev(file);
}
#endif

/* 6.7 and 6.8 */
#ifdef PROBE_BDEV_OPEN_BY_PATH
#include <linux/blkdev.h>
struct block_device *krping_probe(const char *path, void *holder)
{
	struct bdev_handle *handle = bdev_open_by_path(path, BLK_OPEN_READ, holder, NULL);

	bdev_release(handle);
	return handle->bdev;
}
#endif

/* 6.5 and 6.6 */
#ifdef PROBE_BLKDEV_GET_BY_PATH_HOPS
#include <linux/blkdev.h>
struct block_device *krping_probe(const char *path, void *holder)
{
	struct block_device *bdev = blkdev_get_by_path(path, BLK_OPEN_READ, holder, NULL);

	blkdev_put(bdev, holder);
	return bdev;
}
#endif

/* Before 6.5 */
#ifdef PROBE_BLKDEV_GET_BY_PATH
#include <linux/blkdev.h>
struct block_device *krping_probe(const char *path, void *holder)
{
	struct block_device *bdev = blkdev_get_by_path(path, FMODE_READ | FMODE_EXCL, holder);

	blkdev_put(bdev, FMODE_READ | FMODE_EXCL);
	return bdev;
}
#endif

/* 6.9: limits are an argument. */
#ifdef PROBE_ALLOC_DISK_LIMITS
#include <linux/blk-mq.h>
struct gendisk *krping_probe(struct blk_mq_tag_set *set, struct queue_limits *limits, void *data)
{
	if (!set)
		return blk_alloc_disk(limits, NUMA_NO_NODE);
	return blk_mq_alloc_disk(set, limits, data);
}
#endif

/* 6.11: write cache, stable writes and more are flags in the limits. */
#ifdef PROBE_LIMITS_FEATURES
#include <linux/blkdev.h>
void krping_probe(struct queue_limits *limits)
{
	limits->features = BLK_FEAT_STABLE_WRITES | BLK_FEAT_WRITE_CACHE | BLK_FEAT_FUA |
			   BLK_FEAT_IO_STAT;
}
#endif

/* Before 6.9 */
#ifdef PROBE_ALLOC_DISK
#include <linux/blk-mq.h>
struct gendisk *krping_probe(struct blk_mq_tag_set *set, void *data)
{
	if (!set)
		return blk_alloc_disk(NUMA_NO_NODE);
	return blk_mq_alloc_disk(set, data);
}
#endif

/* Gone in 6.14, where all requests merge. */
#ifdef PROBE_BLK_MQ_F_SHOULD_MERGE
#include <linux/blk-mq.h>
int krping_probe(void)
{
	return BLK_MQ_F_SHOULD_MERGE;
}
#endif

/* 6.16: without the request's queue. */
#ifdef PROBE_BLK_RQ_MAP_SG
#include <linux/blk-mq.h>
int krping_probe(struct request *rq, struct scatterlist *sg)
{
	return blk_rq_map_sg(rq, sg);
}
#endif

/* 6.16 */
#ifdef PROBE_SHA256_CTX
#include <crypto/sha2.h>
void krping_probe(struct sha256_ctx *sha, const u8 *data, size_t len, u8 *out)
{
	sha256_init(sha);
	sha256_update(sha, data, len);
	sha256_final(sha, out);
}
#endif

/* 6.17: another limit, which must fit max_write_zeroes_sectors or be 0. */
#ifdef PROBE_WZEROES_UNMAP_LIMIT
#include <linux/blkdev.h>
unsigned int krping_probe(struct queue_limits *lim)
{
	return lim->max_hw_wzeroes_unmap_sectors;
}
#endif

/* 6.17. Newer kernels warn of a workqueue with neither it nor WQ_UNBOUND. */
#ifdef PROBE_WQ_PERCPU
#include <linux/workqueue.h>
int krping_probe(void)
{
	return WQ_PERCPU;
}
#endif
