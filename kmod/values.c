// SPDX-License-Identifier: GPL-2.0
/* Values of options that are more than a number or a name. Pure, as options.c. */
#include "options.h"

#ifdef __KERNEL__
#include <linux/bits.h>
#include <linux/kernel.h>
#include <linux/string.h>
#include "lib/compat.h"
#endif

const char *const krping_verb_names[] = {
	"-", "send", "write", "write_imm", "read", "fetch_add", "cmp_swap",
};

const char *const krping_verbs_qp_names[] = { "-", "rc", "uc", "ud" };

/* Return: whether @text begins with 1 to 16 digits; @end is set to the character after them. */
bool krping_parse_u64(const char *text, u64 *out, const char **end)
{
	const char *c;
	u64 n = 0;

	for (c = text; *c >= '0' && *c <= '9' && c < text + 16; c++)
		n = n * 10 + (*c - '0');
	*out = n;
	*end = c;
	return c != text && !(*c >= '0' && *c <= '9');
}

#define RAM_MIN		BIT_ULL(20)
#define RAM_MAX		BIT_ULL(40)

/* SIZE of ram:SIZE. Return: whether @text is one. */
bool krping_parse_ram(const char *text, u64 *ram)
{
	static const char units[] = "KMGT";
	const char *end, *unit;
	u64 n;

	if (!krping_parse_u64(text, &n, &end))
		return false;
	if (*end) {
		unit = strchr(units, *end++);
		if (!unit || *end || n > RAM_MAX >> 10 * (unit - units + 1))
			return false;
		n <<= 10 * (unit - units + 1);
	}
	*ram = n;
	return n >= RAM_MIN && n <= RAM_MAX && !(n % 4096);
}

/* Hexadecimal digits in groups of 8, 4, 4, 4 and 12 (RFC 9562). Return: whether @c is one. */
bool krping_parse_uuid(const char *c, u8 uuid[KRPING_UUID_LEN])
{
	int high, low, i;
	u8 any = 0;

	for (i = 0; i < KRPING_UUID_LEN; i++) {
		if ((i == 4 || i == 6 || i == 8 || i == 10) && *c++ != '-')
			return false;
		high = hex_to_bin(c[0]);
		low = high < 0 ? -1 : hex_to_bin(c[1]);
		if (low < 0)
			return false;
		uuid[i] = high << 4 | low;
		any |= uuid[i];
		c += 2;
	}
	return !*c && any;
}
