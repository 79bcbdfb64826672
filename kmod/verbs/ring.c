// SPDX-License-Identifier: GPL-2.0
/* The receives of a queue pair, or of a shared receive queue. */
#include "verbs/verbs.h"

/* Bytes of the slot of receive @index in its region. */
static u32 offset_of(const struct krping_verbs_ring *ring, u32 index)
{
	return index % ring->nr_slots % ring->slots_each * ring->stride;
}

static struct krping_region *region_of(const struct krping_verbs_ring *ring, u32 index)
{
	return &ring->regions[index % ring->nr_slots / ring->slots_each];
}

/* What receive @index has received, for the CPU to read; the first byte may be a GRH's. */
u8 *krping_verbs_ring_data(struct krping_verbs_ring *ring, u32 index)
{
	struct krping_region *region = region_of(ring, index);
	u32 offset = offset_of(ring, index);

	krping_region_part_for_cpu(ring->conn, region, offset, ring->len);
	return region->vaddr + offset;
}

/* Posts a receive that has completed, or was never posted. */
int krping_verbs_ring_repost(struct krping_verbs_ring *ring, struct krping_verbs_recv *recv)
{
	struct ib_recv_wr wr = { .wr_cqe = &recv->cqe };
	struct ib_sge sge;

	if (ring->nr_regions) {
		struct krping_region *region = region_of(ring, recv->index);
		u32 offset = offset_of(ring, recv->index);

		krping_region_part_for_device(ring->conn, region, offset, ring->len);
		sge = (struct ib_sge){
			.addr = region->mr->iova + offset,
			.length = ring->len,
			.lkey = region->mr->lkey,
		};
		wr.sg_list = &sge;
		wr.num_sge = 1;
	}
	return ring->srq ? ib_post_srq_recv(ring->srq, &wr, NULL) :
			   ib_post_recv(ring->qp, &wr, NULL);
}

/* Posts all receives for the first time. */
int krping_verbs_ring_fill(struct krping_verbs_ring *ring)
{
	int ret = 0;
	u32 i;

	for (i = 0; i < ring->nr && !ret; i++)
		ret = krping_verbs_ring_repost(ring, &ring->recvs[i]);
	return ret;
}
