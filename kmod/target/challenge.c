// SPDX-License-Identifier: GPL-2.0
/* Challenges: each is given to one client and accepted once. */
#include <linux/mm.h>
#include <linux/random.h>
#include <linux/string.h>
#include <linux/timekeeping.h>

#include "target/challenge.h"

struct krping_challenges *krping_challenges_alloc(void)
{
	struct krping_challenges *c = kvzalloc(sizeof(*c), GFP_KERNEL);

	if (!c)
		return NULL;
	spin_lock_init(&c->lock);
	c->next = get_random_u32();
	return c;
}

void krping_challenges_free(struct krping_challenges *c)
{
	kvfree(c);
}

static bool is_older(const struct krping_pending *p, const struct krping_pending *than)
{
	return !than || (s32)(p->id - than->id) < 0;
}

/* Return: the entry for a client's challenge. Called with c->lock held. */
static struct krping_pending *entry_for(struct krping_challenges *c, const u8 addr[16])
{
	struct krping_pending *p, *free = NULL, *oldest = NULL, *own = NULL;
	time64_t now = ktime_get_seconds();
	u32 nr_own = 0, i;

	for (i = 0; i < KRPING_CHALLENGES; i++) {
		p = &c->pending[(c->next + i) % KRPING_CHALLENGES];
		if (!p->waits || now >= p->expires) {
			free = free ?: p;
			continue;
		}
		if (is_older(p, oldest))
			oldest = p;
		if (memcmp(p->addr, addr, sizeof(p->addr)))
			continue;
		nr_own++;
		if (is_older(p, own))
			own = p;
	}
	if (nr_own >= KRPING_CHALLENGES_OF)
		return own;
	return free ?: oldest;
}

/**
 * krping_challenge_give - make a challenge for a client
 * @c:		the table
 * @addr:	address of the client
 * @hello:	hello that asks for it
 * @challenge:	id and nonce are filled in
 */
void krping_challenge_give(struct krping_challenges *c, const u8 addr[16],
			   const struct krping_hello *hello, struct krping_challenge *challenge)
{
	struct krping_pending *p;

	get_random_bytes(challenge->nonce, sizeof(challenge->nonce));
	spin_lock(&c->lock);
	p = entry_for(c, addr);
	p->waits = true;
	p->id = c->next + (u32)(p - c->pending - c->next) % KRPING_CHALLENGES;
	c->next = p->id + 1;
	p->expires = ktime_get_seconds() + KRPING_CHALLENGE_TIME;
	memcpy(p->addr, addr, sizeof(p->addr));
	memcpy(p->session, hello->session, sizeof(p->session));
	p->index = hello->queue_index;
	memcpy(p->nonce, challenge->nonce, sizeof(p->nonce));
	challenge->id = cpu_to_be32(p->id);
	spin_unlock(&c->lock);
}

static bool is_for(const struct krping_pending *p, const u8 addr[16],
		   const struct krping_hello *hello)
{
	return !memcmp(p->addr, addr, sizeof(p->addr)) &&
	       !memcmp(p->session, hello->session, sizeof(p->session)) &&
	       p->index == hello->queue_index;
}

/**
 * krping_challenge_take - find and consume the challenge that a client answers
 * @c:		the table
 * @addr:	address of the client
 * @hello:	hello with the answer
 * @nonce:	filled in with the challenge's nonce
 *
 * An answer from another client does not consume the challenge.
 *
 * Return: false if there is no such challenge.
 */
bool krping_challenge_take(struct krping_challenges *c, const u8 addr[16],
			   const struct krping_hello *hello, u8 nonce[KRPING_TARGET_NONCE_LEN])
{
	u32 id = be32_to_cpu(hello->answer.challenge);
	struct krping_pending *p = &c->pending[id % KRPING_CHALLENGES];
	bool found;

	spin_lock(&c->lock);
	found = p->waits && p->id == id && is_for(p, addr, hello) &&
		ktime_get_seconds() < p->expires;
	if (found) {
		p->waits = false;
		memcpy(nonce, p->nonce, sizeof(p->nonce));
	}
	spin_unlock(&c->lock);
	return found;
}
