/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The command grammar of /proc/krping (PROTOCOL.md section 3): a string becomes
 * a validated struct or a reason. Pure: no locks, no allocation, no I/O, so that
 * the same source runs in user space under a fuzzer (fuzz/).
 */
#ifndef KRPING_OPTIONS_H
#define KRPING_OPTIONS_H

#ifdef __KERNEL__
#include <linux/types.h>
#include <linux/socket.h>
#else
#include "fuzz/kernel_shim.h"
#endif

#include "uapi/krping.h"

#define KRPING_IFNAME_LEN	16
#define KRPING_COMMAND_MAX	512	/* bytes of one command */
#define KRPING_REASON_MAX	160	/* bytes of the reason for a refusal */

/* What a command asks for; decided by client/server/stop and block. */
enum krping_role {
	KRPING_PING_CLIENT,
	KRPING_PING_SERVER,
	KRPING_BLOCK_CLIENT,
	KRPING_BLOCK_STOP,
};

/**
 * struct krping_options - a valid command
 * @role:	what to do
 * @family:	AF_INET or AF_INET6; not set for KRPING_BLOCK_STOP
 * @addr:	the address in network order: 4 or 16 bytes
 * @ifname:	scope of an IPv6 address, "" for none
 * @port:	host order
 * @count:	pings, 0 for endless
 * @size:	bytes of one ping; for a server the most that it takes
 * @timeout:	seconds
 * @queues:	queue pairs of a block session
 * @depth:	requests in flight on each
 * @block:	name of the volume, NUL padded to the end
 */
struct krping_options {
	enum krping_role role;
	u16 family;
	u8 addr[16];
	char ifname[KRPING_IFNAME_LEN];
	u32 port;
	u32 count;
	u32 size;
	u32 timeout;
	u32 queues;
	u32 depth;
	bool verbose;
	bool validate;
	bool force;
	char block[KRPING_VOLUME_LEN];
};

/**
 * krping_options_parse - parse one command
 * @text:	NUL-terminated, a trailing newline is allowed; modified
 * @opt:	filled in on success
 * @why:	filled in on failure: printable, says what would be right
 * @why_len:	size of @why, KRPING_REASON_MAX is enough
 *
 * Return: 0 or -EINVAL.
 */
int krping_options_parse(char *text, struct krping_options *opt, char *why, size_t why_len);

#endif /* KRPING_OPTIONS_H */
