/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands of the block protocol (kmod/PROTOCOL.md section 2) that only copy memory. Everything else, and
 * all that breaks the protocol, is left to Go.
 */
#ifndef KRPING_VERBS_COMMAND_H
#define KRPING_VERBS_COMMAND_H

#include <stdint.h>

#define SHIM_TAGS	65536

/* What commands have changed. Go has the same, of atomic integers. */
struct shim_counts {
	uint64_t reads;
	uint64_t bytes_read;
	uint64_t writes;
	uint64_t bytes_written;
};

/* A volume as the client of one connection may use it. Sizes are in bytes. */
struct shim_volume {
	uint8_t *memory;	/* its bytes; NULL: they are in a file, */
	int fd;			/* of which only what the page cache has is read */
	uint32_t block_size;
	uint32_t max_data;
	uint32_t max_inline;
	uint32_t max_message;
	uint32_t depth;		/* most commands in flight */
	uint8_t flags;		/* those that a command may have */
	uint8_t may_write;	/* a write need not be stable when it is answered */
	uint8_t may_force;	/* nor one with FUA */
	uint8_t no_reads;	/* the file system cannot read without waiting */
	uint8_t no_writes;
	const uint64_t *size;	/* of the volume: Go's memory, during a call only */
	struct shim_counts *counts;	/* the same */
	/*
	 * Tags of the commands in flight, and their number without the KEEP_ALIVE. Go clears those of the
	 * commands that it has answered, in other threads.
	 */
	int32_t in_flight;
	uint64_t tags[SHIM_TAGS / 64];
};

/* A message of responses that grows. */
struct shim_out {
	uint8_t *data;		/* room for max_message; NULL: none */
	uint32_t length;
	/* Sends it, and makes room for the next one. */
	int (*next)(struct shim_out *out);
};

/*
 * Executes what it can of a message, and appends the responses to out. Returns the length of what is left,
 * which it moves to the front: whole commands, or an untouched message. A negative value is an error of
 * next, a negative errno.
 */
int64_t shim_run_commands(struct shim_volume *v, uint8_t *msg, uint32_t length, struct shim_out *out);

/* Whether the CPU has what the checksum needs. Without it nothing is executed here. */
int shim_has_crc32c(void);

#endif /* KRPING_VERBS_COMMAND_H */
