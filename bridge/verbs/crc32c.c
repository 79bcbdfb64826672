// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC_TARGET	__attribute__((target("sse4.2")))
#define CRC_WORD(crc, word)	_mm_crc32_u64(crc, word)
#define CRC_BYTE(crc, byte)	_mm_crc32_u8(crc, byte)

int shim_has_crc32c(void)
{
	return __builtin_cpu_supports("sse4.2") != 0;
}
#elif defined(__aarch64__)
#pragma GCC target("+crc")
#include <arm_acle.h>
#include <sys/auxv.h>
#define CRC_TARGET
#define CRC_WORD(crc, word)	__crc32cd(crc, word)
#define CRC_BYTE(crc, byte)	__crc32cb(crc, byte)

#define HAS_CRC32	(1 << 7)	/* HWCAP_CRC32 of asm/hwcap.h */

int shim_has_crc32c(void)
{
	return (getauxval(AT_HWCAP) & HAS_CRC32) != 0;
}
#else
#define CRC_TARGET
#define CRC_WORD(crc, word)	((crc) + (word))	/* never called */
#define CRC_BYTE(crc, byte)	((crc) + (byte))

int shim_has_crc32c(void)
{
	return 0;
}
#endif

CRC_TARGET uint32_t shim_crc32c(const uint8_t *data, uint32_t length)
{
	const uint8_t *end = data + length;
	uint64_t crc = 0xffffffff, word;
	int i;

	for (; end - data >= 64; data += 64) {
#pragma GCC unroll 8
		for (i = 0; i < 64; i += 8) {
			memcpy(&word, data + i, 8);
			crc = CRC_WORD(crc, word);
		}
	}
	for (; data < end; data++)
		crc = CRC_BYTE((uint32_t)crc, *data);
	return ~(uint32_t)crc;
}
