// SPDX-License-Identifier: Apache-2.0
/* Turns of queue pairs of a fake device: what is posted where, in which order, and what wakes a turn. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "../pairs.h"

#define EXPECT(cond) do { \
	if (!(cond)) { \
		printf("line %d: not %s\n", __LINE__, #cond); \
		failed = 1; \
	} \
} while (0)

static int failed;

/* What was posted, as one letter a call and the index of the queue pair and the id of each request. */
static char journal[4096];
static int fail_at;	/* the post that fails, from 1; 0: none */
static int posts;

static void note(const char *what, int index, uint64_t id)
{
	sprintf(journal + strlen(journal), "%s%d:%d ", what, index, (int)id);
}

static struct ibv_qp qps[3];
static struct ibv_srq srq;

static int index_of(struct ibv_qp *qp)
{
	return qp - qps;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	if (++posts == fail_at)
		return ENOMEM;
	strcat(journal, "S ");
	for (; wr; wr = wr->next) {
		note("", index_of(qp), wr->wr_id);
		if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP)
			EXPECT(wr->wr.atomic.compare_add == 7 && wr->wr.atomic.swap == 8 &&
			       wr->wr.atomic.remote_addr == 9 && wr->wr.atomic.rkey == 10);
		if (qp == &qps[2])
			EXPECT(wr->wr.ud.ah && wr->wr.ud.remote_qpn == 11 &&
			       wr->wr.ud.remote_qkey == 12);
		if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
			EXPECT(wr->imm_data == __builtin_bswap32(0x01020304) &&
			       wr->wr.rdma.remote_addr == 9 && wr->wr.rdma.rkey == 10);
		EXPECT(wr->num_sge == 1 && wr->sg_list->length == 5);
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	if (++posts == fail_at)
		return ENOMEM;
	strcat(journal, "R ");
	for (; wr; wr = wr->next)
		note("", index_of(qp), wr->wr_id);
	return 0;
}

static int post_srq_recv(struct ibv_srq *s, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	strcat(journal, "Q ");
	for (; wr; wr = wr->next)
		note("", 0, wr->wr_id);
	return 0;
}

static struct ibv_cq cqs[2];
static int due_of[2];	/* completions of each */
static int armed;

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int *due = &due_of[cq - cqs];
	int i;

	for (i = 0; i < n && *due; i++, (*due)--)
		wc[i] = (struct ibv_wc){
			.wr_id = 1000 * (cq - cqs) + 100 + *due, .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = 6,
			.imm_data = __builtin_bswap32(0x01020304), .wc_flags = *due == 1 ? 0 : IBV_WC_WITH_IMM,
			.qp_num = 77,
		};
	return i;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	armed++;
	return 0;
}

static struct shim_pairs pairs;

static int turn(int works, int receives, int64_t wait_ns, int busy)
{
	journal[0] = 0;
	posts = 0;
	return shim_turn((uintptr_t)&pairs, works, receives, wait_ns, busy);
}

static void *wake_later(void *unused)
{
	usleep(20000);
	shim_wake(&pairs);
	return NULL;
}

static int64_t ms_of(int64_t wait_ns, int busy)
{
	struct timespec a, b;

	clock_gettime(CLOCK_MONOTONIC, &a);
	EXPECT(turn(0, 0, wait_ns, busy) == 0);
	clock_gettime(CLOCK_MONOTONIC, &b);
	return (b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000;
}

#define LONG	20000000000ll	/* 20 s in ns */

static void test_waits(void)
{
	pthread_t thread;
	int busy;

	for (busy = 0; busy < 2; busy++) {
		EXPECT(ms_of(30000000, busy) >= 29);
		shim_wake(&pairs);
		shim_wake(&pairs);
		EXPECT(ms_of(LONG, busy) < 10000);	/* woken before */
		EXPECT(ms_of(30000000, busy) >= 29);	/* once */
		pthread_create(&thread, NULL, wake_later, NULL);
		EXPECT(ms_of(LONG, busy) < 10000);
		pthread_join(thread, NULL);
		EXPECT(ms_of(30000000, busy) >= 29);
	}
	EXPECT(armed > 0);
}

static void test_posts(void)
{
	int i;

	for (i = 0; i < 4; i++) {
		pairs.work[i] = (struct shim_work){ .id = i, .queue = i / 2, .opcode = IBV_WR_SEND, .length = 5 };
		pairs.receive[i] = (struct shim_receive){ .id = i, .queue = i % 2 };
	}
	due_of[0] = 3;
	EXPECT(turn(4, 4, LONG, 0) == 3);
	EXPECT(!strcmp(journal, "R 0:0 R 1:1 R 0:2 R 1:3 S 0:0 0:1 S 1:2 1:3 "));
	EXPECT(pairs.done[0].id == 103 && pairs.done[0].imm == 0x01020304 && pairs.done[0].length == 6 &&
	       pairs.done[0].qpn == 77 && pairs.done[0].opcode == IBV_WC_RECV_RDMA_WITH_IMM);
	EXPECT(pairs.done[2].imm == 0);

	pairs.work[0] = (struct shim_work){
		.opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .compare_add = 7, .swap = 8, .remote_addr = 9, .rkey = 10, .length = 5,
	};
	pairs.work[1] = (struct shim_work){
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm = 0x01020304, .remote_addr = 9, .rkey = 10, .length = 5,
	};
	pairs.work[2] = (struct shim_work){ .opcode = IBV_WR_SEND, .queue = 2, .length = 5 };
	EXPECT(turn(3, 0, 0, 0) == 0);
	EXPECT(!strcmp(journal, "S 0:0 0:0 S 2:0 "));

	pairs.srq = &srq;
	EXPECT(turn(0, 4, 0, 0) == 0);
	EXPECT(!strcmp(journal, "Q 0:0 0:1 0:2 0:3 "));
	pairs.srq = NULL;
}

/* A turn that is not full has polled all completion queues until they were empty. */
static void test_all_queues(void)
{
	int first;

	due_of[0] = 2;
	due_of[1] = 3;
	EXPECT(turn(0, 0, LONG, 0) == 5);
	EXPECT(pairs.done[0].id / 1000 != pairs.done[4].id / 1000);
	due_of[0] = due_of[1] = SHIM_TURN + 5;
	EXPECT(turn(0, 0, LONG, 0) == SHIM_TURN);
	first = pairs.done[0].id / 1000;
	EXPECT(turn(0, 0, LONG, 0) == SHIM_TURN);
	EXPECT((int)pairs.done[0].id / 1000 == !first);
	EXPECT(turn(0, 0, LONG, 0) == 10);
	EXPECT(!due_of[0] && !due_of[1]);
}

static void test_errors(void)
{
	fail_at = 2;
	EXPECT(turn(0, 2, 0, 0) == -ENOMEM);
	fail_at = 0;
	pairs.work[0].queue = 3;
	EXPECT(turn(1, 0, 0, 0) == -EINVAL);
	pairs.receive[0].queue = 3;
	EXPECT(turn(0, 1, 0, 0) == -EINVAL);
	EXPECT(turn(SHIM_TURN + 1, 0, 0, 0) == -EINVAL);
	EXPECT(turn(0, -1, 0, 0) == -EINVAL);
}

int main(void)
{
	struct ibv_context context = {
		.ops = {
			.post_send = post_send, .post_recv = post_recv, .post_srq_recv = post_srq_recv,
			.poll_cq = poll_cq, .req_notify_cq = req_notify_cq,
		},
	};
	struct ibv_comp_channel channel = { .fd = eventfd(0, EFD_NONBLOCK) };
	struct ibv_ah ah;
	struct shim_pair pair[3] = { 0 };
	uint8_t byte = 5;
	int i;

	for (i = 0; i < 3; i++) {
		qps[i].context = &context;
		pair[i].qp = &qps[i];
	}
	srq.context = &context;
	pair[2].ah = &ah;
	pair[2].remote_qpn = 11;
	pair[2].remote_qkey = 12;
	pairs.pair = pair;
	pairs.nr = 3;
	pairs.nr_cqs = 2;
	for (i = 0; i < 2; i++) {
		cqs[i].context = &context;
		pairs.cqs[i] = (struct shim_cq){ .cq = &cqs[i], .channel = &channel };
	}
	pairs.wake_fd = eventfd(0, EFD_NONBLOCK);
	test_posts();
	test_all_queues();
	test_errors();
	test_waits();
	EXPECT(shim_watch((uintptr_t)&byte, 4, 0) == 5);
	EXPECT(shim_watch((uintptr_t)&byte, 5, 1000000) == -ETIMEDOUT);
	return failed;
}
