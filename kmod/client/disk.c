// SPDX-License-Identifier: GPL-2.0
/* The disk: tag set, gendisk and what the block layer calls. */
#include <linux/uaccess.h>

#include "client/request.h"
#include "lib/compat.h"
#include "lib/log.h"

/* Unanswered this long: the connection is lost. */
#ifdef KRPING_FAULTS
#define COMMAND_TIMEOUT		(3 * HZ)	/* tests drop messages and should not wait long */
#else
#define COMMAND_TIMEOUT		(30 * HZ)
#endif

static blk_status_t krping_queue_rq(struct blk_mq_hw_ctx *hctx,
				    const struct blk_mq_queue_data *bd)
{
	struct krping_request *req = blk_mq_rq_to_pdu(bd->rq);
	struct krping_queue *q = hctx->driver_data;
	struct request *rq = bd->rq;
	blk_status_t status;

	if (!(rq->rq_flags & RQF_DONTPREP)) {
		memset(req, 0, offsetof(struct krping_request, digest));
		rq->rq_flags |= RQF_DONTPREP;
	}
	if (req->posted && time_after(jiffies, req->expires))
		status = BLK_STS_IOERR;		/* it could not be sent again in time */
	else
		status = krping_send_request(q, rq, bd->last);
	if (status == BLK_STS_OK || status == BLK_STS_RESOURCE)
		return status;
	if (status == BLK_STS_IOERR)
		krping_count(q->session->stats, KRPING_ERRORS, 1);
	krping_copy_free(rq);
	return status;
}

static void krping_commit_rqs(struct blk_mq_hw_ctx *hctx)
{
	krping_send_commit(hctx->driver_data);
}

/*
 * These may take long, as they are up to 2 GiB or wait for the target's disk (a digest also for
 * others'): they do not time out while keep-alives are answered.
 */
static bool may_run_long(const struct krping_queue *q, struct request *rq)
{
	switch (req_op(rq)) {
	case REQ_OP_DISCARD:
	case REQ_OP_WRITE_ZEROES:
	case REQ_OP_FLUSH:
	case REQ_OP_DRV_IN:	/* a digest */
		return q->session->opt.heartbeat && time_before(jiffies, krping_req(rq)->expires);
	default:
		return false;
	}
}

/*
 * Return: false if @rq should have been answered by now. It may have been, and its data is being
 * checked; or its message is not posted yet, or was posted later than @rq came.
 */
static bool may_wait(struct krping_queue *q, struct request *rq)
{
	u32 tag = READ_ONCE(rq->tag);	/* none once recovery has put the request back */
	const struct krping_slot *slot;
	bool may;

	if (tag >= q->nr_slots)
		return true;
	slot = &q->slots[tag];
	spin_lock_bh(&q->lock);
	may = slot->rq != rq || slot->tx == q->open;
	if (!may) {
		krping_slot_start_time(q, slot);
		may = time_before(jiffies, slot->tx->posted_at + rq->timeout - HZ) ||
		      may_run_long(q, rq);
	}
	spin_unlock_bh(&q->lock);
	return may;
}

/*
 * Fails the connection: recovery requeues the request. If others were answered meanwhile, the
 * target is there: then the request may be the cause (suspect.c).
 */
static enum blk_eh_timer_return krping_timeout(struct request *rq)
{
	struct krping_queue *q = rq->mq_hctx->driver_data;
	bool others = time_after(READ_ONCE(q->last_answer), READ_ONCE(rq->deadline) - rq->timeout);

	krping_poll(q);		/* perhaps nobody did */
	if (blk_mq_rq_state(rq) != MQ_RQ_IN_FLIGHT)
		return BLK_EH_DONE;
	if (may_wait(q, rq))
		return BLK_EH_RESET_TIMER;
	krping_warn_ratelimited(q->session->log_prefix, "the command with tag %d was not answered in time",
				rq->tag);
	krping_conn_fail(&q->conn, others ? -ETIME : -ETIMEDOUT);
	return BLK_EH_RESET_TIMER;
}

static int krping_init_hctx(struct blk_mq_hw_ctx *hctx, void *data, unsigned int index)
{
	struct krping_session *s = data;

	hctx->driver_data = &s->queues[index];
	return 0;
}

static void krping_map_queues(struct blk_mq_tag_set *set)
{
	struct blk_mq_queue_map *map = &set->map[HCTX_TYPE_DEFAULT];
	const struct krping_session *s = set->driver_data;

	map->nr_queues = s->nr_queues - s->nr_poll;
	blk_mq_map_queues(map);
	if (!s->nr_poll)
		return;
	set->map[HCTX_TYPE_READ].nr_queues = 0;		/* they have the default */
	map = &set->map[HCTX_TYPE_POLL];
	map->queue_offset = s->nr_queues - s->nr_poll;
	map->nr_queues = s->nr_poll;
	blk_mq_map_queues(map);
}

static int krping_poll_hctx(struct blk_mq_hw_ctx *hctx, struct io_comp_batch *unused)
{
	return krping_poll(hctx->driver_data);
}

static const struct blk_mq_ops krping_mq_ops = {
	.queue_rq	= krping_queue_rq,
	.commit_rqs	= krping_commit_rqs,
	.complete	= krping_complete_rq,
	.timeout	= krping_timeout,
	.init_hctx	= krping_init_hctx,
	.map_queues	= krping_map_queues,
	.poll		= krping_poll_hctx,
};

static int check_digest(struct krping_session *s, const struct krping_digest *digest)
{
	u32 block = s->grant.block_size;

	if (!digest->length || digest->length > KRPING_DIGEST_MAX ||
	    digest->length % block || digest->offset % block ||
	    digest->offset > s->grant.capacity ||
	    digest->length > s->grant.capacity - digest->offset ||
	    digest->alg > KRPING_DIGEST_SHA256)
		return -EINVAL;
	return 0;
}

static int ioctl_digest(struct krping_session *s, void __user *arg)
{
	struct krping_digest digest;
	struct krping_request *req;
	struct request *rq;
	int ret;

	if (copy_from_user(&digest, arg, sizeof(digest)))
		return -EFAULT;
	ret = check_digest(s, &digest);
	if (ret)
		return ret;
	if (down_killable(&s->digests))
		return -EINTR;
	rq = blk_mq_alloc_request(s->disk->queue, REQ_OP_DRV_IN, 0);
	ret = PTR_ERR_OR_ZERO(rq);
	if (!ret) {
		req = blk_mq_rq_to_pdu(rq);
		req->digest = &digest;
		ret = blk_status_to_errno(blk_execute_rq(rq, false));
		blk_mq_free_request(rq);
	}
	up(&s->digests);
	if (ret)
		return ret == -ENOLINK ? -EIO : ret;
	return copy_to_user(arg, &digest, sizeof(digest)) ? -EFAULT : 0;
}

/* Shared by plain and stacked disks. */
int krping_disk_ioctl(struct block_device *bdev, krping_blk_mode_t mode, unsigned int cmd,
		      unsigned long arg)
{
	/* The offset is the volume's, not a partition's. */
	if (cmd != KRPING_IOC_DIGEST || bdev_is_partition(bdev))
		return -ENOTTY;
	if (!(mode & KRPING_BLK_READ))	/* a digest reveals the data */
		return -EBADF;
	return ioctl_digest(bdev->bd_disk->private_data, (void __user *)arg);
}

static void krping_free_disk(struct gendisk *disk)
{
	krping_session_put(disk->private_data);
}

static const struct block_device_operations krping_disk_ops = {
	.owner		= THIS_MODULE,
	.ioctl		= krping_disk_ioctl,
	.compat_ioctl	= krping_disk_ioctl,	/* same layout for 32 bits */
	.free_disk	= krping_free_disk,
};

/* Version 1 does not say whether the target can discard. */
static bool offers_discard(const struct krping_grant *grant)
{
	return grant->version == 1 || grant->caps & KRPING_CAP_DISCARD;
}

/* The disk holds a reference to the session until its last opener has closed it. */
int krping_disk_alloc(struct krping_session *s)
{
	struct krping_disk_limits limits = {
		.block_size = s->grant.block_size,
		.max_bytes = s->max_bytes,
		.max_segments = s->max_segments,
		.write_cache = s->grant.writeback,
	};
	struct gendisk *disk;
	int ret;

	if (!s->grant.read_only) {
		limits.max_discard = offers_discard(&s->grant) ? KRPING_RANGE_MAX : 0;
		limits.max_zeroes = KRPING_RANGE_MAX;
	}
	s->tag_set.ops = &krping_mq_ops;
	s->tag_set.nr_hw_queues = s->nr_queues;
	s->tag_set.nr_maps = s->nr_poll ? HCTX_MAX_TYPES : 1;
	s->tag_set.queue_depth = s->grant.depth;
	s->tag_set.numa_node = NUMA_NO_NODE;
	s->tag_set.cmd_size = sizeof(struct krping_request);
	s->tag_set.flags = KRPING_MQ_F_MERGE | BLK_MQ_F_NO_SCHED_BY_DEFAULT;
	s->tag_set.timeout = COMMAND_TIMEOUT;
	s->tag_set.driver_data = s;
	ret = blk_mq_alloc_tag_set(&s->tag_set);
	if (ret)
		return ret;
	disk = krping_alloc_disk(&s->tag_set, &limits, s);
	if (IS_ERR(disk)) {
		blk_mq_free_tag_set(&s->tag_set);
		return PTR_ERR(disk);
	}
	if (krping_session_is_stacked(s))
		disk->flags |= GENHD_FL_HIDDEN;
	snprintf(disk->disk_name, sizeof(disk->disk_name), "krping%d%s", s->id,
		 krping_session_is_stacked(s) ? "target" : "");
	disk->fops = &krping_disk_ops;
	disk->private_data = s;
	kref_get(&s->ref);
	set_capacity(disk, s->grant.capacity >> SECTOR_SHIFT);
	set_disk_ro(disk, s->grant.read_only);
	s->disk = disk;
	return 0;
}

/* As other disks that have a UUID, for udev rules. */
static ssize_t wwid_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	const struct krping_session *s = dev_to_disk(dev)->private_data;

	if (s->grant.version == 1)
		return -ENODATA;
	return sysfs_emit(buf, "uuid.%pUb\n", s->grant.uuid);
}

static DEVICE_ATTR_RO(wwid);

/* The name of the volume, which does not depend on the order of attaching. */
static ssize_t volume_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	const struct krping_session *s = dev_to_disk(dev)->private_data;

	return sysfs_emit(buf, "%s\n", s->opt.block);
}

static DEVICE_ATTR_RO(volume);

static ssize_t fast_fail_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	const struct krping_session *s = dev_to_disk(dev)->private_data;

	return sysfs_emit(buf, "%u\n", READ_ONCE(s->opt.fast_fail));
}

/*
 * Wakes the monitor, which checks fast_fail: it runs from before the disk is added until after it
 * is deleted.
 */
static ssize_t fast_fail_store(struct device *dev, struct device_attribute *attr,
			       const char *buf, size_t len)
{
	struct krping_session *s = dev_to_disk(dev)->private_data;
	u32 seconds;
	int ret;

	ret = kstrtou32(buf, 10, &seconds);
	if (ret)
		return ret;
	if (seconds > KRPING_FAST_FAIL_MAX)
		return -EINVAL;
	WRITE_ONCE(s->opt.fast_fail, seconds);
	mod_delayed_work(krping_session_wq, &s->monitor_work, 0);
	return len;
}

static DEVICE_ATTR_RW(fast_fail);

static struct attribute *disk_attrs[] = {
	&dev_attr_wwid.attr,
	&dev_attr_volume.attr,
	&dev_attr_fast_fail.attr,
	NULL
};

ATTRIBUTE_GROUPS(disk);

static struct attribute *head_attrs[] = {
	&dev_attr_volume.attr,
	NULL
};

ATTRIBUTE_GROUPS(head);

/* Of a local disk on top, which has the contents of its backing: it is not the volume. */
int krping_disk_add_head(struct gendisk *head)
{
	return device_add_disk(NULL, head, head_groups);
}

int krping_disk_add(struct krping_session *s)
{
	int ret = device_add_disk(NULL, s->disk, disk_groups);

	if (ret)	/* then free_disk is not called */
		krping_session_put(s);
	return ret;
}

/* The target's volume has grown. */
void krping_disk_resize(struct krping_session *s, u64 capacity)
{
	krping_info_ratelimited(s->log_prefix, "%s: grown from %llu to %llu bytes",
				s->disk->disk_name, s->grant.capacity, capacity);
	WRITE_ONCE(s->grant.capacity, capacity);
	set_capacity_and_notify(s->disk, capacity >> SECTOR_SHIFT);
}

void krping_disk_del(struct krping_session *s)
{
	del_gendisk(s->disk);
}

/* Undoes krping_disk_alloc(). */
void krping_disk_free(struct krping_session *s)
{
	put_disk(s->disk);
	blk_mq_free_tag_set(&s->tag_set);
}
