/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * krping wire format and ioctl interface.
 *
 * The only definition of the wire format: the kernel module, the cgo part of the bridge and the
 * tests include this file; PROTOCOL.md explains it. Integers on the wire are big-endian. Senders
 * set reserved fields to zero; receivers refuse any other value.
 */
#ifndef _UAPI_KRPING_H
#define _UAPI_KRPING_H

#include <linux/ioctl.h>
#include <linux/types.h>
#ifdef __KERNEL__
#include <linux/build_bug.h>
#else
#include <assert.h>
#endif

/* Default port of both protocols, the same as upstream krping's and rping's. */
#define KRPING_PORT		9999

/**
 * struct krping_ping_msg - the only message of the ping/pong protocol
 * @addr:	address of the advertised buffer in the sender's memory region
 * @rkey:	its remote key
 * @length:	its length in bytes
 *
 * A client's message advertises a buffer. A server's message means "go ahead"; the client ignores
 * its contents. Source: the wire format of upstream krping and rping.
 */
struct krping_ping_msg {
	__be64 addr;
	__be32 rkey;
	__be32 length;
};

static_assert(sizeof(struct krping_ping_msg) == 16, "krping_ping_msg");

#define KRPING_TEST_MAGIC	0x4b525054	/* "KRPT" */
#define KRPING_TEST_VERSION	1

/* krping_test_hello.test */
enum krping_test_kind {
	KRPING_TEST_PING	= 0,
	KRPING_TEST_WLAT	= 1,	/* both sides RDMA WRITE in turn */
	KRPING_TEST_RLAT	= 2,	/* one RDMA READ after another */
	KRPING_TEST_BW		= 3,	/* RDMA WRITEs, the send queue kept full */
	KRPING_TEST_FR		= 4,	/* REG_MR and LOCAL_INV, one pair after another */
	KRPING_TEST_VERBS	= 5,	/* struct krping_verbs_params follows the hello */
};

/* krping_test_hello.flags */
#define KRPING_TEST_SERVER_INV	0x01	/* the server's SENDs must invalidate the keys */
#define KRPING_TEST_DUPLEX	0x02	/* bw: the server must write as well */

#define KRPING_TEST_FLAGS	(KRPING_TEST_SERVER_INV | KRPING_TEST_DUPLEX)

/**
 * struct krping_test_hello - the test that a client will run; private data of its request
 * @magic:	KRPING_TEST_MAGIC
 * @version:	KRPING_TEST_VERSION
 * @test:	enum krping_test_kind
 * @flags:	KRPING_TEST_*
 * @reserved:	zero
 * @size:	bytes of one operation
 * @qps:	connections of this client
 * @group:	a number common to all connections of one client
 *
 * Optional: upstream krping and rping send none and ignore it. Our server rejects a client that
 * it cannot serve, with struct krping_reject. InfiniBand pads the hello with zeros.
 */
struct krping_test_hello {
	__be32 magic;
	__u8 version;
	__u8 test;
	__u8 flags;
	__u8 reserved;
	__be32 size;
	__be16 qps;
	__be16 group;
};

static_assert(sizeof(struct krping_test_hello) == 16, "krping_test_hello");

/* ---- KRPING_TEST_VERBS ---- */

/* krping_verbs_params.verb */
enum krping_verb {
	KRPING_VERB_SEND	= 1,
	KRPING_VERB_WRITE	= 2,
	KRPING_VERB_WRITE_IMM	= 3,	/* RDMA WRITE with immediate data */
	KRPING_VERB_READ	= 4,
	KRPING_VERB_FETCH_ADD	= 5,	/* of 8 bytes, adds 1 */
	KRPING_VERB_CMP_SWAP	= 6,	/* of 8 bytes, replaces n by n + 1 */
};

/* krping_verbs_params.qp_type */
enum krping_verbs_qp_type {
	KRPING_VERBS_RC		= 1,
	KRPING_VERBS_UC		= 2,	/* SEND, WRITE and WRITE_IMM */
	KRPING_VERBS_UD		= 3,	/* SEND */
};

/* krping_verbs_params.measure */
enum krping_verbs_measure {
	KRPING_VERBS_BW		= 1,	/* many messages in flight */
	KRPING_VERBS_LAT	= 2,	/* one message in flight */
};

/* krping_verbs_params.flags */
#define KRPING_VERBS_DUPLEX	0x01	/* BW: the server sends, too */
#define KRPING_VERBS_VALIDATE	0x02	/* each message is filled and checked */
#define KRPING_VERBS_SRQ	0x04	/* SEND, WRITE_IMM: one receive queue for all queue pairs */

#define KRPING_VERBS_FLAGS	(KRPING_VERBS_DUPLEX | KRPING_VERBS_VALIDATE | KRPING_VERBS_SRQ)

#define KRPING_VERBS_QPS_MAX	1024
#define KRPING_VERBS_DEPTH_MAX	16384	/* of a send or receive queue */
#define KRPING_VERBS_SLOTS_MAX	(KRPING_VERBS_DEPTH_MAX + 1)
#define KRPING_VERBS_MTU_MAX	4096
#define KRPING_VERBS_SECONDS_MAX 86400	/* of @duration */

/**
 * struct krping_verbs_params - the test of a KRPING_TEST_VERBS client; follows its hello
 * @verb:	enum krping_verb
 * @qp_type:	enum krping_verbs_qp_type, of the data queue pairs
 * @measure:	enum krping_verbs_measure
 * @flags:	KRPING_VERBS_*; krping_test_hello.flags is zero
 * @connection:	0: control connection; i + 1: data queue pair i (RC only)
 * @mtu:	bytes of a packet: 256, 512, 1024, 2048 or 4096; 0: what the path allows
 * @count:	messages that each queue pair sends; 0: no limit
 * @duration:	seconds that each side sends, at most KRPING_VERBS_SECONDS_MAX; 0: no limit. Not
 *		both @count and @duration
 * @rate:	messages a second that each side sends, on all queue pairs together; 0: no limit
 * @txdepth:	messages in flight on a queue pair, 1 to KRPING_VERBS_DEPTH_MAX; LAT: 1
 * @rxdepth:	SEND, WRITE_IMM: receives posted on a queue pair, or with KRPING_VERBS_SRQ for all
 *		together; 1 (with KRPING_VERBS_SRQ: krping_test_hello.qps) to
 *		KRPING_VERBS_DEPTH_MAX; other verbs: 0
 * @signal:	one message in so many is signalled, 1 to @txdepth
 * @inline_len:	krping_test_hello.size if SENDs and WRITEs are inline, else 0
 * @reads:	READ, FETCH_ADD, CMP_SWAP: outstanding on a queue pair, at least 1; else 0
 * @reserved:	zero
 *
 * The client says all this for both sides. krping_test_hello.size is 8 for FETCH_ADD and CMP_SWAP;
 * krping_test_hello.qps is the number of data queue pairs, 1 to KRPING_VERBS_QPS_MAX; LAT: 1.
 * It is the same in the requests of all connections, except for @connection.
 */
struct krping_verbs_params {
	__u8 verb;
	__u8 qp_type;
	__u8 measure;
	__u8 flags;
	__be16 connection;
	__be16 mtu;
	__be32 count;
	__be32 duration;
	__be32 rate;
	__be16 txdepth;
	__be16 rxdepth;
	__be16 signal;
	__be16 inline_len;
	__u8 reads;
	__u8 reserved[3];
};

static_assert(sizeof(struct krping_verbs_params) == 32, "krping_verbs_params");

/* The private data of a KRPING_TEST_VERBS client; 56 bytes is the limit. */
struct krping_verbs_hello {
	struct krping_test_hello hello;
	struct krping_verbs_params params;
};

static_assert(sizeof(struct krping_verbs_hello) == 48, "krping_verbs_hello");

/* What a device cannot do: the upper 8 bits of krping_reject.value with KRPING_REJ_DEVICE. */
enum krping_verbs_need {
	KRPING_NEED_UC		= 1,
	KRPING_NEED_UD		= 2,
	KRPING_NEED_SRQ		= 3,
	KRPING_NEED_ATOMICS	= 4,
	KRPING_NEED_IMM		= 5,
	KRPING_NEED_MTU		= 6,	/* packets of another MTU */
	/* limits: the lower 24 bits have what it can do */
	KRPING_NEED_WR		= 7,	/* work requests in a queue */
	KRPING_NEED_SRQ_WR	= 8,	/* work requests in a shared receive queue */
	KRPING_NEED_INLINE	= 9,	/* bytes of inline data */
	KRPING_NEED_READS	= 10,	/* outstanding READs and atomics */
	KRPING_NEED_CQE		= 11,	/* completion queue entries */
	KRPING_NEED_QP		= 12,	/* queue pairs */
};

#define KRPING_NEED_SHIFT	24
#define KRPING_NEED_LIMIT_MAX	0xffffff

/* krping_verbs_msg.type */
enum krping_verbs_msg_type {
	KRPING_VERBS_QUEUE	= 1,	/* @queue, @info: a queue pair of the sender, its memory */
	KRPING_VERBS_GO		= 2,	/* client: the test begins */
	KRPING_VERBS_CHECK	= 3,	/* @queue, @number: messages sent that are to be checked */
	KRPING_VERBS_CREDIT	= 4,	/* @queue, @number: messages checked */
	KRPING_VERBS_DONE	= 5,	/* @number: messages sent on all queue pairs */
	KRPING_VERBS_REPORT	= 6,	/* @queue, @report: what has arrived; answers DONE */
	KRPING_VERBS_ERROR	= 7,	/* @number: enum krping_verbs_error; the last message */
};

/* krping_verbs_msg.number of KRPING_VERBS_ERROR */
enum krping_verbs_error {
	KRPING_VERBS_E_RESOURCES = 1,	/* out of memory or RDMA resources */
	KRPING_VERBS_E_PROTOCOL	= 2,	/* the peer broke the protocol */
	KRPING_VERBS_E_STOPPED	= 3,	/* a user stopped this side */
	KRPING_VERBS_E_TIMEOUT	= 4,	/* the peer did not go on */
	KRPING_VERBS_E_DEVICE	= 5,	/* a work request failed, or the device is gone */
};

/* krping_verbs_report.damage: what the first wrong word of a message is */
enum krping_verbs_damage {
	KRPING_VERBS_INTACT	= 0,
	KRPING_VERBS_FOREIGN	= 1,	/* of another queue pair, or of the other direction */
	KRPING_VERBS_SHIFTED	= 2,	/* of another place in the message */
	KRPING_VERBS_STALE	= 3,	/* all of it is another message */
	KRPING_VERBS_TORN	= 4,	/* a part of it is another message */
	KRPING_VERBS_DAMAGED	= 5,	/* nothing that anyone has sent */
};

/**
 * struct krping_verbs_info - a data queue pair and the memory that the peer accesses by it
 * @qpn:	UC, UD: queue pair number; RC: 0
 * @psn:	UC, UD: first packet sequence number that it sends, 24 bits; RC: 0
 * @qkey:	UD: queue key, the highest bit is zero; else 0
 * @slots:	messages that may be unchecked (PROTOCOL.md section 1.3), at most
 *		KRPING_VERBS_SLOTS_MAX; 0: none come
 * @addr:	WRITE, WRITE_IMM, READ: address of @slots slots of KRPING_VERBS_SLOT(size) bytes;
 *		FETCH_ADD, CMP_SWAP: address of a counter of 8 bytes, aligned; else 0
 * @rkey:	its remote key, 0 if @addr is not used
 * @reserved:	zero
 */
struct krping_verbs_info {
	__be32 qpn;
	__be32 psn;
	__be32 qkey;
	__be32 slots;
	__be64 addr;
	__be32 rkey;
	__be32 reserved;
};

static_assert(sizeof(struct krping_verbs_info) == 32, "krping_verbs_info");

/**
 * struct krping_verbs_report - what has arrived
 * @received:	different messages; what counts: PROTOCOL.md section 1.3
 * @lost:	those of @sent of DONE that did not arrive
 * @repeated:	messages that had arrived already
 * @reordered:	messages that arrived after a later one; also in @received
 * @damaged:	messages whose data was wrong; also in @received
 * @number:	number of the first one of them
 * @offset:	of its first wrong byte
 * @damage:	enum krping_verbs_damage of it
 * @reserved:	zero
 *
 * Without damage, krping_verbs_msg.queue, @number, @offset and @damage are zero.
 */
struct krping_verbs_report {
	__be64 received;
	__be64 lost;
	__be64 repeated;
	__be64 reordered;
	__be64 damaged;
	__be64 number;
	__be32 offset;
	__u8 damage;
	__u8 reserved[3];
};

static_assert(sizeof(struct krping_verbs_report) == 56, "krping_verbs_report");

/**
 * struct krping_verbs_msg - the only message on the control connection
 * @type:	enum krping_verbs_msg_type
 * @reserved:	zero
 * @queue:	index of a data queue pair, from 0; zero where the type has none
 * @reserved2:	zero
 * @number:	as the type says
 * @info:	as the type says
 * @report:	as the type says
 * @body:	what the type does not use of it is zero
 */
struct krping_verbs_msg {
	__u8 type;
	__u8 reserved;
	__be16 queue;
	__be32 reserved2;
	union {
		__be64 number;
		struct krping_verbs_info info;
		struct krping_verbs_report report;
		__u8 body[56];
	};
};

static_assert(sizeof(struct krping_verbs_msg) == 64, "krping_verbs_msg");

/* Receives for control messages that each side has posted, and always posts again at once. */
#define KRPING_VERBS_CONTROL_DEPTH(qps)	(4 * (qps) + 8)

/* WRITE with VALIDATE: receives for CHECK that a target has posted on each data queue pair. */
#define KRPING_VERBS_CHECK_DEPTH	4

/* Bytes from one slot to the next. */
#define KRPING_VERBS_SLOT(size)	(((size) + 63u) & ~63u)

/* Messages after which a target with so many slots gives credit. */
#define KRPING_VERBS_BATCH(slots)	(((slots) + 1) / 2)

#define KRPING_VERBS_GRH_LEN	40	/* UD: bytes of a receive before the data */
#define KRPING_VERBS_QUIET_MS	200	/* UC, UD: what has not arrived after that is lost */
#define KRPING_VERBS_STALL_MS	100	/* UC: without credit for so long, ask for it */

/* ---- block protocol: connection set-up (rdma_cm private data) ---- */

#define KRPING_MAGIC		0x4b525042	/* "KRPB" */
#define KRPING_VERSION		2
#define KRPING_VERSION_MIN	1		/* oldest version that both roles still speak */
#define KRPING_UUID_LEN		16
#define KRPING_NAME_LEN		64		/* of a volume, with the terminating NUL */
#define KRPING_VOLUME_LEN	28		/* of what stands for the name in a hello */
#define KRPING_TARGET_NONCE_LEN	16
#define KRPING_CLIENT_NONCE_LEN	8
#define KRPING_PROOF_LEN	16		/* the first bytes of an HMAC-SHA256 */

/*
 * krping_hello.flags: at most one of the first two; from version 2 on at most one of the next two;
 * not KRPING_HELLO_DIGEST with KRPING_HELLO_PROOF
 */
#define KRPING_HELLO_KEY	0x01	/* the client has a key and wants a challenge */
#define KRPING_HELLO_PROOF	0x02	/* it answers a challenge: @answer replaces @volume */
#define KRPING_HELLO_READ_ONLY	0x04	/* the client will not write */
#define KRPING_HELLO_TAKE_OVER	0x08	/* fence the session that writes, and replace it */
#define KRPING_HELLO_DIGEST	0x10	/* @volume is a digest: the name is longer */
#define KRPING_HELLO_FEW	0x20	/* at most KRPING_FEW_MESSAGES messages unanswered */

#define KRPING_HELLO_FLAGS	(KRPING_HELLO_KEY | KRPING_HELLO_PROOF | \
				 KRPING_HELLO_READ_ONLY | KRPING_HELLO_TAKE_OVER | \
				 KRPING_HELLO_DIGEST | KRPING_HELLO_FEW)

/* Messages of commands, besides a KEEP_ALIVE, for which a target needs receives: PROTOCOL.md 2.2 */
#define KRPING_FEW_MESSAGES	32

/**
 * struct krping_answer - the answer to a challenge
 * @challenge:	krping_challenge.id
 * @nonce:	random
 * @proof:	proof that the client has the key: over struct krping_transcript
 */
struct krping_answer {
	__be32 challenge;
	__u8 nonce[KRPING_CLIENT_NONCE_LEN];
	__u8 proof[KRPING_PROOF_LEN];
};

static_assert(sizeof(struct krping_answer) == KRPING_VOLUME_LEN, "krping_answer");

/**
 * struct krping_hello - what a client asks for; private data of the request
 * @magic:	KRPING_MAGIC
 * @version:	KRPING_VERSION_MIN to KRPING_VERSION; the same in all that follows
 * @flags:	KRPING_HELLO_*
 * @queue_index: index of this queue in its session, from 0
 * @queue_count: number of queues in the session, at least 1
 * @depth:	commands that the client wants in flight on this queue, at least 1
 * @session:	UUID of the session, not zero: the same on every queue and after a reconnect
 * @volume:	name of the volume, NUL padded; a name of 28 to 63 characters: with
 *		KRPING_HELLO_DIGEST, the first bytes of its SHA-256
 * @answer:	with KRPING_HELLO_PROOF: answer to the challenge for the volume
 *
 * A name has 1 to 63 characters: one or more parts of [A-Za-z0-9._-], joined by '/', none of them
 * empty, "." or "..". In version 1 it has no '/' and at most 27 characters.
 *
 * 56 bytes is all the private data that rdma_cm leaves in an InfiniBand CM REQ.
 */
struct krping_hello {
	__be32 magic;
	__u8 version;
	__u8 flags;
	__be16 queue_index;
	__be16 queue_count;
	__be16 depth;
	__u8 session[KRPING_UUID_LEN];
	union {
		__u8 volume[KRPING_VOLUME_LEN];
		struct krping_answer answer;
	};
};

static_assert(sizeof(struct krping_hello) == 56, "krping_hello");

/* Bytes before the volume or the answer. */
#define KRPING_HELLO_HEAD_LEN	(sizeof(struct krping_hello) - KRPING_VOLUME_LEN)

/* krping_welcome.flags */
#define KRPING_VOL_READ_ONLY	0x01	/* writes get KRPING_ST_READ_ONLY */
#define KRPING_VOL_WRITEBACK	0x02	/* a write is stable only after FLUSH or with FUA */
#define KRPING_VOL_VOLATILE	0x04	/* empty when the target starts */

#define KRPING_VOL_FLAGS	(KRPING_VOL_READ_ONLY | KRPING_VOL_WRITEBACK | \
				 KRPING_VOL_VOLATILE)

/* krping_welcome.caps; a client ignores others */
#define KRPING_CAP_DISCARD	0x01	/* the store can discard */
#define KRPING_CAP_SHARED	0x02	/* any number of sessions may write */
#define KRPING_CAP_TORN_BLOCKS	0x04	/* a power loss may tear a block: the store's are smaller */

/**
 * struct krping_welcome - what the target grants; private data of the reply
 * @magic:	KRPING_MAGIC
 * @version:	that of the hello
 * @flags:	KRPING_VOL_*
 * @depth:	commands that may be in flight on this queue, besides a KEEP_ALIVE: from 1 to the
 *		depth asked for
 * @capacity:	size of the volume in bytes, a multiple of @block_size
 * @epoch:	a number that changes when the target may have lost acknowledged writes, and at
 *		each start
 * @block_size:	logical block size in bytes: 512 or 4096
 * @max_data:	largest data of one READ or WRITE in bytes
 * @max_inline:	largest inline data of one command or response in bytes
 * @max_message: largest SEND message in either direction in bytes,
 *		at least sizeof(struct krping_cmd) + @max_inline
 * @uuid:	identifies the volume; never all zero
 * @writer:	ordinal number of this session among those that have written to the volume since
 *		@epoch began, from 1; 0 for a session that does not write or a shared volume
 * @caps:	KRPING_CAP_*
 * @slot_addr:	address of memory that the client may write into; 0: none. A client may ignore it
 * @slot_rkey:	its remote key
 * @slot_size:	bytes of a slot
 * @nr_slots:	slots, one after the other
 * @reserved:	zero
 *
 * In version 1 it ends before @uuid: KRPING_WELCOME_V1_LEN bytes.
 */
struct krping_welcome {
	__be32 magic;
	__u8 version;
	__u8 flags;
	__be16 depth;
	__be64 capacity;
	__be64 epoch;
	__be32 block_size;
	__be32 max_data;
	__be32 max_inline;
	__be32 max_message;
	__u8 uuid[KRPING_UUID_LEN];
	__be32 writer;
	__be32 caps;
	__be64 slot_addr;
	__be32 slot_rkey;
	__be32 slot_size;
	__be16 nr_slots;
	__u8 reserved[6];
};

static_assert(sizeof(struct krping_welcome) == 88, "krping_welcome");

#define KRPING_WELCOME_V1_LEN	40

/*
 * To a client that has proved its key, the private data of the reply is the welcome, followed by
 * KRPING_PROOF_LEN bytes: the proof that the target has the key, over struct krping_transcript.
 */

/* The digit at the end is the version. */
#define KRPING_CLIENT_LABEL	"krping client 2"
#define KRPING_TARGET_LABEL	"krping target 2"

/**
 * struct krping_transcript - input of a proof's HMAC-SHA256; not on the wire
 * @label:	identifies the prover: KRPING_CLIENT_LABEL or KRPING_TARGET_LABEL, NUL padded
 * @target_nonce: krping_challenge.nonce
 * @client_nonce: krping_answer.nonce
 * @hello:	the first KRPING_HELLO_HEAD_LEN bytes of the hello that has the answer
 * @volume:	name of the volume or its digest, as in the hello that asked for the challenge
 * @welcome:	target's proof: struct krping_welcome; client's proof: zero
 *
 * In version 1 it ends with the version 1 part of @welcome.
 */
struct krping_transcript {
	char label[16];
	__u8 target_nonce[KRPING_TARGET_NONCE_LEN];
	__u8 client_nonce[KRPING_CLIENT_NONCE_LEN];
	__u8 hello[KRPING_HELLO_HEAD_LEN];
	__u8 volume[KRPING_VOLUME_LEN];
	__u8 welcome[sizeof(struct krping_welcome)];
};

static_assert(sizeof(struct krping_transcript) == 184, "krping_transcript");

/* krping_reject.reason */
enum krping_reject_reason {
	KRPING_REJ_MAGIC	= 1,	/* not a krping hello, or too short */
	KRPING_REJ_VERSION	= 2,	/* value: the newest version that the target speaks */
	KRPING_REJ_INVALID	= 3,	/* a field is out of range: bad count, index, reserved */
	KRPING_REJ_VOLUME	= 4,	/* no volume of that name */
	KRPING_REJ_QUEUES	= 5,	/* value: the most queues of one session */
	KRPING_REJ_BUSY		= 6,	/* value: the most connections, of all or of one address */
	KRPING_REJ_RESOURCES	= 7,	/* the target is out of memory or queue pairs */
	/* from a ping/pong server */
	KRPING_REJ_TEST		= 8,	/* value: the test that it runs */
	KRPING_REJ_SIZE		= 9,	/* value: the largest size that it accepts */
	KRPING_REJ_QPS		= 10,	/* value: the number of connections that it accepts */
	KRPING_REJ_SERVER_INV	= 11,	/* value: 1 if it invalidates keys, else 0 */
	KRPING_REJ_TOS		= 12,	/* value: the type of service that it demands */
	KRPING_REJ_DUPLEX	= 13,	/* value: 1 if it writes as well, else 0 */
	/* from either */
	KRPING_REJ_NOT_ALLOWED	= 14,	/* the client's address is not allowed */
	/* from a target */
	KRPING_REJ_CHALLENGE	= 15,	/* struct krping_challenge: reconnect with the answer */
	KRPING_REJ_KEY		= 16,	/* the proof is wrong */
	KRPING_REJ_NEEDS_KEY	= 17,	/* the volume has a key, the client has none */
	KRPING_REJ_NO_KEY	= 18,	/* the client has a key, the volume has none */
	KRPING_REJ_STALE	= 19,	/* this client has no such challenge, or it has expired */
	KRPING_REJ_IN_USE	= 20,	/* another session writes: struct krping_in_use */
	/* from a ping/pong server */
	KRPING_REJ_DEVICE	= 21,	/* value: enum krping_verbs_need and a limit */
};

/**
 * struct krping_reject - why the target, or a ping/pong server, refuses; private data of the reject
 * @magic:	KRPING_MAGIC
 * @version:	that of the hello if the target speaks it; 1 from a ping/pong server
 * @reserved:	zero
 * @reason:	enum krping_reject_reason
 * @value:	the limit that was exceeded, where the reason has one
 */
struct krping_reject {
	__be32 magic;
	__u8 version;
	__u8 reserved;
	__be16 reason;
	__be32 value;
};

static_assert(sizeof(struct krping_reject) == 12, "krping_reject");

/**
 * struct krping_challenge - the private data of a reject with KRPING_REJ_CHALLENGE
 * @reject:	as for other reasons
 * @id:		identifies the challenge in the answer
 * @nonce:	random, for this challenge only
 */
struct krping_challenge {
	struct krping_reject reject;
	__be32 id;
	__u8 nonce[KRPING_TARGET_NONCE_LEN];
};

static_assert(sizeof(struct krping_challenge) == 32, "krping_challenge");

/**
 * struct krping_in_use - the private data of a reject with KRPING_REJ_IN_USE
 * @reject:	as for other reasons
 * @addr:	address of the client that writes: IPv6, or IPv4 as ::ffff:a.b.c.d
 * @uuid:	krping_welcome.uuid
 *
 * A client of version 1 gets @reject only.
 */
struct krping_in_use {
	struct krping_reject reject;
	__u8 addr[16];
	__u8 uuid[KRPING_UUID_LEN];
};

static_assert(sizeof(struct krping_in_use) == 44, "krping_in_use");

/* ---- block protocol: messages ---- */

/*
 * A message is a sequence of 1..N commands (client to target) or responses
 * (target to client); each is immediately followed by its inline data, if it
 * has any, padded with zeros to a multiple of KRPING_ALIGN.
 */
#define KRPING_ALIGN		8

enum krping_op {
	KRPING_OP_READ		= 1,
	KRPING_OP_WRITE		= 2,
	KRPING_OP_FLUSH		= 3,
	KRPING_OP_DISCARD	= 4,
	KRPING_OP_WRITE_ZEROES	= 5,
	KRPING_OP_DIGEST	= 6,
	KRPING_OP_KEEP_ALIVE	= 7,
};

/* krping_cmd.flags */
#define KRPING_CMD_FUA		0x01	/* WRITE: on stable storage before the response */
#define KRPING_CMD_INLINE	0x02	/* WRITE: data follows; others: answer inline */
#define KRPING_CMD_SHA256	0x04	/* DIGEST: SHA-256 (32 bytes) instead of CRC32C */
/* from version 2 on */
#define KRPING_CMD_NO_UNMAP	0x08	/* WRITE_ZEROES: keep the range allocated */
#define KRPING_CMD_BYE		0x10	/* KEEP_ALIVE: the session ends, others may write */

#define KRPING_CMD_FLAGS_V1	(KRPING_CMD_FUA | KRPING_CMD_INLINE | KRPING_CMD_SHA256)
#define KRPING_CMD_FLAGS	(KRPING_CMD_FLAGS_V1 | KRPING_CMD_NO_UNMAP | KRPING_CMD_BYE)

/**
 * struct krping_cmd - one command
 * @op:		enum krping_op
 * @flags:	KRPING_CMD_*
 * @tag:	identifies the command in its response; unique among those in flight on its
 *		queue; opaque to the target
 * @length:	bytes, a multiple of the block size; 0 for FLUSH and KEEP_ALIVE only
 * @offset:	byte offset in the volume, a multiple of the block size; else 0
 * @addr:	address of the client's memory, 0 if @rkey is not used
 * @rkey:	its remote key: READ and WRITE without KRPING_CMD_INLINE; else 0
 * @crc32c:	CRC32C (RFC 3720, as iSCSI) of the data of a WRITE; else 0
 */
struct krping_cmd {
	__u8 op;
	__u8 flags;
	__be16 tag;
	__be32 length;
	__be64 offset;
	__be64 addr;
	__be32 rkey;
	__be32 crc32c;
};

static_assert(sizeof(struct krping_cmd) == 32, "krping_cmd");

enum krping_status {
	KRPING_ST_OK		= 0,
	KRPING_ST_IO		= 1,	/* the store failed */
	KRPING_ST_CRC		= 2,	/* the data of a WRITE does not match its CRC32C */
	KRPING_ST_RANGE		= 3,	/* outside the volume */
	KRPING_ST_READ_ONLY	= 4,
	KRPING_ST_NO_SPACE	= 5,
	KRPING_ST_UNSUPPORTED	= 6,	/* the target does not know this op */
	KRPING_ST_INVALID	= 7,	/* a length or flag that this op does not allow */
};

/* krping_rsp.flags */
#define KRPING_RSP_INLINE	0x01	/* @length bytes of data follow */

#define KRPING_RSP_FLAGS	KRPING_RSP_INLINE

/**
 * struct krping_rsp - one response
 * @tag:	tag of the command
 * @status:	enum krping_status
 * @flags:	KRPING_RSP_*
 * @length:	bytes transferred: that of the command for a READ or WRITE with
 *		KRPING_ST_OK, 4 or 32 for a DIGEST, 8 for a KEEP_ALIVE,
 *		else 0
 * @crc32c:	CRC32C of the data of a READ, else 0
 * @reserved:	zero
 *
 * The response to a command with an rkey is sent with SEND_WITH_INV of that
 * rkey, whatever its status; a message therefore holds at most one of these.
 */
struct krping_rsp {
	__be16 tag;
	__u8 status;
	__u8 flags;
	__be32 length;
	__be32 crc32c;
	__be32 reserved;
};

static_assert(sizeof(struct krping_rsp) == 16, "krping_rsp");

/* krping_cmd.tag of KEEP_ALIVE, and of nothing else. */
#define KRPING_TAG_KEEP_ALIVE	0xffff

/* Longest range of one DISCARD or WRITE_ZEROES command, in bytes. */
#define KRPING_RANGE_MAX	(2048u << 20)

/* Longest range of one DIGEST command, in bytes. */
#define KRPING_DIGEST_MAX	(16u << 20)

/* ---- ioctl on /dev/krpingN ---- */

#define KRPING_DIGEST_CRC32C	0	/* 4 bytes, big-endian */
#define KRPING_DIGEST_SHA256	1	/* 32 bytes */

/**
 * struct krping_digest - KRPING_IOC_DIGEST: have the target compute a digest of
 * a range of its data
 * @offset:	byte offset, a multiple of the block size
 * @length:	bytes, a multiple of the block size, 1 block to KRPING_DIGEST_MAX
 * @alg:	KRPING_DIGEST_CRC32C or KRPING_DIGEST_SHA256
 * @digest_len:	out: valid bytes of @digest
 * @digest:	out
 *
 * Native endian. Errors: EINVAL (a field is out of range), EIO (the target
 * could not read the range, or the session failed), EBADF (the device is not open
 * for reading). While the target is lost, it waits, as a read would.
 */
struct krping_digest {
	__u64 offset;
	__u64 length;
	__u32 alg;
	__u32 digest_len;
	__u8 digest[32];
};

static_assert(sizeof(struct krping_digest) == 56, "krping_digest");

#define KRPING_IOC_DIGEST	_IOWR('K', 0x70, struct krping_digest)

#endif /* _UAPI_KRPING_H */
