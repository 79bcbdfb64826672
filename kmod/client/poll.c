// SPDX-License-Identifier: GPL-2.0
/*
 * Poll queues (poll_queues=): who waits for a polled request takes the completions, without an
 * interrupt. When nobody waits, the monitor takes them.
 */
#include "client/internal.h"

#define BATCH	64	/* completions per call */

/**
 * krping_poll - take completions of a poll queue
 * @q:		any queue; nothing is done for one that is not polled or not connected
 *
 * Process context with bottom halves enabled, where alone the block layer may end a polled bio.
 *
 * Return: how many there were; 0 also while another CPU takes them.
 */
int krping_poll(struct krping_queue *q)
{
	LIST_HEAD(unchecked);
	int done = 0;

	if (!q->polls || !spin_trylock(&q->poll_lock))
		return 0;
	if (q->may_poll) {
		q->is_polling = true;
		done = ib_process_cq_direct(q->conn.cq, BATCH);
		q->is_polling = false;
		list_splice_init(&q->unchecked, &unchecked);
	}
	spin_unlock(&q->poll_lock);
	krping_recv_finish_unchecked(&unchecked);
	return done;
}

/* The queue has its buffers. */
void krping_poll_start(struct krping_queue *q)
{
	spin_lock(&q->poll_lock);
	q->may_poll = q->polls;
	spin_unlock(&q->poll_lock);
}

/* Afterwards krping_poll() does not use the completion queue. Idempotent. */
void krping_poll_stop(struct krping_queue *q)
{
	spin_lock(&q->poll_lock);
	q->may_poll = false;
	spin_unlock(&q->poll_lock);
}
