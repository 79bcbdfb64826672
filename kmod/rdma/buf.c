// SPDX-License-Identifier: GPL-2.0
#include <linux/slab.h>

#include "lib/log.h"
#include "rdma/buf.h"

/* Allocates whole pages if @size exceeds one page: slab objects would waste memory. */
static void *alloc_data(u32 size)
{
	if (size <= PAGE_SIZE)
		return kzalloc(size, GFP_KERNEL);
	return alloc_pages_exact(size, GFP_KERNEL | __GFP_ZERO);
}

static void free_data(struct krping_buf *buf)
{
	if (buf->size <= PAGE_SIZE)
		kfree(buf->data);
	else
		free_pages_exact(buf->data, buf->size);
	buf->data = NULL;
}

/**
 * krping_buf_alloc - allocate and map a message buffer
 * @conn:	connection whose device uses it
 * @buf:	zeroed, or unmapped from an earlier connection: its memory is reused
 * @size:	bytes; of a reused buffer, what it has
 * @dir:	as seen from the device
 *
 * Return: 0, or -ENOMEM: krping_buf_free() frees what was allocated.
 */
int krping_buf_alloc(struct krping_conn *conn, struct krping_buf *buf, u32 size,
		     enum dma_data_direction dir)
{
	struct ib_device *dev = conn->id->device;

	if (!buf->data) {
		buf->size = size;
		buf->dir = dir;
		buf->data = alloc_data(size);
		if (!buf->data)
			return -ENOMEM;
	}
	buf->dma = ib_dma_map_single(dev, buf->data, size, dir);
	if (ib_dma_mapping_error(dev, buf->dma))
		return -ENOMEM;
	buf->mapped = true;
	return 0;
}

/* Unmaps; the memory is kept for the next connection. */
void krping_buf_unmap(struct krping_conn *conn, struct krping_buf *buf)
{
	if (buf->mapped)
		ib_dma_unmap_single(conn->id->device, buf->dma, buf->size, buf->dir);
	buf->mapped = false;
}

/* Undoes krping_buf_alloc(). @conn is used for a mapped buffer only. */
void krping_buf_free(struct krping_conn *conn, struct krping_buf *buf)
{
	krping_buf_unmap(conn, buf);
	if (buf->data)
		free_data(buf);
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

/**
 * krping_buf_received - check a completed receive
 * @conn:	its connection
 * @buf:	buffer that was posted
 * @wc:		the completion
 *
 * An RDMA WRITE with immediate data consumes a receive, too, but writes its data elsewhere.
 *
 * Return: whether @buf holds a message; if not, @conn has failed.
 */
bool krping_buf_received(struct krping_conn *conn, struct krping_buf *buf, const struct ib_wc *wc)
{
	if (wc->status != IB_WC_SUCCESS) {
		krping_conn_wc_failed(conn, wc, "RECV");
		return false;
	}
	if (wc->opcode != IB_WC_RECV || wc->byte_len > buf->size) {
		krping_err_ratelimited(conn->log_prefix, "the peer sent immediate data and no message");
		krping_conn_fail(conn, -EPROTO);
		return false;
	}
	krping_conn_confirm(conn);
	ib_dma_sync_single_for_cpu(conn->id->device, buf->dma, wc->byte_len, DMA_FROM_DEVICE);
	return true;
}

/**
 * krping_bufs_alloc_recv - allocate and post all receives of a connection
 * @conn:	with a queue pair
 * @bufs:	@nr buffers, as for krping_buf_alloc()
 * @nr:		entries of @bufs
 * @size:	bytes of each
 * @done:	their completion
 *
 * Return: 0 or a negative errno: the caller drains @conn and then frees or unmaps them.
 */
int krping_bufs_alloc_recv(struct krping_conn *conn, struct krping_buf *bufs, u32 nr, u32 size,
			   void (*done)(struct ib_cq *cq, struct ib_wc *wc))
{
	int ret = 0;
	u32 i;

	for (i = 0; !ret && i < nr; i++) {
		bufs[i].cqe.done = done;
		ret = krping_buf_alloc(conn, &bufs[i], size, DMA_FROM_DEVICE);
	}
	for (i = 0; !ret && i < nr; i++)
		ret = krping_buf_post_recv(conn, &bufs[i]);
	return ret;
}
