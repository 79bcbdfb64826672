/* SPDX-License-Identifier: GPL-2.0 */
/* CRC32C as defined by RFC 3720 (PROTOCOL.md section 2.4). */
#ifndef KRPING_CRC_H
#define KRPING_CRC_H

#include <linux/bottom_half.h>
#include <linux/bvec.h>
#include <linux/crc32c.h>
#include <linux/highmem.h>
#include <linux/minmax.h>
#include <linux/sizes.h>

static inline u32 krping_crc_begin(void)
{
	return ~0;
}

static inline u32 krping_crc_end(u32 crc)
{
	return ~crc;
}

/*
 * Continues @crc. On x86 crc32c() uses the FPU, and a softirq that interrupts it may not: Soft-RoCE
 * would compute the checksums of its packets in software, which takes three times as many
 * instructions. So softirqs are off. Hard interrupts must be on.
 */
static inline u32 krping_crc_add(u32 crc, const void *data, u32 len)
{
	local_bh_disable();
	crc = crc32c(crc, data, len);
	local_bh_enable();
	return crc;
}

/*
 * For krping_crc_bvec(): where all memory is mapped, pages that follow each other are one piece,
 * which takes fewer calls of crc32c().
 */
#ifdef CONFIG_HIGHMEM
#define krping_rq_for_each_piece	rq_for_each_segment
#define krping_bio_for_each_piece	bio_for_each_segment
#else
#define krping_rq_for_each_piece	rq_for_each_bvec
#define krping_bio_for_each_piece	bio_for_each_bvec
#endif

#define KRPING_CRC_STEP	SZ_64K	/* bytes: then softirqs may run */

/* Continues @crc over the data of @bv. */
static inline u32 krping_crc_bvec(u32 crc, struct bio_vec *bv)
{
	void *data = bvec_kmap_local(bv);
	u32 done, len;

	for (done = 0; done < bv->bv_len; done += len) {
		len = min_t(u32, bv->bv_len - done, KRPING_CRC_STEP);
		crc = krping_crc_add(crc, data + done, len);
	}
	kunmap_local(data);
	return crc;
}

static inline u32 krping_crc(const void *data, u32 len)
{
	return krping_crc_end(krping_crc_add(krping_crc_begin(), data, len));
}

#endif /* KRPING_CRC_H */
