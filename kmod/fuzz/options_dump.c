// SPDX-License-Identifier: GPL-2.0
/*
 * Runs the command parser of /proc/krping for tests in user space. For each input line, prints
 * "ok" and the options of ping/pong, or why it is refused. Without input, prints the table of
 * options.
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

static void dump_options(const struct krping_options *opt)
{
	printf("ok role=%d test=%d addr=%u.%u.%u.%u ifname=%s port=%u count=%u size=%u tos=%u",
	       opt->role, opt->test, opt->addr[0], opt->addr[1], opt->addr[2], opt->addr[3],
	       opt->ifname, opt->port, opt->count, opt->size, opt->tos);
	printf(" txdepth=%u mem_reg=%d server_inv=%d read_inv=%d", opt->txdepth, opt->mem_reg,
	       opt->server_inv, opt->read_inv);
	printf(" verb=%s qp=%s measure=%u rxdepth=%u signal=%u inline=%u\n",
	       krping_verb_names[opt->verb], krping_verbs_qp_names[opt->qp_type], opt->measure,
	       opt->rxdepth, opt->signal, opt->inline_len);
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
			dump_options(&opt);
	}
	if (!any)
		dump_table();
	return 0;
}
