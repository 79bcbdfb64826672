// SPDX-License-Identifier: Apache-2.0
/* Executes messages from the queue of a fake device. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "../crc32c.h"
#include "../executor.h"

#define SIZE	8192
#define SENDS	(4096 + 64 * SIZE)
#define RECEIVE	1

static struct ibv_wc arriving[512];
static int arrived, polled;
static int sends, signalled, receives, fail_send, fail_receive;
static int receives_at_send, receives_at_1;	/* receives before the last SEND, and the last response to tag 1 */
static struct ibv_send_wr last[2];	/* work requests */
static struct ibv_sge lasts[2];
static struct shim_executor x;
static _Alignas(4096) uint8_t buffers[4096 + 128 * SIZE];	/* of receives, and from SENDS on of SENDs */
static uint8_t memory[2 << 20];
static uint8_t lent[SHIM_CLASSES][4 << 20], fetched[2048];
static struct ibv_wc held[512];		/* completions that do not arrive yet */
static int holds, nr_held;
static struct ibv_device device = { .transport_type = IBV_TRANSPORT_IB };

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int i;

	for (i = 0; i < n && polled < arrived; i++)
		wc[i] = arriving[polled++];
	return i;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	uint32_t i;

	if (fail_send)
		return fail_send;
	for (; wr; wr = wr->next) {
		last[0] = last[1];
		last[1] = *wr;
		lasts[0] = lasts[1];
		lasts[1] = *wr->sg_list;
		if (wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_INV) {
			sends++;
			receives_at_send = receives;
			for (i = 0; i < wr->sg_list->length; i += 16)
				if (((uint8_t *)wr->sg_list->addr)[i + 1] == 1)
					receives_at_1 = receives;
			signalled += (wr->send_flags & IBV_SEND_SIGNALED) != 0;
		}
		if (wr->opcode == IBV_WR_RDMA_READ)
			memset((void *)wr->sg_list->addr, 'f', wr->sg_list->length);
		if (!(wr->send_flags & IBV_SEND_SIGNALED))
			continue;
		if (holds)
			held[nr_held++] = (struct ibv_wc){ .wr_id = wr->wr_id };
		else
			arriving[arrived++] = (struct ibv_wc){ .wr_id = wr->wr_id };
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	if (fail_receive)
		return fail_receive;
	receives++;
	return 0;
}

static uint8_t *message(int slot)
{
	return x.receives + slot * x.stride;
}

/* A message with a READ of a tag arrives, and perhaps a FLUSH behind it. */
static void arrives(uint16_t tag, int with_flush)
{
	static const uint8_t read[32] = { 1, 2, 0, 0, 0, 0, 2, 0 }, flush[32] = { 3, 0, 0, 200 };
	int slot = tag % 64;
	uint8_t *msg = message(slot);

	memcpy(msg, read, 32);
	msg[3] = tag;
	memcpy(msg + 32, flush, 32);
	arriving[arrived++] = (struct ibv_wc){
		.wr_id = (uint64_t)RECEIVE << 32 | slot,
		.opcode = IBV_WC_RECV,
		.byte_len = with_flush ? 64 : 32,
	};
}

/* A READ or WRITE at byte 512 of data in the client's memory, with a key, arrives. */
static void arrives_long(uint8_t op, uint16_t tag, uint32_t length, uint32_t crc)
{
	const uint8_t command[32] = {
		op, 0, 0, tag, length >> 24, length >> 16, length >> 8, length, 0, 0, 0, 0, 0, 0, 2, 0,
		0, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 0x77, crc >> 24, crc >> 16, crc >> 8, crc,
	};

	memcpy(message(tag), command, 32);
	arriving[arrived++] = (struct ibv_wc){
		.wr_id = (uint64_t)RECEIVE << 32 | tag, .opcode = IBV_WC_RECV, .byte_len = 32,
	};
}

static void arrives_remote(uint8_t op, uint16_t tag, uint32_t crc)
{
	arrives_long(op, tag, 2048, crc);
}

/* A message with inline WRITEs of tags 1 and up, at byte 1024, arrives: 512 bytes of each letter, with FUA if it is a capital. */
static void arrives_writes(const char *letters)
{
	uint8_t *at = message(1);
	uint32_t crc;
	int i;

	for (i = 0; letters[i]; i++, at += 32 + 512) {
		memset(at + 32, letters[i], 512);
		crc = shim_crc32c(at + 32, 512);
		memcpy(at, (uint8_t[32]){
			SHIM_OP_WRITE, letters[i] < 'a' ? 3 : 2, 0, i + 1, 0, 0, 2, 0, [14] = 4,
			[28] = crc >> 24, crc >> 16, crc >> 8, crc,
		}, 32);
	}
	arriving[arrived++] = (struct ibv_wc){
		.wr_id = (uint64_t)RECEIVE << 32 | 1, .opcode = IBV_WC_RECV, .byte_len = at - message(1),
	};
}

/* The first so many of those that were held arrive. */
static void release(int n)
{
	memcpy(arriving + arrived, held, n * sizeof(*held));
	arrived += n;
	nr_held -= n;
	memmove(held, held + n, nr_held * sizeof(*held));
}

static void lend(int class)
{
	x.classes[class].is_wanted = x.wants = 0;
	shim_executor_lend(&x, class, lent[class], 5 + class);
}

/* Something for Go, so that the call returns. */
static void arrives_other(void)
{
	if (polled == arrived)
		polled = arrived = 0;
	arriving[arrived++] = (struct ibv_wc){ .wr_id = 77ull << 32 };
}

#define CHECK(ok)	do { if (!(ok)) { printf("line %d: %s\n", __LINE__, #ok); failed = 1; } } while (0)

/* Of any length, and at any address, the checksum is that of one bit after the other. */
static int checksums(void)
{
	int failed = 0, at, length, bit;
	uint32_t crc;

	for (length = 0; length < 20000; length = length * 9 / 8 + 1) {
		const uint8_t *data = lent[0] + length % 8;

		for (at = 0; at < length; at++)
			lent[0][length % 8 + at] = at * 31 + (at >> 8) * 7 + length;
		for (crc = ~0u, at = 0; at < length; at++)
			for (crc ^= data[at], bit = 0; bit < 8; bit++)
				crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
		CHECK(shim_crc32c(data, length) == ~crc && shim_crc32c_by_tables(data, length) == ~crc);
	}
	return failed;
}

/* Commands wait until there is a slot or a buffer. */
static int waiting_commands(struct shim_queue *queue, uint32_t crc)
{
	struct shim_counts counts = { 0 };
	uint64_t size = sizeof(memory);
	uint32_t stable = 1;
	int failed = 0, i;

	x.volume.depth = 64;
	shim_executor_confirm(&x);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && x.head == x.tail);

	/* READs wait for a slot, and are answered in order. */
	holds = 1;
	for (i = 0; i < SHIM_SLOTS + 2; i++)
		arrives_remote(SHIM_OP_READ, i, 0);
	arrives_other();
	sends = 0;
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
	CHECK(sends == SHIM_SLOTS && x.nr_unanswered == 2 && x.volume.in_flight == 2 && !x.nr_given && nr_held == SHIM_SLOTS / 4);
	release(1);	/* of four SENDs */
	arrives_remote(SHIM_OP_READ, 30, 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
	CHECK(sends == SHIM_SLOTS + 3 && x.nr_unanswered == 0 && x.volume.in_flight == 0 && counts.reads == SHIM_SLOTS + 3);
	CHECK(((uint8_t *)lasts[1].addr)[1] == 30);
	release(nr_held);
	shim_executor_confirm(&x);
	release(nr_held);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && x.head == x.tail && !x.classes[2].used);

	/* WRITEs wait for buffers, also those whose data came with few SENDs that are not signalled. */
	arrives_remote(SHIM_OP_READ, 60, 0);
	for (i = 0; i < 33; i++)
		arrives_remote(SHIM_OP_WRITE, i, crc);
	arrives_other();
	sends = 0;
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
	CHECK(sends == 1 && x.classes[2].nr_waiting == 2 && x.volume.in_flight == 33 && x.classes[2].used == 0xffffffff && counts.writes == 0);
	CHECK(nr_held == 32 && held[31].wr_id == ((uint64_t)SHIM_SIGNALLED << 32 | (x.head - 1)));
	CHECK(!shim_executor_is_idle(&x, 2) && shim_executor_is_idle(&x, 3));
	release(1);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
	CHECK(x.classes[2].nr_waiting == 1 && counts.writes == 1 && last[1].opcode == IBV_WR_RDMA_READ && nr_held == 32);
	/* They are begun in order. While one waits, each SEND that frees a buffer is signalled. */
	release(1);
	arrives_remote(SHIM_OP_READ, 60, 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && last[1].opcode == IBV_WR_RDMA_READ);
	x.quiet = 0;
	arrives_remote(SHIM_OP_READ, 61, 0);
	release(1);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && x.classes[2].nr_waiting == 1 && !x.quiet_data);
	CHECK(last[0].opcode == IBV_WR_RDMA_WRITE && last[1].send_flags & IBV_SEND_SIGNALED);
	holds = 0;
	release(nr_held);
	arrives_other();
	while (x.volume.in_flight) {
		CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
		arrives_other();
	}
	CHECK(counts.writes == 33 && !x.nr_given);
	CHECK(shim_executor_confirm(&x) == 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) >= 1 && !x.classes[2].used && x.head == x.tail);

	/* A volume that has shrunk: Go answers. */
	x.classes[2].used = 0xffffffff;
	arrives_remote(SHIM_OP_READ, 1, 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && x.classes[2].nr_waiting == 1);
	x.classes[2].used = 0;
	size = 1024;
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 0 && x.nr_given == 1 && x.given[0].command[3] == 1);
	size = sizeof(memory);
	shim_clear_tag(&x.volume, 1);

	/* 1 MiB has buffers of its own, and each SEND is signalled. */
	x.volume.max_data = 1 << 20;
	arrives_long(SHIM_OP_READ, 1, 1 << 20, 0);
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && x.classes[4].is_wanted && !x.classes[2].used);
	shim_clear_tag(&x.volume, 1);
	lend(4);
	arrives_long(SHIM_OP_READ, 1, 1 << 20, 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) >= 1 && lasts[0].length == (1 << 20) && lasts[0].lkey == 9);
	CHECK(last[1].send_flags & IBV_SEND_SIGNALED && !memcmp(lent[4], memory + 512, 1 << 20));
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) >= 1 && !x.classes[4].used);
	arrives_long(SHIM_OP_READ, 1, (1 << 20) + 512, 0);
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && !x.wants);

	/* While small ones wait, a command does not wait for buffers that nobody has lent: it takes a larger one. */
	x.classes[2].used = 0xffffffff;
	x.classes[4].used = 0xf;
	arrives_remote(SHIM_OP_READ, 1, 0);
	arrives_long(SHIM_OP_READ, 2, 128 << 10, 0);
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
	CHECK(x.classes[2].nr_waiting == 1 && x.classes[3].is_wanted && !x.classes[3].nr_waiting);
	shim_clear_tag(&x.volume, 2);
	x.classes[3].is_wanted = x.wants = 0;
	x.classes[4].used = 7;
	arrives_long(SHIM_OP_READ, 2, 128 << 10, 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) >= 1 && lasts[0].length == 128 << 10 && lasts[0].lkey == 9);
	CHECK(x.classes[2].nr_waiting == 1 && last[1].send_flags & IBV_SEND_SIGNALED && !x.wants);
	/* Its buffer is free then, and the small one takes it. */
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) >= 1 && lasts[0].length == 2048 && lasts[0].lkey == 9);
	CHECK(x.classes[2].nr_waiting == 0 && x.classes[4].used == 15 && last[1].send_flags & IBV_SEND_SIGNALED);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) >= 1 && x.classes[4].used == 7 && !x.volume.in_flight);
	x.classes[2].used = 0;

	/* What waits for large buffers goes first, and what is smaller leaves them. */
	x.classes[4].used = 0xf;
	arrives_long(SHIM_OP_READ, 1, 1 << 20, 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && x.classes[4].nr_waiting == 1);
	x.classes[4].used = 7;
	x.classes[2].used = 0xffffffff;
	arrives_remote(SHIM_OP_READ, 2, 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) >= 1);
	CHECK(lasts[0].length == (1 << 20) && x.classes[2].nr_waiting == 1 && x.classes[4].nr_waiting == 0);
	for (x.classes[2].used = 0; x.classes[2].nr_waiting || x.head != x.tail;) {
		shim_executor_confirm(&x);
		arrives_other();
		CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) >= 1);
	}
	CHECK(x.volume.in_flight == 0 && !x.nr_given && x.classes[4].used == 7);
	x.classes[4].used = 0;

	/* Over iWARP a SEND that invalidates a key has no inline data. */
	device.transport_type = IBV_TRANSPORT_IWARP;
	arrives_remote(SHIM_OP_READ, 1, 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
	CHECK(last[1].opcode == IBV_WR_SEND_WITH_INV && !(last[1].send_flags & IBV_SEND_INLINE));
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && x.posted == 0);

	/* Each SEND is signalled there, and data in front of one. */
	holds = 1;
	arrives_remote(SHIM_OP_READ, 1, 0);
	arrives(2, 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
	CHECK(nr_held == 3 && x.posted == 3 && held[0].wr_id >> 32 == SHIM_WRITTEN && held[1].wr_id >> 32 == SHIM_SIGNALLED);
	holds = 0;
	release(1);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && x.posted == 2 && x.classes[2].used == 1);
	release(2);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && x.posted == 0 && !x.classes[2].used);
	CHECK(x.head == x.tail && !x.volume.in_flight);
	device.transport_type = IBV_TRANSPORT_IB;
	x.volume.depth = 8;
	x.volume.max_data = SIZE;
	return failed;
}

/* The same of a volume in a file, by io_uring. */
static int in_file(struct shim_queue *queue)
{
	struct shim_counts counts = { 0 };
	uint64_t size = sizeof(memory);
	uint32_t stable = 1;
	FILE *f = tmpfile();
	uint8_t read[2048];
	int failed = 0, before = sends, i;

	memset(memory, 'x', sizeof(memory));
	if (!f || write(fileno(f), memory, sizeof(memory)) != sizeof(memory))
		return 1;
	CHECK(shim_ring_open(&x.ring, fileno(f)) == 0);
	x.volume.memory = NULL;
	lend(0);
	lend(2);	/* once more: for the ring */

	/* Five READs share a response. */
	for (i = 0; i < 5; i++)
		arrives(i, 0);
	do {
		arrives_other();
		CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
		usleep(100);
	} while (x.storing);
	CHECK(counts.reads == 5 && sends > before && x.classes[0].used == 0 && x.volume.in_flight == 0 && !x.nr_given);
	CHECK(x.out.data == NULL && lasts[1].length % (16 + 512) == 0 && ((uint8_t *)lasts[1].addr)[16] == 'x');

	/* A large READ, and a large WRITE that is fetched first. */
	arrives_remote(SHIM_OP_READ, 1, 0);
	arrives_remote(SHIM_OP_WRITE, 2, shim_crc32c(fetched, 2048));
	for (i = 0; i < 100000 && counts.writes + counts.reads < 7; i++) {
		usleep(100);
		arrives_other();
		CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
	}
	CHECK(counts.writes == 1 && counts.reads == 6 && x.volume.in_flight == 0 && !x.storing && !x.nr_given);
	CHECK(pread(fileno(f), read, 2048, 512) == 2048 && !memcmp(read, fetched, 2048));

	/* An inline WRITE, from its message. */
	arrives_writes("d");
	for (i = 0; i < 100000 && counts.writes < 2; i++) {
		usleep(100);
		arrives_other();
		CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
	}
	CHECK(counts.writes == 2 && !x.nr_given && !x.nr_kept);
	CHECK(pread(fileno(f), read, 2048, 512) == 2048 && !memcmp(read, fetched, 512) && !memcmp(read + 512, message(1) + 32, 512));

	/* The file has lost its end: Go finds that out. */
	CHECK(ftruncate(fileno(f), 1000) == 0);
	arrives_remote(SHIM_OP_READ, 1, 0);
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 0 && x.nr_given == 1 && x.given[0].command[3] == 1);
	shim_clear_tag(&x.volume, 1);

	/* An inline READ leaves the largest buffers to others, and waits. */
	lend(3);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && !x.nr_given);
	x.classes[0].used = ~0ull;
	x.classes[2].used = 0xffffffff;
	arrives(1, 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && x.classes[0].nr_waiting == 1 && !x.classes[3].used);
	x.classes[0].used = x.classes[2].used = 0;
	CHECK(ftruncate(fileno(f), sizeof(memory)) == 0);
	for (i = 0; i < 100000 && counts.reads < 7; i++) {
		usleep(100);
		arrives_other();
		CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
	}
	CHECK(counts.reads == 7 && x.volume.in_flight == 0);

	/* Nobody waits for what has begun at the end. */
	arrives_remote(SHIM_OP_READ, 1, 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
	shim_executor_settle(&x);
	CHECK(x.storing == 0);
	shim_clear_tag(&x.volume, 1);
	shim_ring_close(x.ring);
	x.ring = NULL;
	x.volume.memory = memory;
	x.classes[2].used = 0;
	fclose(f);
	return failed;
}

/* Executes until nothing is being written any more. */
static int finishes(struct shim_queue *queue, struct shim_counts *counts)
{
	uint64_t size = sizeof(memory);
	uint32_t stable = 0;
	int failed = 0, i;

	for (i = 0; i < 100000 && x.storing && !x.error && !x.nr_given; i++) {
		usleep(100);
		arrives_other();
		CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, counts) <= 1);
	}
	CHECK(i < 100000);
	return failed;
}

/*
 * The data of a message's first WRITE is written from there, to a pipe that is full at first. Its receive is posted
 * after that, and before the response.
 */
static int from_message(struct shim_queue *queue)
{
	/* Other data is copied, also that of a message of which Go gets something: it may post the receive at once. */
	static const struct {
		const char *letters, *written;
		int is_kept;
	} messages[] = { { "a", "x", 1 }, { "abc", "xbc", 1 }, { "aB", "a", 0 }, { "abC", "ab", 0 }, { "aBC", "a", 0 } };
	struct shim_counts counts = { 0 };
	uint64_t size = sizeof(memory);
	uint32_t stable = 0;
	int failed = 0, ends[2], before, i, n, left, at, is_kept;
	uint8_t data[4096] = { 0 }, letters[3];

	if (pipe(ends) || fcntl(ends[1], F_SETPIPE_SZ, sizeof(data)) < 0)
		return 1;
	CHECK(shim_ring_open(&x.ring, ends[1]) == 0);
	shim_ring_register(x.ring, SHIM_RECEIVES, x.receives, 64 * SIZE);
	lend(0);
	x.volume.memory = NULL;
	x.volume.writeback = 1;
	for (i = 0; i < 5; i++) {
		is_kept = messages[i].is_kept;
		n = strlen(messages[i].written);
		left = strlen(messages[i].letters) - n;
		before = receives;
		sends = receives_at_1 = 0;
		CHECK(write(ends[1], data, sizeof(data)) == sizeof(data));
		arrives_writes(messages[i].letters);
		arrives_other();
		CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 2 - is_kept);
		CHECK(is_kept || (queue->wc[0].byte_len == (left * 544 | SHIM_TAKEN) && message(1)[3] == n + 1));
		CHECK(x.storing == n && x.nr_kept == is_kept && receives == before && !sends && !x.nr_given);
		memset(message(1) + 32, 'x', 512);
		usleep(10000);
		arrives_other();
		CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && receives == before && !sends);
		CHECK(read(ends[0], data, sizeof(data)) == sizeof(data));
		failed |= finishes(queue, &counts);
		CHECK(receives == before + is_kept && receives_at_1 == receives && x.nr_kept == 0 && !x.nr_given);
		CHECK(read(ends[0], data, sizeof(data)) == n * 512);
		memcpy(letters, messages[i].written, n);
		for (at = 0; at < n; at++) {	/* in any order */
			uint8_t *letter = memchr(letters, data[at * 512], n);

			CHECK(letter && !memcmp(data + at * 512, data + at * 512 + 1, 511));
			if (letter)
				*letter = 0;
		}
		while (left)	/* Go's */
			shim_clear_tag(&x.volume, n + left--);
		CHECK(x.volume.in_flight == 0 && x.classes[0].used == 0);
	}

	/* Data that does not match its CRC is Go's. Copied is what is not aligned, or not the first. */
	arrives_writes("a");
	message(1)[32] = 'b';
	before = receives;
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 0 && x.nr_given == 1 && x.given[0].data[0] == 'b');
	CHECK(x.nr_kept == 0 && receives == before + 1 && !x.storing);
	shim_clear_tag(&x.volume, 1);
	x.receives -= 32;	/* the second is aligned */
	arrives_writes("ab");
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && x.nr_kept == 0 && receives == before + 2);
	x.receives += 32;
	failed |= finishes(queue, &counts);
	CHECK(read(ends[0], data, sizeof(data)) == 1024 && counts.writes == 10);

	/* At the end its memory is used until the write has ended. The receive is not posted then. */
	CHECK(write(ends[1], data, sizeof(data)) == sizeof(data));
	arrives_writes("a");
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1 && x.nr_kept == 1);
	CHECK(read(ends[0], data, sizeof(data)) == sizeof(data));
	shim_executor_settle(&x);
	CHECK(read(ends[0], data, sizeof(data)) == 512 && receives == before + 2 && x.nr_kept == 1 && x.storing == 0);
	x.kept[0] = x.nr_kept = x.classes[0].used = 0;
	shim_clear_tag(&x.volume, 1);
	shim_ring_close(x.ring);

	/* A write that fails is given to Go, which has the data when the receive is posted again. */
	CHECK(shim_ring_open(&x.ring, ends[0]) == 0);	/* that cannot be written to */
	before = receives;
	arrives_writes("e");
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) <= 1);
	failed |= finishes(queue, &counts);
	CHECK(x.nr_given == 1 && x.given[0].length == 512 && x.given[0].data == lent[0] && lent[0][511] == 'e');
	CHECK(receives == before + 1 && x.nr_kept == 0 && x.kept[0] == 0);
	shim_clear_tag(&x.volume, 1);

	/* After the queue pair was flushed, its receive is not posted. */
	before = receives;
	arrives_writes("a");
	arriving[arrived++] = (struct ibv_wc){ .wr_id = (uint64_t)RECEIVE << 32 | 1, .status = IBV_WC_WR_FLUSH_ERR };
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) == 1);
	failed |= finishes(queue, &counts);
	CHECK(receives == before && x.nr_kept == 1 && x.kept[0] == 0);
	x.is_flushed = x.nr_kept = x.nr_given = x.classes[0].used = 0;
	shim_clear_tag(&x.volume, 1);

	/* If its receive cannot be posted, it is never posted. */
	fail_receive = ENOMEM;
	arrives_writes("a");
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)queue, &size, &stable, &counts) <= 1);
	failed |= finishes(queue, &counts);
	CHECK(x.error == ENOMEM && x.nr_kept == 1);
	x.error = fail_receive = x.nr_kept = x.nr_given = x.classes[0].used = 0;
	shim_clear_tag(&x.volume, 1);
	shim_ring_close(x.ring);
	x.ring = NULL;
	x.volume.memory = memory;
	x.volume.writeback = 0;
	close(ends[0]);
	close(ends[1]);
	return failed;
}

static void *wake_later(void *queue)
{
	usleep(50000);
	shim_executor_wake(&x);
	return NULL;
}

int main(void)
{
	struct ibv_context context = { .device = &device, .ops = {
		.poll_cq = poll_cq, .req_notify_cq = req_notify_cq, .post_send = post_send, .post_recv = post_recv,
	} };
	struct ibv_cq cq = { .context = &context };
	struct ibv_comp_channel channel = { .context = &context };
	struct ibv_qp qp = { .context = &context };
	struct shim_queue queue = { .completions = { .channel = &channel, .cq = &cq }, .qp = &qp, .max_inline_data = 16 };
	struct shim_counts counts = { 0 };
	uint64_t size = sizeof(memory);
	uint32_t stable = 1;
	struct shim_command waiting[SHIM_CLASSES][64];
	pthread_t thread;
	int files[2], failed = 0, i, got;
	uint32_t crc;

	alarm(60);	/* a pipe of from_message() may block */
	if (pipe2(files, O_NONBLOCK))
		return 1;
	channel.fd = files[0];
	x.receives = buffers + 4096 - 32;
	x.stride = SIZE;
	x.sends = buffers + SENDS;
	x.receive_kind = RECEIVE;
	x.wake_fd = eventfd(0, 0);
	for (i = 0; i < SHIM_CLASSES; i++)
		x.classes[i].waiting = waiting[i];
	for (i = 0; i < SHIM_SLOTS; i++)
		x.slots[i] = i + 3;
	x.volume = (struct shim_volume){
		.memory = memory, .block_size = 512, .max_data = SIZE, .max_inline = 4096, .max_message = SIZE - 512, .depth = 8, .flags = 3,
	};

	/* It waits until it is woken, by another thread or before the call. */
	pthread_create(&thread, NULL, wake_later, &queue);
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 0);
	pthread_join(thread, NULL);
	shim_executor_wake(&x);
	shim_executor_wake(&x);
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 0);
	CHECK(!x.received && !x.error);

	/* Messages that come together share a response, which leaves when their buffers are posted again. */
	for (i = 0; i < 5; i++)
		arrives(i, 0);
	arrives_other();
	got = shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts);
	CHECK(got == 1 && queue.wc[0].wr_id == 77ull << 32);
	CHECK(sends == 1 && receives == 5 && receives_at_send == 5 && counts.reads == 5 && x.received);
	CHECK(lasts[1].length == 5 * (16 + 512) && !(last[1].send_flags & IBV_SEND_INLINE));

	/* What only Go executes is left, and its buffer is not posted. */
	arrives(9, 1);
	got = shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts);
	CHECK(got == 1 && queue.wc[0].byte_len == 64 && receives == 5 && sends == 1);

	/* An empty message, which is wrong, is left, and what comes after an untouched one in the same batch. */
	arrives_other();
	arrives(10, 0);
	arriving[arrived - 1].byte_len = 0;
	arrives(11, 0);
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 2 && queue.wc[1].byte_len == 0 && receives == 6);
	arrives(9, 1);
	arrives(12, 0);
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 2 && queue.wc[1].byte_len == 32 && receives == 6);

	/* One SEND in four is signalled; slots become free. */
	for (i = 0; i < 3 * SHIM_SLOTS; i++) {
		arrives(i, 0);
		arrives_other();
		CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 1);
		CHECK(x.posted <= 1);
	}
	CHECK(sends == 2 + 3 * SHIM_SLOTS && signalled == sends / 4);

	/* Without a completion, slots run out: Go answers then. */
	for (i = 0; i < 2 * SHIM_SLOTS && x.head - x.tail < SHIM_SLOTS; i++) {
		arrived = polled = 0;
		arrives(i, 0);
		arrives_other();
		CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 1);
		arrived = polled = 0;	/* lost */
	}
	CHECK(x.head - x.tail == SHIM_SLOTS && x.posted > 0);
	arrives(40, 0);
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 1 && queue.wc[0].byte_len == (32 | SHIM_TAKEN));
	shim_executor_completed(&x, (uint64_t)SHIM_SIGNALLED << 32 | (x.head - 1));
	CHECK(x.head == x.tail);
	shim_clear_tag(&x.volume, 40);
	x.posted = 0;

	/* A large READ needs a buffer, for which the call returns. */
	arrives_remote(SHIM_OP_READ, 1, 0);
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 1 && x.wants && x.classes[2].is_wanted && queue.wc[0].byte_len == (32 | SHIM_TAKEN));
	shim_clear_tag(&x.volume, 1);
	lend(2);

	/* With one, its data is in front of the response, which invalidates the key. */
	memset(memory + 512, 'm', 2048);
	arrives_remote(SHIM_OP_READ, 1, 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 1);
	CHECK(last[0].opcode == IBV_WR_RDMA_WRITE && last[0].wr.rdma.remote_addr == 0x1234 && last[0].wr.rdma.rkey == 0x77);
	CHECK(lasts[0].addr == (uintptr_t)lent[2] && lasts[0].length == 2048 && lasts[0].lkey == 7);
	CHECK(last[1].opcode == IBV_WR_SEND_WITH_INV && last[1].invalidate_rkey == 0x77 && lasts[1].length == 16);
	CHECK(last[1].send_flags & IBV_SEND_INLINE && !(last[0].send_flags & IBV_SEND_INLINE));
	CHECK(!memcmp(lent[2], memory + 512, 2048) && x.classes[2].used == 1 && x.volume.in_flight == 0);

	/* The buffer is free when the SEND has completed, which an idle connection asks for. */
	CHECK(shim_executor_confirm(&x) == 0 && shim_executor_confirm(&x) == 0);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 1 && x.classes[2].used == 0 && x.posted == 0);

	/* A large WRITE is fetched, and then written and answered. */
	memset(fetched, 'f', 2048);
	crc = shim_crc32c(fetched, 2048);
	x.volume.writes = 1;
	arrives_remote(SHIM_OP_WRITE, 2, crc);
	arrives_other();
	i = sends;
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 1);
	CHECK(last[1].opcode == IBV_WR_RDMA_READ && last[1].wr.rdma.remote_addr == 0x1234 && lasts[1].length == 2048);
	CHECK(sends == i && x.volume.in_flight == 1 && x.classes[2].used == 1 && memory[512] == 'm');
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 1);
	CHECK(sends == i + 1 && last[1].opcode == IBV_WR_SEND_WITH_INV && last[1].invalidate_rkey == 0x77);
	CHECK(!memcmp(memory + 512, fetched, 2048) && x.volume.in_flight == 0 && x.classes[2].used == 0 && counts.writes == 1);

	/* One with a wrong CRC is given to Go, unanswered. */
	arrives_remote(SHIM_OP_WRITE, 3, crc ^ 1);
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 0 && x.nr_given == 1 && x.given[0].command[3] == 3);
	CHECK(sends == i + 1 && x.volume.in_flight == 1 && counts.writes == 1 && x.given[0].length == 0);
	shim_clear_tag(&x.volume, 3);
	arrives_other();
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 1 && x.classes[2].used == 0 && !x.nr_given);

	failed |= checksums();
	failed |= waiting_commands(&queue, crc);
	failed |= in_file(&queue);
	failed |= from_message(&queue);

	/* Completions that say that something failed are Go's. */
	arrives(1, 0);
	arriving[arrived - 1].status = IBV_WC_WR_FLUSH_ERR;
	arriving[arrived++] = (struct ibv_wc){ .wr_id = (uint64_t)SHIM_QUIET << 32, .status = IBV_WC_WR_FLUSH_ERR };
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 2 && !x.error);

	/* A post that fails ends it: a message of which Go never hears is one that failed. */
	fail_receive = ENOMEM;
	arrives(2, 0);
	arrives(3, 0);
	got = shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts);
	CHECK(got == 2 && x.error == ENOMEM && queue.wc[0].status == IBV_WC_GENERAL_ERR && queue.wc[1].status == IBV_WC_SUCCESS);
	x.error = fail_receive = 0;
	fail_send = EINVAL;
	arrives(4, 0);
	CHECK(shim_execute(&x, (uintptr_t)&queue, &size, &stable, &counts) == 0 && x.error == EINVAL);
	return failed;
}
