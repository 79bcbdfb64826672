// SPDX-License-Identifier: GPL-2.0
/* Keys: found in the keyrings of the process, and used for proofs; digests of names. */
#include <crypto/sha2.h>
#include <keys/user-type.h>
#include <linux/err.h>
#include <linux/key.h>
#include <linux/module.h>
#include <linux/string.h>

#include "wire/key.h"
#include "wire/wire.h"
#include "lib/log.h"

#ifdef CONFIG_KEYS

#define KEY_MIN		16	/* bytes */
#define KEY_MAX		64	/* a block of SHA-256: longer keys would be hashed to 32 bytes */

static int set_key(struct crypto_shash *hash, struct key *key, const char *log_prefix)
{
	const struct user_key_payload *payload;
	int ret;

	down_read(&key->sem);
	ret = key_validate(key);
	payload = ret ? NULL : user_key_payload_locked(key);
	if (!payload) {
		krping_err_ratelimited(log_prefix, "the key has expired or was revoked");
		ret = -ENOKEY;
	} else if (payload->datalen < KEY_MIN || payload->datalen > KEY_MAX) {
		krping_err_ratelimited(log_prefix, "the key must have %d to %d bytes", KEY_MIN,
				       KEY_MAX);
		ret = -EINVAL;
	} else {
		ret = crypto_shash_setkey(hash, payload->data, payload->datalen);
	}
	up_read(&key->sem);
	return ret;
}

/**
 * krping_key_find - look for a key in the keyrings of this thread
 * @description: description of a key of type logon, whose payload no process can read
 * @log_prefix:	in front of log messages
 *
 * Return: HMAC-SHA256 with a copy of the key, or an ERR_PTR. The caller frees it with
 * crypto_free_shash(). Several threads may use it at the same time.
 */
struct crypto_shash *krping_key_find(const char *description, const char *log_prefix)
{
	struct crypto_shash *hash;
	struct key *key;
	int ret;

	key = request_key(&key_type_logon, description, NULL);
	if (IS_ERR(key)) {
		krping_err_ratelimited(log_prefix, "no key of type logon with that description: %ld",
				       PTR_ERR(key));
		return ERR_PTR(-ENOKEY);
	}
	hash = crypto_alloc_shash("hmac(sha256)", 0, 0);
	if (IS_ERR(hash)) {
		krping_err_ratelimited(log_prefix, "no hmac(sha256): %ld", PTR_ERR(hash));
		goto out;
	}
	ret = set_key(hash, key, log_prefix);
	if (ret) {
		crypto_free_shash(hash);
		hash = ERR_PTR(ret);
	}
out:
	key_put(key);
	return hash;
}

#else

struct crypto_shash *krping_key_find(const char *description, const char *log_prefix)
{
	krping_err_ratelimited(log_prefix, "this kernel has no keyrings");
	return ERR_PTR(-EOPNOTSUPP);
}

#endif

/**
 * krping_volume_fill - fill in what stands for a volume's name in a hello
 * @name:	a valid name
 * @volume:	filled in: the name, or its digest if it is too long
 *
 * Return: the flag of the hello, KRPING_HELLO_DIGEST or 0.
 */
u8 krping_volume_fill(const char *name, u8 volume[KRPING_VOLUME_LEN])
{
	u8 digest[SHA256_DIGEST_SIZE];
	size_t len = strlen(name);

	if (len < KRPING_VOLUME_LEN) {
		memset(volume, 0, KRPING_VOLUME_LEN);
		memcpy(volume, name, len);
		return 0;
	}
	sha256((const u8 *)name, len, digest);
	memcpy(volume, digest, KRPING_VOLUME_LEN);
	return KRPING_HELLO_DIGEST;
}

/**
 * krping_transcript_fill - fill in the data that both proofs of a handshake cover
 * @t:		filled in except for label and welcome
 * @hello:	hello with the answer to the challenge
 * @volume:	name of the volume
 * @target_nonce: nonce of the challenge
 */
void krping_transcript_fill(struct krping_transcript *t, const struct krping_hello *hello,
			    const char *volume, const u8 *target_nonce)
{
	memset(t, 0, sizeof(*t));
	memcpy(t->target_nonce, target_nonce, sizeof(t->target_nonce));
	memcpy(t->client_nonce, hello->answer.nonce, sizeof(t->client_nonce));
	memcpy(t->hello, hello, sizeof(t->hello));
	krping_volume_fill(volume, t->volume);
}

/* @version: of the hello. @label: of version 2, KRPING_CLIENT_LABEL or KRPING_TARGET_LABEL. */
static int prove(struct crypto_shash *key, struct krping_transcript *t, u8 version,
		 const char *label, u8 *proof)
{
	size_t len = offsetof(struct krping_transcript, welcome) + krping_welcome_len(version);
	u8 digest[SHA256_DIGEST_SIZE];
	int ret;

	memcpy(t->label, label, sizeof(t->label));
	t->label[sizeof(t->label) - 2] = '0' + version;
	ret = crypto_shash_tfm_digest(key, (const u8 *)t, len, digest);
	memcpy(proof, digest, KRPING_PROOF_LEN);
	return ret;
}

int krping_client_proof(struct crypto_shash *key, struct krping_transcript *t, u8 version,
			u8 proof[KRPING_PROOF_LEN])
{
	return prove(key, t, version, KRPING_CLIENT_LABEL, proof);
}

int krping_target_proof(struct crypto_shash *key, struct krping_transcript *t,
			const struct krping_welcome *welcome, u8 proof[KRPING_PROOF_LEN])
{
	memcpy(t->welcome, welcome, krping_welcome_len(welcome->version));
	return prove(key, t, welcome->version, KRPING_TARGET_LABEL, proof);
}

MODULE_SOFTDEP("pre: hmac sha256");
