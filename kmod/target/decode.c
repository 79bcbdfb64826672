// SPDX-License-Identifier: GPL-2.0
/* A message becomes commands in flight, if each of them may be (PROTOCOL.md 2.5). */
#include "lib/log.h"
#include "target/target.h"

static int report_violation(struct krping_target_conn *tc, const char *what, u64 value)
{
	krping_err_ratelimited(tc->log_prefix, "the client broke the protocol: %s (%llu)", what,
			       value);
	atomic64_inc(&tc->volume->violations);
	return -EPROTO;
}

/* Does it go with those that are in flight? */
static int check_inflight(struct krping_target_conn *tc, const struct krping_decoded_cmd *wire)
{
	if (wire->op == KRPING_OP_KEEP_ALIVE)
		return tc->keep_alive_pending ?
		       report_violation(tc, "more than one KEEP_ALIVE", 2) : 0;
	if (test_bit(wire->tag, tc->tags))
		return report_violation(tc, "tag is in flight", wire->tag);
	if (tc->nr_inflight >= tc->depth)
		return report_violation(tc, "commands in flight", tc->nr_inflight + 1);
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
		/* There is one: target.h says why. */
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
	cmd->data = wire->data;
	cmd->sg = cmd->page && !cmd->rkey ? &cmd->small : NULL;
	cmd->nents = cmd->sg ? 1 : 0;
	return cmd;
}

/**
 * krping_target_decode - the commands of a message
 * @tc:		its connection
 * @msg:	the message; inline data of a WRITE stays in it
 * @wc:		its completion
 * @cmds:	gets them, in flight, all of them checked
 *
 * Return: 0, or -EPROTO after which the connection is to be closed: none is executed.
 */
int krping_target_decode(struct krping_target_conn *tc, const void *msg, const struct ib_wc *wc,
			 struct list_head *cmds)
{
	const struct krping_limits limits = {
		.block_size = tc->volume->opt.block_size,
		.max_data = KRPING_TARGET_MAX_DATA,
		.max_inline = KRPING_TARGET_MAX_INLINE,
	};
	u32 left = wc->byte_len;
	struct krping_decoded_cmd wire;
	struct krping_violation violation;
	int ret;

	if (wc->wc_flags & IB_WC_WITH_INVALIDATE)
		return report_violation(tc, "it invalidates a key of this side",
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
