/* SPDX-License-Identifier: GPL-2.0 */
/* The data of a ping (PROTOCOL.md section 1), the same as in rping and upstream krping. */
#ifndef KRPING_PATTERN_H
#define KRPING_PATTERN_H

#include <linux/types.h>

void krping_pattern_fill(u8 *buf, u32 size, u32 ping);
s64 krping_pattern_mismatch(const u8 *buf, u32 size, u32 ping);

#endif /* KRPING_PATTERN_H */
