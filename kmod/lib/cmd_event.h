/* SPDX-License-Identifier: GPL-2.0 */
#ifndef KRPING_CMD_EVENT_H
#define KRPING_CMD_EVENT_H

#include <linux/types.h>

/**
 * struct krping_cmd_event - what both command events carry
 * @sector:	offset in the volume in units of 512 bytes
 * @session:	its number
 * @dev:	of the disk
 * @bytes:	of the command
 * @crc:	of the data; that of a read is known when it is done
 * @status:	negative errno or 0
 * @queue:	index
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
