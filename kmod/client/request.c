// SPDX-License-Identifier: GPL-2.0
/* What a request of the disk is on the wire. */
#include "client/request.h"
#include "wire/crc.h"

/* A wire command's parts that depend on the request alone. */
u8 rq_opcode(struct request *rq)
{
	switch (req_op(rq)) {
	case REQ_OP_READ:
		return KRPING_OP_READ;
	case REQ_OP_WRITE:
		return KRPING_OP_WRITE;
	case REQ_OP_FLUSH:
		return KRPING_OP_FLUSH;
	case REQ_OP_DISCARD:
		return KRPING_OP_DISCARD;
	case REQ_OP_WRITE_ZEROES:
		return KRPING_OP_WRITE_ZEROES;
	case REQ_OP_DRV_IN:
		return KRPING_OP_DIGEST;
	default:
		return 0;
	}
}

/* Of what is moved. */
u32 rq_crc(struct request *rq)
{
	struct req_iterator iter;
	u32 crc = krping_crc_begin();
	struct bio_vec bv;

	if (to_req(rq)->copy)
		return krping_copy_crc(to_req(rq)->copy);
	rq_for_each_segment(bv, rq, iter)
		crc = krping_crc_bvec(crc, &bv);
	return krping_crc_end(crc);
}

/* The peer's key is invalid by now, or the queue pair is drained. */
void krping_rq_unmap(struct krping_queue *q, struct krping_slot *slot, struct request *rq)
{
	struct krping_request *req = to_req(rq);

	if (!req->nents)
		return;
	ib_dma_unmap_sg(q->conn.id->device, slot->sg, req->nents, rq_dma_dir(rq));
	req->nents = 0;
}

struct krping_cmd_event krping_rq_event(struct krping_queue *q, struct request *rq, u32 crc)
{
	return (struct krping_cmd_event){
		.sector = rq_offset(rq) >> SECTOR_SHIFT,
		.session = q->session->id,
		.dev = disk_devt(q->session->disk),
		.bytes = rq_length(rq),
		.crc = crc,
		.queue = q->index,
		.tag = to_req(rq)->wire_tag,
		.op = rq_opcode(rq),
	};
}
