/* SPDX-License-Identifier: Apache-2.0 */
/* A completion queue with a channel of its own. */
#ifndef KRPING_VERBS_CQ_H
#define KRPING_VERBS_CQ_H

#include <infiniband/verbs.h>

struct shim_cq {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	int armed;		/* the next completion causes an event */
	int event_due;		/* a completion was polled whose event was not taken yet */
};

#define SHIM_CQS	32	/* most that are waited for at once */

/*
 * Functions return 0 or an errno, except shim_cq_poll: the number of completions or -errno, and
 * shim_cqs_wait: whether the other file is readable, or -errno.
 */
int shim_next_vector(const struct ibv_context *context);	/* the completion vector of the next queue: each in turn */
int shim_cq_create(struct shim_cq *c, struct ibv_context *context, int entries);
int shim_cq_poll(struct shim_cq *c, int n, struct ibv_wc *wc);
int shim_cq_arm(struct shim_cq *c);
int shim_cqs_wait(struct shim_cq *cqs, int n, int other, int64_t ns);
void shim_cq_destroy(struct shim_cq *c);

#endif /* KRPING_VERBS_CQ_H */
