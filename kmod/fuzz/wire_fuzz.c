// SPDX-License-Identifier: GPL-2.0
/*
 * libFuzzer target for the decoders of the block protocol, with the address and
 * undefined-behaviour sanitizers. The first byte of an input selects the kind of the rest: a
 * hello, a welcome, commands or responses; its bit 2 makes commands those of version 1. Accepted
 * values must be within their documented ranges, and data within its message.
 */
#include <stdlib.h>

#include "options.h"
#include "wire/wire.h"

#define REQUIRE(cond) do { if (!(cond)) abort(); } while (0)

static struct krping_limits limits = {
	.version = KRPING_VERSION, .block_size = 512, .max_data = 1 << 20, .max_inline = 1 << 14,
};

static void require_violation(int ret, const struct krping_violation *violation)
{
	REQUIRE(ret == -EPROTO && violation->what && violation->what[0]);
}

static void fuzz_hello(const u8 *data, size_t size)
{
	struct krping_hello hello;
	u32 value = 0;

	if (krping_read_hello(data, size, &hello, &value))
		return;
	REQUIRE(size >= sizeof(hello));
	REQUIRE(be16_to_cpu(hello.queue_index) < be16_to_cpu(hello.queue_count));
	REQUIRE(hello.version == 1 || hello.version == 2);
	REQUIRE(hello.depth && !(hello.flags & ~KRPING_HELLO_FLAGS));
	REQUIRE(hello.version == 2 || hello.flags <= KRPING_HELLO_PROOF);
	if (hello.flags & (KRPING_HELLO_PROOF | KRPING_HELLO_DIGEST))
		return;
	REQUIRE(!hello.volume[KRPING_VOLUME_LEN - 1]);
	REQUIRE(hello.version == 2 || !strchr((const char *)hello.volume, '/'));
}

static void fuzz_welcome(const u8 *data, size_t size)
{
	struct krping_grant grant;
	struct krping_violation violation = {};
	u8 version = size > 4 && data[4] == 1 ? 1 : 2;
	int ret = krping_read_welcome(data, size, version, 128, &grant, &violation);

	if (ret) {
		require_violation(ret, &violation);
		return;
	}
	REQUIRE(grant.block_size == 512 || grant.block_size == 4096);
	REQUIRE(grant.capacity && grant.capacity % grant.block_size == 0);
	REQUIRE(grant.capacity <= LLONG_MAX);
	REQUIRE(grant.max_data >= PAGE_SIZE && grant.max_message <= KRPING_MESSAGE_MAX);
	REQUIRE(grant.max_inline >= 32);
	REQUIRE(grant.max_inline + sizeof(struct krping_cmd) <= grant.max_message);
	REQUIRE(grant.depth >= 1 && grant.depth <= 128);
	REQUIRE(size >= krping_welcome_len(version));
	REQUIRE(krping_uuid_is_null(grant.uuid) == (version == 1));
}

/* The longest range of an op, in bytes. */
static u32 longest(const struct krping_decoded_cmd *cmd)
{
	switch (cmd->op) {
	case KRPING_OP_READ:
	case KRPING_OP_WRITE:
		return cmd->rkey ? limits.max_data : limits.max_inline;
	case KRPING_OP_DISCARD:
	case KRPING_OP_WRITE_ZEROES:
		return KRPING_RANGE_MAX;
	case KRPING_OP_DIGEST:
		return KRPING_DIGEST_MAX;
	default:
		return 0;
	}
}

static void require_command(const struct krping_decoded_cmd *cmd, const u8 *msg, size_t left)
{
	bool has_data = cmd->op == KRPING_OP_WRITE && !cmd->rkey;

	REQUIRE(cmd->op >= KRPING_OP_READ && cmd->op <= KRPING_OP_KEEP_ALIVE);
	REQUIRE((cmd->op == KRPING_OP_KEEP_ALIVE) == (cmd->tag == KRPING_TAG_KEEP_ALIVE));
	REQUIRE(!(cmd->flags & ~KRPING_CMD_FLAGS));
	REQUIRE(!(cmd->flags & (KRPING_CMD_NO_UNMAP | KRPING_CMD_BYE)) || limits.version == 2);
	REQUIRE(!(cmd->flags & KRPING_CMD_NO_UNMAP) || cmd->op == KRPING_OP_WRITE_ZEROES);
	REQUIRE(!(cmd->flags & KRPING_CMD_BYE) || cmd->op == KRPING_OP_KEEP_ALIVE);
	REQUIRE(cmd->length <= longest(cmd) && cmd->length % limits.block_size == 0);
	REQUIRE(cmd->offset % limits.block_size == 0);
	REQUIRE(!cmd->length == (cmd->op == KRPING_OP_FLUSH || cmd->op == KRPING_OP_KEEP_ALIVE));
	REQUIRE(cmd->length || (!cmd->offset && !cmd->rkey));
	REQUIRE(cmd->rkey || !cmd->addr);
	REQUIRE(!cmd->rkey || cmd->op == KRPING_OP_READ || cmd->op == KRPING_OP_WRITE);
	REQUIRE(!cmd->crc || cmd->op == KRPING_OP_WRITE);
	REQUIRE(!!cmd->data == has_data);
	REQUIRE(cmd->size <= left);
	if (!has_data) {
		REQUIRE(cmd->size == sizeof(struct krping_cmd));
		return;
	}
	REQUIRE(cmd->data == (const void *)(msg + sizeof(struct krping_cmd)));
	REQUIRE(cmd->size >= sizeof(struct krping_cmd) + cmd->length);
}

static void fuzz_commands(const u8 *msg, size_t left)
{
	struct krping_decoded_cmd cmd;

	for (; left; left -= cmd.size, msg += cmd.size) {
		struct krping_violation violation = {};
		int ret = krping_read_command(msg, left, &limits, &cmd, &violation);

		if (ret) {
			require_violation(ret, &violation);
			return;
		}
		require_command(&cmd, msg, left);
	}
}

static void fuzz_responses(const u8 *msg, size_t left)
{
	struct krping_decoded_rsp rsp;

	for (; left; left -= rsp.size, msg += rsp.size) {
		struct krping_violation violation = {};
		int ret = krping_read_response(msg, left, limits.max_inline, &rsp, &violation);

		if (ret) {
			require_violation(ret, &violation);
			return;
		}
		REQUIRE(rsp.status <= KRPING_ST_INVALID && !(rsp.flags & ~KRPING_RSP_FLAGS));
		REQUIRE(rsp.size >= sizeof(struct krping_rsp) && rsp.size <= left);
		REQUIRE(!!rsp.data == !!(rsp.flags & KRPING_RSP_INLINE));
		if (!rsp.data)
			continue;
		REQUIRE(rsp.data == (const void *)(msg + sizeof(struct krping_rsp)));
		REQUIRE(rsp.length <= rsp.size - sizeof(struct krping_rsp));
	}
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	static void (*const fuzz[])(const u8 *data, size_t size) = {
		fuzz_hello, fuzz_welcome, fuzz_commands, fuzz_responses,
	};
	u8 *copy;

	if (!size)
		return 0;
	copy = malloc(size - 1);	/* exact, so that the sanitizer sees an overrun */
	REQUIRE(copy || size == 1);
	memcpy(copy, data + 1, size - 1);
	limits.version = data[0] & 4 ? 1 : KRPING_VERSION;
	fuzz[data[0] % ARRAY_SIZE(fuzz)](copy, size - 1);
	free(copy);
	return 0;
}
