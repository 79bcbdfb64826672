// SPDX-License-Identifier: GPL-2.0
/*
 * Connects and closes the queues of a session: the handshake (PROTOCOL.md section 2.1) and the
 * limits of target and device.
 */
#include <crypto/algapi.h>
#include <linux/random.h>

#include "client/internal.h"
#include "wire/key.h"
#include "lib/log.h"

/**
 * struct handshake - attempts to connect a queue
 * @version:	of the protocol that the next attempt uses
 * @take_over:	the next attempt fences the session that writes
 * @hello:	to be sent
 * @answers:	@hello answers a challenge
 * @challenge:	received in the last attempt, if @answers
 * @transcript:	input of the proofs, if @answers
 */
struct handshake {
	u8 version;
	bool take_over;
	struct krping_hello hello;
	bool answers;
	struct krping_challenge challenge;
	struct krping_transcript transcript;
};

static int answer_challenge(struct krping_queue *q, struct handshake *hs)
{
	struct krping_answer *answer = &hs->hello.answer;

	hs->hello.flags |= KRPING_HELLO_PROOF;
	answer->challenge = hs->challenge.id;
	get_random_bytes(answer->nonce, sizeof(answer->nonce));
	krping_transcript_fill(&hs->transcript, &hs->hello, q->session->opt.block,
			       hs->challenge.nonce);
	return krping_client_proof(q->session->key, &hs->transcript, hs->version, answer->proof);
}

static int make_hello(struct krping_queue *q, struct handshake *hs)
{
	struct krping_session *s = q->session;
	struct krping_hello *hello = &hs->hello;

	memset(hello, 0, sizeof(*hello));
	hello->magic = cpu_to_be32(KRPING_MAGIC);
	hello->version = hs->version;
	if (hs->version > 1)
		hello->flags = (s->opt.read_only ? KRPING_HELLO_READ_ONLY : 0) |
			       (hs->take_over ? KRPING_HELLO_TAKE_OVER : 0) |
			       (s->old_target ? 0 : KRPING_HELLO_FEW);
	hello->queue_index = cpu_to_be16(q->index);
	hello->queue_count = cpu_to_be16(s->nr_queues);
	hello->depth = cpu_to_be16(s->opt.depth);
	export_uuid(hello->session, &s->uuid);
	if (hs->answers)
		return answer_challenge(q, hs);
	hello->flags |= s->key ? KRPING_HELLO_KEY : 0;
	hello->flags |= krping_volume_fill(s->opt.block, hello->volume);
	return 0;
}

/* The target challenges us, or our challenge has expired. */
static bool is_challenged(struct krping_queue *q, struct handshake *hs,
			  enum krping_reject_reason reason)
{
	if (!q->session->key)
		return false;
	if (reason == KRPING_REJ_CHALLENGE) {
		if (q->conn.private_len < sizeof(hs->challenge))
			return false;
		memcpy(&hs->challenge, q->conn.private, sizeof(hs->challenge));
	}
	hs->answers = reason == KRPING_REJ_CHALLENGE;
	return true;
}

static void read_in_use(const struct krping_queue *q, struct krping_in_use *in_use)
{
	memset(in_use, 0, sizeof(*in_use));
	if (q->conn.private_len >= sizeof(*in_use))
		memcpy(in_use, q->conn.private, sizeof(*in_use));
}

/* Is this the volume that the command names? Only a target of version 2 says which it has. */
static int check_pin(const struct krping_session *s, const u8 uuid[KRPING_UUID_LEN])
{
	if (krping_uuid_is_null(s->opt.uuid) || !memcmp(s->opt.uuid, uuid, sizeof(s->opt.uuid)))
		return 0;
	if (krping_uuid_is_null(uuid)) {
		krping_err_ratelimited(s->log_prefix, "the target does not say which volume it has: it speaks version 1 only, so uuid= cannot be checked");
		return -EPROTONOSUPPORT;
	}
	krping_err_ratelimited(s->log_prefix, "the target has another volume: its UUID is %pUb, not %pUb",
			       uuid, s->opt.uuid);
	return -ESTALE;
}

/* Shall the next attempt take the volume over from the client that writes? */
static bool may_take_over(const struct krping_queue *q, const struct handshake *hs, bool first)
{
	const struct krping_session *s = q->session;
	struct krping_in_use in_use;

	if (!first || !s->opt.take_over || hs->take_over || hs->version == 1)
		return false;
	read_in_use(q, &in_use);
	return !check_pin(s, in_use.uuid);
}

/* May another attempt succeed after this reject? Prepares it. @first: as in connect_queue(). */
static bool prepare_retry(struct krping_queue *q, struct handshake *hs, bool first)
{
	enum krping_reject_reason reason;
	u32 value;

	reason = krping_conn_refusal(&q->conn, &value);
	switch (reason) {
	case KRPING_REJ_CHALLENGE:
	case KRPING_REJ_STALE:
		return is_challenged(q, hs, reason);
	case KRPING_REJ_VERSION:
		if (value < KRPING_VERSION_MIN || value >= hs->version ||
		    !krping_is_v1_name(q->session->opt.block))
			return false;
		hs->version = value;
		return true;
	case KRPING_REJ_INVALID:
		if (q->session->old_target || hs->version == 1)
			return false;
		q->session->old_target = true;
		hs->answers = false;
		return true;
	case KRPING_REJ_IN_USE:
		if (!may_take_over(q, hs, first))
			return false;
		hs->take_over = true;
		hs->answers = false;
		return true;
	default:
		return q->conn.stale;
	}
}

/*
 * Another client has the volume. One that finds so after a loss may have an old copy of its data
 * in memory.
 */
static int in_use_error(struct krping_queue *q, bool first)
{
	struct krping_session *s = q->session;
	char addr[KRPING_ADDR_TEXT];
	struct krping_in_use in_use;

	read_in_use(q, &in_use);
	krping_addr_text(in_use.addr, addr);
	if (first) {
		krping_err_ratelimited(s->log_prefix,
				       "another client, %s, writes to the volume: attach with read_only, or replace it with take_over",
				       addr);
		return -EBUSY;
	}
	krping_err_ratelimited(s->log_prefix, "another client, %s, has taken the volume", addr);
	s->target_changed = true;
	return -ESTALE;
}

/* The target speaks version 1 only, in which there is no such volume. */
static int name_error(struct krping_queue *q, bool first)
{
	struct krping_session *s = q->session;

	krping_err_ratelimited(s->log_prefix, "the target speaks version 1 only, in which a volume's name has at most %d characters and no '/'",
			       KRPING_VOLUME_LEN - 1);
	s->target_changed = !first;
	return -EPROTONOSUPPORT;
}

static int reject_error(struct krping_queue *q)
{
	bool first = !q->session->disk;
	enum krping_reject_reason reason;
	u32 value;

	reason = krping_conn_refusal(&q->conn, &value);
	if (!reason)
		return -ECONNREFUSED;
	if (reason == KRPING_REJ_IN_USE)
		return in_use_error(q, first);
	if (reason == KRPING_REJ_VERSION && value == 1 && !krping_is_v1_name(q->session->opt.block))
		return name_error(q, first);
	if (!q->conn.quiet)
		krping_err_ratelimited(q->session->log_prefix,
				       "the target rejected the connection: %s (reason %u, value %u)",
				       krping_reject_text(reason), reason, value);
	switch (reason) {
	case KRPING_REJ_VOLUME:
		return -ENOENT;
	case KRPING_REJ_VERSION:
		return -EPROTONOSUPPORT;
	case KRPING_REJ_NEEDS_KEY:
		return -ENOKEY;
	case KRPING_REJ_KEY:
	case KRPING_REJ_NO_KEY:
		return -EKEYREJECTED;
	default:
		return -ECONNREFUSED;
	}
}

/* A client that has a key accepts only a target that proves to have it, too. */
static int check_target(struct krping_queue *q, struct handshake *hs)
{
	size_t len = krping_welcome_len(hs->version);
	struct krping_welcome welcome = {};
	u8 proof[KRPING_PROOF_LEN];
	int ret;

	if (!q->session->key)
		return 0;
	if (!hs->answers || q->conn.private_len < len + sizeof(proof))
		goto unproven;
	memcpy(&welcome, q->conn.private, len);
	if (welcome.version != hs->version)
		goto unproven;
	ret = krping_target_proof(q->session->key, &hs->transcript, &welcome, proof);
	if (ret)
		return ret;
	if (!crypto_memneq(proof, q->conn.private + len, sizeof(proof)))
		return 0;
unproven:
	krping_err_ratelimited(q->session->log_prefix,
			       "the target did not prove that it has the key");
	return -EKEYREJECTED;
}

static int read_welcome(struct krping_queue *q, u8 version, struct krping_grant *grant)
{
	struct krping_violation violation;
	int ret = krping_read_welcome(q->conn.private, q->conn.private_len, version,
				      q->session->opt.depth, grant, &violation);

	if (ret)
		krping_err_ratelimited(q->session->log_prefix,
				       "the target's welcome is invalid: %s %llu", violation.what,
				       violation.value);
	grant->read_only |= q->session->opt.read_only;	/* version 1 does not know that */
	return ret;
}

/* The most pages that the device registers at once, and bytes that it maps. */
static void device_limits(const struct ib_device *dev, u32 *pages, u32 *bytes)
{
	*pages = min_t(u32, krping_dev_max_reg_pages(dev), KRPING_SEGMENTS_MAX);
	*bytes = KRPING_DATA_MAX;
	if (dev->dma_device)	/* limited by bounce buffers */
		*bytes = min_t(size_t, *bytes, dma_max_mapping_size(dev->dma_device));
}

static int set_limits(struct krping_session *s, const struct ib_device *dev)
{
	u32 pages, bytes;

	device_limits(dev, &pages, &bytes);
	/* One page more than the data fills, as it may start in the middle of a page. */
	if (pages < 2) {
		krping_err(s->log_prefix, "%s registers %u pages at a time: at least 2 are needed",
			   dev->name, pages);
		return -EOPNOTSUPP;
	}
	s->max_segments = pages;
	s->max_bytes = min3(bytes, s->grant.max_data, (pages - 1) * (u32)PAGE_SIZE);
	s->max_bytes = round_down(s->max_bytes, PAGE_SIZE);
	return 0;
}

/*
 * Refuses a session that would leave the host without memory. Later connections keep what the first
 * ones have allocated.
 */
static int check_memory(const struct krping_session *s)
{
	u64 need = s->nr_queues * krping_queue_bytes(s);
	u64 available = krping_memory_available(), reserve = krping_memory_reserve();

	if (need + reserve <= available)
		return 0;
	krping_err(s->log_prefix, "%u queues of depth %u take %llu MiB, and %llu MiB must stay free: %llu MiB are available; give fewer queues or a smaller depth",
		   s->nr_queues, s->grant.depth, need >> 20, reserve >> 20, available >> 20);
	return -ENOMEM;
}

/* The disk keeps the limits of the first device; this may be another one. */
static int check_limits(struct krping_session *s, const struct ib_device *dev)
{
	u32 pages, bytes;

	device_limits(dev, &pages, &bytes);
	if (pages >= s->max_segments && bytes >= s->max_bytes)
		return 0;
	krping_err_ratelimited(s->log_prefix,
			       "%s registers %u pages and %u bytes at a time: the disk needs %u and %u",
			       dev->name, pages, bytes, s->max_segments, s->max_bytes);
	return -EOPNOTSUPP;
}

/* The target restarted or failed to flush: acknowledged writes may be lost. */
static int accept_epoch(struct krping_session *s, u64 epoch)
{
	const char *lost = NULL;

	if (s->grant.is_volatile)
		lost = "its volume, which was in memory";
	else if (atomic64_read(&s->write_seq) != atomic64_read(&s->flushed_seq))
		lost = "writes that were not flushed";
	if (lost && !s->ops) {
		krping_err(s->log_prefix, "the target has lost %s", lost);
		return -ESTALE;
	}
	if (lost) {
		s->ops->data_lost(s, lost);
		atomic64_set(&s->flushed_seq, atomic64_read(&s->write_seq));
	}
	s->grant.epoch = epoch;
	return 0;
}

/*
 * Is it still the session's volume? The target of a session of version 1 may have been upgraded
 * meanwhile; it then identifies the volume from here on. A volume in memory gets a new UUID at
 * each start; a disk with a local one on top can go on then, as all chunks are marked dirty.
 */
static int check_identity(struct krping_session *s, const struct krping_grant *grant)
{
	if (s->ops && s->grant.is_volatile && grant->is_volatile)
		return check_pin(s, grant->uuid);
	if (s->grant.version > 1 && memcmp(s->grant.uuid, grant->uuid, sizeof(grant->uuid))) {
		krping_err(s->log_prefix, "the target has another volume: its UUID is %pUb, not %pUb",
			   grant->uuid, s->grant.uuid);
		return -ESTALE;
	}
	return 0;
}

/*
 * Has another session written to the volume since the loss? Then what this host has in memory,
 * and writes that it would send again, may be older than the volume's data. Ordinal numbers of
 * writers begin again with each epoch.
 */
static int check_writer(struct krping_session *s, const struct krping_grant *grant)
{
	u32 expected = grant->epoch == s->grant.epoch ? s->grant.writer : 1;

	if (s->grant.version == 1 || !s->grant.writer || grant->writer == expected)
		return 0;
	krping_err(s->log_prefix, "another client has written to the volume meanwhile");
	return -ESTALE;
}

/*
 * Does a later grant fit the disk and the buffers? A target may have been upgraded: its messages
 * may be smaller than before, its inline data smaller or larger (krping_read_welcome() has checked
 * that it fits a message), and its largest data larger.
 */
static bool grant_fits(const struct krping_session *s, const struct krping_grant *grant)
{
	return grant->block_size == s->grant.block_size && grant->max_data >= s->max_bytes &&
	       grant->max_message <= s->buf_size && grant->depth == s->grant.depth &&
	       grant->writeback == s->grant.writeback && grant->read_only == s->grant.read_only &&
	       grant->is_volatile == s->grant.is_volatile;
}

/* Requests must fit the messages of all queues; each reconnect starts with the first. */
static void set_message_limits(struct krping_queue *q, const struct krping_grant *grant)
{
	struct krping_grant *all = &q->session->grant;

	if (!q->index || grant->max_message < all->max_message)
		all->max_message = grant->max_message;
	if (!q->index || grant->max_inline < all->max_inline)
		all->max_inline = grant->max_inline;
}

/* The session's first connection sets the grant; later ones must fit it. */
static int accept_grant(struct krping_queue *q, const struct krping_grant *grant, bool first)
{
	struct krping_session *s = q->session;
	int ret;

	if (first) {
		ret = check_pin(s, grant->uuid);
		if (ret)
			return ret;
		s->grant = *grant;
		s->buf_size = grant->max_message;
		if (grant->caps & KRPING_CAP_TORN_BLOCKS)
			krping_warn(s->log_prefix, "a power loss of the target may tear a block of %u bytes: those of its disk are smaller",
				    grant->block_size);
		return set_limits(s, q->conn.id->device) ?: check_memory(s);
	}
	ret = check_identity(s, grant);
	if (ret)
		return ret;
	if (!grant_fits(s, grant)) {
		krping_err_ratelimited(s->log_prefix, "the target's limits have changed");
		return -EPROTO;
	}
	if (grant->capacity < s->grant.capacity) {
		krping_err_ratelimited(s->log_prefix, "the volume has shrunk from %llu to %llu bytes",
				       s->grant.capacity, grant->capacity);
		return -EPROTO;
	}
	if (check_limits(s, q->conn.id->device))
		return -EOPNOTSUPP;
	if (q->index && (grant->epoch != s->grant.epoch || grant->writer != s->grant.writer ||
			 grant->version != s->grant.version))
		return -EAGAIN;		/* it restarted while we connected */
	ret = check_writer(s, grant);
	if (ret)
		return ret;
	WRITE_ONCE(s->capacity, grant->capacity);
	if (grant->epoch != s->grant.epoch) {
		ret = accept_epoch(s, grant->epoch);
		if (ret)
			return ret;
	}
	set_message_limits(q, grant);
	s->grant.version = grant->version;
	memcpy(s->grant.uuid, grant->uuid, sizeof(s->grant.uuid));
	s->grant.writer = grant->writer;
	s->grant.caps = grant->caps;
	return 0;
}

/* Afterwards nothing is in flight on the queue and nothing is posted to it. */
static void stop_queue(struct krping_queue *q)
{
	krping_conn_fail(&q->conn, -ECONNRESET);
	/* Completions and the monitor post under the lock while the connection is live. */
	spin_lock_bh(&q->lock);
	spin_unlock_bh(&q->lock);
	cancel_delayed_work_sync(&q->rx_work);
	krping_poll_stop(q);
	krping_conn_drain(&q->conn);
	krping_conn_destroy_qp(&q->conn);
}

static int connect_queue(struct krping_queue *q, unsigned long timeout, bool first,
			 struct handshake *hs)
{
	struct krping_session *s = q->session;
	struct rdma_conn_param param = {
		.initiator_depth = 1,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
	struct krping_qp_attr attr = {
		/* as many messages and REG_MRs as commands (queue->nr_regs), and a KEEP_ALIVE */
		.send_wr = 2 * s->opt.depth + 1,
		.recv_wr = s->opt.depth + 2,
		.vector = q->index,
		.poll = q->polls ? IB_POLL_DIRECT : IB_POLL_SOFTIRQ,
		.buf_sges = KRPING_BUF_SGES,
	};
	struct krping_grant grant;
	int ret;

	krping_conn_reset(&q->conn);
	q->conn.quiet = s->attempts > 0;
	smp_mb();	/* pairs with krping_session_abort(): one sees the other */
	if (READ_ONCE(s->aborted))
		return -ECANCELED;
	ret = krping_conn_open(&q->conn, &s->opt, s->net, timeout);
	if (ret)
		return ret;
	ret = krping_conn_alloc(&q->conn, &attr);
	if (ret)
		goto close;
	param.private_data = &hs->hello;
	param.private_data_len = sizeof(hs->hello);
	param.responder_resources = min(q->conn.id->device->attrs.max_qp_rd_atom, 16);
	ret = make_hello(q, hs);
	if (!ret)
		ret = krping_conn_connect(&q->conn, &param, timeout);
	if (!ret)
		ret = check_target(q, hs);
	if (!ret) {
		ret = read_welcome(q, hs->version, &grant) ?: accept_grant(q, &grant, first);
		s->target_changed = ret == -EPROTO || ret == -ESTALE;
	}
	if (!ret)
		ret = krping_queue_alloc(q);
	if (!ret) {
		krping_poll_start(q);
		return 0;
	}
	stop_queue(q);
	krping_queue_free(q);
close:
	krping_conn_close(&q->conn);
	return ret;
}

/* Attempts: a target may hold several connections from before a reboot of this host. */
#define MAX_STALE	16

/*
 * A target that holds connections from before a reboot of this host drops one per reject. A
 * target that demands a key rejects the first attempt with a challenge, one that does not speak
 * our version names its own, and one that does not know a flag calls the hello invalid.
 */
static int connect_queue_retrying(struct krping_queue *q, unsigned long timeout, bool first)
{
	struct handshake hs = { .version = KRPING_VERSION };
	int tries, ret;

	for (tries = 0; tries < MAX_STALE; tries++) {
		ret = connect_queue(q, timeout, first, &hs);
		if (ret != -ECONNREFUSED || !prepare_retry(q, &hs, first))
			break;
	}
	return ret == -ECONNREFUSED ? reject_error(q) : ret;
}

/* Return: as wait_event_interruptible_timeout(). */
static long wait_for_answer(struct krping_queue *q, unsigned long until)
{
	long left;

	do {
		krping_poll(q);
		left = max_t(long, until - jiffies, 1);
		left = wait_event_interruptible_timeout(q->conn.wait,
							krping_keepalive_is_answered(q),
							q->polls ? 1 : left);
	} while (!left && q->polls && time_before(jiffies, until));
	return left;
}

/*
 * Does the target answer on each queue? Connections prove little: a network may pass connection
 * management and no data. No queue is used yet.
 *
 * Return: 0, -ETIMEDOUT, -EINTR, or the error that closed a connection.
 */
static int probe_queues(struct krping_session *s, unsigned long timeout)
{
	unsigned long until = jiffies + timeout;
	int ret = 0;
	long left;
	u32 i;

	for (i = 0; i < s->nr_queues && !ret; i++)
		ret = krping_keepalive_ask(&s->queues[i]);
	for (i = 0; i < s->nr_queues && !ret; i++) {
		struct krping_queue *q = &s->queues[i];

		left = wait_for_answer(q, until);
		if (left < 0)
			return -EINTR;
		ret = left ? krping_conn_error(&q->conn) : -ETIMEDOUT;
		if (!left && !q->conn.quiet)
			krping_err_ratelimited(s->log_prefix,
					       "the target accepted queue %u, but does not answer on it",
					       i);
	}
	return ret;
}

/**
 * krping_session_connect - connect all queues
 * @s:		with all queues closed
 * @timeout:	jiffies, per step
 *
 * Return: 0, or a negative errno with all queues closed.
 */
int krping_session_connect(struct krping_session *s, unsigned long timeout)
{
	bool first = !s->disk;
	u32 i;
	int ret;

	s->target_changed = false;
	s->old_target = false;
	for (i = 0; i < s->nr_queues; i++) {
		ret = connect_queue_retrying(&s->queues[i], timeout, first && !i);
		if (ret)
			goto close;
	}
	ret = probe_queues(s, timeout);
	if (ret)
		goto close;
	spin_lock_bh(&s->lock);
	strscpy(s->ibdev, s->queues[0].conn.id->device->name, sizeof(s->ibdev));
	spin_unlock_bh(&s->lock);
	return 0;
close:
	if (first)
		krping_keepalive_bye(s);
	krping_session_disconnect(s);
	return ret;
}

/* Requests in flight are ended or requeued; no queue_rq() runs. Idempotent. */
void krping_session_disconnect(struct krping_session *s)
{
	u32 i;

	for (i = 0; i < s->nr_queues; i++) {
		struct krping_queue *q = &s->queues[i];
		int error = krping_conn_error(&q->conn);

		stop_queue(q);
		krping_queue_cancel(q, error);
		krping_queue_free(q);
		krping_conn_close(&q->conn);
	}
}

/* As krping_session_disconnect(), but the queues will not connect again. Idempotent. */
void krping_session_close(struct krping_session *s)
{
	u32 i;

	krping_session_disconnect(s);
	for (i = 0; i < s->nr_queues; i++)
		krping_queue_free_kept(&s->queues[i]);
}
