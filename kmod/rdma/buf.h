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
 * @dma:	its DMA address, if @mapped
 * @mapped:	mapped for the connection's device
 * @size:	bytes of @data
 * @dir:	as seen from the device
 *
 * Belongs to the thread that owns the connection.
 */
struct krping_buf {
	struct ib_cqe cqe;
	void *data;
	u64 dma;
	bool mapped;
	u32 size;
	enum dma_data_direction dir;
};

int krping_buf_alloc(struct krping_conn *conn, struct krping_buf *buf, u32 size,
		     enum dma_data_direction dir);
void krping_buf_unmap(struct krping_conn *conn, struct krping_buf *buf);
void krping_buf_free(struct krping_conn *conn, struct krping_buf *buf);
int krping_buf_post_recv(struct krping_conn *conn, struct krping_buf *buf);
bool krping_buf_received(struct krping_conn *conn, struct krping_buf *buf, const struct ib_wc *wc);
int krping_bufs_alloc_recv(struct krping_conn *conn, struct krping_buf *bufs, u32 nr, u32 size,
			   void (*done)(struct ib_cq *cq, struct ib_wc *wc));
struct ib_sge krping_buf_sge(struct krping_conn *conn, const struct krping_buf *buf, u32 len);

#endif /* KRPING_BUF_H */
