/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Decodes and checks messages from a peer of the block protocol (PROTOCOL.md section 2). The result
 * is either in host order or a protocol violation. The checks need only the bytes and the limits of
 * the connection; the caller checks against the commands in flight. Pure: no locks, no allocation,
 * no I/O, so that the same source runs in user space under a fuzzer (fuzz/). bridge/wire does the
 * same in Go.
 */
#ifndef KRPING_WIRE_H
#define KRPING_WIRE_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include "fuzz/kernel_shim.h"
#endif

#include "uapi/krping.h"

/* The largest message that a client allocates buffers for, in bytes. */
#define KRPING_MESSAGE_MAX	65536

/**
 * struct krping_violation - how a peer has broken the protocol, for the log
 * @what:	what was wrong
 * @value:	its value
 */
struct krping_violation {
	const char *what;
	u64 value;
};

/**
 * struct krping_limits - what a connection allows in a command, from the grant; bytes
 * @version:	of the protocol
 * @block_size:	lengths and offsets are multiples of it
 * @max_data:	largest data of a READ or WRITE with an rkey
 * @max_inline:	largest data of a READ or WRITE with inline data
 */
struct krping_limits {
	u8 version;
	u32 block_size;
	u32 max_data;
	u32 max_inline;
};

/**
 * struct krping_grant - what the target granted, the same for all queues of a session
 *
 * The fields are those of struct krping_welcome in host order. @uuid is all zero and @writer and
 * @caps are 0 in version 1.
 */
struct krping_grant {
	u8 version;
	u64 capacity;
	u64 epoch;
	u32 block_size;
	u32 max_data;
	u32 max_inline;
	u32 max_message;
	u16 depth;
	bool read_only;
	bool writeback;
	bool is_volatile;
	u8 uuid[KRPING_UUID_LEN];
	u32 writer;
	u32 caps;
};

/**
 * struct krping_decoded_cmd - a struct krping_cmd, checked and in host order
 * @op:		enum krping_op
 * @flags:	KRPING_CMD_*
 * @tag:	chosen by the client
 * @length:	bytes, a multiple of the block size, within the limit of the op
 * @offset:	bytes, a multiple of the block size; not checked against the capacity
 * @addr:	address in the client's memory
 * @rkey:	its remote key, 0 for none
 * @crc:	CRC32C of the data of a WRITE
 * @data:	inline data of a WRITE in the message, @length bytes; else NULL
 * @size:	bytes of the message that the command takes
 */
struct krping_decoded_cmd {
	u8 op;
	u8 flags;
	u16 tag;
	u32 length;
	u64 offset;
	u64 addr;
	u32 rkey;
	u32 crc;
	const void *data;
	u32 size;
};

/**
 * struct krping_decoded_rsp - a struct krping_rsp, checked and in host order
 * @tag:	tag of the command
 * @status:	enum krping_status
 * @flags:	KRPING_RSP_*
 * @length:	bytes, as reported by the target
 * @crc:	CRC32C of the data of a READ
 * @data:	@length bytes in the message, or NULL without inline data
 * @size:	bytes of the message that the response takes
 */
struct krping_decoded_rsp {
	u16 tag;
	u8 status;
	u8 flags;
	u32 length;
	u32 crc;
	const void *data;
	u32 size;
};

bool krping_is_volume_name(const char *name, size_t size);
bool krping_is_v1_name(const char *name);
enum krping_reject_reason krping_read_hello(const void *data, u32 len, struct krping_hello *hello,
					    u32 *value);
bool krping_uuid_is_null(const u8 uuid[KRPING_UUID_LEN]);
size_t krping_welcome_len(u8 version);
int krping_read_welcome(const void *data, u32 len, u8 version, u16 depth,
			struct krping_grant *grant, struct krping_violation *violation);
int krping_read_command(const void *msg, u32 left, const struct krping_limits *limits,
			struct krping_decoded_cmd *cmd, struct krping_violation *violation);
int krping_read_response(const void *msg, u32 left, u32 max_inline,
			 struct krping_decoded_rsp *rsp, struct krping_violation *violation);

#endif /* KRPING_WIRE_H */
