// SPDX-License-Identifier: GPL-2.0
/* RDMA READs and WRITEs of large data: prepared, counted in the send queue, watched, ended. */
#include "lib/log.h"
#include "target/target.h"

static enum dma_data_direction dma_dir(const struct krping_target_cmd *cmd)
{
	return cmd->op == KRPING_OP_WRITE ? DMA_FROM_DEVICE : DMA_TO_DEVICE;
}

/*
 * Prepares the transfer of a command, if it is not prepared yet.
 *
 * Return: 1 if the data can be moved, 0 if the send queue has no room, -ENOMEM if memory is short;
 * for both the command has to wait. Or another negative errno.
 */
int krping_transfer_prepare(struct krping_target_cmd *cmd)
{
	struct krping_target_conn *tc = cmd->tc;
	int ret;

	if (!cmd->nr_wrs) {
		ret = rdma_rw_ctx_init(&cmd->rw, tc->conn.qp, tc->conn.id->port_num, cmd->sg,
				       cmd->nents, 0, cmd->addr, cmd->rkey, dma_dir(cmd));
		if (ret < 0)
			return ret == -EAGAIN ? -ENOMEM : ret;
		cmd->nr_wrs = ret;
	}
	return cmd->nr_wrs <= tc->rw_room;
}

/* The prepared transfer of a command is about to be posted. */
void krping_transfer_begin(const struct krping_target_cmd *cmd)
{
	struct krping_target_conn *tc = cmd->tc;

	if (tc->rw_room == tc->rw_size)
		tc->rw_moved = jiffies;
	tc->rw_room -= cmd->nr_wrs;
}

/* Undoes krping_transfer_prepare(). */
void krping_transfer_free(struct krping_target_cmd *cmd)
{
	struct krping_target_conn *tc = cmd->tc;

	rdma_rw_ctx_destroy(&cmd->rw, tc->conn.qp, tc->conn.id->port_num, cmd->sg, cmd->nents,
			    dma_dir(cmd));
	cmd->nr_wrs = 0;
}

/* The data of a posted transfer has been moved. */
void krping_transfer_done(struct krping_target_cmd *cmd)
{
	cmd->tc->rw_room += cmd->nr_wrs;
	cmd->tc->rw_moved = jiffies;
	krping_transfer_free(cmd);
}

/* Devices give up on a transfer by themselves, except rxe, which may lose an RDMA READ. */
void krping_transfers_check(struct krping_target_conn *tc)
{
	if (READ_ONCE(tc->conn.state) != KRPING_CONN_LIVE || tc->rw_room == tc->rw_size ||
	    time_before(jiffies, tc->rw_moved + KRPING_TARGET_STUCK))
		return;
	krping_warn_ratelimited(tc->log_prefix, "a transfer of data makes no progress");
	krping_conn_fail(&tc->conn, -ETIMEDOUT);
}
