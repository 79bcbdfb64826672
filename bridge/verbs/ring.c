// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdlib.h>
#include <unistd.h>

#include "ring.h"

#define MAX_WORKERS	64

struct shim_ring {
	struct io_uring uring;
	int fd;
	int is_buffered;	/* by the page cache */
	int has_areas;	/* that memory can be registered in */
	int is_registered[SHIM_RING_AREAS];
};

void shim_ring_first_use(void)
{
	struct io_uring uring;

	if (!io_uring_queue_init(1, &uring, 0))
		io_uring_queue_exit(&uring);	/* the thread's workers remain */
}

int shim_ring_open(struct shim_ring **ring, int fd)
{
	const struct iovec none[SHIM_RING_AREAS] = { 0 };
	struct shim_ring *r = calloc(1, sizeof(*r));
	unsigned int workers[2] = { MAX_WORKERS };
	int error;

	if (!r)
		return ENOMEM;
	error = -io_uring_queue_init(SHIM_RING_ENTRIES, &r->uring, 0);
	if (error) {
		free(r);
		return error;
	}
	r->fd = fd;
	r->is_buffered = !(fcntl(fd, F_GETFL) & O_DIRECT);
	r->has_areas = !io_uring_register_buffers(&r->uring, none, SHIM_RING_AREAS);
	io_uring_register_iowq_max_workers(&r->uring, workers);	/* without it there are fewer on small hosts */
	*ring = r;
	return 0;
}

void shim_ring_register(struct shim_ring *r, int area, void *memory, size_t length)
{
	const struct iovec all = { .iov_base = memory, .iov_len = memory ? length : 0 };

	/* If it fails, as for want of `ulimit -l`, the kernel looks the pages up for each read and write. */
	if (r->has_areas)
		r->is_registered[area] =
			io_uring_register_buffers_update_tag(&r->uring, area, &all, NULL, 1) == 1 && memory;
}

int shim_ring_fd(const struct shim_ring *r)
{
	return r->uring.ring_fd;
}

int shim_ring_prepare(struct shim_ring *r, int is_write, int area, void *data, uint32_t length, uint64_t offset,
		      uint32_t id)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&r->uring);

	if (!sqe)
		return EBUSY;
	if (r->is_registered[area] && is_write)
		io_uring_prep_write_fixed(sqe, r->fd, data, length, offset, area);
	else if (r->is_registered[area])
		io_uring_prep_read_fixed(sqe, r->fd, data, length, offset, area);
	else if (is_write)
		io_uring_prep_write(sqe, r->fd, data, length, offset);
	else
		io_uring_prep_read(sqe, r->fd, data, length, offset);
	if (r->is_buffered)
		io_uring_sqe_set_flags(sqe, IOSQE_ASYNC);
	io_uring_sqe_set_data64(sqe, id);
	return 0;
}

int shim_ring_submit(struct shim_ring *r)
{
	int started;

	while (io_uring_sq_ready(&r->uring)) {
		started = io_uring_submit(&r->uring);
		if (started < 0 && started != -EINTR)
			return -started;
		if (!started)
			return EAGAIN;
	}
	return 0;
}

static void take(struct shim_ring *r, struct io_uring_cqe *cqe, uint32_t *id, int32_t *result)
{
	*id = io_uring_cqe_get_data64(cqe);
	*result = cqe->res;
	io_uring_cqe_seen(&r->uring, cqe);
}

int shim_ring_take(struct shim_ring *r, uint32_t *id, int32_t *result)
{
	struct io_uring_cqe *cqe;

	if (io_uring_peek_cqe(&r->uring, &cqe))
		return 0;
	take(r, cqe, id, result);
	return 1;
}

int shim_ring_wait(struct shim_ring *r, uint32_t *id, int32_t *result, int running)
{
	struct io_uring_cqe *cqe;

	if (running <= (int)io_uring_sq_ready(&r->uring))
		return 0;
	while (io_uring_wait_cqe(&r->uring, &cqe))
		usleep(1000);	/* interrupted, or short of memory */
	take(r, cqe, id, result);
	return 1;
}

void shim_ring_close(struct shim_ring *r)
{
	if (!r)
		return;
	io_uring_queue_exit(&r->uring);
	free(r);
}
