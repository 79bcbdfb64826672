/* SPDX-License-Identifier: GPL-2.0 */
/* CRC32C as defined by RFC 3720 (PROTOCOL.md section 2.4). */
#ifndef KRPING_CRC_H
#define KRPING_CRC_H

#include <linux/bottom_half.h>
#include <linux/bvec.h>
#include <linux/crc32c.h>
#include <linux/highmem.h>

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

/* Continues @crc over the data of @bv. */
static inline u32 krping_crc_bvec(u32 crc, struct bio_vec *bv)
{
	void *data = bvec_kmap_local(bv);

	crc = krping_crc_add(crc, data, bv->bv_len);
	kunmap_local(data);
	return crc;
}

static inline u32 krping_crc(const void *data, u32 len)
{
	return krping_crc_end(krping_crc_add(krping_crc_begin(), data, len));
}

#endif /* KRPING_CRC_H */
