// SPDX-License-Identifier: GPL-2.0
/*
 * Large data is checksummed and transferred in place. A program may change it meanwhile (O_DIRECT),
 * or read into the same memory twice with one call: then its CRC does not match although nothing is
 * wrong. Or a memory region cannot hold it where it is. So a second attempt uses a private copy.
 */
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "client/request.h"
#include "wire/crc.h"

/**
 * struct krping_copy - a copy of the data of a request
 * @bytes:	length
 * @nr:		number of @pages
 * @pages:	all full except the last; the rest of that is zero if the target may read it
 *
 * Owned by the owner of the request.
 */
struct krping_copy {
	u32 bytes;
	u32 nr;
	struct page *pages[];
};

static void copy_data(struct krping_copy *copy, struct request *rq, bool to_rq)
{
	struct req_iterator iter;
	u32 at = 0, done, len;
	struct bio_vec bv;
	u8 *data, *page;

	rq_for_each_segment(bv, rq, iter) {
		data = bvec_kmap_local(&bv);
		for (done = 0; done < bv.bv_len; done += len, at += len) {
			len = min_t(u32, bv.bv_len - done, PAGE_SIZE - at % PAGE_SIZE);
			page = page_address(copy->pages[at / PAGE_SIZE]);
			if (to_rq)
				memcpy(data + done, page + at % PAGE_SIZE, len);
			else
				memcpy(page + at % PAGE_SIZE, data + done, len);
		}
		if (to_rq)
			flush_dcache_page(bv.bv_page);
		kunmap_local(data);
	}
}

static void free_copy(struct krping_copy *copy)
{
	while (copy->nr)
		__free_page(copy->pages[--copy->nr]);
	kfree(copy);
}

/* For a large READ or WRITE. Without memory, there is no copy. Any context. */
void krping_copy_make(struct request *rq)
{
	u32 bytes = blk_rq_bytes(rq), nr = DIV_ROUND_UP(bytes, PAGE_SIZE);
	struct krping_copy *copy;

	copy = kmalloc(struct_size(copy, pages, nr), GFP_NOWAIT | __GFP_NOWARN);
	if (!copy)
		return;
	copy->bytes = bytes;
	for (copy->nr = 0; copy->nr < nr; copy->nr++) {
		copy->pages[copy->nr] = alloc_page(GFP_NOWAIT | __GFP_NOWARN);
		if (!copy->pages[copy->nr]) {
			free_copy(copy);
			return;
		}
	}
	krping_req(rq)->copy = copy;
	if (rq_data_dir(rq) == WRITE) {
		copy_data(copy, rq, false);
		memset(page_address(copy->pages[nr - 1]) + bytes - (nr - 1) * PAGE_SIZE, 0,
		       nr * PAGE_SIZE - bytes);
	}
}

/* Idempotent. */
void krping_copy_free(struct request *rq)
{
	struct krping_copy *copy = krping_req(rq)->copy;

	if (!copy)
		return;
	krping_req(rq)->copy = NULL;
	free_copy(copy);
}

/*
 * Whole pages: a bounce buffer for less than a page may begin in the middle of one.
 *
 * Return: used entries of @sg, which has one for each page.
 */
int krping_copy_map(const struct krping_copy *copy, struct scatterlist *sg)
{
	u32 i;

	sg_init_table(sg, copy->nr);
	for (i = 0; i < copy->nr; i++)
		sg_set_page(&sg[i], copy->pages[i], PAGE_SIZE, 0);
	return copy->nr;
}

u32 krping_copy_crc(const struct krping_copy *copy)
{
	u32 crc = krping_crc_begin(), i;

	for (i = 0; i < copy->nr; i++)
		crc = krping_crc_add(crc, page_address(copy->pages[i]),
				     min_t(u32, PAGE_SIZE, copy->bytes - i * PAGE_SIZE));
	return krping_crc_end(crc);
}

/* Copies what was read to the request's pages. */
void krping_copy_deliver(struct request *rq)
{
	copy_data(krping_req(rq)->copy, rq, true);
}
