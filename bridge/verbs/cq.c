// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#include "cq.h"

int shim_next_vector(const struct ibv_context *context)
{
	static unsigned int created;
	unsigned int n = __atomic_fetch_add(&created, 1, __ATOMIC_RELAXED);

	return context->num_comp_vectors > 1 ? (int)(n % (unsigned int)context->num_comp_vectors) : 0;
}

/* After a failure, shim_cq_destroy() undoes what was done. */
int shim_cq_create(struct shim_cq *c, struct ibv_context *context, int entries)
{
	errno = 0;
	c->channel = ibv_create_comp_channel(context);
	if (!c->channel)
		goto fail;
	if (fcntl(c->channel->fd, F_SETFL, fcntl(c->channel->fd, F_GETFL) | O_NONBLOCK))
		goto fail;
	c->cq = ibv_create_cq(context, entries, NULL, c->channel, shim_next_vector(context));
	if (c->cq)
		return 0;
fail:
	return errno ? errno : ENOMEM;
}

int shim_cq_poll(struct shim_cq *c, int n, struct ibv_wc *wc)
{
	int got = ibv_poll_cq(c->cq, n, wc);

	if (got < 0)
		return -EIO;
	if (got > 0)
		c->event_due = c->armed;
	return got;
}

/* Takes an event from the channel. The queue is no longer armed. */
static int take_event(struct shim_cq *c)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(c->channel, &cq, &context))
		return errno;
	ibv_ack_cq_events(cq, 1);
	c->armed = 0;
	c->event_due = 0;
	return 0;
}

/*
 * Takes the event if the queue was armed, and arms it. EAGAIN: it is armed and there was no event.
 * The caller polls afterwards: completions that came before cause no event.
 */
int shim_cq_arm(struct shim_cq *c)
{
	int error = c->armed ? take_event(c) : 0;

	if (error)
		return error;
	c->armed = 1;
	return ibv_req_notify_cq(c->cq, 0);
}

/*
 * Waits for an event, or until the file descriptor other is readable, at most ns nanoseconds. Returns whether
 * other is readable, or -errno.
 */
int shim_cqs_wait(struct shim_cq *cqs, int n, int other, int64_t ns)
{
	const struct timespec limit = { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
	struct pollfd files[SHIM_CQS + 1] = { { .fd = other, .events = POLLIN } };
	sigset_t all;
	int i;

	for (i = 0; i < n; i++)
		files[i + 1] = (struct pollfd){ .fd = cqs[i].channel->fd, .events = POLLIN };
	sigfillset(&all);	/* the Go runtime's signals must not end the wait */
	return ppoll(files, n + 1, &limit, &all) < 0 ? -errno : files[0].revents != 0;
}

#define EVENT_NS 100000000	/* some devices raise no event for completions of a destroyed queue pair */

/*
 * rxe before Linux 6.4 raises the event in a tasklet and does not wait for it when it frees the
 * completion queue: a use after free, unless the event has arrived.
 */
static void wait_for_due_event(struct shim_cq *c)
{
	struct ibv_wc wc[16];

	while (shim_cq_poll(c, 16, wc) > 0)
		;
	if (c->event_due && !shim_cqs_wait(c, 1, -1, EVENT_NS))
		take_event(c);
}

/* The queue pairs that use it have been destroyed. */
void shim_cq_destroy(struct shim_cq *c)
{
	if (c->cq) {
		wait_for_due_event(c);
		ibv_destroy_cq(c->cq);
	}
	if (c->channel)
		ibv_destroy_comp_channel(c->channel);
	memset(c, 0, sizeof(*c));
}
