/* SPDX-License-Identifier: GPL-2.0 */
/* The words of a message with VALIDATE (PROTOCOL.md section 1.3). Pure, as options.h. */
#ifndef KRPING_VERBS_MESSAGE_H
#define KRPING_VERBS_MESSAGE_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include "fuzz/kernel_shim.h"
#endif

#include "uapi/krping.h"

#define KRPING_WORD	8	/* bytes */

/**
 * struct krping_finding - the first wrong word of a message
 * @damage:	what it is; KRPING_VERBS_INTACT: no word is wrong, the rest is not set
 * @offset:	of its first wrong byte in the message
 * @number:	message number in it, as far as it is one
 * @own:	it is of this place in another message of the queue pair, or a mix of such ones
 * @lone:	the word after it is right: a change on the way, not another message
 * @edge:	a packet may begin at it or in it
 * @split:	it may be of two packets
 * @blank:	all of its bytes are 0xff: nothing was written
 * @want:	what it should be
 * @got:	what it is; bytes before the message are those of @want
 */
struct krping_finding {
	enum krping_verbs_damage damage;
	u32 offset;
	u32 number;
	bool own;
	bool lone;
	bool edge;
	bool split;
	bool blank;
	u64 want;
	u64 got;
};

u16 krping_message_tag(u16 group, u16 queue, bool by_server);
void krping_message_fill(u8 *data, u32 size, u16 tag, u64 number);
void krping_message_check(const u8 *data, u32 size, u16 tag, u64 number,
			  struct krping_finding *finding);
bool krping_message_may_be_written(const struct krping_finding *finding);
bool krping_message_is_missing(const struct krping_finding *finding, u32 slots);
u64 krping_number_near(u32 low, u32 bytes, u64 near);
u64 krping_message_number(const u8 *data, u32 size, u32 bytes, u64 near);
const char *krping_damage_text(enum krping_verbs_damage damage);

#endif /* KRPING_VERBS_MESSAGE_H */
