/* SPDX-License-Identifier: GPL-2.0 */
/* CRC32C as RFC 3720 has it (PROTOCOL.md section 2.4). */
#ifndef KRPING_CRC_H
#define KRPING_CRC_H

#include <linux/crc32c.h>

static inline u32 crc_begin(void)
{
	return ~0;
}

static inline u32 crc_end(u32 crc)
{
	return ~crc;
}

static inline u32 data_crc(const void *data, u32 len)
{
	return crc_end(crc32c(crc_begin(), data, len));
}

#endif /* KRPING_CRC_H */
