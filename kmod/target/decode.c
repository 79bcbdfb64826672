// SPDX-License-Identifier: GPL-2.0
/* A message becomes commands in flight, if each of them may be (PROTOCOL.md 2.5). */
#include "lib/log.h"
#include "target/target.h"

static int report_violation(struct krping_tqueue *q, const char *what, u64 value)
{
	krping_err_ratelimited(q->log_prefix, "the client broke the protocol: %s (%llu)", what,
			       value);
	atomic64_inc(&q->volume->violations);
	return -EPROTO;
}

/* Does it go with those that are in flight? */
static int check_inflight(struct krping_tqueue *q, const struct krping_decoded_cmd *wire)
{
	if (wire->op == KRPING_OP_KEEP_ALIVE)
		return q->asked ? report_violation(q, "more than one KEEP_ALIVE", 2) : 0;
	if (test_bit(wire->tag, q->tags))
		return report_violation(q, "tag is in flight", wire->tag);
	if (q->nr_inflight >= q->depth)
		return report_violation(q, "commands in flight", q->nr_inflight + 1);
	return 0;
}

static struct krping_tcmd *begin_command(struct krping_tqueue *q,
					 const struct krping_decoded_cmd *wire)
{
	struct krping_tcmd *cmd;

	if (wire->op == KRPING_OP_KEEP_ALIVE) {
		cmd = q->keep_alive;
		q->asked = true;
	} else {
		/* There is one: target.h says why. */
		cmd = list_first_entry(&q->free_cmds, struct krping_tcmd, entry);
		list_del(&cmd->entry);
		__set_bit(wire->tag, q->tags);
		WRITE_ONCE(q->nr_inflight, q->nr_inflight + 1);
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
 * @q:		its connection
 * @msg:	the message; inline data of a WRITE stays in it
 * @wc:		its completion
 * @cmds:	gets them, in flight, all of them checked
 *
 * Return: 0, or -EPROTO after which the connection is to be closed: none is executed.
 */
int krping_target_decode(struct krping_tqueue *q, const void *msg, const struct ib_wc *wc,
			 struct list_head *cmds)
{
	const struct krping_limits limits = {
		.block_size = q->volume->opt.block_size,
		.max_data = KRPING_TARGET_MAX_DATA,
		.max_inline = KRPING_TARGET_MAX_INLINE,
	};
	u32 left = wc->byte_len;
	struct krping_decoded_cmd wire;
	struct krping_violation violation;
	int ret;

	if (wc->wc_flags & IB_WC_WITH_INVALIDATE)
		return report_violation(q, "it invalidates a key of this side",
					wc->ex.invalidate_rkey);
	if (!left)
		return report_violation(q, "empty message", 0);
	for (; left; left -= wire.size, msg += wire.size) {
		if (krping_read_command(msg, left, &limits, &wire, &violation))
			return report_violation(q, violation.what, violation.value);
		ret = check_inflight(q, &wire);
		if (ret)
			return ret;
		list_add_tail(&begin_command(q, &wire)->entry, cmds);
	}
	return 0;
}
