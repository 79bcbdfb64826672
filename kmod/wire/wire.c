// SPDX-License-Identifier: GPL-2.0
#include "wire/wire.h"

#ifdef __KERNEL__
#include <linux/align.h>
#include <linux/errno.h>
#include <linux/limits.h>
#include <linux/mm.h>
#include <linux/string.h>
#endif

static int violates(struct krping_violation *violation, const char *what, u64 value)
{
	*violation = (struct krping_violation){ .what = what, .value = value };
	return -EPROTO;
}

/* ---- handshake ---- */

/* Return: whether only NULs follow the name. */
static bool is_padded(const u8 *volume)
{
	size_t i = strnlen((const char *)volume, KRPING_VOLUME_LEN);

	while (i < KRPING_VOLUME_LEN && !volume[i])
		i++;
	return i == KRPING_VOLUME_LEN;
}

static bool has_volume(const struct krping_hello *hello)
{
	const char *name = (const char *)hello->volume;

	if (hello->flags & KRPING_HELLO_DIGEST)
		return true;
	return krping_is_volume_name(name, sizeof(hello->volume)) && is_padded(hello->volume) &&
	       (hello->version > 1 || krping_is_v1_name(name));
}

/**
 * krping_read_hello - check a client's hello
 * @data:	private data of its request, which a transport may have padded
 * @len:	bytes of @data
 * @hello:	filled in, in wire order
 * @value:	set if the reason has a value
 *
 * Return: 0, or why the hello is rejected.
 */
enum krping_reject_reason krping_read_hello(const void *data, u32 len, struct krping_hello *hello,
					    u32 *value)
{
	u8 key = KRPING_HELLO_KEY | KRPING_HELLO_PROOF;
	u8 access = KRPING_HELLO_READ_ONLY | KRPING_HELLO_TAKE_OVER;
	u16 count;

	if (!data || len < sizeof(*hello))
		return KRPING_REJ_MAGIC;
	memcpy(hello, data, sizeof(*hello));
	if (be32_to_cpu(hello->magic) != KRPING_MAGIC)
		return KRPING_REJ_MAGIC;
	if (hello->version < KRPING_VERSION_MIN || hello->version > KRPING_VERSION) {
		*value = KRPING_VERSION;
		return KRPING_REJ_VERSION;
	}
	count = be16_to_cpu(hello->queue_count);
	if (!count || be16_to_cpu(hello->queue_index) >= count || !hello->depth ||
	    krping_uuid_is_null(hello->session))
		return KRPING_REJ_INVALID;
	if (hello->flags & ~(hello->version == 1 ? key : KRPING_HELLO_FLAGS) ||
	    (hello->flags & key) == key || (hello->flags & access) == access)
		return KRPING_REJ_INVALID;
	if (hello->flags & KRPING_HELLO_PROOF)
		return hello->flags & KRPING_HELLO_DIGEST ? KRPING_REJ_INVALID : 0;
	return has_volume(hello) ? 0 : KRPING_REJ_INVALID;
}

bool krping_uuid_is_null(const u8 uuid[KRPING_UUID_LEN])
{
	int i;

	for (i = 0; i < KRPING_UUID_LEN; i++)
		if (uuid[i])
			return false;
	return true;
}

/* Return: bytes of a welcome. */
size_t krping_welcome_len(u8 version)
{
	return version == 1 ? KRPING_WELCOME_V1_LEN : sizeof(struct krping_welcome);
}

/* Checks what version 1 does not have. Slots are not used, so they are not checked. */
static int read_identity(const struct krping_welcome *w, struct krping_grant *grant,
			 struct krping_violation *violation)
{
	size_t i;

	memcpy(grant->uuid, w->uuid, sizeof(grant->uuid));
	grant->writer = be32_to_cpu(w->writer);
	grant->caps = be32_to_cpu(w->caps);
	if (krping_uuid_is_null(w->uuid))
		return violates(violation, "UUID", 0);
	for (i = 0; i < sizeof(w->reserved); i++)
		if (w->reserved[i])
			return violates(violation, "reserved field", w->reserved[i]);
	return 0;
}

/**
 * krping_read_welcome - decode and check a target's grant
 * @data:	private data of its reply, which a transport may have padded
 * @len:	bytes of @data
 * @version:	of the hello
 * @depth:	depth that the client asked for
 * @grant:	filled in
 * @violation:	filled in on failure
 *
 * Return: 0 or -EPROTO.
 */
int krping_read_welcome(const void *data, u32 len, u8 version, u16 depth,
			struct krping_grant *grant, struct krping_violation *violation)
{
	struct krping_welcome w = {};
	u64 capacity;
	u32 block;

	if (len < krping_welcome_len(version))
		return violates(violation, "length", len);
	memcpy(&w, data, krping_welcome_len(version));
	capacity = be64_to_cpu(w.capacity);
	block = be32_to_cpu(w.block_size);
	*grant = (struct krping_grant){
		.version = version,
		.capacity = capacity,
		.epoch = be64_to_cpu(w.epoch),
		.block_size = block,
		.max_data = be32_to_cpu(w.max_data),
		.max_inline = be32_to_cpu(w.max_inline),
		.max_message = be32_to_cpu(w.max_message),
		.depth = be16_to_cpu(w.depth),
		.read_only = w.flags & KRPING_VOL_READ_ONLY,
		.writeback = w.flags & KRPING_VOL_WRITEBACK,
		.is_volatile = w.flags & KRPING_VOL_VOLATILE,
	};
	if (be32_to_cpu(w.magic) != KRPING_MAGIC)
		return violates(violation, "magic", be32_to_cpu(w.magic));
	if (w.version != version)
		return violates(violation, "version", w.version);
	if (w.flags & ~KRPING_VOL_FLAGS)
		return violates(violation, "flags", w.flags);
	if (block != 512 && block != 4096)
		return violates(violation, "block size", block);
	if (!capacity || capacity % block || capacity > (u64)LLONG_MAX)
		return violates(violation, "capacity", capacity);
	if (grant->max_data < PAGE_SIZE)
		return violates(violation, "max_data", grant->max_data);
	if (grant->max_message > KRPING_MESSAGE_MAX ||
	    grant->max_message < sizeof(struct krping_cmd) + 32)
		return violates(violation, "max_message", grant->max_message);
	/* Responses to DIGEST and KEEP_ALIVE carry up to 32 bytes inline. */
	if (grant->max_inline < 32 ||
	    grant->max_inline > grant->max_message - sizeof(struct krping_cmd))
		return violates(violation, "max_inline", grant->max_inline);
	if (!grant->depth || grant->depth > depth)
		return violates(violation, "depth", grant->depth);
	return version == 1 ? 0 : read_identity(&w, grant, violation);
}

/* ---- commands ---- */

static int check_keep_alive(const struct krping_decoded_cmd *cmd, u8 version,
			    struct krping_violation *violation)
{
	u8 flags = version == 1 ? cmd->flags : cmd->flags & ~KRPING_CMD_BYE;

	if (flags != KRPING_CMD_INLINE || cmd->length || cmd->offset || cmd->addr ||
	    cmd->rkey || cmd->crc)
		return violates(violation, "a KEEP_ALIVE is not zero", cmd->flags);
	if (cmd->tag != KRPING_TAG_KEEP_ALIVE)
		return violates(violation, "tag of a KEEP_ALIVE", cmd->tag);
	return 0;
}

static int check_flags(const struct krping_decoded_cmd *cmd, u8 version,
		       struct krping_violation *violation)
{
	if (cmd->flags & ~(version == 1 ? KRPING_CMD_FLAGS_V1 : KRPING_CMD_FLAGS))
		return violates(violation, "unknown flags", cmd->flags);
	if (cmd->flags & KRPING_CMD_BYE)	/* KEEP_ALIVE is checked elsewhere */
		return violates(violation, "BYE with op", cmd->op);
	if (cmd->flags & KRPING_CMD_NO_UNMAP && cmd->op != KRPING_OP_WRITE_ZEROES)
		return violates(violation, "NO_UNMAP with op", cmd->op);
	if (cmd->flags & KRPING_CMD_FUA && cmd->op != KRPING_OP_WRITE &&
	    cmd->op != KRPING_OP_WRITE_ZEROES)
		return violates(violation, "FUA with op", cmd->op);
	if (cmd->flags & KRPING_CMD_SHA256 && cmd->op != KRPING_OP_DIGEST)
		return violates(violation, "SHA256 with op", cmd->op);
	if (cmd->crc && cmd->op != KRPING_OP_WRITE)
		return violates(violation, "CRC with op", cmd->op);
	return 0;
}

/* Where the data is: in memory with an rkey, in the message, or nowhere. */
static int check_place(const struct krping_decoded_cmd *cmd, const struct krping_limits *limits,
		       u32 *limit, struct krping_violation *violation)
{
	bool is_inline = cmd->flags & KRPING_CMD_INLINE;

	if (cmd->addr && !cmd->rkey)
		return violates(violation, "address without a key", cmd->addr);
	switch (cmd->op) {
	case KRPING_OP_READ:
	case KRPING_OP_WRITE:
		if (is_inline == !!cmd->rkey)
			return violates(violation, "data is not either inline or behind a key",
				      cmd->rkey);
		*limit = is_inline ? limits->max_inline : limits->max_data;
		return 0;
	case KRPING_OP_DIGEST:
		if (!is_inline || cmd->rkey)
			return violates(violation, "a DIGEST is answered inline", cmd->rkey);
		*limit = KRPING_DIGEST_MAX;
		return 0;
	case KRPING_OP_FLUSH:
	case KRPING_OP_DISCARD:
	case KRPING_OP_WRITE_ZEROES:
		if (is_inline || cmd->rkey)
			return violates(violation, "data with op", cmd->op);
		*limit = cmd->op == KRPING_OP_FLUSH ? 0 : KRPING_RANGE_MAX;
		return 0;
	default:
		return violates(violation, "unknown op", cmd->op);
	}
}

static int check_command(const struct krping_decoded_cmd *cmd, const struct krping_limits *limits,
			 struct krping_violation *violation)
{
	u32 limit;
	int ret;

	if (cmd->op == KRPING_OP_KEEP_ALIVE)
		return check_keep_alive(cmd, limits->version, violation);
	ret = check_flags(cmd, limits->version, violation);
	if (!ret)
		ret = check_place(cmd, limits, &limit, violation);
	if (ret)
		return ret;
	if (cmd->op == KRPING_OP_FLUSH) {
		if (cmd->length || cmd->offset)
			return violates(violation, "a FLUSH with a range", cmd->length);
	} else if (!cmd->length || !IS_ALIGNED(cmd->length, limits->block_size)) {
		return violates(violation, "length is no multiple of the block size", cmd->length);
	} else if (!IS_ALIGNED(cmd->offset, limits->block_size)) {
		return violates(violation, "offset is no multiple of the block size", cmd->offset);
	} else if (cmd->length > limit) {
		return violates(violation, "length", cmd->length);
	}
	if (cmd->tag == KRPING_TAG_KEEP_ALIVE)
		return violates(violation, "the tag of KEEP_ALIVE with op", cmd->op);
	return 0;
}

/**
 * krping_read_command - decode and check the next command of a message
 * @msg:	what is left of the message
 * @left:	bytes of @msg, not 0
 * @limits:	limits granted to the client
 * @cmd:	filled in
 * @violation:	filled in on failure
 *
 * Return: 0 or -EPROTO.
 */
int krping_read_command(const void *msg, u32 left, const struct krping_limits *limits,
			struct krping_decoded_cmd *cmd, struct krping_violation *violation)
{
	struct krping_cmd wire;
	int ret;

	if (left < sizeof(wire))
		return violates(violation, "message ends in a command", left);
	memcpy(&wire, msg, sizeof(wire));
	*cmd = (struct krping_decoded_cmd){
		.op = wire.op,
		.flags = wire.flags,
		.tag = be16_to_cpu(wire.tag),
		.length = be32_to_cpu(wire.length),
		.offset = be64_to_cpu(wire.offset),
		.addr = be64_to_cpu(wire.addr),
		.rkey = be32_to_cpu(wire.rkey),
		.crc = be32_to_cpu(wire.crc32c),
		.size = sizeof(wire),
	};
	ret = check_command(cmd, limits, violation);
	if (ret || cmd->op != KRPING_OP_WRITE || cmd->rkey)
		return ret;
	if (ALIGN(cmd->length, KRPING_ALIGN) > left - sizeof(wire))
		return violates(violation, "inline data ends behind the message", cmd->length);
	cmd->data = msg + sizeof(wire);
	cmd->size += ALIGN(cmd->length, KRPING_ALIGN);
	return 0;
}

/* ---- responses ---- */

/**
 * krping_read_response - decode and check the next response of a message
 * @msg:	what is left of the message
 * @left:	bytes of @msg, not 0
 * @max_inline:	most bytes of inline data granted
 * @rsp:	filled in
 * @violation:	filled in on failure
 *
 * Return: 0 or -EPROTO.
 */
int krping_read_response(const void *msg, u32 left, u32 max_inline,
			 struct krping_decoded_rsp *rsp, struct krping_violation *violation)
{
	struct krping_rsp wire;

	if (left < sizeof(wire))
		return violates(violation, "message ends in a response", left);
	memcpy(&wire, msg, sizeof(wire));
	*rsp = (struct krping_decoded_rsp){
		.tag = be16_to_cpu(wire.tag),
		.status = wire.status,
		.flags = wire.flags,
		.length = be32_to_cpu(wire.length),
		.crc = be32_to_cpu(wire.crc32c),
		.size = sizeof(wire),
	};
	if (wire.reserved)
		return violates(violation, "reserved field is not zero",
				be32_to_cpu(wire.reserved));
	if (rsp->status > KRPING_ST_INVALID)
		return violates(violation, "unknown status", rsp->status);
	if (rsp->flags & ~KRPING_RSP_FLAGS)
		return violates(violation, "unknown flags", rsp->flags);
	if (!(rsp->flags & KRPING_RSP_INLINE))
		return 0;
	if (rsp->length > max_inline || ALIGN(rsp->length, KRPING_ALIGN) > left - sizeof(wire))
		return violates(violation, "inline data is too long", rsp->length);
	rsp->data = msg + sizeof(wire);
	rsp->size += ALIGN(rsp->length, KRPING_ALIGN);
	return 0;
}
