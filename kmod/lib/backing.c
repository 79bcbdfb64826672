// SPDX-License-Identifier: GPL-2.0
/* Backings, which are block devices or memory: open, close, submit bios. */
#include <linux/blkdev.h>
#include <linux/highmem.h>
#include <linux/uuid.h>
#include <linux/vmalloc.h>

#include "lib/backing.h"
#include "lib/compat.h"
#include "lib/log.h"

static int open_ram(struct krping_backing *b, u64 size)
{
	b->ram = vzalloc(size);
	if (!b->ram)
		return -ENOMEM;
	b->size = size;
	b->block_size = SECTOR_SIZE;
	return 0;
}

static int open_bdev(struct krping_backing *b, const char *path, bool read_only,
		     const char *log_prefix)
{
	int ret;

	b->writable = !read_only;
	ret = krping_bdev_open(path, b->writable, b, &b->bdev, &b->handle);
	if (ret == -EACCES && b->writable) {	/* the disk may be read-only */
		b->writable = false;
		ret = krping_bdev_open(path, false, b, &b->bdev, &b->handle);
	}
	if (ret) {
		krping_err(log_prefix, "cannot open %s%s: %d", path,
			   ret == -EBUSY ? ", it is in use" : "", ret);
		return ret;
	}
	b->is_md = !strncmp(b->bdev->bd_disk->disk_name, "md", 2);
	b->is_dm = !strncmp(b->bdev->bd_disk->disk_name, "dm-", 3);
	b->size = bdev_nr_bytes(b->bdev);
	b->block_size = bdev_logical_block_size(b->bdev);
	if (b->size && (read_only || (b->writable && !bdev_read_only(b->bdev))))
		return 0;
	krping_err(log_prefix, "%s %s", path, b->size ? "is read-only" : "has no size");
	krping_backing_close(b);
	return b->size ? -EROFS : -EINVAL;
}

/**
 * krping_backing_open - open the backing of a command
 * @b:		filled in
 * @opt:	with @opt->backing or @opt->ram
 * @read_only:	only reads will be submitted
 * @log_prefix:	for the log
 *
 * Return: 0 or a negative errno, with the reason in the log.
 */
int krping_backing_open(struct krping_backing *b, const struct krping_options *opt,
			bool read_only, const char *log_prefix)
{
	memset(b, 0, sizeof(*b));
	if (opt->ram)
		return open_ram(b, opt->ram);
	return open_bdev(b, opt->backing, read_only, log_prefix);
}

/* Undoes krping_backing_open(); no bio is in flight. */
void krping_backing_close(struct krping_backing *b)
{
	if (b->bdev)
		krping_bdev_close(b->handle, b, b->writable);
	vfree(b->ram);
	b->bdev = NULL;
	b->ram = NULL;
}

/* Return: the current size in bytes; a block device may grow. */
u64 krping_backing_size(const struct krping_backing *b)
{
	return b->bdev ? bdev_nr_bytes(b->bdev) : b->size;
}

/* Return: whether the partition table has an identity for the partition. */
static bool partition_uuid(const struct block_device *bdev, u8 uuid[KRPING_UUID_LEN])
{
	const char *text = bdev->bd_meta_info ? (const char *)bdev->bd_meta_info->uuid : "";
	uuid_t parsed;

	if (!text[0])
		return false;
	if (!uuid_parse(text, &parsed))
		export_uuid(uuid, &parsed);
	else	/* MS-DOS: the disk's signature and the number of the partition, as text */
		memcpy(uuid, text, strnlen(text, KRPING_UUID_LEN));
	return true;
}

static bool disk_uuid(const struct block_device *bdev, u8 uuid[KRPING_UUID_LEN])
{
	static const enum blk_unique_id types[] = { BLK_UID_NAA, BLK_UID_EUI64, BLK_UID_T10 };
	struct gendisk *disk = bdev->bd_disk;
	int i;

	if (!disk->fops->get_unique_id)
		return false;
	for (i = 0; i < ARRAY_SIZE(types); i++) {
		memset(uuid, 0, KRPING_UUID_LEN);
		if (disk->fops->get_unique_id(disk, uuid, types[i]) > 0)
			return true;
	}
	return false;
}

/**
 * krping_backing_uuid - a UUID that stays with the data
 * @b:		open
 * @uuid:	filled in: of the partition, or the unique ID of the disk, padded with zeros
 *
 * Return: false if there is none.
 */
bool krping_backing_uuid(const struct krping_backing *b, u8 uuid[KRPING_UUID_LEN])
{
	memset(uuid, 0, KRPING_UUID_LEN);
	if (!b->bdev)
		return false;
	return bdev_is_partition(b->bdev) ? partition_uuid(b->bdev, uuid) :
					    disk_uuid(b->bdev, uuid);
}

bool krping_backing_discards(const struct krping_backing *b)
{
	return !b->bdev || bdev_max_discard_sectors(b->bdev);
}

/* May a power loss leave part of a block of @block_size bytes old? */
bool krping_backing_tears(const struct krping_backing *b, u32 block_size)
{
	return b->bdev && block_size > bdev_physical_block_size(b->bdev);
}

static blk_status_t access_ram(struct krping_backing *b, struct bio *bio)
{
	u64 at = bio->bi_iter.bi_sector << SECTOR_SHIFT;
	struct bvec_iter iter;
	struct bio_vec bv;

	if (bio->bi_iter.bi_size > b->size || at > b->size - bio->bi_iter.bi_size)
		return BLK_STS_IOERR;
	switch (bio_op(bio)) {
	case REQ_OP_READ:
		bio_for_each_segment(bv, bio, iter) {
			memcpy_to_bvec(&bv, b->ram + at);
			at += bv.bv_len;
		}
		return BLK_STS_OK;
	case REQ_OP_WRITE:
		bio_for_each_segment(bv, bio, iter) {
			memcpy_from_bvec(b->ram + at, &bv);
			at += bv.bv_len;
		}
		return BLK_STS_OK;
	case REQ_OP_DISCARD:
	case REQ_OP_WRITE_ZEROES:
		memset(b->ram + at, 0, bio->bi_iter.bi_size);
		return BLK_STS_OK;
	case REQ_OP_FLUSH:
		return BLK_STS_OK;
	default:
		return BLK_STS_NOTSUPP;
	}
}

/**
 * krping_backing_submit - submit a bio to the backing
 * @b:		open
 * @bio:	complete but for its device; for memory, it is completed before this returns
 *
 * Process context.
 */
void krping_backing_submit(struct krping_backing *b, struct bio *bio)
{
	if (b->bdev) {
		bio_set_dev(bio, b->bdev);
		submit_bio_noacct(bio);
		return;
	}
	bio->bi_status = access_ram(b, bio);
	bio_endio(bio);
}
