/* SPDX-License-Identifier: GPL-2.0 */
/* A request's fields on the wire, private copies of its data, and its part in losses. */
#ifndef KRPING_REQUEST_H
#define KRPING_REQUEST_H

#include "client/internal.h"
#include "lib/cmd_event.h"

static inline struct krping_request *krping_req(struct request *rq)
{
	return blk_mq_rq_to_pdu(rq);
}

static inline bool krping_rq_is_digest(struct request *rq)
{
	return req_op(rq) == REQ_OP_DRV_IN;
}

static inline u32 krping_rq_length(struct request *rq)
{
	return krping_rq_is_digest(rq) ? krping_req(rq)->digest->length : blk_rq_bytes(rq);
}

static inline u64 krping_rq_offset(struct request *rq)
{
	if (krping_rq_is_digest(rq))
		return krping_req(rq)->digest->offset;
	return req_op(rq) == REQ_OP_FLUSH ? 0 : blk_rq_pos(rq) << SECTOR_SHIFT;
}

static inline bool krping_rq_moves_data(struct request *rq)
{
	return req_op(rq) == REQ_OP_READ || req_op(rq) == REQ_OP_WRITE;
}

/* The scatterlist of the request is not used any more. */
static inline void krping_slot_put_sg(struct krping_queue *q, struct krping_slot *slot)
{
	if (slot->sg_is_pooled)
		mempool_free(slot->sg, &q->session->sg_pool);
	else if (slot->sg != slot->small)
		kfree(slot->sg);
}

u8 krping_rq_opcode(struct request *rq);
u32 krping_rq_crc(struct request *rq);
void krping_rq_unmap(struct krping_queue *q, struct krping_slot *slot, struct request *rq);
struct krping_cmd_event krping_rq_event(struct krping_queue *q, struct request *rq, u32 crc);

/* copy.c */
void krping_copy_make(struct request *rq);
void krping_copy_free(struct request *rq);
int krping_copy_map(const struct krping_copy *copy, struct scatterlist *sg);
u32 krping_copy_crc(const struct krping_copy *copy);
void krping_copy_deliver(struct request *rq);

/* suspect.c */
bool krping_suspect_may_go(struct krping_session *s, struct request *rq);
void krping_suspect_back(struct krping_session *s, struct request *rq);
bool krping_suspect_lost(struct krping_queue *q, struct request *rq, int error);

#endif /* KRPING_REQUEST_H */
