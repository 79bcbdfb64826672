/* SPDX-License-Identifier: GPL-2.0 */
/* What a request of the disk is on the wire. */
#ifndef KRPING_REQUEST_H
#define KRPING_REQUEST_H

#include "client/client.h"
#include "lib/cmd_event.h"

static inline struct krping_request *to_req(struct request *rq)
{
	return blk_mq_rq_to_pdu(rq);
}

static inline bool is_digest(struct request *rq)
{
	return req_op(rq) == REQ_OP_DRV_IN;
}

static inline u32 rq_length(struct request *rq)
{
	return is_digest(rq) ? to_req(rq)->digest->length : blk_rq_bytes(rq);
}

static inline u64 rq_offset(struct request *rq)
{
	if (is_digest(rq))
		return to_req(rq)->digest->offset;
	return req_op(rq) == REQ_OP_FLUSH ? 0 : blk_rq_pos(rq) << SECTOR_SHIFT;
}

static inline bool moves_data(struct request *rq)
{
	return req_op(rq) == REQ_OP_READ || req_op(rq) == REQ_OP_WRITE;
}

u8 rq_opcode(struct request *rq);
u32 rq_crc(struct request *rq);
void krping_rq_unmap(struct krping_queue *q, struct krping_slot *slot, struct request *rq);
struct krping_cmd_event krping_rq_event(struct krping_queue *q, struct request *rq, u32 crc);

/* copy.c */
void krping_copy_make(struct request *rq);
void krping_copy_free(struct request *rq);
int krping_copy_map(const struct krping_copy *copy, struct scatterlist *sg);
u32 krping_copy_crc(const struct krping_copy *copy);
void krping_copy_deliver(struct request *rq);

#endif /* KRPING_REQUEST_H */
