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
 * @test:	of a ping/pong command
 * @family:	AF_INET or AF_INET6; not set for KRPING_BLOCK_STOP
 * @addr:	the address in network order: 4 or 16 bytes
 * @ifname:	scope of an IPv6 address, "" for none
 * @port:	host order
 * @count:	pings, or operations of a test on each connection; 0 for endless
 * @size:	bytes of one operation; for a server the most that it takes
 * @timeout:	seconds
 * @tos:	type of service of the connection's packets, if @has_tos
 * @txdepth:	RDMA WRITEs in flight on each connection of a bandwidth test
 * @qps:	connections of a bandwidth test
 * @queues:	queue pairs of a block session
 * @depth:	requests in flight on each
 * @verbose:	log data
 * @validate:	compare data
 * @mem_reg:	memory is registered anew for each use (mem_mode=reg)
 * @server_inv:	the server's SENDs invalidate the client's key
 * @read_inv:	the server's RDMA READs invalidate its own key
 * @local_dma_lkey: the source of RDMA WRITEs is not registered
 * @poll:	spin for completions, do not sleep
 * @duplex:	the server of a bandwidth test writes as well
 * @force:	stop a device that is in use
 * @block:	name of the volume, NUL padded to the end
 */
struct krping_options {
	enum krping_role role;
	enum krping_test_kind test;
	u16 family;
	u8 addr[16];
	char ifname[KRPING_IFNAME_LEN];
	u32 port;
	u32 count;
	u32 size;
	u32 timeout;
	u32 tos;
	u32 txdepth;
	u32 qps;
	u32 queues;
	u32 depth;
	bool verbose;
	bool validate;
	bool mem_reg;
	bool server_inv;
	bool read_inv;
	bool local_dma_lkey;
	bool poll;
	bool duplex;
	bool has_tos;
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
