// SPDX-License-Identifier: GPL-2.0
#include "verbs/params.h"

#ifdef __KERNEL__
#include <linux/errno.h>
#include <linux/kernel.h>
#include <linux/string.h>
#endif

#define DEFAULT_TXDEPTH	64
#define DEFAULT_RXDEPTH	128
#define SIGNAL_MAX	64	/* by default */

/* An option that a kind of test does not use. */
struct unused_option {
	const char *name;
	bool given;
};

/* Return: the name of the first that is given, or NULL. */
static const char *first_given(const struct unused_option *options, size_t nr)
{
	size_t i;

	for (i = 0; i < nr; i++)
		if (options[i].given)
			return options[i].name;
	return NULL;
}

static const char *unused_by_lat(const struct krping_options *opt)
{
	const struct unused_option options[] = {
		{ "qps", opt->qps }, { "txdepth", opt->txdepth }, { "rxdepth", opt->rxdepth },
		{ "srq", opt->srq }, { "signal", opt->signal }, { "reads", opt->reads },
		{ "rate", opt->rate }, { "duplex", opt->duplex },
	};

	return first_given(options, ARRAY_SIZE(options));
}

static const char *unused_by_verb(const struct krping_options *opt)
{
	bool receives = krping_verbs_takes_receive(opt), read = krping_verbs_is_read(opt);
	const struct unused_option options[] = {
		{ "rxdepth", opt->rxdepth && !receives }, { "srq", opt->srq && !receives },
		{ "inline", opt->inline_len && read }, { "reads", opt->reads && !read },
		{ "size", opt->size && krping_verbs_is_atomic(opt) },
	};

	return first_given(options, ARRAY_SIZE(options));
}

static bool goes_with(u32 verb, u32 qp_type)
{
	switch (qp_type) {
	case KRPING_VERBS_RC:
		return verb >= KRPING_VERB_SEND && verb <= KRPING_VERB_CMP_SWAP;
	case KRPING_VERBS_UC:
		return verb >= KRPING_VERB_SEND && verb <= KRPING_VERB_WRITE_IMM;
	case KRPING_VERBS_UD:
		return verb == KRPING_VERB_SEND;
	default:
		return false;
	}
}

static bool is_mtu(u32 mtu)
{
	return mtu >= 256 && mtu <= KRPING_VERBS_MTU_MAX && !(mtu & (mtu - 1));
}

/* Without a number in it, a message cannot be told from the one before it. */
#define NUMBER_LEN	4

/**
 * krping_verbs_check - check which options of a client are given together
 * @opt:	options that were given; others are zero
 * @count_given: count was given
 * @why:	on failure, what is wrong and what would be right
 * @why_len:	size of @why
 *
 * Return: 0 or -EINVAL.
 */
int krping_verbs_check(const struct krping_options *opt, bool count_given, char *why,
		       size_t why_len)
{
	u32 qp_type = opt->qp_type ?: KRPING_VERBS_RC, size = opt->size ?: 64;
	const char *verb = krping_verb_names[opt->verb], *unused;

	if (!opt->verb) {
		snprintf(why, why_len, "lat needs verb=NAME");
		return -EINVAL;
	}
	if (!opt->measure) {
		snprintf(why, why_len, "verb needs exactly one of bw and lat");
		return -EINVAL;
	}
	if (!goes_with(opt->verb, qp_type)) {
		snprintf(why, why_len, "verb=%s does not go with qp=%s: it needs qp=rc%s", verb,
			 krping_verbs_qp_names[qp_type],
			 opt->verb <= KRPING_VERB_WRITE_IMM ? " or uc" : "");
		return -EINVAL;
	}
	unused = opt->measure == KRPING_VERBS_LAT ? unused_by_lat(opt) : NULL;
	if (unused) {
		snprintf(why, why_len, "%s does not go with lat: one message is in flight", unused);
		return -EINVAL;
	}
	unused = unused_by_verb(opt);
	if (unused) {
		snprintf(why, why_len, "%s does not go with verb=%s", unused, verb);
		return -EINVAL;
	}
	if (count_given && opt->duration) {
		snprintf(why, why_len, "count does not go with duration: give one of them");
		return -EINVAL;
	}
	if (opt->srq && (opt->rxdepth ?: KRPING_VERBS_DEPTH_MAX) < opt->qps) {
		snprintf(why, why_len, "rxdepth=%u: with srq it must be at least qps, which is %u",
			 opt->rxdepth, opt->qps);
		return -EINVAL;
	}
	if (opt->signal > (opt->txdepth ?: DEFAULT_TXDEPTH)) {
		snprintf(why, why_len, "signal=%u: must be at most txdepth, which is %u",
			 opt->signal, opt->txdepth ?: DEFAULT_TXDEPTH);
		return -EINVAL;
	}
	if (opt->inline_len && opt->inline_len < size) {
		snprintf(why, why_len, "inline=%u: must be at least size, which is %u",
			 opt->inline_len, size);
		return -EINVAL;
	}
	if (opt->mtu && !is_mtu(opt->mtu)) {
		snprintf(why, why_len, "mtu=%u: must be 256, 512, 1024, 2048 or 4096", opt->mtu);
		return -EINVAL;
	}
	if (opt->mtu && qp_type == KRPING_VERBS_UD && size > opt->mtu) {
		snprintf(why, why_len, "size=%u: with qp=ud it must be at most mtu, which is %u",
			 size, opt->mtu);
		return -EINVAL;
	}
	if (opt->validate && qp_type != KRPING_VERBS_RC && size < NUMBER_LEN) {
		snprintf(why, why_len, "size=%u: validate with qp=%s needs at least %d", size,
			 krping_verbs_qp_names[qp_type], NUMBER_LEN);
		return -EINVAL;
	}
	return 0;
}

/* Sets what was not given; reads stays 0, because it depends on the device. */
void krping_verbs_defaults(struct krping_options *opt)
{
	if (opt->role == KRPING_PING_SERVER) {
		opt->size = opt->size ?: KRPING_VERBS_SIZE_MAX;
		return;
	}
	opt->qp_type = opt->qp_type ?: KRPING_VERBS_RC;
	opt->qps = opt->qps ?: 1;
	opt->size = opt->size ?: krping_verbs_is_atomic(opt) ? 8 : 64;
	opt->inline_len = opt->inline_len ? opt->size : 0;
	if (opt->measure == KRPING_VERBS_LAT)
		opt->txdepth = 1;
	opt->txdepth = opt->txdepth ?: DEFAULT_TXDEPTH;
	opt->signal = opt->signal ?: clamp(opt->txdepth / 4, 1u, (u32)SIGNAL_MAX);
	if (krping_verbs_takes_receive(opt) && !opt->rxdepth)
		opt->rxdepth = max((u32)DEFAULT_RXDEPTH, opt->srq ? opt->qps : 1);
}

/**
 * krping_verbs_fill_hello - make the private data of a client's request
 * @hello:	filled in
 * @opt:	a valid command, with reads chosen where the verb needs it
 * @group:	the same for all connections of a client
 * @connection:	0: control connection; i + 1: data queue pair i
 */
void krping_verbs_fill_hello(struct krping_verbs_hello *hello, const struct krping_options *opt,
			     u16 group, u16 connection)
{
	*hello = (struct krping_verbs_hello){
		.hello = {
			.magic = cpu_to_be32(KRPING_TEST_MAGIC),
			.version = KRPING_TEST_VERSION,
			.test = KRPING_TEST_VERBS,
			.size = cpu_to_be32(opt->size),
			.qps = cpu_to_be16(opt->qps),
			.group = cpu_to_be16(group),
		},
		.params = {
			.verb = opt->verb,
			.qp_type = opt->qp_type,
			.measure = opt->measure,
			.flags = (opt->duplex ? KRPING_VERBS_DUPLEX : 0) |
				 (opt->validate ? KRPING_VERBS_VALIDATE : 0) |
				 (opt->srq ? KRPING_VERBS_SRQ : 0),
			.connection = cpu_to_be16(connection),
			.mtu = cpu_to_be16(opt->mtu),
			.count = cpu_to_be32(opt->count),
			.duration = cpu_to_be32(opt->duration),
			.rate = cpu_to_be32(opt->rate),
			.txdepth = cpu_to_be16(opt->txdepth),
			.rxdepth = cpu_to_be16(opt->rxdepth),
			.signal = cpu_to_be16(opt->signal),
			.inline_len = cpu_to_be16(opt->inline_len),
			.reads = opt->reads,
		},
	};
}

/* The rules of struct krping_verbs_params. */
static bool is_valid(const struct krping_options *t, const struct krping_verbs_params *p)
{
	bool receives = krping_verbs_takes_receive(t), read = krping_verbs_is_read(t);
	bool bw = t->measure == KRPING_VERBS_BW;

	if (p->flags & ~KRPING_VERBS_FLAGS || p->reserved[0] || p->reserved[1] || p->reserved[2])
		return false;
	if (!goes_with(t->verb, t->qp_type) || (!bw && t->measure != KRPING_VERBS_LAT))
		return false;
	if (!t->size || t->size > 1u << 30 || (krping_verbs_is_atomic(t) && t->size != 8))
		return false;
	if (t->qps < 1 || t->qps > KRPING_VERBS_QPS_MAX || t->txdepth < 1 ||
	    t->txdepth > KRPING_VERBS_DEPTH_MAX || t->signal < 1 || t->signal > t->txdepth)
		return false;
	if (!bw && (t->qps != 1 || t->txdepth != 1 || t->rate || t->duplex || t->srq))
		return false;
	if (receives ? t->rxdepth < (t->srq ? t->qps : 1) || t->rxdepth > KRPING_VERBS_DEPTH_MAX :
		       t->rxdepth || t->srq)
		return false;
	if (t->inline_len && (t->inline_len != t->size || read))
		return false;
	if (t->mtu && !is_mtu(t->mtu))
		return false;
	if ((t->count && t->duration) || t->duration > KRPING_VERBS_SECONDS_MAX)
		return false;
	if (t->validate && t->qp_type != KRPING_VERBS_RC && t->size < NUMBER_LEN)
		return false;
	return read == !!t->reads;
}

/**
 * krping_verbs_read_hello - decode and check a client's request
 * @data:	its private data
 * @len:	bytes of @data
 * @server:	the server's command
 * @test:	filled in on success: the server's command with what the client says
 * @connection:	filled in on success: which connection it is, at most qps
 * @value:	filled in on failure: the value of the reject
 *
 * Return: 0 or why the server rejects it.
 */
enum krping_reject_reason krping_verbs_read_hello(const void *data, size_t len,
						  const struct krping_options *server,
						  struct krping_options *test, u16 *connection,
						  u32 *value)
{
	struct krping_verbs_hello h = {};
	const struct krping_verbs_params *p = &h.params;

	if (data)
		memcpy(&h, data, len < sizeof(h) ? len : sizeof(h));
	*value = KRPING_TEST_VERBS;
	if (be32_to_cpu(h.hello.magic) != KRPING_TEST_MAGIC)
		return KRPING_REJ_TEST;
	if (h.hello.version != KRPING_TEST_VERSION) {
		*value = KRPING_TEST_VERSION;
		return KRPING_REJ_VERSION;
	}
	if (h.hello.test != KRPING_TEST_VERBS)
		return KRPING_REJ_TEST;
	*value = 0;
	*test = *server;
	test->size = be32_to_cpu(h.hello.size);
	test->qps = be16_to_cpu(h.hello.qps);
	test->verb = p->verb;
	test->qp_type = p->qp_type;
	test->measure = p->measure;
	test->duplex = p->flags & KRPING_VERBS_DUPLEX;
	test->validate = p->flags & KRPING_VERBS_VALIDATE;
	test->srq = p->flags & KRPING_VERBS_SRQ;
	test->mtu = be16_to_cpu(p->mtu);
	test->count = be32_to_cpu(p->count);
	test->duration = be32_to_cpu(p->duration);
	test->rate = be32_to_cpu(p->rate);
	test->txdepth = be16_to_cpu(p->txdepth);
	test->rxdepth = be16_to_cpu(p->rxdepth);
	test->signal = be16_to_cpu(p->signal);
	test->inline_len = be16_to_cpu(p->inline_len);
	test->reads = p->reads;
	*connection = be16_to_cpu(p->connection);
	if (h.hello.flags || h.hello.reserved || !is_valid(test, p) ||
	    *connection > (krping_verbs_is_reliable(test) ? test->qps : 0))
		return KRPING_REJ_INVALID;
	if (test->size > server->size) {
		*value = server->size;
		return KRPING_REJ_SIZE;
	}
	return 0;
}
