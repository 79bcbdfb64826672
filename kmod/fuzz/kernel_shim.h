/* SPDX-License-Identifier: GPL-2.0 */
/* The parts of the kernel that options.c, wire.c and parts of verbs/ need in user space. */
#ifndef KRPING_KERNEL_SHIM_H
#define KRPING_KERNEL_SHIM_H

#include <linux/types.h>

#include <arpa/inet.h>
#include <ctype.h>
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

#define U32_MAX UINT32_MAX
#define U64_MAX UINT64_MAX
#define BIT(n) (1ul << (n))
#define BIT_ULL(n) (1ull << (n))
#define ALIGN shim_align
#define IS_ALIGNED(x, a) ((x) % (a) == 0)
#define PAGE_SIZE 4096u
#define OPTIMIZER_HIDE_VAR(x) ({ __asm__ ("" : "+r" (x)); })
#define shim_choose(a, op, b) ({ \
	__auto_type a_ = (a); \
	__auto_type b_ = (b); \
	a_ op b_ ? a_ : b_; \
})
#define min(a, b) shim_choose(a, <, b)
#define max(a, b) shim_choose(a, >, b)
#define clamp(x, low, high) min(max(x, low), high)
#define cpu_to_be16 htobe16
#define cpu_to_be32 htobe32
#define cpu_to_be64 htobe64
#define div64_u64(a, b) ((a) / (b))
#define be16_to_cpu be16toh
#define be32_to_cpu be32toh
#define be64_to_cpu be64toh
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

static inline u64 shim_align(u64 x, u64 a)
{
	return (x + a - 1) / a * a;
}

static inline u64 roundup_pow_of_two(u64 n)
{
	return n > 1 ? 1ull << (64 - __builtin_clzll(n - 1)) : 1;
}

static inline int hex_to_bin(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static inline int shim_pton(int family, const char *src, u8 *dst, const char **end)
{
	*end = src + strlen(src);
	return inet_pton(family, src, dst) == 1;
}

#define in4_pton(src, len, dst, delim, end) shim_pton(AF_INET, src, dst, end)
#define in6_pton(src, len, dst, delim, end) shim_pton(AF_INET6, src, dst, end)

#endif /* KRPING_KERNEL_SHIM_H */
