/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes of one file by io_uring. Those that use the page cache are carried out by the kernel's threads: a
 * read that is started without waiting may still wait for the disk, to read ahead.
 */
#ifndef KRPING_VERBS_RING_H
#define KRPING_VERBS_RING_H

#include <stdint.h>
#include <stddef.h>

struct shim_ring;

/* Most reads and writes at a time, and areas of memory. */
#define SHIM_RING_ENTRIES	256
#define SHIM_RING_AREAS		8

/* Uses io_uring in a thread: the first time the kernel prepares its workers, and waits while a CPU goes offline. */
void shim_ring_first_use(void);
/* Functions return 0 or an errno. io_uring may be missing or forbidden. */
int shim_ring_open(struct shim_ring **ring, int fd);
/*
 * Tells the kernel the memory of an area, or that it has none any more (NULL). It does not wait for reads and writes. If
 * the kernel is short of memory then, the pages stay pinned until the area has others or the ring is closed.
 */
void shim_ring_register(struct shim_ring *r, int area, void *memory, size_t length);
int shim_ring_fd(const struct shim_ring *r);	/* readable when something has ended */
/* Prepares a read or write of data in an area; shim_ring_submit() starts it. */
int shim_ring_prepare(struct shim_ring *r, int is_write, int area, void *data, uint32_t length, uint64_t offset,
		      uint32_t id);
int shim_ring_submit(struct shim_ring *r);
/* Takes what has ended: its id, and its bytes or a negative errno. Returns 0 if nothing has. */
int shim_ring_take(struct shim_ring *r, uint32_t *id, int32_t *result);
/* The same, and waits for it. What was not started is not waited for: 0 if there is nothing else. */
int shim_ring_wait(struct shim_ring *r, uint32_t *id, int32_t *result, int running);
void shim_ring_close(struct shim_ring *r);	/* NULL is allowed */

#endif /* KRPING_VERBS_RING_H */
