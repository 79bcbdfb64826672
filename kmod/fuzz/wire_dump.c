// SPDX-License-Identifier: GPL-2.0
/*
 * Runs the module's decoder for tests in user space. Reads lines "hello HEX" and "commands HEX".
 * For each it prints "refused" and the reason, or "ok" and each command's fields and bytes of
 * inline data.
 */
#include <stdio.h>
#include <stdlib.h>

#include "wire/wire.h"

static const struct krping_limits limits = {
	.block_size = 512, .max_data = 1 << 20, .max_inline = 4096,
};

static void dump_hello(const u8 *data, size_t size)
{
	struct krping_hello hello;
	u32 value = 0, reason = krping_read_hello(data, size, &hello, &value);

	if (reason)
		printf("refused %u %u\n", reason, value);
	else
		printf("ok\n");
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

int main(void)
{
	char *line = NULL;
	size_t room = 0;

	while (getline(&line, &room, stdin) > 0) {
		char *hex = strchr(line, ' ');
		size_t size = 0;
		u8 *data;

		if (!hex)
			return 1;
		*hex++ = '\0';
		data = malloc(strlen(hex) / 2 + 1);
		while (sscanf(hex + 2 * size, "%2hhx", &data[size]) == 1)
			size++;
		if (!strcmp(line, "hello"))
			dump_hello(data, size);
		else
			dump_commands(data, size);
		free(data);
	}
	free(line);
	return 0;
}
