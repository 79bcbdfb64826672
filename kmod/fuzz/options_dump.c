// SPDX-License-Identifier: GPL-2.0
/*
 * Runs the command parser of /proc/krping for tests in user space. For each input line, prints
 * "ok" or why it is refused. Without input, prints the table of options.
 */
#include <stdio.h>

#include "options.c"

static void dump_table(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(option_defs); i++)
		printf("%s kind=%d min=%u max=%u roles=%u tests=%u\n", option_defs[i].name,
		       option_defs[i].kind, option_defs[i].min, option_defs[i].max,
		       option_defs[i].roles, option_defs[i].tests);
}

int main(void)
{
	char line[KRPING_COMMAND_MAX + 2], why[KRPING_REASON_MAX];
	struct krping_options opt;
	bool any = false;

	while (fgets(line, sizeof(line), stdin)) {
		any = true;
		if (krping_options_parse(line, &opt, why, sizeof(why)))
			printf("%s\n", why);
		else
			printf("ok\n");
	}
	if (!any)
		dump_table();
	return 0;
}
