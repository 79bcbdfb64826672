/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The parameters of a verbs test: which options go together, their defaults, and the client's hello
 * (PROTOCOL.md section 1.3). Pure, as options.h.
 */
#ifndef KRPING_VERBS_PARAMS_H
#define KRPING_VERBS_PARAMS_H

#include "options.h"

int krping_verbs_check(const struct krping_options *opt, bool count_given, char *why,
		       size_t why_len);
void krping_verbs_defaults(struct krping_options *opt);
void krping_verbs_fill_hello(struct krping_verbs_hello *hello, const struct krping_options *opt,
			     u16 group, u16 connection);
enum krping_reject_reason krping_verbs_read_hello(const void *data, size_t len,
						  const struct krping_options *server,
						  struct krping_options *test, u16 *connection,
						  u32 *value);

static inline bool krping_verbs_is_atomic(const struct krping_options *opt)
{
	return opt->verb == KRPING_VERB_FETCH_ADD || opt->verb == KRPING_VERB_CMP_SWAP;
}

/* Whether the initiator gets data or a value, and the target does nothing. */
static inline bool krping_verbs_is_read(const struct krping_options *opt)
{
	return opt->verb == KRPING_VERB_READ || krping_verbs_is_atomic(opt);
}

static inline bool krping_verbs_is_write(const struct krping_options *opt)
{
	return opt->verb == KRPING_VERB_WRITE || opt->verb == KRPING_VERB_WRITE_IMM;
}

/* Whether each message of the initiator consumes a receive of the target. */
static inline bool krping_verbs_takes_receive(const struct krping_options *opt)
{
	return opt->verb == KRPING_VERB_SEND || opt->verb == KRPING_VERB_WRITE_IMM;
}

/* Whether both sides send: see PROTOCOL.md. */
static inline bool krping_verbs_both_send(const struct krping_options *opt)
{
	return opt->duplex || (opt->measure == KRPING_VERBS_LAT && !krping_verbs_is_read(opt));
}

static inline bool krping_verbs_is_reliable(const struct krping_options *opt)
{
	return opt->qp_type == KRPING_VERBS_RC;
}

#endif /* KRPING_VERBS_PARAMS_H */
