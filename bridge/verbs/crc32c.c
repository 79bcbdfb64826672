// SPDX-License-Identifier: Apache-2.0
#include <endian.h>
#include <string.h>

#include "crc32c.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC_TARGET	__attribute__((target("sse4.2")))
#define CRC_WORD(crc, word)	_mm_crc32_u64(crc, word)
#define CRC_BYTE(crc, byte)	_mm_crc32_u8(crc, byte)

static int has_instruction(void)
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

static int has_instruction(void)
{
	return (getauxval(AT_HWCAP) & HAS_CRC32) != 0;
}
#else
#define CRC_TARGET
#define CRC_WORD(crc, word)	((crc) + (word))	/* never called */
#define CRC_BYTE(crc, byte)	((crc) + (byte))

static int has_instruction(void)
{
	return 0;
}
#endif

/* ---- without an instruction: eight bytes at a time, by tables ---- */

#define POLYNOMIAL	0x82f63b78	/* of Castagnoli, its bits reversed */

/* The CRC of a byte, continued over so many zeros. */
static uint32_t over_bytes[8][256];

static void fill_over_bytes(void)
{
	uint32_t crc, byte;
	int bit, zeros;

	for (byte = 0; byte < 256; byte++) {
		for (crc = byte, bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
		over_bytes[0][byte] = crc;
	}
	for (byte = 0; byte < 256; byte++)
		for (zeros = 1; zeros < 8; zeros++) {
			crc = over_bytes[zeros - 1][byte];
			over_bytes[zeros][byte] = crc >> 8 ^ over_bytes[0][crc & 255];
		}
}

static uint32_t by_tables(const uint8_t *data, uint32_t length)
{
	const uint8_t *end = data + length;
	uint32_t crc = ~0u;
	uint64_t word;

	for (; end - data >= 8; data += 8) {
		memcpy(&word, data, 8);
		word = le64toh(word) ^ crc;
		crc = over_bytes[7][word & 255] ^ over_bytes[6][word >> 8 & 255] ^
		      over_bytes[5][word >> 16 & 255] ^ over_bytes[4][word >> 24 & 255] ^
		      over_bytes[3][word >> 32 & 255] ^ over_bytes[2][word >> 40 & 255] ^
		      over_bytes[1][word >> 48 & 255] ^ over_bytes[0][word >> 56];
	}
	for (; data < end; data++)
		crc = crc >> 8 ^ over_bytes[0][(crc ^ *data) & 255];
	return ~crc;
}

/* ---- with one ---- */

/*
 * A CPU takes three cycles or so for a word, but begins one in each. So three blocks that follow one another are
 * checksummed at once. A CRC is linear: that of two blocks is the CRC of the first one, continued over as many zeros as
 * the second one has bytes, XOR that of the second one, begun with 0.
 */
#define BLOCK	1024

/* The CRC of a byte at each of four places, continued over BLOCK zeros. */
static uint32_t over_zeros[4][256];

CRC_TARGET static uint64_t add_words(uint64_t crc, const uint8_t *data, int bytes)
{
	uint64_t word;
	int i;

#pragma GCC unroll 8
	for (i = 0; i < bytes; i += 8) {
		memcpy(&word, data + i, 8);
		crc = CRC_WORD(crc, word);
	}
	return crc;
}

static void fill_over_zeros(void)
{
	static const uint8_t zeros[BLOCK];
	int place, byte, rest;

	for (place = 0; place < 4; place++) {
		for (byte = 0; byte < 256; byte++) {
			rest = byte & (byte - 1);	/* without its lowest bit */
			over_zeros[place][byte] = rest ? over_zeros[place][rest] ^ over_zeros[place][byte ^ rest] :
							 add_words((uint32_t)byte << 8 * place, zeros, BLOCK);
		}
	}
}

static uint64_t continued(uint64_t crc)
{
	return over_zeros[0][crc & 255] ^ over_zeros[1][crc >> 8 & 255] ^ over_zeros[2][crc >> 16 & 255] ^
	       over_zeros[3][crc >> 24 & 255];
}

/* Three blocks. */
CRC_TARGET static uint64_t add_blocks(uint64_t crc, const uint8_t *data)
{
	uint64_t second = 0, third = 0, words[3];
	int i;

#pragma GCC unroll 16
	for (i = 0; i < BLOCK; i += 8) {
		memcpy(&words[0], data + i, 8);
		memcpy(&words[1], data + BLOCK + i, 8);
		memcpy(&words[2], data + 2 * BLOCK + i, 8);
		crc = CRC_WORD(crc, words[0]);
		second = CRC_WORD(second, words[1]);
		third = CRC_WORD(third, words[2]);
	}
	return continued(continued(crc) ^ second) ^ third;
}

CRC_TARGET static uint32_t by_instruction(const uint8_t *data, uint32_t length)
{
	const uint8_t *end = data + length;
	uint64_t crc = 0xffffffff;

	for (; end - data >= 3 * BLOCK; data += 3 * BLOCK)
		crc = add_blocks(crc, data);
	for (; end - data >= 64; data += 64)
		crc = add_words(crc, data, 64);
	for (; data < end; data++)
		crc = CRC_BYTE((uint32_t)crc, *data);
	return ~(uint32_t)crc;
}

static uint32_t (*crc32c)(const uint8_t *data, uint32_t length) = by_tables;

__attribute__((constructor)) static void choose(void)
{
	fill_over_bytes();
	if (!has_instruction())
		return;
	fill_over_zeros();
	crc32c = by_instruction;
}

uint32_t shim_crc32c(const uint8_t *data, uint32_t length)
{
	return crc32c(data, length);
}

uint32_t shim_crc32c_by_tables(const uint8_t *data, uint32_t length)
{
	return by_tables(data, length);
}
