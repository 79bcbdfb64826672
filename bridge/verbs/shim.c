// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

/* Called once, before any other function of the libraries. */
void shim_prepare(void)
{
	/*
	 * librdmacm before 52 compares the addresses of devices as 32 bits when it looks for new
	 * ones. In one arena, which is the heap, they are near each other.
	 */
	mallopt(M_ARENA_MAX, 1);
	/* Objects of a removed device can be destroyed, although the driver answers EIO. */
	setenv("RDMAV_ALLOW_DISASSOC_DESTROY", "1", 0);
}

/*
 * Closes the files of a removed device's context, in which no object is left. librdmacm closes the
 * context itself at some time: it closes no file of -1.
 */
void shim_close_files(struct ibv_context *context)
{
	close(context->async_fd);
	close(context->cmd_fd);
	context->async_fd = -1;
	context->cmd_fd = -1;
}

int shim_next_event(struct rdma_event_channel *channel, struct shim_event *out)
{
	struct rdma_cm_event *ev;
	const struct rdma_conn_param *conn;

	if (rdma_get_cm_event(channel, &ev))
		return errno;
	memset(out, 0, sizeof(*out));
	out->id = ev->id;
	out->listen_id = ev->listen_id;
	out->event = ev->event;
	out->status = ev->status;
	conn = &ev->param.conn;
	out->responder_resources = conn->responder_resources;
	out->initiator_depth = conn->initiator_depth;
	if (conn->private_data && conn->private_data_len) {
		out->private_len = conn->private_data_len;
		memcpy(out->private_data, conn->private_data, out->private_len);
	}
	rdma_ack_cm_event(ev);
	return 0;
}

#define INLINE_DATA	64	/* a few responses without data */

/* Makes a queue pair, without inline data if the device has none. Returns 0 or -1, with errno. */
static int create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	attr->cap.max_inline_data = INLINE_DATA;
	if (!rdma_create_qp(id, pd, attr))
		return 0;
	attr->cap.max_inline_data = 0;
	return rdma_create_qp(id, pd, attr);
}

int shim_queue_create(struct rdma_cm_id *id, uint32_t send_wr, uint32_t recv_wr,
		      struct shim_queue *q)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = send_wr,
			.max_recv_wr = recv_wr,
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};
	int error;

	memset(q, 0, sizeof(*q));
	errno = 0;
	q->pd = ibv_alloc_pd(id->verbs);
	if (!q->pd)
		goto fail;
	error = shim_cq_create(&q->completions, id->verbs, send_wr + recv_wr);
	if (error) {
		errno = error;
		goto fail;
	}
	attr.send_cq = q->completions.cq;
	attr.recv_cq = q->completions.cq;
	if (create_qp(id, q->pd, &attr))
		goto fail;
	q->qp = id->qp;
	q->max_inline_data = attr.cap.max_inline_data;
	return 0;
fail:
	shim_queue_destroy(q);
	return errno ? errno : ENOMEM;
}

/* CM events of the id no longer use its queue pair. The caller holds off rdma_get_cm_event(). */
void shim_queue_detach(struct rdma_cm_id *id)
{
	id->qp = NULL;
}

/* After shim_queue_detach(). May take seconds. */
void shim_qp_destroy(struct shim_queue *q)
{
	if (q->qp)
		ibv_destroy_qp(q->qp);
	q->qp = NULL;
}

static int poll_queue(struct shim_queue *q)
{
	struct ibv_wc wc[SHIM_BATCH];
	int got, i;

	got = shim_cq_poll(&q->completions, SHIM_BATCH, wc);
	for (i = 0; i < got; i++) {
		q->wc[i].wr_id = wc[i].wr_id;
		q->wc[i].status = wc[i].status;
		q->wc[i].opcode = wc[i].opcode;
		q->wc[i].byte_len = wc[i].byte_len;
	}
	return got;
}

/* Undoes shim_queue_create(), after shim_queue_detach(). The PD has no memory regions left. */
void shim_queue_destroy(struct shim_queue *q)
{
	int saved = errno;

	shim_qp_destroy(q);
	shim_cq_destroy(&q->completions);
	if (q->pd)
		ibv_dealloc_pd(q->pd);
	memset(q, 0, sizeof(*q));
	errno = saved;
}

static struct rdma_conn_param conn_param(const void *private_data, uint8_t len)
{
	return (struct rdma_conn_param){
		.private_data = private_data,
		.private_data_len = len,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
}

int shim_connect(struct rdma_cm_id *id, const void *private_data, uint8_t len, uint8_t responder,
		 uint8_t initiator)
{
	struct rdma_conn_param param = conn_param(private_data, len);
	sigset_t all, before;
	int error;

	param.responder_resources = responder;
	param.initiator_depth = initiator;
	/*
	 * With iWARP the call makes the TCP connection. If a signal of the Go runtime interrupted it,
	 * the retry would find the port in use.
	 */
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	error = rdma_connect(id, &param) ? errno : 0;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

int shim_accept(struct rdma_cm_id *id, const void *private_data, uint8_t len, uint8_t reads,
		uint8_t responder)
{
	struct rdma_conn_param param = conn_param(private_data, len);

	param.initiator_depth = reads;
	param.responder_resources = responder;
	return rdma_accept(id, &param) ? errno : 0;
}

/* Returns how many RDMA READs may be in flight: what the client offers, or the device's limit. */
uint8_t shim_max_reads(struct rdma_cm_id *id, uint8_t offered)
{
	struct ibv_device_attr attr;

	if (ibv_query_device(id->verbs, &attr) || attr.max_qp_init_rd_atom > offered)
		return offered;
	return attr.max_qp_init_rd_atom;
}

/*
 * Posts the first n of q->wr, and sets q->posted, also on failure. If the device is gone, the library of
 * rxe fails with bad NULL: all are in the queue then, but the device was not told.
 */
int shim_post_send(uintptr_t queue, int n)
{
	struct shim_queue *q = (struct shim_queue *)queue;
	struct ibv_send_wr wrs[SHIM_BATCH], *bad = NULL;
	struct ibv_sge sges[SHIM_BATCH];
	int i, ret;

	q->posted = 0;
	if (n < 1 || n > SHIM_BATCH)
		return EINVAL;
	for (i = 0; i < n; i++) {
		const struct shim_wr *wr = &q->wr[i];

		sges[i] = (struct ibv_sge){
			.addr = wr->addr,
			.length = wr->length,
			.lkey = wr->lkey,
		};
		wrs[i] = (struct ibv_send_wr){
			.wr_id = wr->wr_id,
			.opcode = wr->opcode,
			.send_flags = wr->flags,
			.sg_list = &sges[i],
			.num_sge = 1,
			.wr.rdma.rkey = wr->rkey,
			.wr.rdma.remote_addr = wr->remote_addr,
			.next = i + 1 < n ? &wrs[i + 1] : NULL,
		};
		if (wr->opcode == IBV_WR_SEND_WITH_INV) /* libsiw reads wr.rdma.rkey */
			wrs[i].invalidate_rkey = wr->rkey;
	}
	ret = ibv_post_send(q->qp, wrs, &bad);
	q->posted = ret && bad ? bad - wrs : n;
	return ret;
}

int shim_post_recv(uintptr_t queue, uint64_t wr_id, uint64_t addr, uint32_t len, uint32_t lkey)
{
	struct shim_queue *q = (struct shim_queue *)queue;
	struct ibv_sge sge = { .addr = addr, .length = len, .lkey = lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(q->qp, &wr, &bad);
}

/*
 * Puts completions into q->wc. Without any, it arms the queue, takes the event if there is one, and
 * returns -EAGAIN when the next completion will cause an event.
 */
int shim_next(uintptr_t queue)
{
	struct shim_queue *q = (struct shim_queue *)queue;
	int got, error;

	got = poll_queue(q);
	if (got)
		return got;
	error = shim_cq_arm(&q->completions);
	if (error)
		return -error;
	got = poll_queue(q);	/* what has arrived before */
	return got ? got : -EAGAIN;
}

int shim_error_state(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}
