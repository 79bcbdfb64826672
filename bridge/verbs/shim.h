/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that Go calls. Their flat structures let one call handle a batch. */
#ifndef KRPING_VERBS_SHIM_H
#define KRPING_VERBS_SHIM_H

#include <stdint.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "cq.h"

/* A copy of a CM event, which has been acknowledged. */
struct shim_event {
	struct rdma_cm_id *id;
	struct rdma_cm_id *listen_id;
	int event;
	int status;
	uint8_t responder_resources;
	uint8_t initiator_depth;
	uint8_t private_len;
	uint8_t private_data[255];
};

/* A send work request with one local segment. */
struct shim_wr {
	uint64_t wr_id;
	uint32_t opcode;
	uint32_t flags;
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
	uint32_t rkey;		/* for an RDMA operation, or to invalidate */
	uint64_t remote_addr;
};

struct shim_wc {
	uint64_t wr_id;
	uint32_t status;
	uint32_t opcode;
	uint32_t byte_len;
};

#define SHIM_BATCH	16

/* The verbs objects of a connection, and what its calls take and return. */
struct shim_queue {
	struct ibv_pd *pd;
	struct shim_cq completions;
	struct ibv_qp *qp;
	uint32_t max_inline_data;	/* bytes of a SEND that may be in its work request, so that the device need not fetch them */
	int posted;		/* work requests of the last shim_post_send(), also if it failed */
	struct shim_wr wr[SHIM_BATCH];
	struct shim_wc wc[SHIM_BATCH];
};

void shim_prepare(void);
void shim_close_files(struct ibv_context *context);

/*
 * Functions return 0 or an errno, except shim_next: the number of completions or -errno.
 *
 * Calls made for each message take the queue as an integer: cgo checks what a pointer points to, which
 * takes longer than the call. A queue is C memory and holds no Go pointers.
 */
int shim_next_event(struct rdma_event_channel *channel, struct shim_event *out);
int shim_queue_create(struct rdma_cm_id *id, uint32_t send_wr, uint32_t recv_wr,
		      struct shim_queue *q);
void shim_queue_detach(struct rdma_cm_id *id);
void shim_qp_destroy(struct shim_queue *q);
void shim_queue_destroy(struct shim_queue *q);
int shim_connect(struct rdma_cm_id *id, const void *private_data, uint8_t len, uint8_t responder,
		 uint8_t initiator);
int shim_accept(struct rdma_cm_id *id, const void *private_data, uint8_t len, uint8_t reads,
		uint8_t responder);
uint8_t shim_max_reads(struct rdma_cm_id *id, uint8_t offered);
int shim_post_send(uintptr_t queue, int n);
int shim_post_recv(uintptr_t queue, uint64_t wr_id, uint64_t addr, uint32_t len, uint32_t lkey);
int shim_next(uintptr_t queue);
int shim_error_state(struct ibv_qp *qp);

#endif /* KRPING_VERBS_SHIM_H */
