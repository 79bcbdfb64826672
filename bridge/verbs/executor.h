/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives messages, executes their commands and sends the responses without a return to Go, whose
 * scheduler takes longer than all of that.
 */
#ifndef KRPING_VERBS_EXECUTOR_H
#define KRPING_VERBS_EXECUTOR_H

#include "command.h"
#include "shim.h"

#define SHIM_SLOTS	16	/* SENDs in flight */
#define SHIM_BUFFERS	8	/* for RDMA */
#define SHIM_BUFFER	65536	/* bytes of one */

/* The upper halves of the ids of its work requests. Those of SHIM_QUIET complete only if they fail. */
enum shim_executor_kind {
	SHIM_QUIET = 0x100,	/* SEND, or RDMA WRITE in front of one */
	SHIM_SIGNALLED,		/* SEND */
	SHIM_FETCH,		/* RDMA READ of a buffer */
};

/* Filled in by Go, up to wake_fd. One thread at a time executes. */
struct shim_executor {
	struct shim_volume volume;
	uint8_t *receives;	/* buffers of max_message each; the lower half of a receive's id says which one */
	uint8_t *sends;		/* the same, of which those in slots are the executor's */
	uint32_t receives_lkey;
	uint32_t sends_lkey;
	uint32_t slots[SHIM_SLOTS];
	uint32_t receive_kind;	/* the upper half of a receive's id */
	int wake_fd;		/* an eventfd */

	/*
	 * Buffers for RDMA: memory that Go lends while it is not NULL. All are free when it takes it back. With
	 * wants_buffers, commands were left to Go for want of them.
	 */
	uint8_t *buffers;
	uint32_t buffers_lkey;
	uint32_t used;		/* a bit a buffer */
	int wants_buffers;
	uint32_t fetched;	/* commands that used one, ever */

	struct shim_queue *queue;
	struct shim_out out;
	struct shim_command fetching[SHIM_BUFFERS];	/* WRITEs whose data is on its way */
	uint32_t used_by[SHIM_SLOTS];	/* the bit of the buffer whose data is in front of the SEND */

	/* Commands that turned out to be Go's, with their tags in flight. */
	uint8_t given[SHIM_BUFFERS][SHIM_COMMAND];
	int nr_given;

	uint32_t head;		/* SENDs ever posted; slot head % SHIM_SLOTS is the next one */
	uint32_t tail;		/* those whose slots are free again */
	uint32_t quiet;		/* since the last signalled one */
	int posted;		/* signalled, without a completion */

	int error;		/* of a post: an errno. Nothing more is executed */

	int woken;		/* wake_fd is readable, or about to be */
	int received;		/* a message has arrived since Go cleared it */
};

/*
 * Go takes what is given after each call. Returns the number of completions in the queue's wc that Go has to handle: all but successful ones of what
 * was executed. A message of which only some commands were executed is shorter, and has the others. Returns 0
 * when woken, and a negative errno if completions cannot be taken. error may be set, too. The pointers are used
 * during the call only.
 */
int shim_execute(struct shim_executor *x, uintptr_t queue, const uint64_t *size, struct shim_counts *counts);

/* Makes sure that there will be a completion of the last SENDs, which free their buffers. Returns 0 or an errno. */
int shim_executor_confirm(struct shim_executor *x);

/* Makes shim_execute(), or its next call, return soon. Any thread may call it. */
void shim_executor_wake(struct shim_executor *x);

/* Notes the completion of a work request of the executor that Go has taken from the queue. */
void shim_executor_completed(struct shim_executor *x, uint64_t id);

#endif /* KRPING_VERBS_EXECUTOR_H */
