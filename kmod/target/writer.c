// SPDX-License-Identifier: GPL-2.0
/*
 * Which session may write to a volume (PROTOCOL.md section 2.7): one at a time, unless the volume
 * is shared.
 */
#include "lib/log.h"
#include "target/target.h"

#ifdef KRPING_FAULTS
#define HOLD_TIME	(5 * HZ)	/* tests should not wait long */
#else
#define HOLD_TIME	(30 * HZ)
#endif

/* Ordinal numbers begin again with each epoch. Called with v->lock held. */
static void begin_epoch(struct krping_volume *v)
{
	u64 epoch = atomic64_read(&v->epoch);

	if (v->writer.epoch == epoch)
		return;
	v->writer.epoch = epoch;
	v->writer.ordinal = v->writer.ordinal ? 1 : 0;
	v->writer_before.epoch = epoch;
	v->writer_before.ordinal = v->writer_before.ordinal ? 1 : 0;
	v->last_ordinal = v->writer_is_served ? v->writer.ordinal : v->writer_before.ordinal;
}

static bool is_writer(const struct krping_volume *v, const struct krping_target_conn *tc)
{
	return tc->writes && v->writer.ordinal &&
	       !memcmp(v->writer.session, tc->session, sizeof(tc->session));
}

/*
 * If all connections of the writer have closed before one of its commands was taken, the one before
 * it is the last writer again. Called with v->lock held.
 */
static void forget_unserved(struct krping_volume *v)
{
	struct krping_target_conn *tc;

	if (v->writer_is_served)
		return;
	list_for_each_entry(tc, &v->conns, entry)
		if (is_writer(v, tc) && !READ_ONCE(tc->closed_at))
			return;
	v->writer = v->writer_before;
	v->writer_is_served = true;
}

/*
 * Does the writer keep others out? It does while it is connected, and for HOLD_TIME after the
 * loss of its last connection, so that it can reconnect; but not once it has said that it ends.
 * Called with v->lock held.
 */
static bool is_held(struct krping_volume *v)
{
	unsigned long lost = v->writer.lost, closed_at;
	struct krping_target_conn *tc;

	if (!v->writer.ordinal || v->writer.left)
		return false;
	list_for_each_entry(tc, &v->conns, entry) {
		if (!is_writer(v, tc))
			continue;
		closed_at = READ_ONCE(tc->closed_at);
		if (!closed_at)	/* connected, or it is being closed now */
			return true;
		if (time_after(closed_at, lost))
			lost = closed_at;
	}
	return time_before(jiffies, lost + HOLD_TIME);
}

/* A host has one session of a volume, so another one from its address follows a restart. */
static bool is_restarted(const struct krping_volume *v, const struct krping_target_conn *tc)
{
	return !memcmp(tc->addr, v->writer.addr, sizeof(tc->addr));
}

/**
 * krping_writer_admit - may this client have the access that it asks for?
 * @tc:		connection that is not listed yet
 * @take_over:	it replaces the session that writes; the caller then fences that one
 *
 * If it may write, its session is the writer from here on. Called with volume->lock held.
 *
 * Return: false if another session keeps it out; krping_writer_in_use() says which.
 */
bool krping_writer_admit(struct krping_target_conn *tc, bool take_over)
{
	struct krping_volume *v = tc->volume;
	struct krping_writer *w = &v->writer;
	char addr[KRPING_ADDR_TEXT];

	if (!tc->writes || v->opt.shared)
		return true;
	begin_epoch(v);
	forget_unserved(v);
	if (is_writer(v, tc)) {
		w->left = false;
		return true;
	}
	if (is_held(v) && !is_restarted(v, tc)) {
		if (!take_over)
			return false;
		krping_warn_ratelimited(tc->log_prefix, "takes the volume over from %s",
					krping_addr_text(w->addr, addr));
	}
	if (v->writer_is_served) {
		v->writer_before = *w;
		if (is_held(v))
			v->writer_before.lost = jiffies;
		v->writer_is_served = false;
	}
	memcpy(w->session, tc->session, sizeof(w->session));
	memcpy(w->addr, tc->addr, sizeof(w->addr));
	w->left = false;
	w->lost = jiffies;
	w->ordinal = v->last_ordinal + 1;
	return true;
}

/*
 * The first command of a connection was received: its session is the writer for good.
 * Return: false if it has lost the volume, as its connection had closed.
 */
bool krping_writer_serves(struct krping_target_conn *tc)
{
	struct krping_volume *v = tc->volume;
	bool is;

	if (!tc->writes || v->opt.shared)
		return true;
	spin_lock(&v->lock);
	is = is_writer(v, tc);
	if (is) {
		v->writer_is_served = true;
		v->last_ordinal = max(v->last_ordinal, v->writer.ordinal);
	}
	spin_unlock(&v->lock);
	return is;
}

/**
 * krping_writer_ordinal - ordinal number of a connection's session among the writers
 * @tc:		connection whose older ones are fenced
 * @epoch:	set to the epoch that the number belongs to
 * @ordinal:	set to the number: 0 for a session that does not write, or a shared volume
 *
 * Return: 0, or -EBUSY if another session has taken the volume over meanwhile.
 */
int krping_writer_ordinal(struct krping_target_conn *tc, u64 *epoch, u32 *ordinal)
{
	struct krping_volume *v = tc->volume;
	bool counts = tc->writes && !v->opt.shared;
	int ret = 0;

	spin_lock(&v->lock);
	begin_epoch(v);
	*epoch = v->writer.epoch;
	*ordinal = counts ? v->writer.ordinal : 0;
	if (counts && !is_writer(v, tc))
		ret = -EBUSY;
	spin_unlock(&v->lock);
	return ret;
}

/* A connection of a session that another one has replaced must not reach the store any more. */
bool krping_writer_replaces(const struct krping_target_conn *tc,
			    const struct krping_target_conn *other)
{
	return tc->writes && other->writes && !tc->volume->opt.shared &&
	       memcmp(tc->session, other->session, sizeof(tc->session));
}

/* The client says that its session ends: others may write at once. */
void krping_writer_leave(struct krping_target_conn *tc)
{
	struct krping_volume *v = tc->volume;

	spin_lock(&v->lock);
	if (is_writer(v, tc))
		v->writer.left = true;
	spin_unlock(&v->lock);
}

/* Called with volume->lock held, before the closed connection is unlisted. */
void krping_writer_closed(struct krping_target_conn *tc)
{
	struct krping_writer *w = &tc->volume->writer;

	if (!is_writer(tc->volume, tc))
		return;
	if (time_after(tc->closed_at, w->lost))
		w->lost = tc->closed_at;
	forget_unserved(tc->volume);
}

/* Address of the session that keeps others out. Return: false if there is none. */
bool krping_writer_addr(struct krping_volume *v, u8 addr[16])
{
	bool held;

	spin_lock(&v->lock);
	held = is_held(v);
	memcpy(addr, v->writer.addr, sizeof(v->writer.addr));
	spin_unlock(&v->lock);
	return held;
}
