// SPDX-License-Identifier: Apache-2.0
/* Takes completions from the queue of a fake device, which fails at each step. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "../shim.h"

static int polls, polled[2];	/* what each poll returns */
static int arm_error;

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	wc->wr_id = 7;
	return polled[polls++];
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return arm_error;
}

static const struct {
	const char *name;
	int polled[2];
	int arm_error;
	int armed;	/* the queue is armed already */
	int broken;	/* so that no event can be taken from its channel */
	int want;
} cases[] = {
	{ "a completion", .polled = { 1 }, .want = 1 },
	{ "none", .want = -EAGAIN },
	{ "none, and no event", .armed = 1, .want = -EAGAIN },
	{ "a completion while it is armed", .polled = { 0, 1 }, .want = 1 },
	{ "poll fails", .polled = { -1 }, .want = -EIO },
	{ "arm fails", .arm_error = ENOMEM, .want = -ENOMEM },
	{ "the event cannot be read", .armed = 1, .broken = 1, .want = -EBADF },
	{ "poll fails when it is armed", .polled = { 0, -1 }, .want = -EIO },
};

int main(void)
{
	struct ibv_context context = { .ops = { .poll_cq = poll_cq, .req_notify_cq = req_notify_cq } };
	struct ibv_cq cq = { .context = &context };
	struct ibv_comp_channel channel = { .context = &context };
	int files[2], failed = 0;
	size_t i;

	if (pipe2(files, O_NONBLOCK))
		return 1;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct shim_queue queue = {
			.completions = { .channel = &channel, .cq = &cq, .armed = cases[i].armed },
		};
		int got;

		polls = 0;
		polled[0] = cases[i].polled[0];
		polled[1] = cases[i].polled[1];
		arm_error = cases[i].arm_error;
		channel.fd = cases[i].broken ? -1 : files[0];
		got = shim_next((uintptr_t)&queue);
		if (got == cases[i].want && (got < 1 || queue.wc[0].wr_id == 7))
			continue;
		printf("%s: %d, wr_id %llu; want %d\n", cases[i].name, got,
		       (unsigned long long)queue.wc[0].wr_id, cases[i].want);
		failed = 1;
	}

	/* Queues are spread over the completion vectors; a device may not tell how many it has. */
	for (i = 0; i < 12; i++) {
		int next, vectors = (int[]){ 3, 1, 0, -1 }[i % 4];

		context.num_comp_vectors = vectors;
		next = shim_next_vector(&context);
		if (next == (vectors == 3 ? (int)i % 3 : 0))
			continue;
		printf("queue %zu of a device with %d vectors has vector %d\n", i, vectors, next);
		failed = 1;
	}
	return failed;
}
