// SPDX-License-Identifier: GPL-2.0
/* What a client sends is checked, field by field, and becomes commands (PROTOCOL.md 2.5). */
#include "log.h"
#include "target.h"

static int violation(struct krping_tqueue *q, const char *what, u64 value)
{
	krping_err_ratelimited(q->subject, "the client broke the protocol: %s (%llu)", what, value);
	atomic64_inc(&q->volume->violations);
	return -EPROTO;
}

static int check_keep_alive(struct krping_tqueue *q, const struct krping_cmd *wire)
{
	if (wire->flags != KRPING_CMD_INLINE || wire->length || wire->offset || wire->addr ||
	    wire->rkey || wire->crc32c)
		return violation(q, "a KEEP_ALIVE is not zero", wire->flags);
	if (be16_to_cpu(wire->tag) != KRPING_TAG_KEEP_ALIVE)
		return violation(q, "tag of a KEEP_ALIVE", be16_to_cpu(wire->tag));
	return q->asked ? violation(q, "more than one KEEP_ALIVE", 2) : 0;
}

static int check_flags(struct krping_tqueue *q, const struct krping_cmd *wire)
{
	if (wire->flags & ~KRPING_CMD_FLAGS)
		return violation(q, "unknown flags", wire->flags);
	if (wire->flags & KRPING_CMD_FUA && wire->op != KRPING_OP_WRITE &&
	    wire->op != KRPING_OP_WRITE_ZEROES)
		return violation(q, "FUA with op", wire->op);
	if (wire->flags & KRPING_CMD_SHA256 && wire->op != KRPING_OP_DIGEST)
		return violation(q, "SHA256 with op", wire->op);
	if (wire->crc32c && wire->op != KRPING_OP_WRITE)
		return violation(q, "CRC with op", wire->op);
	return 0;
}

/* Where the data is: behind a key, in the message, or nowhere. */
static int check_place(struct krping_tqueue *q, const struct krping_cmd *wire, u32 *limit)
{
	bool is_inline = wire->flags & KRPING_CMD_INLINE;

	if (wire->addr && !wire->rkey)
		return violation(q, "address without a key", be64_to_cpu(wire->addr));
	switch (wire->op) {
	case KRPING_OP_READ:
	case KRPING_OP_WRITE:
		if (is_inline == !!wire->rkey)
			return violation(q, "data is not either inline or behind a key",
					 be32_to_cpu(wire->rkey));
		*limit = is_inline ? KRPING_TARGET_MAX_INLINE : KRPING_TARGET_MAX_DATA;
		return 0;
	case KRPING_OP_DIGEST:
		if (!is_inline || wire->rkey)
			return violation(q, "a DIGEST is answered inline", be32_to_cpu(wire->rkey));
		*limit = KRPING_DIGEST_MAX;
		return 0;
	case KRPING_OP_FLUSH:
	case KRPING_OP_DISCARD:
	case KRPING_OP_WRITE_ZEROES:
		if (is_inline || wire->rkey)
			return violation(q, "data with op", wire->op);
		*limit = wire->op == KRPING_OP_FLUSH ? 0 : KRPING_RANGE_MAX;
		return 0;
	default:
		return violation(q, "unknown op", wire->op);
	}
}

static int check_command(struct krping_tqueue *q, const struct krping_cmd *wire)
{
	u32 block_size = q->volume->opt.block_size;
	u32 length = be32_to_cpu(wire->length);
	u64 offset = be64_to_cpu(wire->offset);
	u16 tag = be16_to_cpu(wire->tag);
	u32 limit;
	int ret;

	if (wire->op == KRPING_OP_KEEP_ALIVE)
		return check_keep_alive(q, wire);
	ret = check_flags(q, wire);
	if (!ret)
		ret = check_place(q, wire, &limit);
	if (ret)
		return ret;
	if (wire->op == KRPING_OP_FLUSH) {
		if (length || offset)
			return violation(q, "a FLUSH with a range", length);
	} else if (!length || !IS_ALIGNED(length, block_size)) {
		return violation(q, "length is no multiple of the block size", length);
	} else if (!IS_ALIGNED(offset, block_size)) {
		return violation(q, "offset is no multiple of the block size", offset);
	} else if (length > limit) {
		return violation(q, "length", length);
	}
	if (tag == KRPING_TAG_KEEP_ALIVE)
		return violation(q, "the tag of KEEP_ALIVE with op", wire->op);
	if (test_bit(tag, q->tags))
		return violation(q, "tag is in flight", tag);
	if (q->nr_inflight >= q->depth)
		return violation(q, "commands in flight", q->nr_inflight + 1);
	return 0;
}

static struct krping_tcmd *begin_command(struct krping_tqueue *q, const struct krping_cmd *wire)
{
	struct krping_tcmd *cmd;

	if (wire->op == KRPING_OP_KEEP_ALIVE) {
		cmd = q->keep_alive;
		q->asked = true;
	} else {
		/* There is one: target.h says why. */
		cmd = list_first_entry(&q->free_cmds, struct krping_tcmd, entry);
		list_del(&cmd->entry);
		__set_bit(be16_to_cpu(wire->tag), q->tags);
		WRITE_ONCE(q->nr_inflight, q->nr_inflight + 1);
	}
	cmd->op = wire->op;
	cmd->flags = wire->flags;
	cmd->tag = be16_to_cpu(wire->tag);
	cmd->length = be32_to_cpu(wire->length);
	cmd->offset = be64_to_cpu(wire->offset);
	cmd->addr = be64_to_cpu(wire->addr);
	cmd->rkey = be32_to_cpu(wire->rkey);
	cmd->crc = be32_to_cpu(wire->crc32c);
	cmd->status = KRPING_ST_OK;
	cmd->data = NULL;
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
	u32 left = wc->byte_len, padded;
	struct krping_tcmd *cmd;
	struct krping_cmd wire;
	int ret;

	if (wc->wc_flags & IB_WC_WITH_INVALIDATE)
		return violation(q, "it invalidates a key of this side", wc->ex.invalidate_rkey);
	if (!left)
		return violation(q, "empty message", 0);
	while (left) {
		if (left < sizeof(wire))
			return violation(q, "message ends in a command", left);
		memcpy(&wire, msg, sizeof(wire));
		msg += sizeof(wire);
		left -= sizeof(wire);
		ret = check_command(q, &wire);
		if (ret)
			return ret;
		cmd = begin_command(q, &wire);
		list_add_tail(&cmd->entry, cmds);
		if (cmd->op != KRPING_OP_WRITE || cmd->rkey)
			continue;
		padded = ALIGN(cmd->length, KRPING_ALIGN);
		if (padded > left)
			return violation(q, "inline data ends behind the message", cmd->length);
		cmd->data = msg;
		msg += padded;
		left -= padded;
	}
	return 0;
}
