// SPDX-License-Identifier: GPL-2.0
/* What a test needs of the RDMA device and of the path, before anything is set up. */
#include "lib/log.h"
#include "verbs/verbs.h"

#define DEFAULT_READS	16

/* Return: bytes of a packet on the connection's path, 0 over iWARP. */
u32 krping_verbs_path_mtu(const struct krping_conn *conn)
{
	const struct sa_path_rec *path = conn->id->route.path_rec;

	if (!path || krping_conn_is_iwarp(conn))
		return 0;
	return ib_mtu_enum_to_int(path->mtu);
}

static u32 need(enum krping_verbs_need what, u64 limit)
{
	return (u32)what << KRPING_NEED_SHIFT | (u32)min_t(u64, limit, KRPING_NEED_LIMIT_MAX);
}

/* Return: what kind of operation the device cannot do, or 0. */
static u32 missing_kind(const struct krping_verbs *v)
{
	const struct ib_device *dev = v->control.id->device;
	const struct krping_options *t = &v->test;
	bool iwarp = krping_conn_is_iwarp(&v->control);

	if (t->qp_type == KRPING_VERBS_UC && iwarp)
		return need(KRPING_NEED_UC, 0);
	if (t->qp_type == KRPING_VERBS_UD && iwarp)
		return need(KRPING_NEED_UD, 0);
	if (krping_verbs_is_atomic(t) && (iwarp || dev->attrs.atomic_cap == IB_ATOMIC_NONE))
		return need(KRPING_NEED_ATOMICS, 0);
	if (t->verb == KRPING_VERB_WRITE_IMM && iwarp)
		return need(KRPING_NEED_IMM, 0);
	if (t->mtu && t->mtu > krping_verbs_path_mtu(&v->control))
		return need(KRPING_NEED_MTU, krping_verbs_path_mtu(&v->control));
	if (t->srq && !dev->attrs.max_srq)
		return need(KRPING_NEED_SRQ, 0);
	return 0;
}

/* READs and atomics that a queue pair of this device can have outstanding, in all its roles. */
static u32 most_reads(const struct krping_verbs *v)
{
	const struct ib_device_attr *attrs = &v->control.id->device->attrs;
	int most = 255;

	if (v->is_initiator)
		most = min(most, attrs->max_qp_init_rd_atom);
	if (v->is_target)
		most = min(most, attrs->max_qp_rd_atom);
	return max(most, 0);
}

/* Return: which limit of the device is exceeded, or 0. */
static u32 missing_room(const struct krping_verbs *v)
{
	const struct ib_device *dev = v->control.id->device;
	const struct ib_device_attr *attrs = &dev->attrs;
	const struct krping_options *t = &v->test;
	u32 most = krping_dev_max_wr(dev), send_wr = t->txdepth + KRPING_VERBS_SPARE_WR + 1;
	u32 own = t->srq ? 0 : max_t(u32, t->rxdepth, KRPING_VERBS_CHECK_DEPTH);
	u32 control = KRPING_VERBS_CONTROL_DEPTH(t->qps);

	if (max3(send_wr, own + 1, control + 1) > most)
		return need(KRPING_NEED_WR, most);
	if (t->srq && t->rxdepth > (u32)max(attrs->max_srq_wr, 0))
		return need(KRPING_NEED_SRQ_WR, max(attrs->max_srq_wr, 0));
	if (max(send_wr + max(own, t->rxdepth) + 2, control + KRPING_VERBS_CONTROL_TX + 4) >
	    (u32)max(attrs->max_cqe, 0))
		return need(KRPING_NEED_CQE, max(attrs->max_cqe, 0));
	if (t->qps + 1 > (u32)max(attrs->max_qp, 0))
		return need(KRPING_NEED_QP, max(attrs->max_qp, 0));
	if (t->reads > most_reads(v))
		return need(KRPING_NEED_READS, most_reads(v));
	return 0;
}

/* For both sides' logs. */
const char *krping_need_text(u32 value)
{
	switch (value >> KRPING_NEED_SHIFT) {
	case KRPING_NEED_UC:
		return "the device has no queue pairs of type UC: use qp=rc";
	case KRPING_NEED_UD:
		return "the device has no queue pairs of type UD: use qp=rc";
	case KRPING_NEED_SRQ:
		return "the device has no shared receive queues: omit srq";
	case KRPING_NEED_ATOMICS:
		return "the device has no atomic operations";
	case KRPING_NEED_IMM:
		return "the device has no immediate data: use verb=write";
	case KRPING_NEED_MTU:
		return "mtu must be at most that of the path, which is (0: iWARP, it has none)";
	case KRPING_NEED_WR:
		return "txdepth, rxdepth or qps need too long a queue; its limit is";
	case KRPING_NEED_SRQ_WR:
		return "rxdepth is too large for a shared receive queue; the limit is";
	case KRPING_NEED_INLINE:
		return "the device has no inline data of that size";
	case KRPING_NEED_READS:
		return "reads must be at most";
	case KRPING_NEED_CQE:
		return "txdepth or rxdepth need too long a completion queue; its limit is";
	case KRPING_NEED_QP:
		return "qps needs too many queue pairs; the limit is";
	default:
		return "the device lacks something";
	}
}

/**
 * krping_verbs_check_device - find out whether the device can run the test
 * @v:		with a control connection whose route is known
 * @missing:	filled in on failure: the value for KRPING_REJ_DEVICE
 *
 * Chooses reads if it was not given.
 *
 * Return: 0, -EOPNOTSUPP or -EINVAL with the reason in the log.
 */
int krping_verbs_check_device(struct krping_verbs *v, u32 *missing)
{
	struct krping_options *t = &v->test;
	int error = -EOPNOTSUPP;

	if (krping_verbs_is_read(t) && !t->reads)
		t->reads = clamp(most_reads(v), 1u, (u32)DEFAULT_READS);
	*missing = missing_kind(v);
	if (!*missing) {
		*missing = missing_room(v);
		error = -EINVAL;
	}
	if (!*missing)
		return 0;
	krping_err_ratelimited(v->thread.log_prefix, "%s: %s %u", v->control.id->device->name,
			       krping_need_text(*missing), *missing & KRPING_NEED_LIMIT_MAX);
	return error;
}
