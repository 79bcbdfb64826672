// SPDX-License-Identifier: GPL-2.0
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "lib/fault.h"
#include "lib/log.h"
#include "rdma/buf.h"

#define MAX_PAGES	(KRPING_BUF_MAX / PAGE_SIZE ?: 1)

/* Allocates whole pages if @size is not less: slab objects would waste memory. */
static void *alloc_piece(u32 size, gfp_t flags)
{
	flags |= __GFP_ZERO;
	return size < PAGE_SIZE ? kmalloc(size, flags) : alloc_pages_exact(size, flags);
}

static void free_piece(void *piece, u32 size)
{
	if (size < PAGE_SIZE)
		kfree(piece);
	else
		free_pages_exact(piece, size);
}

static void free_pieces(struct krping_buf *buf)
{
	u32 i;

	for (i = 0; i < buf->nr_pieces; i++)
		free_piece(buf->pieces[i], buf->piece_size);
	buf->nr_pieces = 0;
}

/* Return: a mapping of pieces of whole pages, which is contiguous; or NULL. */
static void *map_pieces(const struct krping_buf *buf)
{
	u32 i, nr_pages = DIV_ROUND_UP(buf->head + buf->size, PAGE_SIZE);
	struct page *pages[MAX_PAGES];

	for (i = 0; i < nr_pages; i++) {
		u32 at = i * PAGE_SIZE;

		pages[i] = virt_to_page(buf->pieces[at / buf->piece_size] + at % buf->piece_size);
	}
	return vmap(pages, nr_pages, VM_MAP, PAGE_KERNEL);
}

/* @piece_size: all that is needed, or a power of two and at least a page. */
static int alloc_pieces(struct krping_buf *buf, u32 piece_size, gfp_t flags)
{
	void *memory;

	buf->piece_size = piece_size;
	while (buf->nr_pieces * piece_size < buf->head + buf->size) {
		void *piece = alloc_piece(piece_size, flags);

		if (!piece)
			goto free;
		buf->pieces[buf->nr_pieces++] = piece;
	}
	memory = buf->nr_pieces > 1 ? map_pieces(buf) : buf->pieces[0];
	if (memory) {
		buf->data = memory + buf->head;
		return 0;
	}
free:
	free_pieces(buf);
	return -ENOMEM;
}

static void free_data(struct krping_buf *buf)
{
	if (buf->nr_pieces > 1)
		vunmap(buf->data - buf->head);
	buf->data = NULL;
	free_pieces(buf);
}

/* A host that has run for long may have no large blocks of memory left: then takes small ones. */
static int alloc_data(struct krping_conn *conn, struct krping_buf *buf, u32 size,
		      enum dma_data_direction dir, gfp_t flags)
{
	u32 all = buf->head + size;

	if (WARN_ON_ONCE(all > KRPING_BUF_MAX))
		return -EINVAL;
	buf->size = size;
	buf->dir = dir;
	if (all <= PAGE_SIZE)
		return alloc_pieces(buf, all, flags);
	if (!krping_fault(KRPING_FAULT_FRAGMENTED, conn->log_prefix) &&
	    !alloc_pieces(buf, all, flags | __GFP_NORETRY | __GFP_NOWARN))
		return 0;
	return alloc_pieces(buf, PAGE_SIZE << get_order(DIV_ROUND_UP(all, conn->buf_sges)),
			    flags | __GFP_NOWARN);
}

/* Bytes of piece @i, of which the buffer has all. */
static u32 piece_len(const struct krping_buf *buf, u32 i)
{
	return min(buf->piece_size, buf->head + buf->size - i * buf->piece_size);
}

/**
 * krping_buf_alloc - allocate and map a message buffer
 * @conn:	connection whose device uses it
 * @buf:	zeroed, or unmapped from an earlier connection: its memory is reused
 * @size:	bytes, at most KRPING_BUF_MAX; of a reused buffer, what it has
 * @dir:	as seen from the device
 *
 * Return: 0, or -ENOMEM: krping_buf_free() frees what was allocated.
 */
int krping_buf_alloc(struct krping_conn *conn, struct krping_buf *buf, u32 size,
		     enum dma_data_direction dir)
{
	struct ib_device *dev = conn->id->device;
	u64 dma;
	u32 i;
	int ret;

	if (buf->data && buf->nr_pieces > conn->buf_sges)	/* another device */
		free_data(buf);
	if (!buf->data) {
		ret = alloc_data(conn, buf, size, dir, GFP_KERNEL);
		if (ret)
			return ret;
	}
	for (i = 0; i < buf->nr_pieces; i++) {
		dma = ib_dma_map_single(dev, buf->pieces[i], piece_len(buf, i), dir);
		if (ib_dma_mapping_error(dev, dma))
			return -ENOMEM;
		buf->dma[buf->nr_mapped++] = dma;
	}
	return 0;
}

/**
 * krping_buf_try_alloc - as krping_buf_alloc(), without waiting for memory
 * @conn:	connection whose device uses it
 * @buf:	as for krping_buf_alloc()
 * @size:	as for krping_buf_alloc()
 * @dir:	as seen from the device
 *
 * Return: as krping_buf_alloc().
 */
int krping_buf_try_alloc(struct krping_conn *conn, struct krping_buf *buf, u32 size,
			 enum dma_data_direction dir)
{
	unsigned int noreclaim;
	int ret = 0;

	if (!buf->data) {
		noreclaim = memalloc_noreclaim_save();	/* vmap() takes no flags */
		ret = alloc_data(conn, buf, size, dir, GFP_NOIO | __GFP_NOMEMALLOC | __GFP_NOWARN);
		memalloc_noreclaim_restore(noreclaim);
	}
	return ret ?: krping_buf_alloc(conn, buf, size, dir);
}

/* Unmaps; the memory is kept for the next connection. */
void krping_buf_unmap(struct krping_conn *conn, struct krping_buf *buf)
{
	u32 i;

	for (i = 0; i < buf->nr_mapped; i++)
		ib_dma_unmap_single(conn->id->device, buf->dma[i], piece_len(buf, i), buf->dir);
	buf->nr_mapped = 0;
}

/* Undoes krping_buf_alloc(). @conn is used for a mapped buffer only. */
void krping_buf_free(struct krping_conn *conn, struct krping_buf *buf)
{
	krping_buf_unmap(conn, buf);
	if (buf->data)
		free_data(buf);
}

/* Fills @sges with the first @len bytes of the data. Return: their number. */
static int fill_sges(struct krping_conn *conn, const struct krping_buf *buf, u32 len,
		     struct ib_sge *sges)
{
	u32 i, piece, next, at = buf->head, end = buf->head + len;

	for (i = 0; at < end; i++, at = next) {
		piece = i * buf->piece_size;
		next = min(piece + buf->piece_size, end);
		sges[i] = (struct ib_sge){
			.addr = buf->dma[i] + at - piece,
			.length = next - at,
			.lkey = conn->pd->local_dma_lkey,
		};
	}
	return i;
}

/**
 * krping_buf_send_sges - hand a message to the device
 * @conn:	its connection
 * @buf:	buffer that holds the message
 * @len:	bytes of the message
 * @sges:	KRPING_BUF_SGES entries to fill in
 *
 * Return: number of entries filled in, for a SEND.
 */
int krping_buf_send_sges(struct krping_conn *conn, const struct krping_buf *buf, u32 len,
			 struct ib_sge *sges)
{
	int i, n = fill_sges(conn, buf, len, sges);

	for (i = 0; i < n; i++)
		ib_dma_sync_single_for_device(conn->id->device, sges[i].addr, sges[i].length,
					      buf->dir);
	return n;
}

int krping_buf_post_recv(struct krping_conn *conn, struct krping_buf *buf)
{
	struct ib_sge sges[KRPING_BUF_SGES];
	struct ib_recv_wr wr = {
		.wr_cqe = &buf->cqe,
		.sg_list = sges,
		.num_sge = krping_buf_send_sges(conn, buf, buf->size, sges),
	};

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
	struct ib_sge sges[KRPING_BUF_SGES];
	int i, n;

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
	n = fill_sges(conn, buf, wc->byte_len, sges);
	for (i = 0; i < n; i++)
		ib_dma_sync_single_for_cpu(conn->id->device, sges[i].addr, sges[i].length,
					   DMA_FROM_DEVICE);
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
