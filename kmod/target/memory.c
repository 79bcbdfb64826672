// SPDX-License-Identifier: GPL-2.0
/*
 * Pages for data that does not fit the command's own page: allocate, checksum, copy, free. A
 * connection keeps the pages that it has used until it is idle: some kernels zero every allocation,
 * which costs as much as the checksum and is not needed, because every byte is written before it is
 * read.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "wire/crc.h"
#include "lib/fault.h"
#include "target/target.h"

/*
 * Pages for messages and data of all connections. Clients without a key can make a target allocate
 * them, so a client whose messages do not fit is rejected. Data waits until there is room; but a
 * connection may always have one command's, so that each makes progress.
 */
static atomic_long_t krping_pages;

static long most_pages(const struct krping_target_conn *tc)
{
	return krping_fault_is_on(KRPING_FAULT_TARGET_FULL, tc->volume->opt.block) ?
	       SZ_16M / PAGE_SIZE : totalram_pages() / 2;
}

/* Return: false if that is more than connections may have. */
bool krping_pages_get(struct krping_target_conn *tc, u32 pages)
{
	if (atomic_long_add_return(pages, &krping_pages) <= most_pages(tc))
		return true;
	krping_pages_put(pages);
	return false;
}

void krping_pages_put(u32 pages)
{
	atomic_long_sub(pages, &krping_pages);
}

bool krping_pages_are_short(struct krping_target_conn *tc)
{
	return atomic_long_read(&krping_pages) >= most_pages(tc);
}

static struct page *new_chunk(int order)
{
	const gfp_t flags = GFP_NOIO | __GFP_COMP | __GFP_NOWARN;
	struct page *page;

	do {
		page = alloc_pages(order ? flags | __GFP_NORETRY : flags, order);
	} while (!page && order--);
	if (page)
		atomic_long_add(compound_nr(page), &krping_pages);
	return page;
}

static void release_chunk(struct page *page)
{
	krping_pages_put(compound_nr(page));
	__free_pages(page, compound_order(page));
}

static struct page *alloc_chunk(struct krping_target_conn *tc, u32 len)
{
	int order = min(get_order(len), tc->chunk_order);
	struct list_head *free = &tc->chunks[order].free;
	struct page *page = list_first_entry_or_null(free, struct page, lru);

	if (!page)
		return new_chunk(order);
	list_del(&page->lru);
	return page;
}

static void free_chunk(struct krping_target_conn *tc, struct page *page)
{
	int order = compound_order(page);	/* perhaps less than was asked for */

	if (krping_pages_are_short(tc)) {
		release_chunk(page);
		return;
	}
	list_add(&page->lru, &tc->chunks[order].free);
	tc->chunks[order].used = jiffies;
}

/*
 * rdma_rw sizes memory regions by scatterlist entries, not by pages. If a region cannot hold the
 * pages of the largest transfer, every entry has to be a single page.
 */
int krping_chunk_order(const struct ib_device *device)
{
	u64 most = (u64)device->attrs.max_fast_reg_page_list_len * PAGE_SIZE;

	return most && most < KRPING_TARGET_MAX_DATA ? 0 : KRPING_CHUNK_ORDER;
}

void krping_chunks_init(struct krping_target_conn *tc)
{
	int order;

	for (order = 0; order <= KRPING_CHUNK_ORDER; order++)
		INIT_LIST_HEAD(&tc->chunks[order].free);
}

/* Frees the pieces that no command uses, of orders unused for @unused jiffies. */
void krping_free_chunks(struct krping_target_conn *tc, unsigned long unused)
{
	struct page *page, *next;
	int order;

	for (order = 0; order <= KRPING_CHUNK_ORDER; order++) {
		if (time_before(jiffies, tc->chunks[order].used + unused))
			continue;
		list_for_each_entry_safe(page, next, &tc->chunks[order].free, lru) {
			list_del(&page->lru);
			release_chunk(page);
		}
	}
}

/* Has the command's data in contiguous memory that krping_data_free() does not free. */
void krping_data_set(struct krping_target_cmd *cmd, struct page *page, u32 offset)
{
	sg_set_page(&cmd->small, page, cmd->length, offset);
	cmd->sg = &cmd->small;
	cmd->nents = 1;
}

/* Undoes krping_data_alloc(). Idempotent. */
void krping_data_free(struct krping_target_cmd *cmd)
{
	struct scatterlist *sg;
	u32 i;

	if (!cmd->sg || cmd->sg == &cmd->small)
		return;
	for_each_sg(cmd->sg, sg, cmd->nents, i)
		free_chunk(cmd->tc, sg_page(sg));
	kfree(cmd->sg);
	cmd->sg = NULL;
	cmd->nents = 0;
	cmd->tc->buffered -= PAGE_ALIGN(cmd->length);
}

/* Return: false if memory is short, with nothing allocated. */
bool krping_data_alloc(struct krping_target_cmd *cmd)
{
	u32 max = DIV_ROUND_UP(cmd->length, PAGE_SIZE), left = cmd->length, len;
	struct page *page;

	if (krping_fault(KRPING_FAULT_TARGET_ALLOC_FAIL, cmd->tc->volume->opt.block))
		return false;
	cmd->sg = kmalloc_array(max, sizeof(*cmd->sg), GFP_NOIO | __GFP_NOWARN);
	if (!cmd->sg)
		return false;
	sg_init_table(cmd->sg, max);
	cmd->tc->buffered += PAGE_ALIGN(cmd->length);
	for (; left; left -= len) {
		page = alloc_chunk(cmd->tc, left);
		if (!page) {
			krping_data_free(cmd);
			return false;
		}
		len = min_t(u32, left, page_size(page));
		sg_set_page(&cmd->sg[cmd->nents++], page, len, 0);
	}
	sg_mark_end(&cmd->sg[cmd->nents - 1]);
	return true;
}

u32 krping_data_crc(struct krping_target_cmd *cmd)
{
	struct scatterlist *sg;
	u32 crc = krping_crc_begin();
	u32 i;

	for_each_sg(cmd->sg, sg, cmd->nents, i)
		crc = krping_crc_add(crc, sg_virt(sg), sg->length);
	return krping_crc_end(crc);
}

void krping_data_copy_to(struct krping_target_cmd *cmd, void *to)
{
	struct scatterlist *sg;
	u32 i;

	for_each_sg(cmd->sg, sg, cmd->nents, i) {
		memcpy(to, sg_virt(sg), sg->length);
		to += sg->length;
	}
}

void krping_data_copy_from(struct krping_target_cmd *cmd, const void *from)
{
	struct scatterlist *sg;
	u32 i;

	for_each_sg(cmd->sg, sg, cmd->nents, i) {
		memcpy(sg_virt(sg), from, sg->length);
		from += sg->length;
	}
}
