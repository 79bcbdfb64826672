// SPDX-License-Identifier: Apache-2.0
#include <endian.h>
#include <string.h>

#include "command.h"
#include "crc32c.h"

/* As in package wire, which has the names and meanings. */
#define RESPONSE_SIZE	16
#define TAG_KEEP_ALIVE	0xffff
#define FLAG_FUA	0x01
#define FLAG_INLINE	0x02
#define RESPONSE_INLINE	0x01

struct response {
	uint16_t tag;
	uint8_t status;
	uint8_t flags;
	uint32_t length;
	uint32_t crc;
	uint32_t reserved;
} __attribute__((packed));

_Static_assert(sizeof(struct response) == RESPONSE_SIZE, "the wire's format");

uint32_t shim_padded(uint32_t length)
{
	return (length + 7) & ~7u;
}

static uint64_t number(const uint8_t *wire, int bytes)
{
	uint64_t n = 0;

	while (bytes--)
		n = n << 8 | *wire++;
	return n;
}

static struct shim_command decode(const uint8_t *wire)
{
	struct shim_command c = {
		.op = wire[0],
		.flags = wire[1],
		.tag = number(wire + 2, 2),
		.length = number(wire + 4, 4),
		.offset = number(wire + 8, 8),
		.addr = number(wire + 16, 8),
		.rkey = number(wire + 24, 4),
		.crc = number(wire + 28, 4),
	};

	memcpy(c.wire, wire, SHIM_COMMAND);
	return c;
}

/* The size of a command with its data, or 0: Go says what is wrong with it, or executes its message. */
static uint32_t size_of(const struct shim_volume *v, const struct shim_command *c, uint32_t length)
{
	int is_inline = (c->flags & FLAG_INLINE) != 0, has_key = c->rkey != 0;
	uint32_t data;

	if (c->op != SHIM_OP_READ && c->op != SHIM_OP_WRITE)
		return 0;
	if (c->flags & ~(v->flags & (FLAG_FUA | FLAG_INLINE)))
		return 0;
	if (c->op == SHIM_OP_READ && (c->crc || (c->flags & FLAG_FUA)))
		return 0;
	if (is_inline == has_key || (c->addr && !has_key))
		return 0;
	if (!c->length || c->length % v->block_size || c->offset % v->block_size)
		return 0;
	if (c->length > (is_inline ? v->max_inline : v->max_data))
		return 0;
	if (c->tag == TAG_KEEP_ALIVE)
		return 0;
	data = c->op == SHIM_OP_WRITE && is_inline ? shim_padded(c->length) : 0;
	return data <= length - SHIM_COMMAND ? SHIM_COMMAND + data : 0;
}

void shim_clear_tag(struct shim_volume *v, uint16_t tag)
{
	uint64_t bit = 1ull << tag % 64;

	if (__atomic_fetch_and(&v->tags[tag / 64], ~bit, __ATOMIC_ACQ_REL) & bit)
		__atomic_fetch_sub(&v->in_flight, 1, __ATOMIC_ACQ_REL);
}

/* Returns whether the tag was free, and there may be one more command. */
static int set_tag(struct shim_volume *v, uint16_t tag)
{
	uint64_t bit = 1ull << tag % 64;

	if (__atomic_fetch_or(&v->tags[tag / 64], bit, __ATOMIC_ACQ_REL) & bit)
		return 0;
	if (__atomic_add_fetch(&v->in_flight, 1, __ATOMIC_ACQ_REL) <= (int32_t)v->depth)
		return 1;
	shim_clear_tag(v, tag);
	return 0;
}

/* Checks a whole message, and sets the tags of its commands. Returns 0 if it is left to Go, and no tag is set. */
static int begin(struct shim_volume *v, const uint8_t *msg, uint32_t length)
{
	uint32_t at, end, size;
	struct shim_command c;

	for (at = 0; at < length; at += size) {
		if (length - at < SHIM_COMMAND)
			break;
		c = decode(msg + at);
		size = size_of(v, &c, length - at);
		if (!size || !set_tag(v, c.tag))
			break;
	}
	if (length && at == length)
		return 1;
	for (end = at, at = 0; at < end; at += size) {
		c = decode(msg + at);
		size = size_of(v, &c, length - at);
		shim_clear_tag(v, c.tag);
	}
	return 0;
}

/* Whether the range is in the volume. */
int shim_is_inside(const struct shim_volume *v, const struct shim_command *c)
{
	uint64_t size = __atomic_load_n(v->size, __ATOMIC_RELAXED);

	size -= size % v->block_size;
	return c->offset <= size && c->length <= size - c->offset;
}

int shim_may_write(const struct shim_volume *v, const struct shim_command *c)
{
	int is_stable = __atomic_load_n(v->stable, __ATOMIC_RELAXED) != 0;

	return v->writes && (is_stable || (v->writeback && !(c->flags & FLAG_FUA))) && shim_is_inside(v, c);
}

int shim_is_inline(const struct shim_command *c)
{
	return !c->rkey;
}

uint8_t *shim_data(const struct shim_out *out)
{
	return out->data + out->length + RESPONSE_SIZE;
}

int shim_make_room(const struct shim_volume *v, struct shim_out *out, uint32_t data)
{
	int error;

	if (out->data && out->length + RESPONSE_SIZE + data <= v->max_message)
		return 1;
	error = out->next(out);
	return error ? error : out->data != NULL;
}

static void count(uint64_t *commands, uint64_t *bytes, uint32_t length)
{
	__atomic_fetch_add(commands, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(bytes, length, __ATOMIC_RELAXED);
}

/* Appends the response to a command that succeeded. The data of an inline READ is behind its place already. */
void shim_respond(struct shim_volume *v, struct shim_out *out, const struct shim_command *c, uint32_t crc)
{
	int has_data = c->op == SHIM_OP_READ && shim_is_inline(c);
	uint32_t data = has_data ? shim_padded(c->length) : 0;
	const struct response r = {
		.tag = htobe16(c->tag),
		.flags = has_data ? RESPONSE_INLINE : 0,
		.length = htobe32(c->length),
		.crc = htobe32(crc),
	};

	if (has_data)
		memset(shim_data(out) + c->length, 0, data - c->length);
	memcpy(out->data + out->length, &r, sizeof(r));
	out->length += RESPONSE_SIZE + data;
	if (c->op == SHIM_OP_READ)
		count(&v->counts->reads, &v->counts->bytes_read, c->length);
	else
		count(&v->counts->writes, &v->counts->bytes_written, c->length);
}

static int run_read(struct shim_volume *v, const struct shim_command *c, struct shim_out *out)
{
	int room;

	if (!shim_is_inside(v, c))
		return SHIM_LEFT;
	room = shim_make_room(v, out, shim_padded(c->length));
	if (room <= 0)
		return room;
	memcpy(shim_data(out), v->memory + c->offset, c->length);
	shim_respond(v, out, c, shim_crc32c(shim_data(out), c->length));
	return SHIM_ANSWERED;
}

static int run_write(struct shim_volume *v, const struct shim_command *c, const uint8_t *data, struct shim_out *out)
{
	int room;

	if (!shim_may_write(v, c) || shim_crc32c(data, c->length) != c->crc)
		return SHIM_LEFT;
	room = shim_make_room(v, out, 0);
	if (room <= 0)
		return room;
	memcpy(v->memory + c->offset, data, c->length);
	shim_respond(v, out, c, 0);
	return SHIM_ANSWERED;
}

static int run(struct shim_volume *v, const struct shim_command *c, const uint8_t *data, struct shim_out *out)
{
	if (!v->memory || !shim_is_inline(c))
		return out->later ? out->later(out, c, data) : SHIM_LEFT;
	return c->op == SHIM_OP_READ ? run_read(v, c, out) : run_write(v, c, data, out);
}

int64_t shim_run_commands(struct shim_volume *v, uint8_t *msg, uint32_t length, struct shim_out *out, int *taken)
{
	uint32_t at, size, left = 0;
	struct shim_command c;
	int outcome;

	*taken = begin(v, msg, length);
	if (!*taken)
		return length;
	for (at = 0; at < length; at += size) {
		c = decode(msg + at);
		size = size_of(v, &c, length - at);
		outcome = run(v, &c, msg + at + SHIM_COMMAND, out);
		if (outcome < 0)
			return outcome;
		if (outcome == SHIM_ANSWERED)
			shim_clear_tag(v, c.tag);
		if (outcome != SHIM_LEFT)
			continue;
		memmove(msg + left, msg + at, size);
		left += size;
	}
	return left;
}
