// SPDX-License-Identifier: GPL-2.0
/* /proc/krping, krping_results and krping_sessions (INTERFACE.md sections 1 and 2). */
#include <linux/capability.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/user_namespace.h>

#include "client/client.h"
#include "control.h"
#include "lib/log.h"
#include "local/tap.h"
#include "options.h"
#include "ping/result.h"
#include "target/target.h"
#include "ping/thread.h"
#include "verbs/verbs.h"

#define COMMANDS_NAME	"krping"
#define RESULTS_NAME	"krping_results"
#define SESSIONS_NAME	"krping_sessions"

/**
 * struct command_file - an open /proc/krping
 * @lock:	protects @result
 * @result:	of the last ping/pong command written to it, a reference; or NULL
 */
struct command_file {
	struct mutex lock;	/* what it protects: above */
	struct krping_result *result;
};

static void refuse_command(const char *why)
{
	char log_prefix[32];

	snprintf(log_prefix, sizeof(log_prefix), "control:%d", task_pid_nr(current));
	krping_err_ratelimited(log_prefix, "%s", why);
}

static struct command_file *command_file(struct file *file)
{
	struct seq_file *seq = file->private_data;

	return seq->private;
}

/* Makes the file show @result; takes a reference to it. */
static void show_result(struct command_file *cf, struct krping_result *result)
{
	struct krping_result *last;

	if (result)
		krping_result_get(result);
	mutex_lock(&cf->lock);
	last = cf->result;
	cf->result = result;
	mutex_unlock(&cf->lock);
	krping_result_put(last);
}

static int run_thread(struct command_file *cf, const struct krping_options *opt)
{
	struct krping_result *result = krping_result_new(opt);
	int ret;

	if (!result)
		return -ENOMEM;
	show_result(cf, result);
	if (opt->test == KRPING_TEST_VERBS)
		ret = krping_verbs_run(opt, result);
	else
		ret = krping_thread_run(opt, result);
	krping_result_put(result);
	return ret;
}

static int run(struct command_file *cf, char *text, size_t len)
{
	char why[KRPING_REASON_MAX];
	struct krping_options opt;
	int ret;

	show_result(cf, NULL);
	if (memchr(text, '\0', len)) {
		refuse_command("a command must not contain a NUL byte");
		return -EINVAL;
	}
	ret = krping_options_parse(text, &opt, why, sizeof(why));
	if (ret) {
		refuse_command(why);
		return ret;
	}
	switch (opt.role) {
	case KRPING_PING_CLIENT:
	case KRPING_PING_SERVER:
		return run_thread(cf, &opt);
	case KRPING_BLOCK_CLIENT:
		return opt.mode == KRPING_MODE_TAP ? krping_tap_start(&opt) :
						     krping_session_start(&opt, NULL);
	case KRPING_BLOCK_STOP:
		return opt.target ? krping_volume_stop(opt.block) :
				    krping_session_stop(opt.block, opt.force);
	case KRPING_BLOCK_SERVER:
		return krping_volume_start(&opt);
	}
	return -EINVAL;
}

/* The module reference makes an unload during a command fail with EBUSY instead of waiting. */
static ssize_t commands_write(struct file *file, const char __user *buf, size_t len, loff_t *pos)
{
	char *text;
	int ret;

	/* Both writer and opener: the file may be a setuid program's standard error. */
	if (!capable(CAP_SYS_ADMIN) || !file_ns_capable(file, &init_user_ns, CAP_SYS_ADMIN)) {
		refuse_command("CAP_SYS_ADMIN is needed");
		return -EPERM;
	}
	if (len >= KRPING_COMMAND_MAX) {
		refuse_command("a command has at most 511 bytes");
		return -EINVAL;
	}
	if (!try_module_get(THIS_MODULE))
		return -ENODEV;
	text = memdup_user_nul(buf, len);
	if (IS_ERR(text)) {
		ret = PTR_ERR(text);
	} else {
		ret = run(command_file(file), text, len);
		kfree(text);
	}
	module_put(THIS_MODULE);
	return ret ?: len;
}

/* Shows the running threads, or the result of the last command written to this file. */
static int commands_show(struct seq_file *seq, void *unused)
{
	struct command_file *cf = seq->private;
	struct krping_result *result;

	mutex_lock(&cf->lock);
	result = cf->result;
	if (result)
		krping_result_get(result);
	mutex_unlock(&cf->lock);
	if (result)
		krping_result_show(seq, result);
	else
		krping_threads_show(seq);
	krping_result_put(result);
	return 0;
}

static int commands_open(struct inode *inode, struct file *file)
{
	struct command_file *cf = kzalloc(sizeof(*cf), GFP_KERNEL);
	int ret;

	if (!cf)
		return -ENOMEM;
	mutex_init(&cf->lock);
	ret = single_open(file, commands_show, cf);
	if (ret)
		kfree(cf);
	return ret;
}

static int commands_release(struct inode *inode, struct file *file)
{
	struct command_file *cf = command_file(file);

	krping_result_put(cf->result);
	kfree(cf);
	return single_release(inode, file);
}

static const struct proc_ops commands_ops = {
	.proc_open = commands_open,
	.proc_read = seq_read,
	.proc_write = commands_write,
	.proc_lseek = seq_lseek,
	.proc_release = commands_release,
};

/*
 * Peers, paths of disks and process IDs are not for root of a container, so the mode is not enough.
 * Whoever may write commands may see them.
 */
static int list_open(struct inode *inode, struct file *file)
{
	int (*show)(struct seq_file *seq, void *unused) = pde_data(inode);

	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	return single_open(file, show, NULL);
}

static const struct proc_ops list_ops = {
	.proc_open = list_open,
	.proc_read = seq_read,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
};

static int results_show(struct seq_file *seq, void *unused)
{
	krping_results_show(seq);
	return 0;
}

static int sessions_show(struct seq_file *seq, void *unused)
{
	krping_sessions_show(seq);
	krping_volumes_show(seq);
	return 0;
}

int krping_control_init(void)
{
	if (!proc_create_data(SESSIONS_NAME, 0400, NULL, &list_ops, sessions_show))
		return -ENOMEM;
	if (!proc_create_data(RESULTS_NAME, 0400, NULL, &list_ops, results_show))
		goto no_results;
	if (!proc_create(COMMANDS_NAME, 0600, NULL, &commands_ops))
		goto no_commands;
	return 0;

no_commands:
	remove_proc_entry(RESULTS_NAME, NULL);
no_results:
	remove_proc_entry(SESSIONS_NAME, NULL);
	return -ENOMEM;
}

/* Afterwards none of our files is open. */
void krping_control_exit(void)
{
	remove_proc_entry(COMMANDS_NAME, NULL);
	remove_proc_entry(RESULTS_NAME, NULL);
	remove_proc_entry(SESSIONS_NAME, NULL);
}
