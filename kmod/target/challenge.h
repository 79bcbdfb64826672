/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Unanswered challenges of a volume: a table of fixed size, so that a flood of clients cannot use
 * up memory. When it is full, the oldest challenge is dropped; if an address has too many, its
 * oldest.
 */
#ifndef KRPING_CHALLENGE_H
#define KRPING_CHALLENGE_H

#include <linux/spinlock.h>
#include <linux/types.h>

#include "uapi/krping.h"

#define KRPING_CHALLENGES	1024	/* entries of the table */
#define KRPING_CHALLENGES_OF	64	/* of one address */
#define KRPING_CHALLENGE_TIME	30	/* seconds until one expires */

/**
 * struct krping_pending - a challenge and the client that it was given to
 * @waits:	not answered yet
 * @id:		identifies it in the answer
 * @expires:	seconds of CLOCK_MONOTONIC
 * @addr:	address of the client, IPv6 or IPv4-mapped
 * @session:	session in the client's hello
 * @index:	queue index in the client's hello
 * @nonce:	the target's nonce
 */
struct krping_pending {
	bool waits;
	u32 id;
	time64_t expires;
	u8 addr[16];
	u8 session[KRPING_UUID_LEN];
	__be16 index;
	u8 nonce[KRPING_TARGET_NONCE_LEN];
};

/**
 * struct krping_challenges - the table
 * @lock:	protects the other members; taken in process context only, innermost
 * @next:	the next id is this or the first after it that fits the entry
 * @pending:	indexed by id modulo KRPING_CHALLENGES
 */
struct krping_challenges {
	spinlock_t lock;	/* what it protects: above */
	u32 next;
	struct krping_pending pending[KRPING_CHALLENGES];
};

struct krping_challenges *krping_challenges_alloc(void);
void krping_challenges_free(struct krping_challenges *c);
void krping_challenge_give(struct krping_challenges *c, const u8 addr[16],
			   const struct krping_hello *hello, struct krping_challenge *challenge);
bool krping_challenge_take(struct krping_challenges *c, const u8 addr[16],
			   const struct krping_hello *hello, u8 nonce[KRPING_TARGET_NONCE_LEN]);

#endif /* KRPING_CHALLENGE_H */
