/* SPDX-License-Identifier: GPL-2.0 */
/* Memory for the data of a test, which the peer may access. */
#ifndef KRPING_REGION_H
#define KRPING_REGION_H

#include <linux/bits.h>
#include <linux/scatterlist.h>

#include "rdma/conn.h"

/* Flags of krping_region_alloc(). */
#define KRPING_REGION_MR		BIT(0)	/* has a memory region with keys of its own */
#define KRPING_REGION_CONTIGUOUS	BIT(1)	/* physically contiguous: the PD's keys work, too */

/**
 * struct krping_region - memory of a test
 * @contiguous:	physically contiguous, also for the device
 * @vaddr:	@size bytes, contiguous in virtual memory
 * @sgt:	its pages
 * @nents:	mapped entries of @sgt
 * @mr:		covers the whole of @sgt once @reg_wr has completed; NULL without
 *		KRPING_REGION_MR
 * @valid:	the key of @mr is valid, or will be when @reg_wr has completed
 * @inv_wr:	invalidates the key before @reg_wr makes another
 * @reg_wr:	the REG_MR of krping_region_prepare()
 * @cqe:	its completion
 *
 * Belongs to the thread that owns the connection.
 */
struct krping_region {
	bool contiguous;
	void *vaddr;
	u32 size;
	struct sg_table sgt;
	int nents;
	struct ib_mr *mr;
	bool valid;
	struct ib_send_wr inv_wr;
	struct ib_reg_wr reg_wr;
	struct ib_cqe cqe;
};

int krping_region_alloc(struct krping_conn *conn, struct krping_region *region, u32 size,
			unsigned int flags, void (*done)(struct ib_cq *cq, struct ib_wc *wc));
void krping_region_free(struct krping_conn *conn, struct krping_region *region);
struct ib_send_wr *krping_region_prepare(struct krping_region *region, int access);
struct ib_sge krping_region_sge(const struct krping_conn *conn,
				const struct krping_region *region, u32 len, bool local_key);
u64 krping_region_addr(const struct krping_region *region);
u32 krping_region_rkey(const struct krping_conn *conn, const struct krping_region *region);
void krping_region_for_device(struct krping_conn *conn, struct krping_region *region);
void krping_region_for_cpu(struct krping_conn *conn, struct krping_region *region);
void krping_region_part_for_device(struct krping_conn *conn, struct krping_region *region,
				   u32 offset, u32 len);
void krping_region_part_for_cpu(struct krping_conn *conn, struct krping_region *region, u32 offset,
				u32 len);

#endif /* KRPING_REGION_H */
