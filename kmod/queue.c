// SPDX-License-Identifier: GPL-2.0
/* What hangs on a connection: PD, CQ, QP, message buffers and memory regions. */
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "conn.h"
#include "log.h"

static int check_limit(struct krping_conn *conn, const char *what, u32 wanted, int limit)
{
	if (limit >= 0 && wanted <= (u32)limit)
		return 0;
	krping_err_ratelimited(conn->subject, "%s: %u needed, %s allows %d", what, wanted,
			       conn->id->device->name, limit);
	return -EINVAL;
}

/**
 * krping_conn_alloc - PD, CQ and QP on the device that the CM has found
 * @conn:	with an id that has a device
 * @send_wr:	send queue depth
 * @recv_wr:	receive queue depth
 * @vector:	spreads connections over completion vectors
 *
 * Return: 0 or a negative errno with nothing left allocated.
 */
int krping_conn_alloc(struct krping_conn *conn, u32 send_wr, u32 recv_wr, u32 vector)
{
	struct ib_device *dev = conn->id->device;
	struct ib_qp_init_attr attr = {
		.qp_type = IB_QPT_RC,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.cap = {
			.max_send_wr = send_wr + 1,	/* 1 = drain */
			.max_recv_wr = recv_wr + 1,	/* 1 = drain */
			.max_send_sge = 1,
			.max_recv_sge = 1,
		},
	};
	u32 cqe = attr.cap.max_send_wr + attr.cap.max_recv_wr;
	int ret;

	if (!(dev->attrs.device_cap_flags & IB_DEVICE_MEM_MGT_EXTENSIONS)) {
		krping_err(conn->subject, "%s cannot register memory by work requests", dev->name);
		return -EOPNOTSUPP;
	}
	ret = check_limit(conn, "work requests in a queue", max(send_wr, recv_wr) + 1,
			  dev->attrs.max_qp_wr);
	if (!ret)
		ret = check_limit(conn, "completion queue entries", cqe, dev->attrs.max_cqe);
	if (ret)
		return ret;

	conn->pd = ib_alloc_pd(dev, 0);
	if (IS_ERR(conn->pd)) {
		ret = PTR_ERR(conn->pd);
		goto no_pd;
	}
	conn->cq = ib_alloc_cq(dev, conn, cqe, vector % dev->num_comp_vectors,
			       IB_POLL_WORKQUEUE);
	if (IS_ERR(conn->cq)) {
		ret = PTR_ERR(conn->cq);
		goto no_cq;
	}
	attr.send_cq = conn->cq;
	attr.recv_cq = conn->cq;
	ret = rdma_create_qp(conn->id, conn->pd, &attr);
	if (ret)
		goto no_qp;
	conn->qp = conn->id->qp;
	return 0;

no_qp:
	ib_free_cq(conn->cq);
no_cq:
	ib_dealloc_pd(conn->pd);
no_pd:
	conn->cq = NULL;
	conn->pd = NULL;
	krping_err_ratelimited(conn->subject, "cannot set up a queue pair on %s: %d", dev->name,
			       ret);
	return ret;
}

/* Twin of krping_conn_alloc(); the queue pair is drained. */
void krping_conn_free(struct krping_conn *conn)
{
	if (!conn->qp)
		return;
	rdma_destroy_qp(conn->id);
	conn->qp = NULL;
	ib_free_cq(conn->cq);
	conn->cq = NULL;
	ib_dealloc_pd(conn->pd);
	conn->pd = NULL;
}

/* Afterwards no completion runs and the peer cannot touch memory any more. */
void krping_conn_drain(struct krping_conn *conn)
{
	if (!conn->qp)
		return;
	rdma_disconnect(conn->id);
	ib_drain_qp(conn->qp);
}

/* Twin of krping_conn_open() and of the listener's gift. */
void krping_conn_close(struct krping_conn *conn)
{
	struct rdma_cm_id *id = conn->id;

	if (!id)
		return;
	krping_conn_free(conn);
	rdma_destroy_id(id);	/* returns when no event handler runs */
	conn->id = NULL;
}

/* errno of a failed completion. */
int krping_wc_error(const struct ib_wc *wc)
{
	switch (wc->status) {
	case IB_WC_WR_FLUSH_ERR:
		return -ECONNRESET;
	case IB_WC_RETRY_EXC_ERR:
	case IB_WC_RNR_RETRY_EXC_ERR:
	case IB_WC_RESP_TIMEOUT_ERR:
		return -ETIMEDOUT;
	case IB_WC_REM_ACCESS_ERR:
	case IB_WC_REM_INV_REQ_ERR:
	case IB_WC_REM_OP_ERR:
	case IB_WC_LOC_LEN_ERR:
	case IB_WC_LOC_ACCESS_ERR:
	case IB_WC_BAD_RESP_ERR:
		return -EPROTO;
	default:
		return -EIO;
	}
}

/*
 * A flush only echoes a cause that has a name of its own. While the connection is set
 * up that may come later: rdma_cm moves the queue pair to the error state before it
 * tells of a reject.
 */
void krping_conn_wc_failed(struct krping_conn *conn, const struct ib_wc *wc, const char *what)
{
	if (wc->status != IB_WC_WR_FLUSH_ERR)
		krping_err_ratelimited(conn->subject, "%s failed: %s (vendor error 0x%x)", what,
				       ib_wc_status_msg(wc->status), wc->vendor_err);
	else if (READ_ONCE(conn->state) < KRPING_CONN_LIVE)
		return;
	krping_conn_fail(conn, krping_wc_error(wc));
}

int krping_buf_alloc(struct krping_conn *conn, struct krping_buf *buf, u32 size,
		     enum dma_data_direction dir)
{
	struct ib_device *dev = conn->id->device;

	buf->data = kzalloc(size, GFP_KERNEL);
	if (!buf->data)
		return -ENOMEM;
	buf->dma = ib_dma_map_single(dev, buf->data, size, dir);
	if (ib_dma_mapping_error(dev, buf->dma)) {
		kfree(buf->data);
		buf->data = NULL;
		return -ENOMEM;
	}
	buf->size = size;
	buf->dir = dir;
	return 0;
}

void krping_buf_free(struct krping_conn *conn, struct krping_buf *buf)
{
	if (!buf->data)
		return;
	ib_dma_unmap_single(conn->id->device, buf->dma, buf->size, buf->dir);
	kfree(buf->data);
	buf->data = NULL;
}

struct ib_sge krping_buf_sge(struct krping_conn *conn, const struct krping_buf *buf, u32 len)
{
	return (struct ib_sge){
		.addr = buf->dma,
		.length = len,
		.lkey = conn->pd->local_dma_lkey,
	};
}

int krping_buf_post_recv(struct krping_conn *conn, struct krping_buf *buf)
{
	struct ib_sge sge = krping_buf_sge(conn, buf, buf->size);
	struct ib_recv_wr wr = {
		.wr_cqe = &buf->cqe,
		.sg_list = &sge,
		.num_sge = 1,
	};

	ib_dma_sync_single_for_device(conn->id->device, buf->dma, buf->size, buf->dir);
	return ib_post_recv(conn->qp, &wr, NULL);
}

static int region_pages(struct krping_region *region, u32 nr_pages)
{
	struct page **pages;
	u32 i;
	int ret;

	pages = kvmalloc_array(nr_pages, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	for (i = 0; i < nr_pages; i++)
		pages[i] = vmalloc_to_page(region->vaddr + (size_t)i * PAGE_SIZE);
	ret = sg_alloc_table_from_pages(&region->sgt, pages, nr_pages, 0, region->size,
					GFP_KERNEL);
	kvfree(pages);
	return ret;
}

/**
 * krping_region_alloc - memory of a ping, and the region that registers it
 * @conn:	with a PD
 * @region:	zeroed
 * @size:	bytes
 * @done:	completion of the registering work request
 *
 * Return: 0 or a negative errno with nothing left allocated.
 */
int krping_region_alloc(struct krping_conn *conn, struct krping_region *region, u32 size,
			void (*done)(struct ib_cq *cq, struct ib_wc *wc))
{
	struct ib_device *dev = conn->id->device;
	u32 nr_pages = DIV_ROUND_UP(size, PAGE_SIZE);
	int ret;

	ret = check_limit(conn, "pages of 4096 bytes in a memory region", nr_pages,
			  min_t(u32, dev->attrs.max_fast_reg_page_list_len, INT_MAX));
	if (ret)
		return ret;
	region->size = size;
	region->cqe.done = done;
	region->vaddr = vzalloc(size);
	if (!region->vaddr)
		return -ENOMEM;
	ret = region_pages(region, nr_pages);
	if (ret)
		goto free_vaddr;
	region->nents = ib_dma_map_sg(dev, region->sgt.sgl, region->sgt.orig_nents,
				      DMA_BIDIRECTIONAL);
	if (!region->nents) {
		ret = -ENOMEM;
		goto free_sgt;
	}
	region->mr = ib_alloc_mr(conn->pd, IB_MR_TYPE_MEM_REG, nr_pages);
	if (IS_ERR(region->mr)) {
		ret = PTR_ERR(region->mr);
		goto unmap;
	}
	return 0;

unmap:
	ib_dma_unmap_sg(dev, region->sgt.sgl, region->sgt.orig_nents, DMA_BIDIRECTIONAL);
free_sgt:
	sg_free_table(&region->sgt);
free_vaddr:
	vfree(region->vaddr);
	region->vaddr = NULL;
	return ret;
}

/* Twin of krping_region_alloc(); the queue pair is drained. */
void krping_region_free(struct krping_conn *conn, struct krping_region *region)
{
	if (!region->vaddr)
		return;
	ib_dereg_mr(region->mr);
	ib_dma_unmap_sg(conn->id->device, region->sgt.sgl, region->sgt.orig_nents,
			DMA_BIDIRECTIONAL);
	sg_free_table(&region->sgt);
	vfree(region->vaddr);
	region->vaddr = NULL;
}

/**
 * krping_region_prepare - the work request that registers the region, signalled
 * @region:	not registered yet
 * @access:	IB_ACCESS_*
 *
 * Once for a connection: rxe executes a LOCAL_INV or REG_MR that is done but not yet
 * completed a second time when it retransmits, and fails the queue pair.
 *
 * Return: the work request, or NULL if the device cannot map the pages.
 */
struct ib_send_wr *krping_region_prepare(struct krping_region *region, int access)
{
	ib_update_fast_reg_key(region->mr, ib_inc_rkey(region->mr->rkey));
	if (ib_map_mr_sg(region->mr, region->sgt.sgl, region->nents, NULL, PAGE_SIZE) !=
	    region->nents)
		return NULL;
	region->reg_wr = (struct ib_reg_wr){
		.wr = {
			.wr_cqe = &region->cqe,
			.opcode = IB_WR_REG_MR,
			.send_flags = IB_SEND_SIGNALED,
		},
		.mr = region->mr,
		.key = region->mr->rkey,
		.access = access,
	};
	return &region->reg_wr.wr;
}

void krping_region_for_device(struct krping_conn *conn, struct krping_region *region)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(region->sgt.sgl, sg, region->nents, i)
		ib_dma_sync_single_for_device(conn->id->device, sg_dma_address(sg),
					      sg_dma_len(sg), DMA_BIDIRECTIONAL);
}

void krping_region_for_cpu(struct krping_conn *conn, struct krping_region *region)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(region->sgt.sgl, sg, region->nents, i)
		ib_dma_sync_single_for_cpu(conn->id->device, sg_dma_address(sg), sg_dma_len(sg),
					   DMA_BIDIRECTIONAL);
}
