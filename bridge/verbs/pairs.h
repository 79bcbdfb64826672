/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs that share a protection domain and completion queues: the data queue pairs of a test.
 * One call posts a batch to any of them, polls, and waits.
 */
#ifndef KRPING_VERBS_PAIRS_H
#define KRPING_VERBS_PAIRS_H

#include <stdint.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "cq.h"

/* A send work request with one local segment. The same as Go's transport.Work. */
struct shim_work {
	uint64_t id;
	uint64_t addr;
	uint64_t remote_addr;
	uint64_t compare_add;
	uint64_t swap;
	uint32_t queue;		/* index of the queue pair */
	uint32_t opcode;	/* enum ibv_wr_opcode */
	uint32_t flags;		/* enum ibv_send_flags */
	uint32_t length;
	uint32_t lkey;
	uint32_t rkey;
	uint32_t imm;
	uint32_t reserved;
};

/* A receive work request. The same as Go's transport.Receive. */
struct shim_receive {
	uint64_t id;
	uint64_t addr;
	uint32_t queue;		/* not used with a shared receive queue */
	uint32_t length;
	uint32_t lkey;
	uint32_t reserved;
};

/* A completion. The same as Go's transport.Completion. */
struct shim_completion {
	uint64_t id;
	uint32_t status;
	uint32_t opcode;
	uint32_t length;
	uint32_t imm;
	uint32_t qpn;
	uint32_t source_qpn;	/* UD */
};

#define SHIM_TURN	64

struct shim_pair {
	struct ibv_qp *qp;
	struct ibv_ah *ah;	/* UD: the way to the peer */
	uint32_t remote_qpn;	/* UD */
	uint32_t remote_qkey;	/* UD */
};

/* What a queue pair, or a shared receive queue, is made with. */
struct shim_pair_limits {
	uint32_t send_wr;
	uint32_t recv_wr;	/* of the shared receive queue, if there is one */
	uint32_t inline_data;
	uint32_t srq;		/* whether there is a shared receive queue */
};

struct shim_pairs {
	struct ibv_pd *pd;	/* of the control connection */
	struct ibv_srq *srq;	/* NULL: each queue pair has a receive queue */
	struct shim_cq cqs[SHIM_CQS];	/* that of queue pair i is i % nr_cqs */
	uint32_t nr_cqs;
	uint32_t next_cq;	/* that is polled first, so that each has its turn */
	struct shim_pair_limits limits;
	struct shim_pair *pair;
	uint32_t nr;
	int wake_fd;		/* an eventfd */
	int woken;		/* a turn does not wait; set and cleared atomically */
	struct shim_work work[SHIM_TURN];
	struct shim_receive receive[SHIM_TURN];
	struct shim_completion done[SHIM_TURN];
};

/* The other end of a UC or UD queue pair, and the PSNs of both. */
struct shim_remote {
	uint32_t qpn;
	uint32_t psn;		/* of the first packet from there */
	uint32_t own_psn;	/* of the first packet from here */
	uint32_t qkey;		/* UD: its Q_Key */
	uint32_t mtu;		/* enum ibv_mtu; 0: that of the control connection's path */
};

/* What an id's device can do. */
struct shim_ability {
	uint32_t iwarp;
	uint32_t port_mtu;	/* in bytes */
	uint32_t max_qp_wr;
	uint32_t max_cqe;
	uint32_t max_srq_wr;	/* 0: no shared receive queues */
	uint32_t max_reads;	/* that a queue pair may have outstanding */
	uint32_t max_read_resources; /* that a queue pair answers at a time */
	uint32_t max_qp;
	uint32_t atomics;
};

/*
 * Functions return 0 or an errno, except shim_turn: the number of completions or -errno; and
 * shim_watch: the byte or -ETIMEDOUT. shim_turn
 * takes a number instead of a pointer for the reason in shim.h.
 */
int shim_ability(struct rdma_cm_id *id, struct shim_ability *a);
int shim_path_mtu(struct ibv_qp *control, uint32_t *mtu);
int shim_pairs_create(struct shim_pairs *p, struct ibv_pd *pd, uint32_t nr, uint32_t nr_cqs,
		      uint32_t entries, const struct shim_pair_limits *limits);
int shim_pair_create(struct shim_pairs *p, uint32_t index, int type, struct ibv_qp *control,
		     uint32_t qkey);
int shim_pair_create_rc(struct shim_pairs *p, uint32_t index, struct rdma_cm_id *id);
int shim_pair_set_rnr_timer(struct shim_pairs *p, uint32_t index);
int shim_pair_connect(struct shim_pairs *p, uint32_t index, struct ibv_qp *control,
		      const struct shim_remote *remote);
void shim_pairs_destroy_qps(struct shim_pairs *p);
void shim_pairs_destroy(struct shim_pairs *p);
int shim_post_works(struct shim_pairs *p, int n);
int shim_post_receives(struct shim_pairs *p, int n);
int shim_turn(uintptr_t pairs, int works, int receives, int64_t wait_ns, int busy);
int shim_wake(struct shim_pairs *p);
void shim_forget_wakes(struct shim_pairs *p);
int64_t shim_now_ns(void);
int shim_watch(uintptr_t address, uint8_t old, int64_t wait_ns);

#endif /* KRPING_VERBS_PAIRS_H */
