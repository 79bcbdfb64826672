// SPDX-License-Identifier: Apache-2.0
/* Posts to queue pairs of a fake device that fail in each way that a library may. */
#include <errno.h>
#include <stdio.h>

#include "../shim.h"

#define POSTED	3

/* As rxe does when the device is gone. */
static int fail_unnamed(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	*bad = NULL;
	return EIO;
}

static int fail_untouched(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return EIO;
}

static int fail_second(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	*bad = wr->next;
	return ENOMEM;
}

static int fail_first(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	*bad = wr;
	return EINVAL;
}

static int succeed(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	return 0;
}

static const struct {
	const char *name;
	int (*post)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
	int error, posted;
} cases[] = {
	{ "unnamed", fail_unnamed, EIO, POSTED },
	{ "untouched", fail_untouched, EIO, POSTED },
	{ "second", fail_second, ENOMEM, 1 },
	{ "first", fail_first, EINVAL, 0 },
	{ "success", succeed, 0, POSTED },
};

int main(void)
{
	struct ibv_context context = { 0 };
	struct ibv_qp qp = { .context = &context };
	struct shim_queue queue = { .qp = &qp };
	size_t i;
	int failed = 0;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int error;

		context.ops.post_send = cases[i].post;
		error = shim_post_send((uintptr_t)&queue, POSTED);
		if (error == cases[i].error && queue.posted == cases[i].posted)
			continue;
		printf("%s: error %d, %d posted; want %d, %d\n", cases[i].name, error, queue.posted,
		       cases[i].error, cases[i].posted);
		failed = 1;
	}
	return failed;
}
