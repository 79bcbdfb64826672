/* SPDX-License-Identifier: GPL-2.0 */
#ifndef KRPING_CMD_EVENT_H
#define KRPING_CMD_EVENT_H

#include <linux/types.h>

/**
 * struct krping_cmd_event - argument of the tracepoints krping_cmd_post and krping_cmd_done
 * @sector:	offset in the volume in units of 512 bytes
 * @session:	number of the session
 * @dev:	of the disk
 * @bytes:	length of the command
 * @crc:	CRC32C of the data; of a read, known when it is done
 * @status:	negative errno or 0
 * @queue:	index of the queue
 * @tag:	on the wire
 * @op:		enum krping_op
 * @flags:	KRPING_CMD_*
 */
struct krping_cmd_event {
	u64 sector;
	u32 session;
	dev_t dev;
	u32 bytes;
	u32 crc;
	int status;
	u16 queue;
	u16 tag;
	u8 op;
	u8 flags;
};

#endif /* KRPING_CMD_EVENT_H */
