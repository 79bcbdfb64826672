// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "pairs.h"

static int error_of(void)
{
	return errno ? errno : EINVAL;
}

int64_t shim_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int shim_ability(struct rdma_cm_id *id, struct shim_ability *a)
{
	struct ibv_device_attr device;
	struct ibv_port_attr port;

	memset(a, 0, sizeof(*a));
	errno = 0;
	if (ibv_query_device(id->verbs, &device) || ibv_query_port(id->verbs, id->port_num, &port))
		return error_of();
	a->iwarp = id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
	a->port_mtu = 128u << port.active_mtu;
	a->max_qp_wr = device.max_qp_wr;
	a->max_cqe = device.max_cqe;
	a->max_srq_wr = device.max_srq ? device.max_srq_wr : 0;
	a->max_reads = device.max_qp_init_rd_atom;
	a->max_read_resources = device.max_qp_rd_atom;
	a->max_qp = device.max_qp;
	a->atomics = device.atomic_cap != IBV_ATOMIC_NONE;
	return 0;
}

/* The MTU of a connected queue pair's path, in bytes. */
int shim_path_mtu(struct ibv_qp *control, uint32_t *mtu)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr path;

	errno = 0;
	if (ibv_query_qp(control, &path, IBV_QP_PATH_MTU, &init))
		return error_of();
	*mtu = 128u << path.path_mtu;
	return 0;
}

/* Makes what the queue pairs share. Each completion queue has room for a number of entries. */
int shim_pairs_create(struct shim_pairs *p, struct ibv_pd *pd, uint32_t nr, uint32_t nr_cqs,
		      uint32_t entries, const struct shim_pair_limits *limits)
{
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = limits->recv_wr, .max_sge = 1 } };
	int error;

	p->pd = pd;
	p->nr = nr;
	p->limits = *limits;
	p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p->wake_fd < 0)
		return error_of();
	p->pair = calloc(nr, sizeof(*p->pair));
	if (!p->pair)
		return ENOMEM;
	if (nr_cqs > SHIM_CQS)
		return EINVAL;
	for (; p->nr_cqs < nr_cqs; p->nr_cqs++) {
		error = shim_cq_create(&p->cqs[p->nr_cqs], pd->context, entries);
		if (error) {
			p->nr_cqs++;
			return error;
		}
	}
	if (!limits->srq)
		return 0;
	errno = 0;
	p->srq = ibv_create_srq(pd, &srq);
	return p->srq ? 0 : error_of();
}

static struct ibv_qp_init_attr pair_attr(struct shim_pairs *p, uint32_t index, enum ibv_qp_type type)
{
	struct ibv_cq *cq = p->cqs[index % p->nr_cqs].cq;

	return (struct ibv_qp_init_attr){
		.qp_type = type,
		.send_cq = cq,
		.recv_cq = cq,
		.srq = p->srq,
		.cap = {
			.max_send_wr = p->limits.send_wr,
			.max_recv_wr = p->srq ? 0 : p->limits.recv_wr,
			.max_send_sge = 1,
			.max_recv_sge = p->srq ? 0 : 1,
			.max_inline_data = p->limits.inline_data,
		},
	};
}

static int control_attr(struct ibv_qp *control, struct ibv_qp_attr *attr)
{
	struct ibv_qp_init_attr init;

	errno = 0;
	return ibv_query_qp(control, attr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_PORT |
			    IBV_QP_PKEY_INDEX, &init) ? error_of() : 0;
}

/* Makes a UC or UD queue pair that takes receives, on the control connection's port. */
int shim_pair_create(struct shim_pairs *p, uint32_t index, int type, struct ibv_qp *control,
		     uint32_t qkey)
{
	struct ibv_qp_init_attr init = pair_attr(p, index, type);
	struct ibv_qp_attr path, attr = { .qp_state = IBV_QPS_INIT };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT, error;

	error = control_attr(control, &path);
	if (error)
		return error;
	errno = 0;
	p->pair[index].qp = ibv_create_qp(p->pd, &init);
	if (!p->pair[index].qp)
		return error_of();
	attr.pkey_index = path.pkey_index;
	attr.port_num = path.port_num;
	if (type == IBV_QPT_UD) {
		attr.qkey = qkey;
		mask |= IBV_QP_QKEY;
	} else {
		attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
		mask |= IBV_QP_ACCESS_FLAGS;
	}
	return ibv_modify_qp(p->pair[index].qp, &attr, mask);
}

/* Makes the RC queue pair of an id. */
int shim_pair_create_rc(struct shim_pairs *p, uint32_t index, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = pair_attr(p, index, IBV_QPT_RC);

	errno = 0;
	if (rdma_create_qp(id, p->pd, &init))
		return error_of();
	p->pair[index].qp = id->qp;
	return 0;
}

#define RNR_TIMER	12	/* 0.64 ms, as perftest */

/*
 * Lets the peer of a connected RC queue pair try again soon if it finds no receive. rdma_cm leaves the
 * timer at 655 ms. iWARP has none.
 */
int shim_pair_set_rnr_timer(struct shim_pairs *p, uint32_t index)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .min_rnr_timer = RNR_TIMER };

	if (p->pd->context->device->transport_type == IBV_TRANSPORT_IWARP)
		return 0;
	return ibv_modify_qp(p->pair[index].qp, &attr, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER);
}

/* Lets a queue pair of shim_pair_create() receive and send. */
int shim_pair_connect(struct shim_pairs *p, uint32_t index, struct ibv_qp *control,
		      const struct shim_remote *remote)
{
	struct shim_pair *pair = &p->pair[index];
	struct ibv_qp_attr path, attr = { .qp_state = IBV_QPS_RTR };
	int mask = IBV_QP_STATE, error;

	error = control_attr(control, &path);
	if (error)
		return error;
	if (pair->qp->qp_type == IBV_QPT_UD) {
		errno = 0;
		pair->ah = ibv_create_ah(p->pd, &path.ah_attr);
		if (!pair->ah)
			return error_of();
		pair->remote_qpn = remote->qpn;
		pair->remote_qkey = remote->qkey;
	} else {
		attr.ah_attr = path.ah_attr;
		attr.path_mtu = remote->mtu && remote->mtu < path.path_mtu ? remote->mtu :
										path.path_mtu;
		attr.dest_qp_num = remote->qpn;
		attr.rq_psn = remote->psn;
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	error = ibv_modify_qp(pair->qp, &attr, mask);
	if (error)
		return error;
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = remote->own_psn };
	return ibv_modify_qp(pair->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

/* The ids of RC queue pairs no longer have them. After that, no memory is accessed. */
void shim_pairs_destroy_qps(struct shim_pairs *p)
{
	uint32_t i;

	for (i = 0; p->pair && i < p->nr; i++) {
		if (p->pair[i].qp)
			ibv_destroy_qp(p->pair[i].qp);
		if (p->pair[i].ah)
			ibv_destroy_ah(p->pair[i].ah);
		p->pair[i].qp = NULL;
		p->pair[i].ah = NULL;
	}
}

/* Undoes shim_pairs_create(), also after it failed. */
void shim_pairs_destroy(struct shim_pairs *p)
{
	uint32_t i;

	shim_pairs_destroy_qps(p);
	if (p->srq)
		ibv_destroy_srq(p->srq);
	for (i = 0; i < p->nr_cqs; i++)
		shim_cq_destroy(&p->cqs[i]);
	free(p->pair);
	if (p->wake_fd >= 0)
		close(p->wake_fd);
	memset(p, 0, sizeof(*p));
}

static void set_work(struct ibv_send_wr *wr, const struct shim_work *work,
		     const struct shim_pair *pair)
{
	*wr = (struct ibv_send_wr){
		.wr_id = work->id,
		.opcode = work->opcode,
		.send_flags = work->flags,
		.imm_data = htonl(work->imm),
		.num_sge = 1,
	};
	if (pair->ah) {
		wr->wr.ud.ah = pair->ah;
		wr->wr.ud.remote_qpn = pair->remote_qpn;
		wr->wr.ud.remote_qkey = pair->remote_qkey;
	} else if (work->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ||
		   work->opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr->wr.atomic.remote_addr = work->remote_addr;
		wr->wr.atomic.rkey = work->rkey;
		wr->wr.atomic.compare_add = work->compare_add;
		wr->wr.atomic.swap = work->swap;
	} else {
		wr->wr.rdma.remote_addr = work->remote_addr;
		wr->wr.rdma.rkey = work->rkey;
	}
}

/* Posts in order. Those of one queue pair in a row are posted by one call. */
int shim_post_works(struct shim_pairs *p, int n)
{
	struct ibv_send_wr wrs[SHIM_TURN], *bad;
	struct ibv_sge sges[SHIM_TURN];
	int first = 0, i, error;

	for (i = 0; i < n; i++) {
		const struct shim_work *work = &p->work[i];
		int last = i + 1 == n || p->work[i + 1].queue != work->queue;

		if (work->queue >= p->nr || !p->pair[work->queue].qp)
			return EINVAL;
		sges[i] = (struct ibv_sge){ work->addr, work->length, work->lkey };
		set_work(&wrs[i], work, &p->pair[work->queue]);
		wrs[i].sg_list = &sges[i];
		wrs[i].next = last ? NULL : &wrs[i + 1];
		if (!last)
			continue;
		error = ibv_post_send(p->pair[work->queue].qp, &wrs[first], &bad);
		if (error)
			return error;
		first = i + 1;
	}
	return 0;
}

int shim_post_receives(struct shim_pairs *p, int n)
{
	struct ibv_recv_wr wrs[SHIM_TURN], *bad;
	struct ibv_sge sges[SHIM_TURN];
	int first = 0, i, error;

	for (i = 0; i < n; i++) {
		const struct shim_receive *r = &p->receive[i];
		int last = i + 1 == n || (!p->srq && p->receive[i + 1].queue != r->queue);

		if (!p->srq && (r->queue >= p->nr || !p->pair[r->queue].qp))
			return EINVAL;
		sges[i] = (struct ibv_sge){ r->addr, r->length, r->lkey };
		wrs[i] = (struct ibv_recv_wr){
			.wr_id = r->id,
			.sg_list = &sges[i],
			.num_sge = 1,
			.next = last ? NULL : &wrs[i + 1],
		};
		if (!last)
			continue;
		error = p->srq ? ibv_post_srq_recv(p->srq, &wrs[first], &bad) :
				 ibv_post_recv(p->pair[r->queue].qp, &wrs[first], &bad);
		if (error)
			return error;
		first = i + 1;
	}
	return 0;
}

/* Puts completions into p->done, from index first on. */
static int poll_cq(struct shim_pairs *p, struct shim_cq *cq, int first)
{
	struct ibv_wc wc[SHIM_TURN];
	int got, i;

	got = shim_cq_poll(cq, SHIM_TURN - first, wc);
	for (i = 0; i < got; i++)
		p->done[first + i] = (struct shim_completion){
			.id = wc[i].wr_id,
			.status = wc[i].status,
			.opcode = wc[i].opcode,
			.length = wc[i].byte_len,
			.imm = wc[i].wc_flags & IBV_WC_WITH_IMM ? ntohl(wc[i].imm_data) : 0,
			.qpn = wc[i].qp_num,
			.source_qpn = wc[i].src_qp,
		};
	return got;
}

/* Polls the completion queues in turn. If there are fewer than SHIM_TURN, all were empty. */
static int poll_pairs(struct shim_pairs *p)
{
	int got = 0, n;
	uint32_t i;

	for (i = 0; i < p->nr_cqs && got < SHIM_TURN; i++) {
		n = poll_cq(p, &p->cqs[p->next_cq], got);
		if (n < 0)
			return n;
		got += n;
		p->next_cq = (p->next_cq + 1) % p->nr_cqs;
	}
	return got;
}

/*
 * Forgets calls of shim_wake() before, whose callers' messages the caller of the turn will see. The file
 * first: with woken set, another call writes nothing.
 */
void shim_forget_wakes(struct shim_pairs *p)
{
	uint64_t times;

	if (read(p->wake_fd, &times, sizeof(times)) < 0 && errno != EAGAIN)
		return;
	__atomic_exchange_n(&p->woken, 0, __ATOMIC_ACQ_REL);
}

/* Makes a turn that waits return, or the next one that would wait. Any thread may call it. */
int shim_wake(struct shim_pairs *p)
{
	const uint64_t once = 1;

	if (__atomic_exchange_n(&p->woken, 1, __ATOMIC_ACQ_REL))
		return 0;
	return write(p->wake_fd, &once, sizeof(once)) == sizeof(once) ? 0 : errno;
}

/* Sleeps until there is a completion, at most wait_ns. */
static int sleep_for_completions(struct shim_pairs *p, int64_t wait_ns)
{
	int got, error, woken;
	uint32_t i;

	for (i = 0; i < p->nr_cqs; i++) {
		error = shim_cq_arm(&p->cqs[i]);
		if (error && error != EAGAIN)
			return -error;
	}
	got = poll_pairs(p);	/* what came before */
	if (got)
		return got;
	woken = shim_cqs_wait(p->cqs, p->nr_cqs, p->wake_fd, wait_ns);
	if (woken > 0)
		shim_forget_wakes(p);
	return woken < 0 ? woken : poll_pairs(p);
}

static int poll_for_completions(struct shim_pairs *p, int64_t wait_ns)
{
	int64_t end = shim_now_ns() + wait_ns;
	int got;

	do
		got = poll_pairs(p);
	while (!got && !__atomic_load_n(&p->woken, __ATOMIC_RELAXED) && shim_now_ns() < end);
	if (!got)
		shim_forget_wakes(p);
	return got;
}

/*
 * Posts the first receives of p->receive and works of p->work, and puts completions into p->done. If
 * there are none it waits for some, at most wait_ns: asleep, or with busy by polling.
 */
int shim_turn(uintptr_t pairs, int works, int receives, int64_t wait_ns, int busy)
{
	struct shim_pairs *p = (struct shim_pairs *)pairs;
	int got, error;

	if (works < 0 || works > SHIM_TURN || receives < 0 || receives > SHIM_TURN)
		return -EINVAL;
	error = shim_post_receives(p, receives);
	if (!error)
		error = shim_post_works(p, works);
	if (error)
		return -error;
	got = poll_pairs(p);
	if (got || wait_ns <= 0)
		return got;
	return busy ? poll_for_completions(p, wait_ns) : sleep_for_completions(p, wait_ns);
}

/* Polls until a byte that the peer writes differs from old. */
int shim_watch(uintptr_t address, uint8_t old, int64_t wait_ns)
{
	const uint8_t *byte = (const uint8_t *)address;
	int64_t end = shim_now_ns() + wait_ns;
	uint8_t now;

	/* What was written before that byte is read after it. */
	while ((now = __atomic_load_n(byte, __ATOMIC_ACQUIRE)) == old)
		if (shim_now_ns() >= end)
			return -ETIMEDOUT;
	return now;
}
