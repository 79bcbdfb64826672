// SPDX-License-Identifier: GPL-2.0
/*
 * libFuzzer target for the command grammar of /proc/krping, with the address and
 * undefined-behaviour sanitizers: any string either fails with a printable reason or gives
 * options within their documented ranges.
 */
#include <stdlib.h>

#include "options.h"
#include "verbs/params.h"

#define REQUIRE(cond) do { if (!(cond)) abort(); } while (0)

static void require_valid(const struct krping_options *opt)
{
	size_t len = strnlen(opt->block, sizeof(opt->block));

	REQUIRE(opt->port >= 1 && opt->port <= 65535);
	REQUIRE(opt->size >= 1 && opt->size <= 1u << 30);
	REQUIRE(opt->timeout >= 1 && opt->timeout <= 86400);
	REQUIRE(opt->queues + opt->poll_queues <= 64 && opt->poll_queues <= 32);
	REQUIRE(opt->depth >= 1 && opt->depth <= 1024);
	REQUIRE(opt->txdepth >= 1 && opt->txdepth <= 16384);
	REQUIRE(opt->qps >= 1 && opt->qps <= 1024);
	REQUIRE(opt->tos <= 255 && (opt->has_tos || !opt->tos));
	REQUIRE(opt->test <= KRPING_TEST_VERBS);
	REQUIRE(opt->test == KRPING_TEST_PING || !opt->server_inv);
	REQUIRE(opt->test == KRPING_TEST_BW || opt->test == KRPING_TEST_VERBS || !opt->duplex);
	REQUIRE(opt->mem_reg || (!opt->server_inv && !opt->read_inv));
	REQUIRE(strnlen(opt->ifname, sizeof(opt->ifname)) < sizeof(opt->ifname));
	REQUIRE(len < sizeof(opt->block));
	REQUIRE(!len || (opt->block[0] != '/' && opt->block[len - 1] != '/'));
	REQUIRE(!strstr(opt->block, "//") && !strstr(opt->block, "/../"));
	REQUIRE(!opt->src_family || opt->src_family == opt->family);
	REQUIRE(strnlen(opt->src_ifname, sizeof(opt->src_ifname)) < sizeof(opt->src_ifname));
	REQUIRE(opt->block_size == 512 || opt->block_size == 4096);
	REQUIRE(opt->fast_fail <= 86400 && opt->heartbeat <= 3600);
	REQUIRE(!opt->ram || (opt->ram >= 1 << 20 && opt->ram % 4096 == 0));
	REQUIRE(opt->first_sector <= opt->last_sector);
	REQUIRE(strnlen(opt->backing, sizeof(opt->backing)) < sizeof(opt->backing));
	REQUIRE(strnlen(opt->comm, sizeof(opt->comm)) < sizeof(opt->comm));
	REQUIRE(strnlen(opt->key, sizeof(opt->key)) < sizeof(opt->key));
	REQUIRE(!opt->shared || opt->role == KRPING_BLOCK_SERVER);
	REQUIRE(!opt->take_over || (opt->role == KRPING_BLOCK_CLIENT && !opt->read_only));
	REQUIRE(!opt->read_only || opt->mode == KRPING_MODE_REMOTE);
	REQUIRE(opt->nr_allow <= KRPING_ALLOW_MAX);
	for (u32 i = 0; i < opt->nr_allow; i++) {
		REQUIRE(opt->allow[i].bits <= 128);
		REQUIRE(krping_is_allowed(opt, opt->allow[i].addr));
	}
	if (opt->role == KRPING_BLOCK_SERVER || opt->mode != KRPING_MODE_REMOTE)
		REQUIRE(!opt->ram != !opt->backing[0]);
	else
		REQUIRE(!opt->ram && !opt->backing[0]);
	if (opt->role >= KRPING_BLOCK_CLIENT)
		REQUIRE(len > 0);
	else
		REQUIRE(len == 0);
	if (opt->role != KRPING_BLOCK_STOP)
		REQUIRE(opt->family == AF_INET || opt->family == AF_INET6);
}

/* A server must accept the hello of every valid test that its size allows. */
static void require_hello(const struct krping_options *opt)
{
	struct krping_options server = { .size = 1u << 30 }, test, reads = *opt;
	struct krping_verbs_hello hello;
	u16 connection;
	u32 value;

	if (opt->test != KRPING_TEST_VERBS || opt->role != KRPING_PING_CLIENT)
		return;
	if (krping_verbs_is_read(opt) && !reads.reads)
		reads.reads = 1;
	krping_verbs_fill_hello(&hello, &reads, 7, 0);
	REQUIRE(!krping_verbs_read_hello(&hello, sizeof(hello), &server, &test, &connection,
					 &value));
	REQUIRE(test.size == opt->size && test.qps == opt->qps && test.count == opt->count);
	REQUIRE(test.verb == opt->verb && test.qp_type == opt->qp_type && !connection);
	REQUIRE(test.rxdepth == opt->rxdepth && test.inline_len == opt->inline_len);
	REQUIRE(test.srq == opt->srq && test.validate == opt->validate);
}

static void require_reason(const char *why)
{
	size_t i, len = strnlen(why, KRPING_REASON_MAX);

	REQUIRE(len > 0 && len < KRPING_REASON_MAX);
	for (i = 0; i < len; i++)
		REQUIRE(why[i] >= ' ' && why[i] <= '~');
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	struct krping_options opt;
	char why[KRPING_REASON_MAX] = "";
	char *text;

	/* control.c refuses these before the parser sees them. */
	if (size >= KRPING_COMMAND_MAX || memchr(data, '\0', size))
		return 0;
	text = malloc(size + 1);	/* exact, so that the sanitizer sees an overrun */
	REQUIRE(text);
	memcpy(text, data, size);
	text[size] = '\0';
	if (krping_options_parse(text, &opt, why, sizeof(why))) {
		require_reason(why);
	} else {
		require_valid(&opt);
		require_hello(&opt);
	}
	free(text);
	return 0;
}
