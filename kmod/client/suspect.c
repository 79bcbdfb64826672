// SPDX-License-Identifier: GPL-2.0
/*
 * Finds the request that kills its connection: its memory cannot be registered, say, or the target
 * fails at its sector. It would do so again and again until the timeout, so it fails after
 * MAX_LOSSES losses in a row.
 *
 * Others are in flight beside it. After SUSPECT_LOSSES a request is sent only while no other
 * suspect is in flight: the innocent ones are then answered. It is also sent only once the target
 * has answered anything on its new connections: losses before that are an outage, which must not
 * fail I/O before the timeout.
 */
#include "client/request.h"
#include "lib/log.h"

#define MAX_LOSSES	5	/* as the retries of NVMe */
#define SUSPECT_LOSSES	2

static bool is_suspect(struct request *rq)
{
	return krping_req(rq)->losses >= SUSPECT_LOSSES;
}

/* May the request be sent now? If so, krping_suspect_back() must follow. */
bool krping_suspect_may_go(struct krping_session *s, struct request *rq)
{
	if (!is_suspect(rq))
		return true;
	return krping_keepalive_target_answered(s) && !cmpxchg(&s->suspect, NULL, rq);
}

/* The request is not in flight any more, or could not be sent. */
void krping_suspect_back(struct krping_session *s, struct request *rq)
{
	if (is_suspect(rq) && READ_ONCE(s->suspect) == rq)
		WRITE_ONCE(s->suspect, NULL);
}

/**
 * krping_suspect_lost - count a loss of the connection on which a request was in flight
 * @q:		its queue
 * @rq:		the request, cancelled
 * @error:	why the connection was lost; 0 if the session closed it
 *
 * A target that is silent (-ETIMEDOUT) or a device that is removed is not the request's fault.
 *
 * Return: whether the request has to fail; this was logged.
 */
bool krping_suspect_lost(struct krping_queue *q, struct request *rq, int error)
{
	struct krping_request *req = krping_req(rq);

	if (!error || error == -ETIMEDOUT || error == -ENODEV)
		return false;
	if (++req->losses < MAX_LOSSES)
		return false;
	krping_err_ratelimited(q->session->log_prefix,
			       "%s of %u bytes at sector %llu: its connection was lost %u times in a row (%d), it fails",
			       blk_op_str(req_op(rq)), krping_rq_length(rq),
			       krping_rq_offset(rq) >> SECTOR_SHIFT, req->losses, error);
	return true;
}
