// SPDX-License-Identifier: GPL-2.0
#include "ping/hello.h"
#include "lib/log.h"

/* @group: the same for all connections of a client. */
void krping_hello_fill(struct krping_test_hello *hello, const struct krping_options *opt,
		       u16 group)
{
	*hello = (struct krping_test_hello){
		.magic = cpu_to_be32(KRPING_TEST_MAGIC),
		.version = KRPING_TEST_VERSION,
		.test = opt->test,
		.flags = (opt->server_inv ? KRPING_TEST_SERVER_INV : 0) |
			 (opt->duplex ? KRPING_TEST_DUPLEX : 0),
		.size = cpu_to_be32(opt->size),
		.qps = cpu_to_be16(opt->qps),
		.group = cpu_to_be16(group),
	};
}

/* Return: 0, or why the hello does not fit the server's command; @value is what would fit. */
static enum krping_reject_reason unsuited(const struct krping_test_hello *hello,
					  const struct krping_options *opt, u32 *value)
{
	bool server_inv = hello->flags & KRPING_TEST_SERVER_INV;
	bool duplex = hello->flags & KRPING_TEST_DUPLEX;

	if (hello->version != KRPING_TEST_VERSION) {
		*value = KRPING_TEST_VERSION;
		return KRPING_REJ_VERSION;
	}
	if (hello->reserved || hello->flags & ~KRPING_TEST_FLAGS)
		return KRPING_REJ_INVALID;
	if (hello->test != opt->test) {
		*value = opt->test;
		return KRPING_REJ_TEST;
	}
	if (be32_to_cpu(hello->size) > opt->size) {
		*value = opt->size;
		return KRPING_REJ_SIZE;
	}
	if (be16_to_cpu(hello->qps) != opt->qps) {
		*value = opt->qps;
		return KRPING_REJ_QPS;
	}
	if (server_inv != opt->server_inv) {
		*value = opt->server_inv;
		return KRPING_REJ_SERVER_INV;
	}
	if (duplex != opt->duplex) {
		*value = opt->duplex;
		return KRPING_REJ_DUPLEX;
	}
	return 0;
}

static const char *reason_text(u32 reason)
{
	switch (reason) {
	case KRPING_REJ_VERSION:
		return "the versions of the protocol differ; the server's is";
	case KRPING_REJ_TEST:
		return "the server runs another test (0 ping, 1 wlat, 2 rlat, 3 bw, 4 fr, 5 verb):";
	case KRPING_REJ_SIZE:
		return "size is too large; the server's limit is";
	case KRPING_REJ_QPS:
		return "qps must be the same on both sides; the server's is";
	case KRPING_REJ_SERVER_INV:
		return "server_inv must be given on both sides or on none; on the server it is";
	case KRPING_REJ_DUPLEX:
		return "duplex must be given on both sides or on none; on the server it is";
	case KRPING_REJ_INVALID:
		return "the hello has fields that the server does not know:";
	case KRPING_REJ_TOS:
		return "the server requires tos";
	case KRPING_REJ_BUSY:
		return "the server has its maximum of connections:";
	case KRPING_REJ_RESOURCES:
		return "the server has not enough memory or queue pairs for the test:";
	case KRPING_REJ_NOT_ALLOWED:
		return "the server does not allow this host's address:";
	default:
		return "reason";
	}
}

/* Return: the hello in a client's private data, all zero if there is none. */
static struct krping_test_hello read_hello(const void *data, u8 len)
{
	struct krping_test_hello hello = {};

	if (data && len >= sizeof(hello))
		memcpy(&hello, data, sizeof(hello));
	if (be32_to_cpu(hello.magic) != KRPING_TEST_MAGIC)
		hello = (struct krping_test_hello){};
	return hello;
}

/* Return: the group of a client's connections, 0 without a hello. */
u16 krping_hello_group(const void *data, u8 len)
{
	return be16_to_cpu(read_hello(data, len).group);
}

/* Rejects a client, and logs why. */
void krping_hello_reject(struct krping_conn *conn, enum krping_reject_reason reason, u32 value)
{
	krping_err_ratelimited(conn->log_prefix, "a client was rejected: %s %u",
			       reason_text(reason), value);
	rdma_lock_handler(conn->id);
	krping_reject(conn->id, KRPING_TEST_VERSION, reason, value);
	rdma_unlock_handler(conn->id);
}

/* Return: whether a client's request has the server's tos, if the server demands one. */
bool krping_hello_tos_fits(struct krping_conn *conn, const struct krping_options *opt)
{
	const struct sa_path_rec *path = conn->id->route.path_rec;

	return !opt->has_tos || !path || path->traffic_class == opt->tos;
}

/**
 * krping_hello_check - reject a client that the server cannot serve
 * @conn:	connection with the client's request
 * @opt:	the server's command
 *
 * A client without a hello is served. The server's tos must match the client's, which determines
 * the packets of both sides. It is not checked over iWARP, which has no path record.
 *
 * Return: 0, or -EPROTO when the client was rejected.
 */
int krping_hello_check(struct krping_conn *conn, const struct krping_options *opt)
{
	struct krping_test_hello hello = read_hello(conn->private, conn->private_len);
	u32 reason = 0, value = 0;

	if (hello.magic)
		reason = unsuited(&hello, opt, &value);
	if (!reason && !krping_hello_tos_fits(conn, opt)) {
		reason = KRPING_REJ_TOS;
		value = opt->tos;
	}
	if (!reason)
		return 0;
	krping_hello_reject(conn, reason, value);
	return -EPROTO;
}

/* Logs why a krping server has rejected the connection. */
void krping_hello_rejected(struct krping_conn *conn)
{
	u32 value, reason = krping_conn_refusal(conn, &value);

	if (reason)
		krping_err_ratelimited(conn->log_prefix, "%s %u", reason_text(reason), value);
}
