// SPDX-License-Identifier: GPL-2.0
/* Checks a message and turns it into commands in flight (PROTOCOL.md section 2.5). */
#include "lib/log.h"
#include "target/target.h"

static int report_violation(struct krping_target_conn *tc, const char *what, u64 value)
{
	krping_err_ratelimited(tc->log_prefix, "the client violated the protocol: %s (%llu)", what,
			       value);
	atomic64_inc(&tc->volume->violations);
	return -EPROTO;
}

/* Checks a command against those in flight. */
static int check_inflight(struct krping_target_conn *tc, const struct krping_decoded_cmd *wire)
{
	if (wire->op == KRPING_OP_KEEP_ALIVE)
		return tc->keep_alive_pending ?
		       report_violation(tc, "more than one KEEP_ALIVE", 2) : 0;
	if (test_bit(wire->tag, tc->tags))
		return report_violation(tc, "tag is already in flight", wire->tag);
	if (tc->nr_inflight >= tc->depth)
		return report_violation(tc, "too many commands in flight", tc->nr_inflight + 1);
	return 0;
}

static struct krping_target_cmd *begin_command(struct krping_target_conn *tc,
					       const struct krping_decoded_cmd *wire)
{
	struct krping_target_cmd *cmd;

	if (wire->op == KRPING_OP_KEEP_ALIVE) {
		cmd = tc->keep_alive;
		tc->keep_alive_pending = true;
	} else {
		/* Never empty: see alloc_cmds(). */
		cmd = list_first_entry(&tc->free_cmds, struct krping_target_cmd, entry);
		list_del(&cmd->entry);
		__set_bit(wire->tag, tc->tags);
		WRITE_ONCE(tc->nr_inflight, tc->nr_inflight + 1);
	}
	cmd->op = wire->op;
	cmd->flags = wire->flags;
	cmd->tag = wire->tag;
	cmd->length = wire->length;
	cmd->offset = wire->offset;
	cmd->addr = wire->addr;
	cmd->rkey = wire->rkey;
	cmd->crc = wire->crc;
	cmd->status = KRPING_ST_OK;
	cmd->message = NULL;
	cmd->data = wire->data;
	cmd->data_len = 0;
	cmd->sg = NULL;
	cmd->nents = 0;
	if (cmd->page && !cmd->rkey && cmd->length <= PAGE_SIZE)
		krping_data_set(cmd, cmd->page, 0);
	return cmd;
}

/**
 * krping_target_decode - decode and check the commands of a message
 * @tc:		connection that received it
 * @msg:	the message; inline data of a WRITE stays in it
 * @wc:		completion of its receive
 * @cmds:	the commands, now in flight, are added here
 *
 * Return: 0, or -EPROTO: nothing is executed and the caller closes the connection.
 */
int krping_target_decode(struct krping_target_conn *tc, const void *msg, const struct ib_wc *wc,
			 struct list_head *cmds)
{
	const struct krping_limits limits = {
		.version = tc->version,
		.block_size = tc->volume->opt.block_size,
		.max_data = KRPING_TARGET_MAX_DATA,
		.max_inline = krping_target_max_inline(tc),
	};
	u32 left = wc->byte_len;
	struct krping_decoded_cmd wire;
	struct krping_violation violation;
	int ret;

	if (wc->wc_flags & IB_WC_WITH_INVALIDATE)
		return report_violation(tc, "the message invalidates a key of the target",
					wc->ex.invalidate_rkey);
	if (!left)
		return report_violation(tc, "empty message", 0);
	for (; left; left -= wire.size, msg += wire.size) {
		if (krping_read_command(msg, left, &limits, &wire, &violation))
			return report_violation(tc, violation.what, violation.value);
		ret = check_inflight(tc, &wire);
		if (ret)
			return ret;
		list_add_tail(&begin_command(tc, &wire)->entry, cmds);
	}
	return 0;
}
