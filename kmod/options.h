/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The command grammar of /proc/krping (INTERFACE.md section 1). Parses a string
 * into a validated struct, or gives the reason for the refusal. Pure: no locks, no
 * allocation, no I/O, so that the same source runs in user space under a fuzzer (fuzz/).
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

/* What a command does: set by client, server or stop, and by the presence of block. */
enum krping_role {
	KRPING_PING_CLIENT,
	KRPING_PING_SERVER,
	KRPING_BLOCK_CLIENT,
	KRPING_BLOCK_STOP,
	KRPING_BLOCK_SERVER,
};

/* Where a block client's data lives. */
enum krping_mode {
	KRPING_MODE_REMOTE,	/* the target is the disk */
	KRPING_MODE_TAP,	/* a local disk holds the data; copies go to the target */
};

/* krping_options.ops: operations that a tap forwards */
#define KRPING_TAP_READ		0x01
#define KRPING_TAP_WRITE	0x02
#define KRPING_TAP_FLUSH	0x04
#define KRPING_TAP_DISCARD	0x08	/* and WRITE_ZEROES */

#define KRPING_BACKING_LEN	128	/* of a path, with the NUL */
#define KRPING_COMM_LEN		16	/* of a process name, with the NUL: TASK_COMM_LEN */
#define KRPING_KEY_NAME_LEN	72	/* of a key's description, with the NUL: krping:NAME */
#define KRPING_FAST_FAIL_MAX	86400	/* seconds */
#define KRPING_ALLOW_MAX	16	/* entries of a list of addresses */
#define KRPING_VERBS_SIZE_MAX	1048576	/* of a server, by default */

/**
 * struct krping_allowed - clients that a server serves
 * @addr:	IPv6, or IPv4 as ::ffff:a.b.c.d
 * @bits:	length of the prefix that has to match
 */
struct krping_allowed {
	u8 addr[16];
	u8 bits;
};

/**
 * struct krping_options - a valid command
 * @role:	what to do
 * @test:	which test a ping/pong command runs
 * @family:	AF_INET or AF_INET6; not set for KRPING_BLOCK_STOP
 * @addr:	the address in network order: 4 or 16 bytes
 * @ifname:	scope of an IPv6 address, "" for none
 * @src_family: AF_INET or AF_INET6: that of @src; 0: no source address
 * @src:	client: the address of this host to connect from; as @addr
 * @src_ifname:	its scope, as @ifname
 * @port:	host order
 * @count:	pings, or operations of a test on each connection; 0 for endless
 * @verb:	operation of a verbs test; 0 in a server's command
 * @qp_type:	type of its data queue pairs
 * @measure:	what it measures
 * @duration:	seconds that it sends; 0: @count decides
 * @rate:	messages a second that each side sends at most; 0: no limit
 * @rxdepth:	receives posted on each queue pair, or with @srq for all; 0: the verb has none
 * @signal:	one work request in so many is signalled
 * @inline_len:	bytes of inline data in a work request; 0: none
 * @mtu:	bytes of a packet; 0: what the path allows
 * @reads:	READs and atomics outstanding on each queue pair; 0: what the device does well
 * @size:	bytes of one operation; for a server, the largest size that it accepts
 * @timeout:	seconds
 * @tos:	type of service of the connection's packets, if @has_tos
 * @txdepth:	messages in flight on each connection of a bandwidth test
 * @qps:	connections of a bandwidth test
 * @queues:	queue pairs of a block session; 0: one per CPU
 * @poll_queues: queue pairs for polled I/O beside these
 * @depth:	requests in flight on each queue
 * @mode:	where a block client's data lives
 * @ram:	backing=ram:SIZE in bytes; 0 if @backing is a path, or without a backing
 * @pid:	tap: forward only requests of this thread group; 0: of all
 * @ops:	tap: forward only these operations, KRPING_TAP_*; 0: all
 * @first_sector: tap: forward only requests that touch sectors from this one on
 * @last_sector: and up to this one, inclusive
 * @fast_fail:	seconds without a target until I/O fails; 0: @timeout
 * @heartbeat:	seconds of silence until the target counts as lost; 0: never
 * @block_size:	block size of a served volume in bytes
 * @verbose:	log data
 * @validate:	compare data
 * @mem_reg:	register memory again for each use (mem_mode=reg)
 * @server_inv:	the server's SENDs invalidate the client's key
 * @read_inv:	the server's RDMA READs invalidate its own key
 * @local_dma_lkey: the source of RDMA WRITEs is not registered
 * @srq:	one receive queue for all queue pairs
 * @poll:	spin for completions, do not sleep
 * @duplex:	the server of a bandwidth test writes as well
 * @force:	stop a device although it is in use
 * @writeback:	served volume: writes are stable only after a flush
 * @read_only:	served volume: refuse writes; client: do not write
 * @shared:	served volume: any number of clients may write
 * @take_over:	client: fence the client that writes, and replace it
 * @target:	stop a served volume, not a client's session
 * @block:	name of the volume, padded with NULs
 * @backing:	path of a block device, "" for none
 * @comm:	tap: forward only requests of processes with this name; "": of all
 * @key:	description of the key in a keyring, "" for none
 * @uuid:	of the volume: a client expects it, a server's volume has it; all zero: none given
 * @allow:	server: clients that it serves, @nr_allow entries; 0 entries: all clients
 */
struct krping_options {
	enum krping_role role;
	enum krping_test_kind test;
	u16 family;
	u8 addr[16];
	char ifname[KRPING_IFNAME_LEN];
	u16 src_family;
	u8 src[16];
	char src_ifname[KRPING_IFNAME_LEN];
	u32 port;
	u32 count;
	u32 size;
	u32 timeout;
	u32 tos;
	u32 txdepth;
	u32 qps;
	u32 verb;	/* enum krping_verb */
	u32 qp_type;	/* enum krping_verbs_qp_type */
	u32 measure;	/* enum krping_verbs_measure */
	u32 duration;
	u32 rate;
	u32 rxdepth;
	u32 signal;
	u32 inline_len;
	u32 mtu;
	u32 reads;
	u32 queues;
	u32 poll_queues;
	u32 depth;
	enum krping_mode mode;
	u64 ram;
	u32 pid;
	u32 ops;
	u64 first_sector;
	u64 last_sector;
	u32 fast_fail;
	u32 heartbeat;
	u32 block_size;
	bool verbose;
	bool validate;
	bool mem_reg;
	bool server_inv;
	bool read_inv;
	bool local_dma_lkey;
	bool poll;
	bool duplex;
	bool srq;
	bool has_tos;
	bool force;
	bool writeback;
	bool read_only;
	bool shared;
	bool take_over;
	bool target;
	char block[KRPING_NAME_LEN];
	char backing[KRPING_BACKING_LEN];
	char comm[KRPING_COMM_LEN];
	char key[KRPING_KEY_NAME_LEN];
	u8 uuid[KRPING_UUID_LEN];
	struct krping_allowed allow[KRPING_ALLOW_MAX];
	u32 nr_allow;
};

/* Indexed by enum krping_verb and enum krping_verbs_qp_type; the first entry is "-". */
extern const char *const krping_verb_names[];
extern const char *const krping_verbs_qp_names[];

/**
 * krping_options_parse - parse one command
 * @text:	NUL-terminated, a trailing newline is allowed; modified
 * @opt:	filled in on success
 * @why:	on failure, what is wrong and what would be right; printable
 * @why_len:	size of @why, KRPING_REASON_MAX is enough
 *
 * Return: 0 or -EINVAL.
 */
int krping_options_parse(char *text, struct krping_options *opt, char *why, size_t why_len);
bool krping_parse_u64(const char *text, u64 *out, const char **end);
bool krping_parse_ram(const char *text, u64 *ram);
bool krping_parse_uuid(const char *c, u8 uuid[KRPING_UUID_LEN]);
bool krping_parse_allowed(char *text, struct krping_allowed *allowed);
bool krping_is_allowed(const struct krping_options *opt, const u8 addr[16]);

#endif /* KRPING_OPTIONS_H */
