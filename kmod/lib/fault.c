// SPDX-License-Identifier: GPL-2.0
/* The faults of fault.h and their files in debugfs. */
#include <linux/atomic.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/jiffies.h>
#include <linux/module.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "lib/fault.h"
#include "uapi/krping.h"

/**
 * struct fault - a fault and its settings
 * @name:	name of its directory, constant
 * @rate:	fires every @rate-th time; 0: never
 * @gap_ms:	minimum time between two
 * @last:	jiffies when it last fired
 * @ms:		duration of a delay
 * @asked:	how often it could have fired
 * @fired:	how often it fired
 *
 * All but @name are written without a lock.
 */
struct fault {
	const char *name;
	u32 rate;
	u32 gap_ms;
	unsigned long last;
	u32 ms;
	atomic_t asked;
	atomic_t fired;
};

static struct fault faults[] = {
	[KRPING_FAULT_SEND_DROP]		= { .name = "send_drop" },
	[KRPING_FAULT_SEND_DELAY]		= { .name = "send_delay" },
	[KRPING_FAULT_SEND_DUPLICATE]		= { .name = "send_duplicate" },
	[KRPING_FAULT_SEND_CORRUPT]		= { .name = "send_corrupt" },
	[KRPING_FAULT_RECV_DROP]		= { .name = "recv_drop" },
	[KRPING_FAULT_RECV_DUPLICATE]		= { .name = "recv_duplicate" },
	[KRPING_FAULT_RECV_EARLY]		= { .name = "recv_early" },
	[KRPING_FAULT_RECV_CORRUPT]		= { .name = "recv_corrupt" },
	[KRPING_FAULT_POST_FAIL]		= { .name = "post_fail" },
	[KRPING_FAULT_REG_REFUSE]		= { .name = "reg_refuse" },
	[KRPING_FAULT_MAP_UNFIT]		= { .name = "map_unfit" },
	[KRPING_FAULT_ALLOC_FAIL]		= { .name = "alloc_fail" },
	[KRPING_FAULT_KEEPALIVE_LOST]		= { .name = "keepalive_lost" },
	[KRPING_FAULT_DISCONNECT]		= { .name = "disconnect" },
	[KRPING_FAULT_TAP_ALLOC_FAIL]		= { .name = "tap_alloc_fail" },
	[KRPING_FAULT_TARGET_REJECT]		= { .name = "target_reject" },
	[KRPING_FAULT_TARGET_RECV_DROP]		= { .name = "target_recv_drop" },
	[KRPING_FAULT_TARGET_RECV_CORRUPT]	= { .name = "target_recv_corrupt" },
	[KRPING_FAULT_TARGET_SEND_CORRUPT]	= { .name = "target_send_corrupt" },
	[KRPING_FAULT_TARGET_POST_FAIL]		= { .name = "target_post_fail" },
	[KRPING_FAULT_TARGET_ALLOC_FAIL]	= { .name = "target_alloc_fail" },
	[KRPING_FAULT_TARGET_KEEPALIVE_LOST]	= { .name = "target_keepalive_lost" },
	[KRPING_FAULT_TARGET_STORE_STALL]	= { .name = "target_store_stall" },
	[KRPING_FAULT_TARGET_STORE_SHORT]	= { .name = "target_store_short" },
	[KRPING_FAULT_TARGET_DISCONNECT]	= { .name = "target_disconnect" },
	[KRPING_FAULT_TARGET_SETUP_STALL]	= { .name = "target_setup_stall" },
	[KRPING_FAULT_TARGET_FULL]		= { .name = "target_full" },
	[KRPING_FAULT_TARGET_DRAIN_STALL]	= { .name = "target_drain_stall" },
	[KRPING_FAULT_RESOLVE_STALL]		= { .name = "resolve_stall" },
	[KRPING_FAULT_CONNECT_STALL]		= { .name = "connect_stall" },
	[KRPING_FAULT_ACCEPT_STALL]		= { .name = "accept_stall" },
	[KRPING_FAULT_FRAGMENTED]		= { .name = "fragmented" },
	[KRPING_FAULT_SMALL_DEVICE]		= { .name = "small_device" },
	[KRPING_FAULT_VERBS_CORRUPT]		= { .name = "verbs_corrupt" },
};

static_assert(ARRAY_SIZE(faults) == KRPING_FAULTS_NR);

static DEFINE_SPINLOCK(session_lock);	/* protects only_session; taken in any context */
static char only_session[KRPING_NAME_LEN];	/* "": all */
static struct dentry *root;

static bool is_selected(const char *session)
{
	unsigned long flags;
	bool selected;

	spin_lock_irqsave(&session_lock, flags);
	selected = !*only_session || !strcmp(only_session, session);
	spin_unlock_irqrestore(&session_lock, flags);
	return selected;
}

bool krping_fault_is_on(enum krping_fault fault, const char *session)
{
	return READ_ONCE(faults[fault].rate) && is_selected(session);
}

/**
 * krping_fault - should the fault happen now?
 * @fault:	the fault
 * @session:	name of the session or volume
 *
 * Any context. Return: true every @rate-th time.
 */
bool krping_fault(enum krping_fault fault, const char *session)
{
	struct fault *f = &faults[fault];
	unsigned long last = READ_ONCE(f->last);
	u32 rate = READ_ONCE(f->rate), gap = READ_ONCE(f->gap_ms);

	if (!rate || !is_selected(session) || (u32)atomic_inc_return(&f->asked) % rate)
		return false;
	if (gap && atomic_read(&f->fired) && time_before(jiffies, last + msecs_to_jiffies(gap)))
		return false;
	if (gap && cmpxchg(&f->last, last, jiffies) != last)
		return false;
	atomic_inc(&f->fired);
	return true;
}

/* Busy-waits. Any context. */
void krping_fault_delay(enum krping_fault fault, const char *session)
{
	u32 ms = READ_ONCE(faults[fault].ms);	/* before @fired is seen to change */

	if (krping_fault(fault, session))
		mdelay(ms);
}

/* Sleeps. Process context. */
void krping_fault_sleep(enum krping_fault fault, const char *session)
{
	u32 ms = READ_ONCE(faults[fault].ms);	/* as above */

	if (krping_fault(fault, session))
		msleep(ms);
}

static ssize_t session_read(struct file *file, char __user *to, size_t len, loff_t *pos)
{
	char name[sizeof(only_session) + 1];
	size_t size;

	spin_lock_irq(&session_lock);
	size = scnprintf(name, sizeof(name), "%s\n", only_session);
	spin_unlock_irq(&session_lock);
	return simple_read_from_buffer(to, len, pos, name, size);
}

static ssize_t session_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	char name[sizeof(only_session)] = {};

	if (len >= sizeof(name))
		return -EINVAL;
	if (copy_from_user(name, from, len))
		return -EFAULT;
	spin_lock_irq(&session_lock);
	strscpy(only_session, strim(name), sizeof(only_session));
	spin_unlock_irq(&session_lock);
	return len;
}

static const struct file_operations session_fops = {
	.owner	= THIS_MODULE,
	.open	= simple_open,
	.read	= session_read,
	.write	= session_write,
};

/* Without debugfs no fault can be set, and none happens. */
void krping_faults_init(void)
{
	struct dentry *all, *dir;
	size_t i;

	root = debugfs_create_dir("krping", NULL);
	all = debugfs_create_dir("faults", root);
	debugfs_create_file("session", 0600, all, NULL, &session_fops);
	for (i = 0; i < ARRAY_SIZE(faults); i++) {
		dir = debugfs_create_dir(faults[i].name, all);
		debugfs_create_u32("rate", 0600, dir, &faults[i].rate);
		debugfs_create_u32("gap_ms", 0600, dir, &faults[i].gap_ms);
		debugfs_create_u32("ms", 0600, dir, &faults[i].ms);
		debugfs_create_atomic_t("fired", 0600, dir, &faults[i].fired);
	}
}

void krping_faults_exit(void)
{
	debugfs_remove(root);
}
