// SPDX-License-Identifier: Apache-2.0
/* Exchanges over a fake device: what is sent, what ends them, and what is left to the caller. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "../exchange.h"

#define EXPECT(cond) do { \
	if (!(cond)) { \
		printf("line %d: not %s\n", __LINE__, #cond); \
		failed = 1; \
	} \
} while (0)

#define MESSAGE	(1ull << 56)
#define RECEIVE	(3ull << 56)

static int failed;

static struct ibv_wc queue[64];
static int queued;
static uint64_t sent, signalled, receives;	/* counts */
static uint64_t odd_at;		/* the answer to this message is not as expected, */
static struct ibv_wc odd;	/* but so */
static int odd_byte;		/* its last byte, or -1: right */
static int silent_at;		/* there is no answer to this message, -1: to all */
static uint8_t tx, rx;
static struct shim_pairs pairs;

static void complete(struct ibv_wc wc)
{
	queue[queued++] = wc;
}

/* The peer of a client answers at once. */
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct ibv_wc answer = {
		.wr_id = RECEIVE | 5, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = 8,
		.imm_data = wr->imm_data, .wc_flags = IBV_WC_WITH_IMM,
	};

	EXPECT(!wr->next && wr->wr_id == (MESSAGE | (sent + 1)) && tx == (uint8_t)sent);
	EXPECT(wr->imm_data == htobe32(sent));
	rx = odd_byte >= 0 && sent == odd_at ? odd_byte : (int)(uint8_t)sent;
	if (odd.byte_len && sent == odd_at)
		complete(odd);
	else if ((int)sent != silent_at)
		complete(answer);
	if (wr->send_flags & IBV_SEND_SIGNALED) {
		complete((struct ibv_wc){ .wr_id = wr->wr_id, .opcode = IBV_WC_RDMA_WRITE });
		signalled++;
	}
	sent++;
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	EXPECT(wr->wr_id == (RECEIVE | 5) && wr->sg_list->length == 64 && !wr->next);
	receives++;
	return 0;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int got = queued;

	memcpy(wc, queue, got * sizeof(*wc));
	queued = 0;
	return got;
}

static struct shim_exchange fresh(uint64_t end)
{
	sent = signalled = receives = 0;
	queued = 0;
	odd_at = -1;
	odd = (struct ibv_wc){};
	odd_byte = -1;
	silent_at = -2;
	rx = 0xff;
	return (struct shim_exchange){
		.work = { .id = MESSAGE | 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM },
		.receive = { .length = 64 },
		.end = end,
		.tx_last = (uintptr_t)&tx,
		.limit_ns = 20000000000,
		.arrival = SHIM_RECEIVED,
		.opcode = IBV_WC_RECV_RDMA_WITH_IMM,
		.length = 8,
		.signal = 8,
		.busy = 1,
	};
}

static int run(struct shim_exchange *e)
{
	return shim_exchange((uintptr_t)&pairs, e);
}

static void test_client(void)
{
	struct shim_exchange e = fresh(4500);

	EXPECT(run(&e) == 0 && e.exchanged == SHIM_EXCHANGES && !e.pending && e.number == 4096);
	EXPECT(sent == 4096 && signalled == 512 && receives == 4096 && e.polled == 4096 + 512);
	EXPECT(run(&e) == 0 && e.exchanged == 404 && e.number == 4500 && e.work.imm == 4500);
	EXPECT(sent == 4500 && signalled == 512 + 51);	/* the last one, too */
	EXPECT(run(&e) == 0 && e.exchanged == 0 && sent == 4500);
}

/* What the caller has to look at: the completion, and that a message waits for its answer. */
static void test_unexpected(void)
{
	const struct ibv_wc odds[] = {
		{ .wr_id = RECEIVE | 5, .opcode = IBV_WC_RECV, .byte_len = 8 },
		{ .wr_id = RECEIVE | 5, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = 9,
		  .imm_data = htobe32(20), .wc_flags = IBV_WC_WITH_IMM },
		{ .wr_id = RECEIVE | 5, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = 8,
		  .imm_data = htobe32(19), .wc_flags = IBV_WC_WITH_IMM },
		{ .wr_id = RECEIVE | 5, .status = IBV_WC_WR_FLUSH_ERR, .byte_len = 1 },
	};
	unsigned int i;

	for (i = 0; i < sizeof(odds) / sizeof(odds[0]); i++) {
		struct shim_exchange e = fresh(300);

		odd_at = 20;
		odd = odds[i];
		EXPECT(run(&e) == 1 && e.exchanged == 20 && e.pending && e.number == 20);
		EXPECT(pairs.done[0].status == odd.status && pairs.done[0].length == odd.byte_len);
		EXPECT(receives == 20);
	}
}

static void test_second_arrival(void)
{
	struct shim_exchange e = fresh(300);

	complete((struct ibv_wc){
		.wr_id = RECEIVE | 5, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = 8,
		.imm_data = htobe32(0), .wc_flags = IBV_WC_WITH_IMM,
	});
	EXPECT(run(&e) == 1 && e.exchanged == 1 && !e.pending && receives == 1);
}

static void test_last_byte(void)
{
	struct shim_exchange e = fresh(300);

	e.rx_last = (uintptr_t)&rx;
	odd_at = 30;
	odd_byte = 29;
	EXPECT(run(&e) == 1 && e.exchanged == 30 && e.pending);
}

static void test_silence(void)
{
	struct shim_exchange e = fresh(300);

	silent_at = 3;
	EXPECT(run(&e) == 0 && e.exchanged == 3 && e.pending && e.pending_ns >= 9000000);
	e = fresh(5000);
	shim_wake(&pairs);
	EXPECT(run(&e) == 0 && sent == 0);
	EXPECT(run(&e) == 0 && e.exchanged == SHIM_EXCHANGES);	/* once */
	e = fresh(300);
	e.limit_ns = 0;
	EXPECT(run(&e) == 0 && sent == 0);
}

static void test_written(void)
{
	struct shim_exchange e = fresh(300);

	e.arrival = SHIM_WRITTEN;
	e.rx_last = (uintptr_t)&rx;
	silent_at = -1;
	EXPECT(run(&e) == 1 && e.exchanged == 0);	/* a receive, where there should be none */
}

static void test_fetched(void)
{
	struct shim_exchange e = fresh(10);

	e.arrival = SHIM_FETCHED;
	e.signal = 1;
	e.work.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	e.work.swap = 1;
	for (silent_at = 0; silent_at < 10; silent_at++) {
		e.end = silent_at + 1;
		EXPECT(run(&e) == 0 && e.exchanged == 1);
	}
	EXPECT(e.work.compare_add == 10 && e.work.swap == 11 && sent == 10);
}

static void test_server(void)
{
	struct shim_exchange e = fresh(300);

	e.server = 1;
	EXPECT(run(&e) == 0 && sent == 0 && !e.pending);	/* nobody asks */
	complete((struct ibv_wc){
		.wr_id = RECEIVE | 5, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = 8,
		.imm_data = htobe32(0), .wc_flags = IBV_WC_WITH_IMM,
	});
	silent_at = 40;	/* each answer brings the next message, which has the number of the answer: wrong */
	EXPECT(run(&e) == 1 && e.exchanged == 1 && sent == 1 && e.number == 1 && receives == 1);
}

int main(void)
{
	struct ibv_context context = { .ops = { .post_send = post_send, .post_recv = post_recv, .poll_cq = poll_cq } };
	struct ibv_qp qp = { .context = &context };
	struct ibv_cq cq = { .context = &context };
	struct shim_pair pair = { .qp = &qp };

	pairs = (struct shim_pairs){ .pair = &pair, .nr = 1, .nr_cqs = 1, .wake_fd = eventfd(0, EFD_NONBLOCK) };
	pairs.cqs[0].cq = &cq;
	test_client();
	test_unexpected();
	test_second_arrival();
	test_last_byte();
	test_silence();
	test_written();
	test_fetched();
	test_server();
	return failed;
}
