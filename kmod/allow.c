// SPDX-License-Identifier: GPL-2.0
/* Addresses that a server serves. Pure, as options.c. */
#include "options.h"

#ifdef __KERNEL__
#include <linux/inet.h>
#include <linux/string.h>
#endif

/* The first 96 bits of an IPv4-mapped IPv6 address. */
static const u8 mapped[12] = { [10] = 0xff, [11] = 0xff };

static bool is_mapped(const u8 addr[16])
{
	return !memcmp(addr, mapped, sizeof(mapped));
}

static bool parse_bits(const char *text, u32 most, u32 *bits)
{
	const char *c;
	u32 n = 0;

	for (c = text; *c >= '0' && *c <= '9' && c < text + 3; c++)
		n = n * 10 + (*c - '0');
	*bits = n;
	return c != text && !*c && n <= most;
}

/* @text: ADDR or ADDR/BITS, modified. Return: whether it is valid. */
bool krping_parse_allowed(char *text, struct krping_allowed *allowed)
{
	char *slash = strchr(text, '/');
	u32 skip, bits, most = 128;
	const char *end;

	if (slash)
		*slash++ = '\0';
	if (strchr(text, ':')) {
		if (!in6_pton(text, -1, allowed->addr, -1, &end) || *end)
			return false;
	} else {
		if (!in4_pton(text, -1, allowed->addr + sizeof(mapped), -1, &end) || *end)
			return false;
		memcpy(allowed->addr, mapped, sizeof(mapped));
		most = 32;
	}
	skip = 128 - most;
	if (!slash)
		bits = most;
	else if (!parse_bits(slash, most, &bits))
		return false;
	allowed->bits = skip + bits;
	return allowed->bits >= 96 || !is_mapped(allowed->addr);
}

/* IPv6 entries, even ::/0, do not match IPv4 addresses. */
static bool has_prefix(const u8 addr[16], const struct krping_allowed *allowed)
{
	u32 bytes = allowed->bits / 8, rest = allowed->bits % 8;

	if (is_mapped(addr) != is_mapped(allowed->addr) || memcmp(addr, allowed->addr, bytes))
		return false;
	return !rest || !((addr[bytes] ^ allowed->addr[bytes]) >> (8 - rest));
}

/* @addr: IPv6 or IPv4-mapped. Return: whether a server with these options may serve it. */
bool krping_is_allowed(const struct krping_options *opt, const u8 addr[16])
{
	u32 i;

	for (i = 0; i < opt->nr_allow; i++)
		if (has_prefix(addr, &opt->allow[i]))
			return true;
	return !opt->nr_allow;
}
