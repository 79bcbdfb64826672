// SPDX-License-Identifier: Apache-2.0
/*
 * Executes messages from standard input on a volume, for commands_test.go. Each is a header and the message. The
 * answer is the number of bytes that are left, those, the number of bytes of responses, and those; in the end the
 * volume. Numbers are of 32 bits, little endian.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../command.h"

struct header {
	uint32_t length;	/* of the message; 0: the end */
	uint32_t writes;
	uint32_t writeback;
	uint32_t stable;
	uint32_t flags;
	uint32_t busy;		/* a tag that is in flight; SHIM_TAGS: none */
};

/* As commands_test.go has them. */
#define VOLUME		65536
#define MAX_DATA	32768
#define MAX_INLINE	4096
#define MAX_MESSAGE	8192
#define DEPTH		6

static uint8_t *answer;		/* of exactly the size that it may have */
static uint32_t answered;
static int no_room;

static int next(struct shim_out *out)
{
	if (out->data)
		answered += out->length;
	answer = realloc(answer, answered + MAX_MESSAGE);
	out->data = no_room ? NULL : answer + answered;
	out->length = 0;
	return 0;
}

static void must_read(void *p, size_t n)
{
	if (fread(p, 1, n, stdin) != n)
		exit(1);
}

int main(void)
{
	static struct shim_volume v = {
		.block_size = 512, .max_data = MAX_DATA, .max_inline = MAX_INLINE, .max_message = MAX_MESSAGE, .depth = DEPTH,
	};
	uint64_t size = VOLUME + 100;	/* not whole blocks */
	struct shim_counts counts = { 0 };
	uint8_t *volume = calloc(1, VOLUME);
	struct header h;
	uint32_t stable;

	v.memory = volume;
	v.stable = &stable;
	v.size = &size;
	v.counts = &counts;
	for (;;) {
		struct shim_out out = { .next = next };
		uint8_t *msg;
		uint32_t left;
		int i, taken;

		if (fread(&h, sizeof(h), 1, stdin) != 1)
			return 0;
		if (!h.length)
			break;
		msg = malloc(h.length);
		must_read(msg, h.length);
		v.writes = h.writes;
		v.writeback = h.writeback;
		stable = h.stable;
		v.flags = h.flags;
		memset(v.tags, 0, sizeof(v.tags));
		v.in_flight = 0;
		if (h.busy < SHIM_TAGS) {
			v.tags[h.busy / 64] |= 1ull << h.busy % 64;
			v.in_flight = 1;
		}
		answered = 0;
		left = shim_run_commands(&v, msg, h.length, &out, &taken);
		if (out.data)
			answered += out.length;
		fwrite(&left, 4, 1, stdout);
		fwrite(msg, 1, left, stdout);
		fwrite(&answered, 4, 1, stdout);
		fwrite(answer, 1, answered, stdout);
		fwrite(&v.in_flight, 4, 1, stdout);
		for (i = 0; i < SHIM_TAGS / 64; i++)
			fwrite(&v.tags[i], 8, 1, stdout);
		fflush(stdout);
		free(msg);
	}
	fwrite(volume, 1, VOLUME, stdout);
	fwrite(&counts, sizeof(counts), 1, stdout);
	free(volume);
	free(answer);
	return 0;
}
