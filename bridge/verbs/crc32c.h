/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KRPING_VERBS_CRC32C_H
#define KRPING_VERBS_CRC32C_H

#include <stdint.h>

/* The checksum of RFC 3720, as wire.CRC32C computes it, by the CPU's instruction if it has one. */
uint32_t shim_crc32c(const uint8_t *data, uint32_t length);
uint32_t shim_crc32c_by_tables(const uint8_t *data, uint32_t length);

#endif /* KRPING_VERBS_CRC32C_H */
