// SPDX-License-Identifier: GPL-2.0
/* The handshake (PROTOCOL.md section 2.1). */
#include <crypto/algapi.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <rdma/ib_cm.h>

#include "lib/fault.h"
#include "lib/log.h"
#include "target/target.h"

#define ESTABLISH_TIMEOUT	(5 * HZ)	/* from our reply to the client's confirmation */

/* Finds the volume whose challenge is answered, and fills in @t. Return: 0 or a reason. */
static enum krping_reject_reason take_answer(struct list_head *volumes, const struct rdma_cm_id *id,
					     const struct krping_hello *hello,
					     struct krping_transcript *t, struct krping_volume **to)
{
	u8 addr[16], nonce[KRPING_TARGET_NONCE_LEN];
	struct krping_volume *v;

	krping_peer_addr(id, addr);
	list_for_each_entry(v, volumes, at_listener) {
		if (!v->key || !krping_challenge_take(v->challenges, addr, hello, nonce))
			continue;
		krping_transcript_fill(t, hello, v->opt.block, nonce);
		*to = v;
		return 0;
	}
	return KRPING_REJ_STALE;
}

static enum krping_reject_reason check_proof(const struct krping_volume *v,
					     const struct krping_hello *hello,
					     struct krping_transcript *t)
{
	u8 proof[KRPING_PROOF_LEN];

	if (krping_client_proof(v->key, t, hello->version, proof))
		return KRPING_REJ_RESOURCES;
	return crypto_memneq(proof, hello->answer.proof, sizeof(proof)) ? KRPING_REJ_KEY : 0;
}

static bool is_asked_for(const struct krping_volume *v, const struct krping_hello *hello)
{
	u8 volume[KRPING_VOLUME_LEN];

	return krping_volume_fill(v->opt.block, volume) == (hello->flags & KRPING_HELLO_DIGEST) &&
	       !memcmp(volume, hello->volume, sizeof(volume));
}

/* Finds the volume that the client asks for. Return: 0 or a reason. */
static enum krping_reject_reason find_volume(struct list_head *volumes, const struct rdma_cm_id *id,
					     const struct krping_hello *hello,
					     struct krping_transcript *t, struct krping_volume **to)
{
	struct krping_volume *v;

	if (hello->flags & KRPING_HELLO_PROOF)
		return take_answer(volumes, id, hello, t, to);
	list_for_each_entry(v, volumes, at_listener) {
		if (is_asked_for(v, hello)) {
			*to = v;
			return 0;
		}
	}
	return KRPING_REJ_VOLUME;
}

static enum krping_reject_reason check_key(const struct krping_volume *v,
					   const struct krping_hello *hello,
					   struct krping_transcript *t)
{
	if (hello->flags & KRPING_HELLO_PROOF)
		return check_proof(v, hello, t);
	if (hello->flags & KRPING_HELLO_KEY)
		return v->key ? KRPING_REJ_CHALLENGE : KRPING_REJ_NO_KEY;
	return v->key ? KRPING_REJ_NEEDS_KEY : 0;
}

static enum krping_reject_reason check_limits(const struct krping_hello *hello,
					      const struct rdma_conn_param *param, u32 *value)
{
	if (be16_to_cpu(hello->queue_count) > KRPING_TARGET_QUEUES) {
		*value = KRPING_TARGET_QUEUES;
		return KRPING_REJ_QUEUES;
	}
	/* The client must serve our RDMA READs. */
	return param->initiator_depth ? 0 : KRPING_REJ_INVALID;
}

static bool some_volume_allows(struct list_head *volumes, const struct rdma_cm_id *id)
{
	struct krping_volume *v;

	list_for_each_entry(v, volumes, at_listener)
		if (krping_peer_is_allowed(id, &v->opt))
			return true;
	return false;
}

/*
 * Checks a client in the order of PROTOCOL.md section 2.1.
 *
 * Return: 0, or why it is rejected. *@to: the volume that it asks for, or NULL.
 */
static enum krping_reject_reason check_client(struct list_head *volumes,
					      const struct rdma_cm_id *id,
					      const struct rdma_conn_param *param,
					      struct krping_hello *hello,
					      struct krping_transcript *t,
					      struct krping_volume **to, u32 *value)
{
	enum krping_reject_reason reason;

	*value = 0;
	if (list_empty(volumes))	/* the last one is being stopped */
		return KRPING_REJ_VOLUME;
	if (!some_volume_allows(volumes, id))
		return KRPING_REJ_NOT_ALLOWED;
	reason = krping_read_hello(param->private_data, param->private_data_len, hello, value);
	if (!reason)
		reason = find_volume(volumes, id, hello, t, to);
	if (reason)
		return reason;
	if (!krping_peer_is_allowed(id, &(*to)->opt))
		return KRPING_REJ_NOT_ALLOWED;
	return check_key(*to, hello, t) ?: check_limits(hello, param, value);
}

static void reject_in_use(struct krping_volume *v, struct rdma_cm_id *id)
{
	struct krping_in_use in_use = {
		.reject = {
			.magic = cpu_to_be32(KRPING_MAGIC),
			.version = KRPING_VERSION,
			.reason = cpu_to_be16(KRPING_REJ_IN_USE),
		},
	};

	krping_writer_addr(v, in_use.addr);
	memcpy(in_use.uuid, v->uuid, sizeof(in_use.uuid));
	rdma_reject(id, &in_use, sizeof(in_use), IB_CM_REJ_CONSUMER_DEFINED);
}

static void log_reject(const char *log_prefix, const struct rdma_cm_id *id,
		       enum krping_reject_reason reason, u32 value)
{
	krping_warn_ratelimited(log_prefix, "%pISpc was rejected: %s (reason %u, value %u)",
				&id->route.addr.dst_addr, krping_reject_text(reason), reason,
				value);
}

/* Called with the handler lock of @id held. */
static void reject(struct krping_volume *v, struct rdma_cm_id *id, u8 version,
		   enum krping_reject_reason reason, u32 value)
{
	atomic64_inc(&v->rejected);
	log_reject(v->log_prefix, id, reason, value);
	if (reason == KRPING_REJ_IN_USE && version > 1)
		reject_in_use(v, id);
	else
		krping_reject(id, version, reason, value);
}

/*
 * Rejects a client that asks for no volume that is here. A client whose version we do not speak
 * gets a reject of ours. Called with the handler lock of @id held.
 */
static void reject_stranger(struct list_head *volumes, const char *log_prefix,
			    struct rdma_cm_id *id, u8 version, enum krping_reject_reason reason,
			    u32 value)
{
	struct krping_volume *v;

	list_for_each_entry(v, volumes, at_listener)
		atomic64_inc(&v->rejected);
	log_reject(log_prefix, id, reason, value);
	if (version < KRPING_VERSION_MIN || version > KRPING_VERSION)
		version = KRPING_VERSION;
	krping_reject(id, version, reason, value);
}

static void challenge(struct krping_volume *v, struct rdma_cm_id *id,
		      const struct krping_hello *hello)
{
	struct krping_challenge challenge = {
		.reject = {
			.magic = cpu_to_be32(KRPING_MAGIC),
			.version = hello->version,
			.reason = cpu_to_be16(KRPING_REJ_CHALLENGE),
		},
	};
	u8 addr[16];

	krping_peer_addr(id, addr);
	krping_challenge_give(v->challenges, addr, hello, &challenge);
	rdma_reject(id, &challenge, sizeof(challenge), IB_CM_REJ_CONSUMER_DEFINED);
}

/* @ordinal: of krping_writer_ordinal(). */
static int reply(struct krping_target_conn *tc, u32 ordinal)
{
	const struct krping_volume *v = tc->volume;
	struct krping_welcome welcome = {
		.magic = cpu_to_be32(KRPING_MAGIC),
		.version = tc->version,
		.flags = (tc->writes ? 0 : KRPING_VOL_READ_ONLY) |
			 (v->opt.writeback ? KRPING_VOL_WRITEBACK : 0) |
			 (v->opt.ram ? KRPING_VOL_VOLATILE : 0),
		.depth = cpu_to_be16(tc->depth),
		.capacity = cpu_to_be64(krping_volume_size(v)),
		.epoch = cpu_to_be64(tc->epoch),
		.block_size = cpu_to_be32(v->opt.block_size),
		.max_data = cpu_to_be32(KRPING_TARGET_MAX_DATA),
		.max_inline = cpu_to_be32(krping_target_max_inline(tc)),
		.max_message = cpu_to_be32(KRPING_TARGET_MAX_MESSAGE),
		.writer = cpu_to_be32(ordinal),
		.caps = cpu_to_be32(v->caps),
	};
	u8 private[sizeof(welcome) + KRPING_PROOF_LEN];
	struct rdma_conn_param param = {
		.private_data = private,
		.private_data_len = krping_welcome_len(tc->version),
		.responder_resources = tc->peer_read_from,
		.initiator_depth = tc->peer_reads,
		.rnr_retry_count = 7,
	};
	int ret;

	memcpy(welcome.uuid, v->uuid, sizeof(welcome.uuid));
	memcpy(private, &welcome, param.private_data_len);
	if (v->key) {
		ret = krping_target_proof(v->key, &tc->transcript, &welcome,
					  private + param.private_data_len);
		if (ret)
			return ret;
		param.private_data_len += KRPING_PROOF_LEN;
	}
	return krping_conn_reply(&tc->conn, &param);
}

static void krping_target_conn_setup(struct work_struct *work)
{
	struct krping_target_conn *tc = container_of(work, struct krping_target_conn, setup_work);
	unsigned int flags = memalloc_noio_save();
	u32 ordinal;
	int ret;

	krping_target_conn_fence(tc);
	ret = krping_conn_error(&tc->conn);
	if (ret)
		goto out;	/* the teardown waits for this work */
	ret = krping_writer_ordinal(tc, &tc->epoch, &ordinal);
	if (ret) {
		rdma_lock_handler(tc->conn.id);
		reject(tc->volume, tc->conn.id, tc->version, KRPING_REJ_IN_USE, 0);
		rdma_unlock_handler(tc->conn.id);
		krping_conn_fail(&tc->conn, ret);
		goto out;
	}
	ret = krping_target_conn_alloc(tc);
	if (ret) {
		rdma_lock_handler(tc->conn.id);
		reject(tc->volume, tc->conn.id, tc->version, KRPING_REJ_RESOURCES, 0);
		rdma_unlock_handler(tc->conn.id);
		krping_conn_fail(&tc->conn, ret);
		goto out;
	}
	queue_delayed_work(krping_target_wq, &tc->deadline_work, ESTABLISH_TIMEOUT);
	ret = reply(tc, ordinal);
	if (ret) {
		krping_err_ratelimited(tc->log_prefix, "cannot accept the connection: %d", ret);
		krping_conn_fail(&tc->conn, ret);
		goto out;
	}
	atomic64_inc(&tc->volume->connections);
	krping_info_ratelimited(tc->log_prefix, "queue %u of depth %u", tc->index, tc->depth);
out:
	memalloc_noio_restore(flags);
}

static struct krping_target_conn *target_conn_new(struct krping_volume *v, struct rdma_cm_id *id,
						  const struct krping_hello *hello,
						  const struct krping_transcript *transcript,
						  const struct rdma_conn_param *param)
{
	const struct ib_device_attr *attrs = &id->device->attrs;
	struct krping_target_conn *tc = kzalloc(sizeof(*tc), GFP_KERNEL);

	if (!tc)
		return NULL;
	snprintf(tc->log_prefix, sizeof(tc->log_prefix), "%s@%pISpc", v->opt.block,
		 &id->route.addr.dst_addr);
	tc->volume = v;
	tc->version = hello->version;
	krping_peer_addr(id, tc->addr);
	tc->writes = !v->opt.read_only && !(hello->flags & KRPING_HELLO_READ_ONLY);
	tc->take_over = hello->flags & KRPING_HELLO_TAKE_OVER;
	memcpy(tc->session, hello->session, sizeof(tc->session));
	tc->index = be16_to_cpu(hello->queue_index);
	tc->transcript = *transcript;
	tc->depth = min_t(u16, be16_to_cpu(hello->depth), KRPING_TARGET_DEPTH);
	tc->messages = tc->depth;
	if (hello->flags & KRPING_HELLO_FEW)
		tc->messages = min_t(u16, tc->messages, KRPING_FEW_MESSAGES);
	tc->peer_reads = min_t(int, param->initiator_depth, attrs->max_qp_init_rd_atom);
	tc->peer_read_from = min_t(int, param->responder_resources, attrs->max_qp_rd_atom);
	INIT_WORK(&tc->setup_work, krping_target_conn_setup);
	krping_target_conn_init(tc);
	return tc;
}

/**
 * krping_target_accept - handle a connection request
 * @volumes:	those that the client may ask for; none of them ends meanwhile
 * @log_prefix:	in front of log messages about clients that ask for none of them
 * @id:		of the request
 * @event:	its event
 *
 * Return: 0, or a negative errno: rdma_cm destroys @id.
 */
int krping_target_accept(struct list_head *volumes, const char *log_prefix, struct rdma_cm_id *id,
			 const struct rdma_cm_event *event)
{
	const struct rdma_conn_param *param = &event->param.conn;
	unsigned int flags = memalloc_noio_save();
	struct krping_transcript transcript = {};
	enum krping_reject_reason reason;
	struct krping_target_conn *tc = NULL;
	struct krping_hello hello = {};	/* a short one has no version */
	struct krping_volume *v = NULL;
	u32 value;

	reason = check_client(volumes, id, param, &hello, &transcript, &v, &value);
	if (!reason && krping_fault(KRPING_FAULT_TARGET_REJECT, v->opt.block))
		reason = KRPING_REJ_RESOURCES;
	if (!reason) {
		tc = target_conn_new(v, id, &hello, &transcript, param);
		if (!tc)
			reason = KRPING_REJ_RESOURCES;
	}
	if (!reason) {
		krping_conn_adopt(&tc->conn, id, event);
		reason = krping_target_conn_list(tc, &value);
	}
	if (reason == KRPING_REJ_CHALLENGE)
		challenge(v, id, &hello);
	else if (reason && v)
		reject(v, id, hello.version, reason, value);
	else if (reason)
		reject_stranger(volumes, log_prefix, id, hello.version, reason, value);
	if (reason)
		kfree(tc);
	memalloc_noio_restore(flags);
	return reason ? -ECONNREFUSED : 0;
}
