// SPDX-License-Identifier: GPL-2.0
#include <linux/kernel.h>

#include "ping/pattern.h"

#define FIRST_CHAR	'A'
#define NR_CHARS	('z' - 'A' + 1)

/* The text at the start of the data; may be longer than the ping. */
static u32 prefix(char text[32], u32 ping)
{
	return scnprintf(text, 32, "rdma-ping-%u: ", ping);
}

static u8 pattern_byte(const char *text, u32 text_len, u32 size, u32 ping, u32 i)
{
	if (i == size - 1)
		return 0;
	if (i < text_len)
		return text[i];
	return FIRST_CHAR + (ping % NR_CHARS + i - text_len) % NR_CHARS;
}

void krping_pattern_fill(u8 *buf, u32 size, u32 ping)
{
	char text[32];
	u32 len = prefix(text, ping), i;

	for (i = 0; i < size; i++)
		buf[i] = pattern_byte(text, len, size, ping, i);
}

/* Return: offset of the first byte that differs from the pattern, or -1. */
s64 krping_pattern_mismatch(const u8 *buf, u32 size, u32 ping)
{
	char text[32];
	u32 len = prefix(text, ping), i;

	for (i = 0; i < size; i++)
		if (buf[i] != pattern_byte(text, len, size, ping, i))
			return i;
	return -1;
}
