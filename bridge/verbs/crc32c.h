/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KRPING_VERBS_CRC32C_H
#define KRPING_VERBS_CRC32C_H

#include <stdint.h>

/* Whether the CPU has instructions for the checksum. */
int shim_has_crc32c(void);

/* The checksum of RFC 3720, as wire.CRC32C computes it. Only if shim_has_crc32c(). */
uint32_t shim_crc32c(const uint8_t *data, uint32_t length);

#endif /* KRPING_VERBS_CRC32C_H */
