/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives messages, executes their commands and sends the responses without a return to Go, whose
 * scheduler takes longer than all of that.
 */
#ifndef KRPING_VERBS_EXECUTOR_H
#define KRPING_VERBS_EXECUTOR_H

#include "command.h"
#include "ring.h"
#include "shim.h"

#define SHIM_SLOTS	16	/* SENDs in flight */

/* Buffers for data on its way, in classes by size. Data that crosses by RDMA is in those of SHIM_FIRST_RDMA or more. */
#define SHIM_CLASSES	5
#define SHIM_FIRST_RDMA	2
#define SHIM_BUFFERS	140	/* of all classes */
#define SHIM_RDMA_BUFFERS	44

#define SHIM_RECEIVES	SHIM_CLASSES	/* the ring's area for messages, behind those of the classes */

/* Bytes of the buffers of a class. */
uint32_t shim_class_memory(int class);

struct shim_class {
	uint8_t *buffers;	/* shim_class_memory() bytes that Go lends; NULL: none */
	uint32_t lkey;
	int is_wanted;		/* a command was left to Go as there are none */
	uint64_t used;		/* a bit a buffer */
	uint32_t uses;		/* of all buffers, ever */

	/* Commands that wait for a buffer, first come, first served: a ring of volume.depth entries. */
	struct shim_command *waiting;
	uint32_t first_waiting;
	uint32_t nr_waiting;
};

/* The upper halves of the ids of its work requests. Those of SHIM_QUIET complete only if they fail. */
enum shim_executor_kind {
	SHIM_QUIET = 0x100,	/* SEND, or RDMA WRITE in front of one */
	SHIM_SIGNALLED,		/* SEND */
	SHIM_FETCH,		/* RDMA READ of a buffer */
	SHIM_WRITTEN,		/* RDMA WRITE of one, over iWARP */
};

/* A command that turned out to be Go's, whose tag is in flight. */
struct shim_given {
	uint8_t command[SHIM_COMMAND];
	const uint8_t *data;	/* of an inline WRITE */
	uint32_t length;	/* of it, in bytes */
	uint32_t buffer;	/* that it uses until the next call */
};

/* Filled in by Go, up to wake_fd, and waiting of the classes. One thread at a time executes. */
struct shim_executor {
	struct shim_volume volume;
	struct shim_ring *ring;	/* to its file; NULL: the volume is in memory */
	uint8_t *receives;	/* buffers of max_message each, stride apart; the lower half of a receive's id says which one */
	uint8_t *sends;		/* max_message apart, of which those in slots are the executor's */
	uint32_t stride;
	uint32_t receives_lkey;
	uint32_t sends_lkey;
	uint32_t slots[SHIM_SLOTS];
	uint32_t receive_kind;	/* the upper half of a receive's id */
	int wake_fd;		/* an eventfd */

	struct shim_class classes[SHIM_CLASSES];
	int wants;		/* a class is wanted */
	struct shim_command commands[SHIM_BUFFERS];	/* whose data is in the buffer */
	int storing;		/* buffers that the ring has */

	/*
	 * By buffer: the id of the receive from which the ring writes, instead of the buffer. It is posted again
	 * afterwards. 0: none.
	 */
	uint64_t kept[SHIM_BUFFERS];
	int nr_kept;
	int is_flushed;		/* what is posted now may never complete */
	uint8_t *message;	/* that is executed */
	uint32_t first;		/* the buffer of its first command, whose data is not written yet */

	/* Buffers whose commands wait for a slot to be answered, first come, first served. */
	uint32_t unanswered[SHIM_BUFFERS];
	uint32_t first_unanswered;
	uint32_t nr_unanswered;

	struct shim_queue *queue;
	struct shim_out out;
	int used_by[SHIM_SLOTS];	/* the buffer whose data is in front of the SEND; -1: none */
	uint32_t head;		/* SENDs ever posted; slot head % SHIM_SLOTS is the next one */
	uint32_t tail;		/* those whose slots are free again */
	uint32_t quiet;		/* since the last signalled one */
	int quiet_data;		/* some of these have data in front */
	int posted;		/* signalled, without a completion */
	uint32_t completed;	/* ever, of these */

	struct shim_given given[SHIM_BUFFERS];
	int nr_given;

	int error;		/* of a post or the ring: an errno. Nothing more is executed */

	int woken;		/* wake_fd is readable, or about to be */
	int received;		/* a message has arrived since Go cleared it */
};

/* Lends the buffers of a class, or takes them back (NULL): none may be in use then. */
void shim_executor_lend(struct shim_executor *x, int class, uint8_t *buffers, uint32_t lkey);
/* Whether no buffer of a class is used, and no command waits for one. */
int shim_executor_is_idle(const struct shim_executor *x, int class);
/* Waits until the ring has no buffer any more. Nothing is executed before or afterwards. */
void shim_executor_settle(struct shim_executor *x);

#define SHIM_TAKEN	0x80000000	/* in byte_len of a message: the tags of its commands are in flight already */

/*
 * Go takes what is given after each call. Returns the number of completions in the queue's wc that Go has to
 * handle: all but successful ones of what was executed. A message with SHIM_TAKEN has only the commands that were
 * not executed. Returns 0 when woken, and a negative errno if completions cannot be taken. error may be set, too.
 * The pointers are used during the call only.
 */
int shim_execute(struct shim_executor *x, uintptr_t queue, const uint64_t *size, const uint32_t *stable,
		 struct shim_counts *counts);

/* Makes sure that there will be a completion of the last SENDs, which free their buffers. Returns 0 or an errno. */
int shim_executor_confirm(struct shim_executor *x);

/* Makes shim_execute(), or its next call, return soon. Any thread may call it. */
void shim_executor_wake(struct shim_executor *x);

/* Notes the completion of a work request of the executor that Go has taken from the queue. */
void shim_executor_completed(struct shim_executor *x, uint64_t id);

#endif /* KRPING_VERBS_EXECUTOR_H */
