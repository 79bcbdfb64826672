/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a peer of the block protocol sends (PROTOCOL.md section 2): bytes become values in host
 * order, each of them checked, or a violation of the protocol. Here is what can be judged by the
 * bytes and the connection's limits alone; whether it fits what is in flight is for the caller
 * to say. Pure: no locks, no allocation, no I/O, so that the same source runs in user space
 * under a fuzzer (fuzz/). Its twin in Go is bridge/wire.
 */
#ifndef KRPING_WIRE_H
#define KRPING_WIRE_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include "fuzz/kernel_shim.h"
#endif

#include "uapi/krping.h"

/* The largest message that a client is ready to allocate buffers of, in bytes. */
#define KRPING_MESSAGE_MAX	65536

/**
 * struct krping_violation - how a peer has broken the protocol, for the log
 * @what:	it is that was wrong
 * @value:	it had
 */
struct krping_violation {
	const char *what;
	u64 value;
};

/**
 * struct krping_limits - what of a grant bounds a command; bytes
 * @block_size:	what lengths and offsets are multiples of
 * @max_data:	of a READ or WRITE behind a key
 * @max_inline:	of a READ or WRITE with inline data
 */
struct krping_limits {
	u32 block_size;
	u32 max_data;
	u32 max_inline;
};

/* What the target granted; all queues of a session have the same. */
struct krping_grant {
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
};

/**
 * struct krping_decoded_cmd - a command of a message, in host order
 * @op:		enum krping_op
 * @flags:	KRPING_CMD_*
 * @tag:	of the client
 * @length:	bytes, a multiple of the block size, no more than the op may have
 * @offset:	bytes, a multiple of the block size; not yet held against the capacity
 * @addr:	the client's memory
 * @rkey:	its key, 0 for a command without
 * @crc:	of the data of a WRITE
 * @data:	@length bytes in the message, of a WRITE with inline data; else NULL
 * @size:	bytes of the message that it takes
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
 * struct krping_decoded_rsp - a response of a message, in host order
 * @tag:	of the command
 * @status:	enum krping_status
 * @flags:	KRPING_RSP_*
 * @length:	bytes, as the target says
 * @crc:	of the data of a READ
 * @data:	@length bytes in the message, or NULL without inline data
 * @size:	bytes of the message that it takes
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

enum krping_reject_reason krping_read_hello(const void *data, u32 len, struct krping_hello *hello,
					    u32 *value);
int krping_read_welcome(const void *data, u32 len, u16 depth, struct krping_grant *grant,
			struct krping_violation *violation);
int krping_read_command(const void *msg, u32 left, const struct krping_limits *limits,
			struct krping_decoded_cmd *cmd, struct krping_violation *violation);
int krping_read_response(const void *msg, u32 left, u32 max_inline,
			 struct krping_decoded_rsp *rsp, struct krping_violation *violation);

#endif /* KRPING_WIRE_H */
