/* SPDX-License-Identifier: Apache-2.0 */
/*
 * READs and WRITEs of the block protocol (kmod/PROTOCOL.md section 2). A message with another command, or one that
 * breaks the protocol, is left to Go.
 */
#ifndef KRPING_VERBS_COMMAND_H
#define KRPING_VERBS_COMMAND_H

#include <stdint.h>

#define SHIM_TAGS	65536

/* What was done. The same as Go's transport.Counts, whose integers are atomic. */
struct shim_counts {
	uint64_t reads;
	uint64_t bytes_read;
	uint64_t writes;
	uint64_t bytes_written;
};

/* A volume as the client of one connection may use it. Sizes are in bytes. */
struct shim_volume {
	uint8_t *memory;	/* its bytes; NULL: they are elsewhere */
	uint32_t block_size;
	uint32_t max_data;
	uint32_t max_inline;
	uint32_t max_message;
	uint32_t depth;		/* most commands in flight */
	uint8_t flags;		/* those that a command may have */
	uint8_t writes;		/* the client may write */
	uint8_t writeback;	/* a write need not be stable when it is answered, unless it has FUA */
	const uint64_t *size;	/* of the volume: Go's memory, during a call only */
	const uint32_t *stable;	/* whether each write is stable when it has ended: the same */
	struct shim_counts *counts;	/* the same */
	/*
	 * Tags of the commands in flight, and their number without the KEEP_ALIVE. Go clears those of the
	 * commands that it has answered, in other threads.
	 */
	int32_t in_flight;
	uint64_t tags[SHIM_TAGS / 64];
};

#define SHIM_OP_READ	1
#define SHIM_OP_WRITE	2

#define SHIM_COMMAND	32	/* bytes of a command */

/* A command; sizes are in bytes. Its encoded form is in wire. */
struct shim_command {
	uint8_t op;
	uint8_t flags;
	uint16_t tag;
	uint32_t length;
	uint64_t offset;
	uint64_t addr;
	uint32_t rkey;
	uint32_t crc;
	uint8_t wire[SHIM_COMMAND];
};

/* What has become of a command. A negative value is a negative errno: the connection is to be closed. */
enum shim_outcome {
	SHIM_LEFT,	/* to Go */
	SHIM_ANSWERED,
	SHIM_STARTED,	/* it will be answered, or given to Go */
};

/* A message of responses that grows. */
struct shim_out {
	uint8_t *data;		/* room for max_message; NULL: none */
	uint32_t length;
	/* Sends it, and makes room for the next one. Returns 0 or a negative errno. */
	int (*next)(struct shim_out *out);
	/*
	 * Executes a command that cannot be executed at once. data is that of an inline WRITE. Returns an outcome.
	 * NULL: Go does.
	 */
	int (*later)(struct shim_out *out, const struct shim_command *c, const uint8_t *data);
};

/*
 * Executes what it can of a message, and appends the responses to out. Returns the length of what is left,
 * which it moves to the front: commands whose tags are in flight, or, without taken, the untouched message. A
 * negative value is an error of next or later, a negative errno.
 */
int64_t shim_run_commands(struct shim_volume *v, uint8_t *msg, uint32_t length, struct shim_out *out, int *taken);

/* Parts of it. Data is as long as the command says. */
int shim_is_inside(const struct shim_volume *v, const struct shim_command *c);
int shim_may_write(const struct shim_volume *v, const struct shim_command *c);
int shim_is_inline(const struct shim_command *c);
uint32_t shim_padded(uint32_t length);
/* Returns whether there is room for a response with so many bytes of data behind it, or a negative errno. */
int shim_make_room(const struct shim_volume *v, struct shim_out *out, uint32_t data);
/* Where data behind the next response goes. */
uint8_t *shim_data(const struct shim_out *out);
void shim_respond(struct shim_volume *v, struct shim_out *out, const struct shim_command *c, uint32_t crc);
void shim_clear_tag(struct shim_volume *v, uint16_t tag);

#endif /* KRPING_VERBS_COMMAND_H */
