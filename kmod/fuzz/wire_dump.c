// SPDX-License-Identifier: GPL-2.0
/*
 * Runs the module's decoder for tests in user space. Reads lines "KIND HEX", where KIND is hello,
 * welcome, commands, commands1 (of version 1), responses or name (with its NUL). For each it prints
 * "refused" and the reason, or "ok" and the fields, for each command or response with its bytes of
 * inline data.
 */
#include <stdio.h>
#include <stdlib.h>

#include "wire/wire.h"

static struct krping_limits limits = {
	.version = KRPING_VERSION, .block_size = 512, .max_data = 1 << 20, .max_inline = 4096,
};

static void dump_hello(const u8 *data, size_t size)
{
	struct krping_hello hello;
	u32 value = 0, reason = krping_read_hello(data, size, &hello, &value);

	if (reason)
		printf("refused %u %u\n", reason, value);
	else
		printf("ok %u %u %u %u %u\n", hello.version, hello.flags,
		       be16_to_cpu(hello.queue_index), be16_to_cpu(hello.queue_count),
		       be16_to_cpu(hello.depth));
}

static void dump_welcome(const u8 *data, size_t size)
{
	struct krping_violation violation;
	u8 version = size > 4 && data[4] == 1 ? 1 : KRPING_VERSION;	/* of the hello */
	struct krping_grant g;
	size_t i;

	if (krping_read_welcome(data, size, version, 0xffff, &g, &violation)) {
		printf("refused %s %llu\n", violation.what, violation.value);
		return;
	}
	printf("ok %u %u %llu %llu %u %u %u %u %u ",
	       g.read_only | g.writeback << 1 | g.is_volatile << 2, g.depth, g.capacity,
	       g.epoch, g.block_size, g.max_data, g.max_inline, g.max_message, g.version);
	for (i = 0; i < sizeof(g.uuid); i++)
		printf("%02x", g.uuid[i]);
	printf(" %u %u\n", g.writer, g.caps);
}

static void dump_commands(const u8 *msg, size_t left)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);
	struct krping_decoded_cmd cmd;
	struct krping_violation violation = { .what = left ? NULL : "empty message" };

	for (; left && !violation.what; left -= cmd.size, msg += cmd.size) {
		if (krping_read_command(msg, left, &limits, &cmd, &violation))
			break;
		fprintf(out, " %u/%u/%u/%u/%llu/%llu/%u/%u/%u", cmd.op, cmd.flags, cmd.tag,
			cmd.length, cmd.offset, cmd.addr, cmd.rkey, cmd.crc,
			cmd.data ? cmd.length : 0);
	}
	fclose(out);
	if (violation.what)
		printf("refused %s %llu\n", violation.what, violation.value);
	else
		printf("ok%s\n", text);
	free(text);
}

static void dump_responses(const u8 *msg, size_t left)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);
	struct krping_violation violation = {};
	struct krping_decoded_rsp rsp;

	for (; left && !violation.what; left -= rsp.size, msg += rsp.size) {
		if (krping_read_response(msg, left, limits.max_inline, &rsp, &violation))
			break;
		fprintf(out, " %u/%u/%u/%u/%u/%u", rsp.tag, rsp.status, rsp.flags, rsp.length,
			rsp.crc, rsp.data ? rsp.length : 0);
	}
	fclose(out);
	if (violation.what)
		printf("refused %s %llu\n", violation.what, violation.value);
	else
		printf("ok%s\n", text);
	free(text);
}

static void dump_name(const char *data)
{
	puts(krping_is_volume_name(data, KRPING_NAME_LEN) ? "ok" : "refused");
}

static void dump(const char *kind, const u8 *data, size_t size)
{
	limits.version = strcmp(kind, "commands1") ? KRPING_VERSION : 1;
	if (!strcmp(kind, "hello"))
		dump_hello(data, size);
	else if (!strcmp(kind, "welcome"))
		dump_welcome(data, size);
	else if (!strcmp(kind, "name"))
		dump_name((const char *)data);
	else if (!strncmp(kind, "commands", 8))
		dump_commands(data, size);
	else
		dump_responses(data, size);
}

static u8 nibble(char c)
{
	return c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
}

int main(void)
{
	char *line = NULL;
	size_t room = 0;

	while (getline(&line, &room, stdin) > 0) {
		char *hex = strchr(line, ' ');
		size_t size, i;
		u8 *data;

		if (!hex)
			return 1;
		*hex++ = '\0';
		size = strlen(hex) / 2;
		data = malloc(size ?: 1);	/* exact, so that a sanitizer sees an overrun */
		for (i = 0; i < size; i++)
			data[i] = nibble(hex[2 * i]) << 4 | nibble(hex[2 * i + 1]);
		dump(line, data, size);
		fflush(stdout);
		free(data);
	}
	free(line);
	return 0;
}
