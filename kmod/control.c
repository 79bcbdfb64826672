// SPDX-License-Identifier: GPL-2.0
/* /proc/krping and /proc/krping_sessions: text in, text out (PROTOCOL.md sections 3 and 4). */
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "block.h"
#include "control.h"
#include "log.h"
#include "options.h"
#include "ping.h"

#define COMMANDS_NAME	"krping"
#define SESSIONS_NAME	"krping_sessions"

static void refuse(const char *why)
{
	char subject[32];

	snprintf(subject, sizeof(subject), "control:%d", task_pid_nr(current));
	krping_err_ratelimited(subject, "%s", why);
}

static int run(char *text, size_t len)
{
	char why[KRPING_REASON_MAX];
	struct krping_options opt;
	int ret;

	if (memchr(text, '\0', len)) {
		refuse("a command has no NUL byte");
		return -EINVAL;
	}
	ret = krping_options_parse(text, &opt, why, sizeof(why));
	if (ret) {
		refuse(why);
		return ret;
	}
	switch (opt.role) {
	case KRPING_PING_CLIENT:
	case KRPING_PING_SERVER:
		return krping_ping_run(&opt);
	case KRPING_BLOCK_CLIENT:
		return krping_session_start(&opt);
	case KRPING_BLOCK_STOP:
		return krping_session_stop(opt.block, opt.force);
	}
	return -EINVAL;
}

/* The module reference makes an unload during a command fail with EBUSY instead of waiting. */
static ssize_t commands_write(struct file *file, const char __user *buf, size_t len, loff_t *pos)
{
	char *text;
	int ret;

	if (len >= KRPING_COMMAND_MAX) {
		refuse("a command has at most 511 bytes");
		return -EINVAL;
	}
	if (!try_module_get(THIS_MODULE))
		return -ENODEV;
	text = memdup_user_nul(buf, len);
	if (IS_ERR(text)) {
		ret = PTR_ERR(text);
	} else {
		ret = run(text, len);
		kfree(text);
	}
	module_put(THIS_MODULE);
	return ret ?: len;
}

static int commands_show(struct seq_file *seq, void *unused)
{
	krping_pings_show(seq);
	return 0;
}

static int commands_open(struct inode *inode, struct file *file)
{
	return single_open(file, commands_show, NULL);
}

static const struct proc_ops commands_ops = {
	.proc_open = commands_open,
	.proc_read = seq_read,
	.proc_write = commands_write,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
};

static int sessions_show(struct seq_file *seq, void *unused)
{
	krping_sessions_show(seq);
	return 0;
}

int krping_control_init(void)
{
	if (!proc_create_single(SESSIONS_NAME, 0444, NULL, sessions_show))
		return -ENOMEM;
	if (!proc_create(COMMANDS_NAME, 0600, NULL, &commands_ops)) {
		remove_proc_entry(SESSIONS_NAME, NULL);
		return -ENOMEM;
	}
	return 0;
}

void krping_control_exit(void)
{
	remove_proc_entry(COMMANDS_NAME, NULL);
	remove_proc_entry(SESSIONS_NAME, NULL);
}
