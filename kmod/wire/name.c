// SPDX-License-Identifier: GPL-2.0
/* Names of volumes. Pure, as wire.c. */
#include "wire/wire.h"

#ifdef __KERNEL__
#include <linux/ctype.h>
#include <linux/string.h>
#endif

static bool is_name_char(unsigned char c)
{
	return c < 0x80 && (isalnum(c) || c == '.' || c == '_' || c == '-');
}

/* "." and ".." would leave the directory of a path that has the name in it. */
static bool is_part(const char *part, size_t len)
{
	return len && !(part[0] == '.' && (len == 1 || (len == 2 && part[1] == '.')));
}

/**
 * krping_is_volume_name - is it a valid name of a volume?
 * @name:	@size bytes, or a string
 * @size:	the most bytes of a name, with the NUL
 */
bool krping_is_volume_name(const char *name, size_t size)
{
	size_t start = 0, i;

	for (i = 0; i < size; i++) {
		if (is_name_char(name[i]))
			continue;
		if (!is_part(name + start, i - start))
			return false;
		if (name[i] != '/')
			return !name[i];
		start = i + 1;
	}
	return false;
}

/* @name: valid. Return: whether version 1 of the protocol has such names. */
bool krping_is_v1_name(const char *name)
{
	return strlen(name) < KRPING_VOLUME_LEN && !strchr(name, '/');
}
