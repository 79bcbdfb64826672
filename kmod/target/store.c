// SPDX-License-Identifier: GPL-2.0
/*
 * Carries out commands on the backing: as a bio, which completes in any context, or in a work item
 * if a command may block or take long. Both end in krping_target_cmd_finished().
 */
#include <crypto/sha2.h>
#include <linux/blkdev.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "lib/compat.h"
#include "wire/crc.h"
#include "lib/fault.h"
#include "lib/log.h"
#include "target/target.h"

u8 krping_store_status(blk_status_t status)
{
	switch (status) {
	case BLK_STS_OK:
		return KRPING_ST_OK;
	case BLK_STS_NOSPC:
		return KRPING_ST_NO_SPACE;
	case BLK_STS_NOTSUPP:
		return KRPING_ST_UNSUPPORTED;
	default:
		return KRPING_ST_IO;
	}
}

/*
 * A disk reports a failed flush once, and acknowledged writes of any client may be lost. The new
 * epoch informs all clients: each must reconnect before another flush succeeds (worker.c).
 */
static void flush_failed(struct krping_volume *v)
{
	if (v->opt.writeback)
		atomic64_inc(&v->epoch);
}

static bool is_flush(const struct krping_volume *v, const struct bio *bio)
{
	return bio->bi_opf & REQ_PREFLUSH ||
	       (bio->bi_opf & REQ_FUA && krping_fua_may_flush(v->backing.bdev));
}

static void krping_store_bio_done(struct bio *bio)
{
	struct krping_target_cmd *cmd = bio->bi_private;
	/* A failed READ may have shared its request with one for a bad sector. */
	bool again = bio->bi_opf & REQ_NOWAIT && (bio->bi_status == BLK_STS_AGAIN ||
						  (bio->bi_status && cmd->op == KRPING_OP_READ));

	if (bio->bi_status && !again && is_flush(cmd->tc->volume, bio))
		flush_failed(cmd->tc->volume);
	cmd->bio_status = bio->bi_status;
	bio_put(bio);
	if (again)
		queue_work(cmd->tc->volume->wq.store, &cmd->work);	/* may block there */
	else
		krping_target_cmd_finished(cmd);
}

/* An acknowledged write is stable, unless the volume is writeback. */
static bool is_stable(const struct krping_target_cmd *cmd)
{
	return !cmd->tc->volume->opt.writeback || cmd->flags & KRPING_CMD_FUA;
}

static blk_opf_t bio_opf(const struct krping_target_cmd *cmd)
{
	switch (cmd->op) {
	case KRPING_OP_READ:
		return REQ_OP_READ;
	case KRPING_OP_WRITE:
		return REQ_OP_WRITE | REQ_SYNC | REQ_IDLE | (is_stable(cmd) ? REQ_FUA : 0);
	default:
		return REQ_OP_WRITE | REQ_PREFLUSH;
	}
}

static void submit(struct krping_target_cmd *cmd, blk_opf_t nowait)
{
	struct krping_backing *b = &cmd->tc->volume->backing;
	u32 nents = cmd->op == KRPING_OP_FLUSH ? 0 : cmd->nents;
	struct scatterlist *sg;
	struct bio *bio;
	u32 i;

	bio = bio_alloc(b->bdev, nents, bio_opf(cmd) | nowait, GFP_NOIO);
	bio->bi_iter.bi_sector = cmd->offset >> SECTOR_SHIFT;
	bio->bi_private = cmd;
	bio->bi_end_io = krping_store_bio_done;
	for_each_sg(cmd->sg, sg, nents, i)
		__bio_add_page(bio, sg_page(sg), sg->length, sg->offset);
	krping_backing_submit(b, bio);
}

/*
 * Of a bio that was split only one failure is reported: EAGAIN of a part could hide that the flush
 * of another has failed.
 */
static bool hides_failed_flush(const struct krping_target_cmd *cmd)
{
	const struct krping_volume *v = cmd->tc->volume;

	return v->opt.writeback && bio_opf(cmd) & (REQ_PREFLUSH | REQ_FUA) &&
	       krping_bdev_maps_bios(v->backing.bdev);
}

/*
 * In spite of REQ_NOWAIT, md waits in the submitter: for its superblock and bitmap, and for its
 * members, to which it does not pass that flag. dm passes it, but may be on top of md. Its READs
 * are submitted directly all the same: only busy members of md can hold them up.
 */
static bool may_block(const struct krping_target_cmd *cmd)
{
	const struct krping_backing *b = &cmd->tc->volume->backing;

	return !bdev_nowait(b->bdev) || b->is_md || (b->is_dm && cmd->op != KRPING_OP_READ);
}

/**
 * krping_store_submit - start a READ, WRITE or FLUSH
 * @cmd:	with @cmd->sg of @cmd->length bytes, except for FLUSH
 *
 * Process context, under memalloc_noio_save(). Does not block on the disk, because keep-alives
 * must be answered while a disk stalls.
 */
void krping_store_submit(struct krping_target_cmd *cmd)
{
	struct krping_volume *v = cmd->tc->volume;

	if (may_block(cmd) || hides_failed_flush(cmd) ||
	    krping_fault_is_on(KRPING_FAULT_TARGET_STORE_STALL, v->opt.block))
		queue_work(v->wq.store, &cmd->work);
	else
		submit(cmd, REQ_NOWAIT);
}

/* ---- commands that may block ---- */

static u8 errno_status(int error)
{
	return krping_store_status(errno_to_blk_status(error));
}

/* The connection is closed: nobody gets the answer, and the client sends the command again. */
static bool is_abandoned(const struct krping_target_cmd *cmd)
{
	return READ_ONCE(cmd->tc->conn.state) == KRPING_CONN_CLOSED;
}

static u8 zero_ram(struct krping_target_cmd *cmd)
{
	void *ram = cmd->tc->volume->backing.ram + cmd->offset;
	u32 done, len;

	for (done = 0; done < cmd->length && !is_abandoned(cmd); done += len) {
		len = min_t(u32, SZ_1M, cmd->length - done);
		memset(ram + done, 0, len);
		cond_resched();
	}
	return done < cmd->length ? KRPING_ST_IO : KRPING_ST_OK;
}

static u8 discard(struct krping_target_cmd *cmd)
{
	struct krping_backing *b = &cmd->tc->volume->backing;

	if (!b->bdev)
		return zero_ram(cmd);
	if (!bdev_max_discard_sectors(b->bdev))
		return KRPING_ST_UNSUPPORTED;
	return errno_status(blkdev_issue_discard(b->bdev, cmd->offset >> SECTOR_SHIFT,
						 cmd->length >> SECTOR_SHIFT, GFP_NOIO));
}

#define ZERO_STEP	SZ_16M	/* bytes zeroed between two checks of the connection */

/* The disk may write every block, so work in steps: a new connection need not wait for all. */
static int zero_disk(struct krping_target_cmd *cmd, struct block_device *bdev)
{
	unsigned int flags = cmd->flags & KRPING_CMD_NO_UNMAP ? BLKDEV_ZERO_NOUNMAP : 0;
	u32 done, len;
	int ret = 0;

	for (done = 0; done < cmd->length && !ret; done += len) {
		if (is_abandoned(cmd))
			return -EIO;
		len = min_t(u32, ZERO_STEP, cmd->length - done);
		ret = blkdev_issue_zeroout(bdev, (cmd->offset + done) >> SECTOR_SHIFT,
					   len >> SECTOR_SHIFT, GFP_NOIO, flags);
	}
	return ret;
}

static u8 write_zeroes(struct krping_target_cmd *cmd)
{
	struct krping_backing *b = &cmd->tc->volume->backing;
	int ret;

	if (!b->bdev)
		return zero_ram(cmd);
	ret = zero_disk(cmd, b->bdev);
	if (!ret && is_stable(cmd)) {
		ret = blkdev_issue_flush(b->bdev);
		if (ret)
			flush_failed(cmd->tc->volume);
	}
	return errno_status(ret);
}

#define DIGEST_STEP	SZ_64K	/* bytes read at a time */

/* Return: the next bytes of the backing, in @buf if they have to be read, or an ERR_PTR. */
static const void *read_backing(struct krping_backing *b, u64 offset, u32 len, struct page *buf)
{
	struct bio_vec bv;
	struct bio bio;
	int ret;

	if (!b->bdev)
		return b->ram + offset;
	bio_init(&bio, b->bdev, &bv, 1, REQ_OP_READ);
	bio.bi_iter.bi_sector = offset >> SECTOR_SHIFT;
	__bio_add_page(&bio, buf, len, 0);
	ret = submit_bio_wait(&bio);
	bio_uninit(&bio);
	return ret ? ERR_PTR(ret) : page_address(buf);
}

/* Return: pages of *@step bytes, which is reduced if memory is short; or NULL. */
static struct page *digest_buffer(u32 *step)
{
	struct page *page = alloc_pages(GFP_NOIO | __GFP_COMP | __GFP_NOWARN | __GFP_NORETRY,
					get_order(*step));

	if (page)
		return page;
	*step = PAGE_SIZE;
	return alloc_page(GFP_NOIO);
}

static u8 digest(struct krping_target_cmd *cmd)
{
	struct krping_backing *b = &cmd->tc->volume->backing;
	bool is_sha = cmd->flags & KRPING_CMD_SHA256;
	u32 crc = krping_crc_begin(), step = DIGEST_STEP, len, done;
	struct krping_sha256 sha;
	struct page *buf;
	const void *data;

	buf = digest_buffer(&step);
	if (!buf)
		return KRPING_ST_IO;
	sha256_init(&sha);
	for (done = 0; done < cmd->length; done += len) {
		len = min(step, cmd->length - done);
		data = is_abandoned(cmd) ? ERR_PTR(-EIO) :
					   read_backing(b, cmd->offset + done, len, buf);
		if (IS_ERR(data))
			break;
		if (is_sha)
			sha256_update(&sha, data, len);
		else
			crc = krping_crc_add(crc, data, len);
		cond_resched();
	}
	__free_pages(buf, compound_order(buf));
	if (done < cmd->length)
		return errno_status(PTR_ERR(data));
	cmd->data = cmd->digest;
	cmd->data_len = is_sha ? SHA256_DIGEST_SIZE : sizeof(__be32);
	if (is_sha)
		sha256_final(&sha, cmd->digest);
	else
		put_unaligned_be32(krping_crc_end(crc), cmd->digest);
	return KRPING_ST_OK;
}

/* May take long, so it is skipped if the connection is closed. */
static u8 carry_out(struct krping_target_cmd *cmd)
{
	if (is_abandoned(cmd))
		return KRPING_ST_IO;
	switch (cmd->op) {
	case KRPING_OP_DISCARD:
		return discard(cmd);
	case KRPING_OP_WRITE_ZEROES:
		return write_zeroes(cmd);
	default:
		return digest(cmd);
	}
}

void krping_store_work(struct work_struct *work)
{
	struct krping_target_cmd *cmd = container_of(work, struct krping_target_cmd, work);
	unsigned int flags = memalloc_noio_save();

	krping_fault_sleep(KRPING_FAULT_TARGET_STORE_STALL, cmd->tc->volume->opt.block);
	switch (cmd->op) {
	case KRPING_OP_READ:
	case KRPING_OP_WRITE:
	case KRPING_OP_FLUSH:
		submit(cmd, 0);
		memalloc_noio_restore(flags);
		return;
	default:
		cmd->status = carry_out(cmd);
		break;
	}
	memalloc_noio_restore(flags);
	krping_target_cmd_finished(cmd);
}

/* DISCARD, WRITE_ZEROES or DIGEST, of any length. */
void krping_store_begin_work(struct krping_target_cmd *cmd)
{
	const struct krping_volume_wqs *wq = &cmd->tc->volume->wq;

	queue_work(cmd->op == KRPING_OP_DIGEST ? wq->digests : wq->ranges, &cmd->work);
}
