// SPDX-License-Identifier: GPL-2.0
/* Messages with wrong data. */
#include "lib/fault.h"
#include "lib/log.h"
#include "verbs/verbs.h"

/**
 * krping_verbs_damage - count a damaged message, and show the first one
 * @q:		its queue pair
 * @number:	its number
 * @finding:	what is wrong with it
 */
void krping_verbs_damage(struct krping_verbs_queue *q, u64 number,
			 const struct krping_finding *finding)
{
	__be64 want = cpu_to_be64(finding->want), got = cpu_to_be64(finding->got);
	struct krping_verbs_counts *counts = &q->v->thread.result->verbs;
	struct krping_verbs *v = q->v;

	WRITE_ONCE(counts->damaged, counts->damaged + 1);
	if (v->report.damaged++)
		return;
	v->report.queue = q->index;
	v->report.number = number;
	v->report.offset = finding->offset;
	v->report.damage = finding->damage;
	krping_err(v->thread.log_prefix,
		   "queue pair %u, message %llu, byte %u: %s: expected %8ph, found %8ph", q->index,
		   number, finding->offset, krping_damage_text(finding->damage), &want, &got);
}

/* The fault verbs_corrupt: each message has its byte, so that tests find all of them. */
void krping_verbs_corrupt(const struct krping_verbs_queue *q, u8 *data, u64 number)
{
	u32 byte = krping_verbs_mod(37 * number, q->v->test.size);

	krping_fault_corrupt(KRPING_FAULT_VERBS_CORRUPT, q->v->thread.log_prefix, data + byte);
}
