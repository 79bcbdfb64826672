// SPDX-License-Identifier: GPL-2.0
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "lib/compat.h"
#include "lib/log.h"
#include "rdma/region.h"

static void free_pages_of(struct krping_region *region)
{
	if (region->contiguous)
		free_pages_exact(region->vaddr, region->size);
	else
		vfree(region->vaddr);
	region->vaddr = NULL;
}

static int alloc_pages_of(struct krping_conn *conn, struct krping_region *region)
{
	if (!region->contiguous) {
		region->vaddr = vzalloc(region->size);
		return region->vaddr ? 0 : -ENOMEM;
	}
	if (get_order(region->size) >= KRPING_NR_PAGE_ORDERS) {
		krping_err_ratelimited(conn->log_prefix,
				       "without a memory region the size must be at most %lu",
				       PAGE_SIZE << (KRPING_NR_PAGE_ORDERS - 1));
		return -EINVAL;
	}
	region->vaddr = alloc_pages_exact(region->size, GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN);
	if (region->vaddr)
		return 0;
	krping_err_ratelimited(conn->log_prefix, "cannot allocate %u bytes of contiguous memory",
			       region->size);
	return -ENOMEM;
}

static struct page *page_at(const struct krping_region *region, u32 index)
{
	void *vaddr = region->vaddr + (size_t)index * PAGE_SIZE;

	return region->contiguous ? virt_to_page(vaddr) : vmalloc_to_page(vaddr);
}

static int list_pages(struct krping_region *region, u32 nr_pages)
{
	struct page **pages;
	u32 i;
	int ret;

	pages = kvmalloc_array(nr_pages, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	for (i = 0; i < nr_pages; i++)
		pages[i] = page_at(region, i);
	ret = sg_alloc_table_from_pages(&region->sgt, pages, nr_pages, 0, region->size,
					GFP_KERNEL);
	kvfree(pages);
	return ret;
}

/**
 * krping_region_alloc - allocate memory and map it for a connection's device
 * @conn:	with a PD
 * @region:	zeroed
 * @size:	bytes
 * @flags:	KRPING_REGION_*, at least one
 * @done:	KRPING_REGION_MR: completion of the registering work request
 *
 * Return: 0 or a negative errno with nothing left allocated.
 */
int krping_region_alloc(struct krping_conn *conn, struct krping_region *region, u32 size,
			unsigned int flags, void (*done)(struct ib_cq *cq, struct ib_wc *wc))
{
	struct ib_device *dev = conn->id->device;
	u32 nr_pages = DIV_ROUND_UP(size, PAGE_SIZE);
	int ret = 0;

	if (flags & KRPING_REGION_MR)
		ret = krping_conn_check_limit(conn, "pages in a memory region", nr_pages,
					      dev->attrs.max_fast_reg_page_list_len);
	if (ret)
		return ret;
	region->contiguous = flags & KRPING_REGION_CONTIGUOUS;
	region->size = size;
	region->cqe.done = done;
	ret = alloc_pages_of(conn, region);
	if (ret)
		return ret;
	ret = list_pages(region, nr_pages);
	if (ret)
		goto free_vaddr;
	region->nents = ib_dma_map_sg(dev, region->sgt.sgl, region->sgt.orig_nents,
				      DMA_BIDIRECTIONAL);
	if (!region->nents) {
		ret = -ENOMEM;
		goto free_sgt;
	}
	if (region->contiguous && region->nents != 1) {
		krping_err_ratelimited(conn->log_prefix,
				       "%s maps %u contiguous bytes in %d pieces: use a smaller size",
				       dev->name, size, region->nents);
		ret = -EINVAL;
		goto unmap;
	}
	if (!(flags & KRPING_REGION_MR))
		return 0;
	region->mr = ib_alloc_mr(conn->pd, IB_MR_TYPE_MEM_REG, nr_pages);
	if (!IS_ERR(region->mr))
		return 0;
	ret = PTR_ERR(region->mr);
	region->mr = NULL;
unmap:
	ib_dma_unmap_sg(dev, region->sgt.sgl, region->sgt.orig_nents, DMA_BIDIRECTIONAL);
free_sgt:
	sg_free_table(&region->sgt);
free_vaddr:
	free_pages_of(region);
	return ret;
}

/* Undoes krping_region_alloc(); the queue pair is destroyed. */
void krping_region_free(struct krping_conn *conn, struct krping_region *region)
{
	if (!region->vaddr)
		return;
	if (region->mr)
		ib_dereg_mr(region->mr);
	ib_dma_unmap_sg(conn->id->device, region->sgt.sgl, region->sgt.orig_nents,
			DMA_BIDIRECTIONAL);
	sg_free_table(&region->sgt);
	free_pages_of(region);
}

/**
 * krping_region_prepare - make the work requests that give the region a new key
 * @region:	with KRPING_REGION_MR
 * @access:	IB_ACCESS_*
 *
 * One or two: a valid old key is invalidated first. The last one, the REG_MR, is signalled. Post
 * them while no other work request of the queue pair is in flight, and wait: when rxe retransmits,
 * it executes an uncompleted LOCAL_INV or REG_MR a second time and fails the queue pair.
 *
 * Return: the first work request, or NULL if the device cannot map the pages.
 */
struct ib_send_wr *krping_region_prepare(struct krping_region *region, int access)
{
	bool invalidate = region->valid;

	region->inv_wr = (struct ib_send_wr){
		.next = &region->reg_wr.wr,
		.opcode = IB_WR_LOCAL_INV,
		.ex.invalidate_rkey = region->mr->rkey,
		.wr_cqe = &region->cqe,
	};
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
	region->valid = true;
	return invalidate ? &region->inv_wr : &region->reg_wr.wr;
}

/**
 * krping_region_sge - an SGE for the first bytes, for a local work request
 * @conn:	connection of the region
 * @region:	registered if it has a memory region
 * @len:	bytes
 * @local_key:	use the PD's key, registered or not; KRPING_REGION_CONTIGUOUS only
 */
struct ib_sge krping_region_sge(const struct krping_conn *conn,
				const struct krping_region *region, u32 len, bool local_key)
{
	bool by_mr = region->mr && !local_key;

	return (struct ib_sge){
		.addr = by_mr ? region->mr->iova : sg_dma_address(region->sgt.sgl),
		.length = len,
		.lkey = by_mr ? region->mr->lkey : conn->pd->local_dma_lkey,
	};
}

/* Return: the address to advertise to the peer. */
u64 krping_region_addr(const struct krping_region *region)
{
	return region->mr ? region->mr->iova : sg_dma_address(region->sgt.sgl);
}

/* Return: the key to advertise to the peer. */
u32 krping_region_rkey(const struct krping_conn *conn, const struct krping_region *region)
{
	return region->mr ? region->mr->rkey : conn->pd->unsafe_global_rkey;
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

/*
 * For @len bytes from @offset on, calls @sync with each piece. Nothing is done for a device that
 * works on the CPU's own mapping.
 */
static void sync_part(struct krping_conn *conn, struct krping_region *region, u32 offset, u32 len,
		      void (*sync)(struct ib_device *dev, u64 addr, size_t size,
				   enum dma_data_direction dir))
{
	struct ib_device *dev = conn->id->device;
	struct scatterlist *sg;
	u32 piece;
	int i;

	if (ib_uses_virt_dma(dev))
		return;
	for_each_sg(region->sgt.sgl, sg, region->nents, i) {
		if (!len)
			return;
		if (offset >= sg_dma_len(sg)) {
			offset -= sg_dma_len(sg);
			continue;
		}
		piece = min(len, sg_dma_len(sg) - offset);
		sync(dev, sg_dma_address(sg) + offset, piece, DMA_BIDIRECTIONAL);
		len -= piece;
		offset = 0;
	}
}

/* As krping_region_for_device(), for @len bytes from @offset on. */
void krping_region_part_for_device(struct krping_conn *conn, struct krping_region *region,
				   u32 offset, u32 len)
{
	sync_part(conn, region, offset, len, ib_dma_sync_single_for_device);
}

/* As krping_region_for_cpu(), for @len bytes from @offset on. */
void krping_region_part_for_cpu(struct krping_conn *conn, struct krping_region *region, u32 offset,
				u32 len)
{
	sync_part(conn, region, offset, len, ib_dma_sync_single_for_cpu);
}
