// SPDX-License-Identifier: Apache-2.0
/* Prints structures of kmod/uapi/krping.h in hex, one per line, for wire_test.go to compare with. */
#include <endian.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "krping.h"

static void emit(const char *name, const void *data, size_t len)
{
	const unsigned char *p = data;

	printf("%s ", name);
	while (len--)
		printf("%02x", *p++);
	printf("\n");
}

int main(void)
{
	struct krping_hello hello = {
		.magic = htobe32(KRPING_MAGIC), .version = KRPING_VERSION, .flags = KRPING_HELLO_FEW, .queue_index = htobe16(1),
		.queue_count = htobe16(2), .depth = htobe16(KRPING_FEW_MESSAGES), .volume = "vol0.a_b-c",
	};
	struct krping_welcome welcome = {
		.magic = htobe32(KRPING_MAGIC), .version = KRPING_VERSION, .flags = KRPING_VOL_FLAGS,
		.depth = htobe16(128), .capacity = htobe64(0x0102030405060800), .epoch = htobe64(0x1112131415161718),
		.block_size = htobe32(512), .max_data = htobe32(1 << 20), .max_inline = htobe32(4096), .max_message = htobe32(16384),
		.writer = htobe32(0x41424344), .caps = htobe32(KRPING_CAP_DISCARD | KRPING_CAP_SHARED | KRPING_CAP_TORN_BLOCKS),
		.slot_addr = htobe64(0x5152535455565758), .slot_rkey = htobe32(0x61626364), .slot_size = htobe32(4096), .nr_slots = htobe16(7),
	};
	struct krping_in_use in_use = {
		.reject = { .magic = htobe32(KRPING_MAGIC), .version = KRPING_VERSION, .reason = htobe16(KRPING_REJ_IN_USE) },
		.addr = { [10] = 0xff, [11] = 0xff, [12] = 192, [13] = 168, [14] = 77, [15] = 2 },
	};
	struct krping_reject reject = {
		.magic = htobe32(KRPING_MAGIC), .version = KRPING_VERSION, .reason = htobe16(KRPING_REJ_QUEUES), .value = htobe32(64),
	};
	struct krping_cmd write = {
		.op = KRPING_OP_WRITE, .flags = KRPING_CMD_INLINE | KRPING_CMD_FUA, .tag = htobe16(0xabcd), .length = htobe32(512),
		.offset = htobe64(0x0102030405060800), .crc32c = htobe32(0xdeadbeef),
	};
	struct krping_cmd read = {
		.op = KRPING_OP_READ, .tag = htobe16(7), .length = htobe32(65536), .offset = htobe64(4096),
		.addr = htobe64(0x2122232425262728), .rkey = htobe32(0x31323334),
	};
	struct krping_cmd digest = {
		.op = KRPING_OP_DIGEST, .flags = KRPING_CMD_INLINE | KRPING_CMD_SHA256, .length = htobe32(KRPING_DIGEST_MAX),
	};
	struct krping_cmd zeroes = {
		.op = KRPING_OP_WRITE_ZEROES, .flags = KRPING_CMD_NO_UNMAP, .tag = htobe16(8), .length = htobe32(512),
	};
	struct krping_cmd bye = {
		.op = KRPING_OP_KEEP_ALIVE, .flags = KRPING_CMD_INLINE | KRPING_CMD_BYE, .tag = htobe16(KRPING_TAG_KEEP_ALIVE),
	};
	struct krping_rsp rsp = {
		.tag = htobe16(0xabcd), .status = KRPING_ST_OK, .flags = KRPING_RSP_INLINE, .length = htobe32(4), .crc32c = htobe32(0x01020304),
	};

	struct krping_test_hello test = {
		.magic = htobe32(KRPING_TEST_MAGIC), .version = KRPING_TEST_VERSION, .test = KRPING_TEST_BW,
		.flags = KRPING_TEST_SERVER_INV | KRPING_TEST_DUPLEX, .size = htobe32(0x01020304), .qps = htobe16(0x0506), .group = htobe16(0x0708),
	};
	struct krping_ping_msg ping = {
		.addr = htobe64(0x2122232425262728), .rkey = htobe32(0x31323334), .length = htobe32(65536),
	};
	struct krping_verbs_hello verbs = {
		.hello = {
			.magic = htobe32(KRPING_TEST_MAGIC), .version = KRPING_TEST_VERSION, .test = KRPING_TEST_VERBS,
			.size = htobe32(4000), .qps = htobe16(0x0102), .group = htobe16(0x0304),
		},
		.params = {
			.verb = KRPING_VERB_SEND, .qp_type = KRPING_VERBS_RC, .measure = KRPING_VERBS_BW, .flags = KRPING_VERBS_FLAGS,
			.connection = htobe16(0x0102), .mtu = htobe16(1024), .count = htobe32(0x11121314), .rate = htobe32(0x21222324),
			.txdepth = htobe16(0x0132), .rxdepth = htobe16(0x0234), .signal = htobe16(0x0122), .inline_len = htobe16(4000),
		},
	};
	struct krping_verbs_hello atomics = {
		.hello = {
			.magic = htobe32(KRPING_TEST_MAGIC), .version = KRPING_TEST_VERSION, .test = KRPING_TEST_VERBS,
			.size = htobe32(8), .qps = htobe16(1),
		},
		.params = {
			.verb = KRPING_VERB_CMP_SWAP, .qp_type = KRPING_VERBS_RC, .measure = KRPING_VERBS_LAT,
			.duration = htobe32(0x00013234), .txdepth = htobe16(1), .signal = htobe16(1), .reads = 16,
		},
	};
	struct krping_verbs_msg queue = {
		.type = KRPING_VERBS_QUEUE, .queue = htobe16(0x0102),
		.info = {
			.qpn = htobe32(0x010203), .psn = htobe32(0x040506), .qkey = htobe32(0x11121314), .slots = htobe32(0x21222324),
			.addr = htobe64(0x3132333435363738), .rkey = htobe32(0x41424344),
		},
	};
	struct krping_verbs_msg credit = {
		.type = KRPING_VERBS_CREDIT, .queue = htobe16(0x0102), .number = htobe64(0x5152535455565758),
	};
	struct krping_verbs_msg report = {
		.type = KRPING_VERBS_REPORT, .queue = htobe16(0x0102),
		.report = {
			.received = htobe64(0x0102030405060708), .lost = htobe64(2), .repeated = htobe64(3), .reordered = htobe64(4), .damaged = htobe64(5),
			.number = htobe64(0x1112131415161718), .offset = htobe32(0x21222324), .damage = KRPING_VERBS_TORN,
		},
	};
	struct krping_reject device = {
		.magic = htobe32(KRPING_MAGIC), .version = 1, .reason = htobe16(KRPING_REJ_DEVICE),
		.value = htobe32(KRPING_NEED_READS << KRPING_NEED_SHIFT | 16),
	};
	struct krping_reject tos = {
		.magic = htobe32(KRPING_MAGIC), .version = 1, .reason = htobe16(KRPING_REJ_TOS), .value = htobe32(40),
	};

	struct krping_challenge challenge = {
		.reject = { .magic = htobe32(KRPING_MAGIC), .version = KRPING_VERSION, .reason = htobe16(KRPING_REJ_CHALLENGE) },
		.id = htobe32(0x01020304),
	};
	struct krping_hello proof = hello;
	struct krping_transcript client = { .label = KRPING_CLIENT_LABEL, .volume = "vol0.a_b-c" };
	struct krping_transcript target;

	memset(welcome.uuid, 0x3c, sizeof(welcome.uuid));
	memset(in_use.uuid, 0x3c, sizeof(in_use.uuid));
	memset(hello.session, 0x5a, sizeof(hello.session));
	memset(challenge.nonce, 0x7a, sizeof(challenge.nonce));
	proof.flags = KRPING_HELLO_PROOF | KRPING_HELLO_TAKE_OVER | KRPING_HELLO_FEW;
	memcpy(proof.session, hello.session, sizeof(proof.session));
	proof.answer.challenge = challenge.id;
	memset(proof.answer.nonce, 0x6b, sizeof(proof.answer.nonce));
	memset(proof.answer.proof, 0x5c, sizeof(proof.answer.proof));
	memcpy(client.target_nonce, challenge.nonce, sizeof(client.target_nonce));
	memcpy(client.client_nonce, proof.answer.nonce, sizeof(client.client_nonce));
	memcpy(client.hello, &proof, sizeof(client.hello));
	target = client;
	memcpy(target.label, KRPING_TARGET_LABEL, sizeof(KRPING_TARGET_LABEL));
	memcpy(target.welcome, &welcome, sizeof(target.welcome));
	emit("challenge", &challenge, sizeof(challenge));
	emit("proof", &proof, sizeof(proof));
	emit("client", &client, sizeof(client));
	emit("target", &target, sizeof(target));
	emit("hello", &hello, sizeof(hello));
	emit("welcome", &welcome, sizeof(welcome));
	emit("reject", &reject, sizeof(reject));
	emit("in_use", &in_use, sizeof(in_use));
	emit("zeroes", &zeroes, sizeof(zeroes));
	emit("bye", &bye, sizeof(bye));

	/* version 1 */
	hello.version = 1;
	hello.flags = 0;
	welcome.version = 1;
	reject.version = 1;
	client.hello[4] = 1;
	client.hello[5] = KRPING_HELLO_PROOF;
	target.hello[4] = 1;
	target.hello[5] = KRPING_HELLO_PROOF;
	memcpy(client.label, "krping client 1", sizeof(client.label));
	memcpy(target.label, "krping target 1", sizeof(target.label));
	memcpy(target.welcome, &welcome, KRPING_WELCOME_V1_LEN);
	emit("hello1", &hello, sizeof(hello));
	emit("welcome1", &welcome, KRPING_WELCOME_V1_LEN);
	emit("reject1", &reject, sizeof(reject));
	emit("client1", &client, offsetof(struct krping_transcript, welcome) + KRPING_WELCOME_V1_LEN);
	emit("target1", &target, offsetof(struct krping_transcript, welcome) + KRPING_WELCOME_V1_LEN);
	emit("write", &write, sizeof(write));
	emit("read", &read, sizeof(read));
	emit("digest", &digest, sizeof(digest));
	emit("rsp", &rsp, sizeof(rsp));
	emit("test", &test, sizeof(test));
	emit("ping", &ping, sizeof(ping));
	emit("tos", &tos, sizeof(tos));
	emit("verbs", &verbs, sizeof(verbs));
	emit("atomics", &atomics, sizeof(atomics));
	emit("queue", &queue, sizeof(queue));
	emit("credit", &credit, sizeof(credit));
	emit("report", &report, sizeof(report));
	emit("device", &device, sizeof(device));
	printf("limits %08x%08x%08x%08x%08x%08x%08x%08x\n", KRPING_VERBS_QPS_MAX, KRPING_VERBS_DEPTH_MAX, KRPING_VERBS_SLOTS_MAX, KRPING_VERBS_CHECK_DEPTH,
	       KRPING_VERBS_CONTROL_DEPTH(1024), KRPING_VERBS_SLOT(65), KRPING_VERBS_BATCH(33),
	       KRPING_VERBS_QUIET_MS << 16 | KRPING_VERBS_STALL_MS);
	return 0;
}
