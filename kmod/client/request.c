// SPDX-License-Identifier: GPL-2.0
/* A request's fields on the wire. */
#include "client/request.h"
#include "wire/crc.h"

/* Return: the wire opcode, or 0 for an unsupported operation. */
u8 krping_rq_opcode(struct request *rq)
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

/* CRC32C of the data, of the private copy if there is one. */
u32 krping_rq_crc(struct request *rq)
{
	struct req_iterator iter;
	u32 crc = krping_crc_begin();
	struct bio_vec bv;

	if (krping_req(rq)->copy)
		return krping_copy_crc(krping_req(rq)->copy);
	krping_rq_for_each_piece(bv, rq, iter)
		crc = krping_crc_bvec(crc, &bv);
	return krping_crc_end(crc);
}

/* The target can no longer access the data: its key is invalidated or the queue pair drained. */
void krping_rq_unmap(struct krping_queue *q, struct krping_slot *slot, struct request *rq)
{
	struct krping_request *req = krping_req(rq);

	if (!req->nents)
		return;
	ib_dma_unmap_sg(q->conn.id->device, slot->sg, req->nents, rq_dma_dir(rq));
	req->nents = 0;
	krping_slot_put_sg(q, slot);
}

struct krping_cmd_event krping_rq_event(struct krping_queue *q, struct request *rq, u32 crc)
{
	return (struct krping_cmd_event){
		.sector = krping_rq_offset(rq) >> SECTOR_SHIFT,
		.session = q->session->id,
		.dev = disk_devt(q->session->disk),
		.bytes = krping_rq_length(rq),
		.crc = crc,
		.queue = q->index,
		.tag = krping_req(rq)->wire_tag,
		.op = krping_rq_opcode(rq),
	};
}
