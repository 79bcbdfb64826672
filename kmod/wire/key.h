/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The key that a client and a target share, and proofs of its possession (PROTOCOL.md section 2.1).
 * The only copy of the key is inside the keyed hash, which wipes it when freed.
 */
#ifndef KRPING_KEY_H
#define KRPING_KEY_H

#include <crypto/hash.h>

#include "uapi/krping.h"

struct crypto_shash *krping_key_find(const char *description, const char *log_prefix);
u8 krping_volume_fill(const char *name, u8 volume[KRPING_VOLUME_LEN]);
void krping_transcript_fill(struct krping_transcript *t, const struct krping_hello *hello,
			    const char *volume, const u8 *target_nonce);
int krping_client_proof(struct crypto_shash *key, struct krping_transcript *t, u8 version,
			u8 proof[KRPING_PROOF_LEN]);
int krping_target_proof(struct crypto_shash *key, struct krping_transcript *t,
			const struct krping_welcome *welcome, u8 proof[KRPING_PROOF_LEN]);

#endif /* KRPING_KEY_H */
