/* SPDX-License-Identifier: GPL-2.0 */
/* Message buffers. */
#ifndef KRPING_BUF_H
#define KRPING_BUF_H

#include <linux/dma-direction.h>

#include "rdma/conn.h"

/**
 * struct krping_buf - a message buffer
 * @cqe:	completion of the work request that uses it
 * @data:	@size bytes
 * @size:	bytes of @data
 * @head:	unused bytes in front of @data, less than PAGE_SIZE, so that a part of it is
 *		aligned; set by the owner before the allocation
 * @dir:	as seen from the device
 * @pieces:	@head and @data, in @nr_pieces blocks of memory, each of which is contiguous
 * @nr_pieces:	1, or more if memory is fragmented; @data is then in a mapping of them
 * @piece_size:	bytes of each of @pieces; the last one may be used in part
 * @dma:	DMA addresses of the first @nr_mapped of @pieces
 * @nr_mapped:	@nr_pieces if the buffer is mapped for the connection's device, else 0
 * @users:	for the owner: who needs what was received
 *
 * Belongs to the thread that owns the connection.
 */
struct krping_buf {
	struct ib_cqe cqe;
	void *data;
	u32 size;
	u32 head;
	enum dma_data_direction dir;
	void *pieces[KRPING_BUF_SGES];
	u32 nr_pieces;
	u32 piece_size;
	u64 dma[KRPING_BUF_SGES];
	u32 nr_mapped;
	u32 users;
};

int krping_buf_alloc(struct krping_conn *conn, struct krping_buf *buf, u32 size,
		     enum dma_data_direction dir);
int krping_buf_try_alloc(struct krping_conn *conn, struct krping_buf *buf, u32 size,
			 enum dma_data_direction dir);
void krping_buf_unmap(struct krping_conn *conn, struct krping_buf *buf);
void krping_buf_free(struct krping_conn *conn, struct krping_buf *buf);
int krping_buf_post_recv(struct krping_conn *conn, struct krping_buf *buf);
bool krping_buf_received(struct krping_conn *conn, struct krping_buf *buf, const struct ib_wc *wc);
int krping_bufs_alloc_recv(struct krping_conn *conn, struct krping_buf *bufs, u32 nr, u32 size,
			   void (*done)(struct ib_cq *cq, struct ib_wc *wc));
int krping_buf_send_sges(struct krping_conn *conn, const struct krping_buf *buf, u32 len,
			 struct ib_sge *sges);

#endif /* KRPING_BUF_H */
