// SPDX-License-Identifier: GPL-2.0
#include "options.h"
#include "verbs/params.h"
#include "wire/wire.h"

#ifdef __KERNEL__
#include <linux/bits.h>
#include <linux/ctype.h>
#include <linux/errno.h>
#include <linux/inet.h>
#include <linux/kernel.h>
#include <linux/stddef.h>
#include <linux/string.h>
#endif

#define PING_CLIENT	BIT(KRPING_PING_CLIENT)
#define PING_SERVER	BIT(KRPING_PING_SERVER)
#define BLOCK_CLIENT	BIT(KRPING_BLOCK_CLIENT)
#define BLOCK_STOP	BIT(KRPING_BLOCK_STOP)
#define BLOCK_SERVER	BIT(KRPING_BLOCK_SERVER)
#define PING		(PING_CLIENT | PING_SERVER)
#define BLOCK		(BLOCK_CLIENT | BLOCK_SERVER | BLOCK_STOP)
#define CONNECTED	(PING | BLOCK_CLIENT | BLOCK_SERVER)

#define TEST(kind)	BIT(KRPING_TEST_##kind)
#define PERF_TESTS	(TEST(WLAT) | TEST(RLAT) | TEST(BW))
#define VERBS_SERVER	BIT(KRPING_TEST_VERBS + 1)	/* it takes less than its client */
#define CLIENT_TESTS	(TEST(PING) | PERF_TESTS | TEST(FR) | TEST(VERBS))
#define ALL_TESTS	(CLIENT_TESTS | VERBS_SERVER)

enum value_kind {
	FLAG, NUMBER, ADDR4, ADDR6, NAME, MEM_MODE, MODE, BACKING, COMM, OPS, SECTORS, KEY, ALLOW,
	UUID, ADDR, VERB, QP_TYPE,
};

/* In the order of the table below. */
enum option_id {
	OPT_CLIENT, OPT_SERVER, OPT_STOP, OPT_ADDR, OPT_ADDR6, OPT_PORT, OPT_COUNT, OPT_SIZE,
	OPT_TIMEOUT, OPT_TOS, OPT_VERBOSE, OPT_VALIDATE, OPT_MEM_MODE, OPT_SERVER_INV,
	OPT_READ_INV, OPT_LOCAL_DMA_LKEY, OPT_WLAT, OPT_RLAT, OPT_BW, OPT_FR, OPT_POLL,
	OPT_DUPLEX, OPT_TXDEPTH, OPT_QPS, OPT_BLOCK, OPT_QUEUES, OPT_DEPTH, OPT_FAST_FAIL,
	OPT_HEARTBEAT, OPT_MODE, OPT_BACKING, OPT_COMM, OPT_PID, OPT_OP, OPT_SECTORS,
	OPT_WRITEBACK, OPT_READ_ONLY, OPT_BLOCK_SIZE, OPT_KEY, OPT_ALLOW, OPT_TARGET, OPT_FORCE,
	OPT_UUID, OPT_SHARED, OPT_TAKE_OVER, OPT_SOURCE, OPT_VERB, OPT_VERBS, OPT_LAT, OPT_QP,
	OPT_DURATION, OPT_RXDEPTH, OPT_SRQ, OPT_SIGNAL, OPT_INLINE, OPT_MTU, OPT_READS, OPT_RATE,
	OPT_POLL_QUEUES,
};

#define GIVEN(id)	BIT_ULL(id)

/*
 * Options of ping/pong that upstream's krping lacks. Its own may be repeated, as its last one wins;
 * another option that is given twice is a mistake.
 */
#define NOT_UPSTREAM	(GIVEN(OPT_TIMEOUT) | GIVEN(OPT_QPS) | GIVEN(OPT_ALLOW) | \
			 ~(GIVEN(OPT_SOURCE) - 1))

/* An option: its value, its field, and the roles and tests that take it. */
struct option_def {
	const char *name;
	enum value_kind kind;
	size_t offset;		/* of its field in krping_options */
	u32 min;
	u32 max;
	unsigned int roles;
	unsigned int tests;	/* for a ping/pong command */
};

#define NO_FIELD	((size_t)-1)
#define FIELD(f)	offsetof(struct krping_options, f)
#define FLAG_OPTION(text, field, allowed_roles, allowed_tests) \
	{ .name = text, .kind = FLAG, .offset = field, .roles = allowed_roles, \
	  .tests = allowed_tests }
#define NUMBER_OPTION(text, field, low, high, allowed_roles, allowed_tests) \
	{ .name = text, .kind = NUMBER, .offset = field, .min = low, .max = high, \
	  .roles = allowed_roles, .tests = allowed_tests }
#define OTHER_OPTION(text, value_kind, field, allowed_roles, allowed_tests) \
	{ .name = text, .kind = value_kind, .offset = field, .roles = allowed_roles, \
	  .tests = allowed_tests }

static const struct option_def option_defs[] = {
	[OPT_CLIENT]	= FLAG_OPTION("client", NO_FIELD, PING_CLIENT | BLOCK_CLIENT, ALL_TESTS),
	[OPT_SERVER]	= FLAG_OPTION("server", NO_FIELD, PING_SERVER | BLOCK_SERVER,
				      ALL_TESTS),
	[OPT_STOP]	= FLAG_OPTION("stop", NO_FIELD, BLOCK_STOP, 0),
	[OPT_ADDR]	= OTHER_OPTION("addr", ADDR4, NO_FIELD, CONNECTED, ALL_TESTS),
	[OPT_ADDR6]	= OTHER_OPTION("addr6", ADDR6, NO_FIELD, CONNECTED, ALL_TESTS),
	[OPT_PORT]	= NUMBER_OPTION("port", FIELD(port), 1, 65535, CONNECTED, ALL_TESTS),
	[OPT_COUNT]	= NUMBER_OPTION("count", FIELD(count), 0, U32_MAX, PING, CLIENT_TESTS),
	[OPT_SIZE]	= NUMBER_OPTION("size", FIELD(size), 1, 1u << 30, PING, ALL_TESTS),
	[OPT_TIMEOUT]	= NUMBER_OPTION("timeout", FIELD(timeout), 1, 86400, PING | BLOCK_CLIENT,
					ALL_TESTS),
	[OPT_TOS]	= NUMBER_OPTION("tos", FIELD(tos), 0, 255, PING | BLOCK_CLIENT, ALL_TESTS),
	[OPT_VERBOSE]	= FLAG_OPTION("verbose", FIELD(verbose), PING, TEST(PING)),
	[OPT_VALIDATE]	= FLAG_OPTION("validate", FIELD(validate), PING,
				      TEST(PING) | TEST(VERBS)),
	[OPT_MEM_MODE]	= OTHER_OPTION("mem_mode", MEM_MODE, FIELD(mem_reg), PING,
				       TEST(PING) | PERF_TESTS),
	[OPT_SERVER_INV] = FLAG_OPTION("server_inv", FIELD(server_inv), PING, TEST(PING)),
	[OPT_READ_INV]	= FLAG_OPTION("read_inv", FIELD(read_inv), PING, TEST(PING)),
	[OPT_LOCAL_DMA_LKEY] = FLAG_OPTION("local_dma_lkey", FIELD(local_dma_lkey), PING,
					   TEST(PING) | TEST(WLAT) | TEST(BW)),
	[OPT_WLAT]	= FLAG_OPTION("wlat", NO_FIELD, PING, TEST(WLAT)),
	[OPT_RLAT]	= FLAG_OPTION("rlat", NO_FIELD, PING, TEST(RLAT)),
	[OPT_BW]	= FLAG_OPTION("bw", NO_FIELD, PING, TEST(BW) | TEST(VERBS)),
	[OPT_FR]	= FLAG_OPTION("fr", NO_FIELD, PING, TEST(FR)),
	[OPT_POLL]	= FLAG_OPTION("poll", FIELD(poll), PING,
				      PERF_TESTS | TEST(VERBS) | VERBS_SERVER),
	[OPT_DUPLEX]	= FLAG_OPTION("duplex", FIELD(duplex), PING, TEST(BW) | TEST(VERBS)),
	[OPT_TXDEPTH]	= NUMBER_OPTION("txdepth", FIELD(txdepth), 1, 16384, PING,
					TEST(BW) | TEST(VERBS)),
	[OPT_QPS]	= NUMBER_OPTION("qps", FIELD(qps), 1, 1024, PING, TEST(BW) | TEST(VERBS)),
	[OPT_BLOCK]	= OTHER_OPTION("block", NAME, FIELD(block), BLOCK, 0),
	[OPT_QUEUES]	= NUMBER_OPTION("queues", FIELD(queues), 1, 64, BLOCK_CLIENT, 0),
	[OPT_DEPTH]	= NUMBER_OPTION("depth", FIELD(depth), 1, 1024, BLOCK_CLIENT, 0),
	[OPT_FAST_FAIL]	= NUMBER_OPTION("fast_fail", FIELD(fast_fail), 1, KRPING_FAST_FAIL_MAX,
					BLOCK_CLIENT, 0),
	[OPT_HEARTBEAT]	= NUMBER_OPTION("heartbeat", FIELD(heartbeat), 0, 3600, BLOCK_CLIENT, 0),
	[OPT_MODE]	= OTHER_OPTION("mode", MODE, FIELD(mode), BLOCK_CLIENT, 0),
	[OPT_BACKING]	= OTHER_OPTION("backing", BACKING, NO_FIELD,
				       BLOCK_CLIENT | BLOCK_SERVER, 0),
	[OPT_COMM]	= OTHER_OPTION("comm", COMM, FIELD(comm), BLOCK_CLIENT, 0),
	[OPT_PID]	= NUMBER_OPTION("pid", FIELD(pid), 1, 4194304, BLOCK_CLIENT, 0),
	[OPT_OP]	= OTHER_OPTION("op", OPS, FIELD(ops), BLOCK_CLIENT, 0),
	[OPT_SECTORS]	= OTHER_OPTION("sectors", SECTORS, NO_FIELD, BLOCK_CLIENT, 0),
	[OPT_WRITEBACK]	= FLAG_OPTION("writeback", FIELD(writeback), BLOCK_SERVER, 0),
	[OPT_READ_ONLY]	= FLAG_OPTION("read_only", FIELD(read_only), BLOCK_CLIENT | BLOCK_SERVER,
				      0),
	[OPT_BLOCK_SIZE] = NUMBER_OPTION("block_size", FIELD(block_size), 512, 4096,
					 BLOCK_SERVER, 0),
	[OPT_KEY]	= OTHER_OPTION("key", KEY, FIELD(key), BLOCK_CLIENT | BLOCK_SERVER, 0),
	[OPT_ALLOW]	= OTHER_OPTION("allow", ALLOW, NO_FIELD, PING_SERVER | BLOCK_SERVER,
				       ALL_TESTS),
	[OPT_TARGET]	= FLAG_OPTION("target", FIELD(target), BLOCK_STOP, 0),
	[OPT_FORCE]	= FLAG_OPTION("force", FIELD(force), BLOCK_STOP, 0),
	[OPT_UUID]	= OTHER_OPTION("uuid", UUID, FIELD(uuid), BLOCK_CLIENT | BLOCK_SERVER, 0),
	[OPT_SHARED]	= FLAG_OPTION("shared", FIELD(shared), BLOCK_SERVER, 0),
	[OPT_TAKE_OVER]	= FLAG_OPTION("take_over", FIELD(take_over), BLOCK_CLIENT, 0),
	[OPT_SOURCE]	= OTHER_OPTION("source", ADDR, NO_FIELD, PING_CLIENT | BLOCK_CLIENT,
				       CLIENT_TESTS),
	[OPT_VERB]	= OTHER_OPTION("verb", VERB, FIELD(verb), PING_CLIENT, TEST(VERBS)),
	[OPT_VERBS]	= FLAG_OPTION("verbs", NO_FIELD, PING_SERVER, VERBS_SERVER),
	[OPT_LAT]	= FLAG_OPTION("lat", NO_FIELD, PING_CLIENT, TEST(VERBS)),
	[OPT_QP]	= OTHER_OPTION("qp", QP_TYPE, FIELD(qp_type), PING_CLIENT, TEST(VERBS)),
	[OPT_DURATION]	= NUMBER_OPTION("duration", FIELD(duration), 1, 86400, PING_CLIENT,
					TEST(VERBS)),
	[OPT_RXDEPTH]	= NUMBER_OPTION("rxdepth", FIELD(rxdepth), 1, 16384, PING_CLIENT,
					TEST(VERBS)),
	[OPT_SRQ]	= FLAG_OPTION("srq", FIELD(srq), PING_CLIENT, TEST(VERBS)),
	[OPT_SIGNAL]	= NUMBER_OPTION("signal", FIELD(signal), 1, 16384, PING_CLIENT,
					TEST(VERBS)),
	[OPT_INLINE]	= NUMBER_OPTION("inline", FIELD(inline_len), 1, 4096, PING_CLIENT,
					TEST(VERBS)),
	[OPT_MTU]	= NUMBER_OPTION("mtu", FIELD(mtu), 256, 4096, PING_CLIENT, TEST(VERBS)),
	[OPT_READS]	= NUMBER_OPTION("reads", FIELD(reads), 1, 255, PING_CLIENT, TEST(VERBS)),
	[OPT_RATE]	= NUMBER_OPTION("rate", FIELD(rate), 1, 1000000000, PING_CLIENT,
					TEST(VERBS)),
	[OPT_POLL_QUEUES] = NUMBER_OPTION("poll_queues", FIELD(poll_queues), 1, 32, BLOCK_CLIENT,
					  0),
};

static const char *const test_names[] = {
	[KRPING_TEST_PING]	= "ping/pong",
	[KRPING_TEST_WLAT]	= "wlat",
	[KRPING_TEST_RLAT]	= "rlat",
	[KRPING_TEST_BW]	= "bw",
	[KRPING_TEST_FR]	= "fr",
	[KRPING_TEST_VERBS]	= "verb",
	[KRPING_TEST_VERBS + 1]	= "verbs",
};

static const char *const role_names[] = {
	[KRPING_PING_CLIENT]	= "a ping client",
	[KRPING_PING_SERVER]	= "a server",
	[KRPING_BLOCK_CLIENT]	= "a block client",
	[KRPING_BLOCK_STOP]	= "stop",
	[KRPING_BLOCK_SERVER]	= "a block server",
};

/* Buffer for the reason. Text from the user is made printable and truncated. */
struct reason {
	char *buf;
	size_t len;
	char quoted[40];
};

static const char *quote(struct reason *why, const char *text)
{
	size_t i;

	for (i = 0; text[i] && i < sizeof(why->quoted) - 1; i++)
		why->quoted[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
	why->quoted[i] = '\0';
	return why->quoted;
}

/* Return: the value of a digit, or 16 or more. */
static u32 digit(unsigned char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;	/* to lower case */
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 16;
}

/* As simple_strtoul() with base 0: 0x begins a hexadecimal number, another 0 an octal one. */
static int parse_number(const struct option_def *def, const char *value, u32 *out,
			struct reason *why)
{
	const char *c = value;
	u32 base = 10;
	u64 n = 0;

	if (c[0] == '0') {
		bool hex = (c[1] == 'x' || c[1] == 'X') && digit(c[2]) < 16;

		base = hex ? 16 : 8;
		c += hex ? 2 : 0;
	}
	for (; digit(*c) < base && n <= U32_MAX; c++)
		n = n * base + digit(*c);
	if (c == value || *c || n < def->min || n > def->max) {
		snprintf(why->buf, why->len, "%s=%s: must be a number from %u to %u%s",
			 def->name, quote(why, value), def->min, def->max,
			 base == 8 && value[1] ? "; a leading 0 makes it octal" : "");
		return -EINVAL;
	}
	*out = n;
	return 0;
}

static int parse_name(const char *value, char *out, struct reason *why)
{
	if (!krping_is_volume_name(value, KRPING_NAME_LEN)) {
		snprintf(why->buf, why->len,
			 "block=%s: must be 1 to %d letters, digits, '.', '_', '-', or such parts joined by '/'; no part is '.' or '..'",
			 quote(why, value), KRPING_NAME_LEN - 1);
		return -EINVAL;
	}
	memcpy(out, value, strlen(value));
	return 0;
}

static int parse_addr4(const char *value, struct krping_options *opt, struct reason *why)
{
	const char *end;

	if (!in4_pton(value, -1, opt->addr, -1, &end) || *end) {
		snprintf(why->buf, why->len, "addr=%s: must be an IPv4 address", quote(why, value));
		return -EINVAL;
	}
	opt->family = AF_INET;
	return 0;
}

static bool printable(const char *text, bool spaces)
{
	for (; *text; text++)
		if (*text < (spaces ? ' ' : '!') || *text > '~')
			return false;
	return true;
}

/* Cuts %INTERFACE off. Return: NULL, or what is not the name of an interface. */
static const char *cut_scope(char *value, char ifname[KRPING_IFNAME_LEN])
{
	char *scope = strchr(value, '%');

	memset(ifname, 0, KRPING_IFNAME_LEN);
	if (!scope)
		return NULL;
	*scope++ = '\0';
	if (!*scope || strlen(scope) >= KRPING_IFNAME_LEN || !printable(scope, false))
		return scope;
	memcpy(ifname, scope, strlen(scope));
	return NULL;
}

static int parse_addr6(char *value, struct krping_options *opt, struct reason *why)
{
	const char *bad = cut_scope(value, opt->ifname);
	const char *end;

	if (bad) {
		snprintf(why->buf, why->len, "addr6: %%%s: must be the name of an interface",
			 quote(why, bad));
		return -EINVAL;
	}
	if (!in6_pton(value, -1, opt->addr, -1, &end) || *end) {
		snprintf(why->buf, why->len, "addr6=%s: must be an IPv6 address",
			 quote(why, value));
		return -EINVAL;
	}
	opt->family = AF_INET6;
	return 0;
}

static int parse_source(char *value, struct krping_options *opt, struct reason *why)
{
	const char *bad = cut_scope(value, opt->src_ifname);
	const char *end;
	bool valid;

	opt->src_family = strchr(value, ':') ? AF_INET6 : AF_INET;
	if (opt->src_family == AF_INET6)
		valid = !bad && in6_pton(value, -1, opt->src, -1, &end) && !*end;
	else
		valid = !bad && !opt->src_ifname[0] &&
			in4_pton(value, -1, opt->src, -1, &end) && !*end;
	if (valid)
		return 0;
	snprintf(why->buf, why->len,
		 "source=%s: must be an IPv4 address, or an IPv6 address, with %%INTERFACE if link-local",
		 quote(why, value));
	return -EINVAL;
}

/* Return: the index in @names, or -EINVAL. */
static int parse_choice(const struct option_def *def, const char *value, const char *const *names,
			int nr, struct reason *why)
{
	size_t len;
	int i;

	for (i = 0; i < nr; i++)
		if (!strcmp(value, names[i]))
			return i;
	snprintf(why->buf, why->len, "%s=%s: must be ", def->name, quote(why, value));
	for (i = 0; i < nr; i++) {
		len = strlen(why->buf);
		snprintf(why->buf + len, why->len - len, "%s%s", names[i],
			 i + 2 < nr ? ", " : i + 2 == nr ? " or " : "");
	}
	return -EINVAL;
}

static int parse_mem_mode(const struct option_def *def, const char *value, bool *reg,
			  struct reason *why)
{
	static const char *const names[] = { "dma", "reg" };
	int i = parse_choice(def, value, names, ARRAY_SIZE(names), why);

	*reg = i > 0;
	return min(i, 0);
}

static int parse_mode(const struct option_def *def, const char *value, enum krping_mode *mode,
		      struct reason *why)
{
	static const char *const names[] = { "remote", "tap" };	/* enum krping_mode */
	int i = parse_choice(def, value, names, ARRAY_SIZE(names), why);

	*mode = max(i, 0);
	return min(i, 0);
}

static int parse_verb(const struct option_def *def, const char *value, u32 *verb,
		      struct reason *why)
{
	int i = parse_choice(def, value, krping_verb_names + 1, KRPING_VERB_CMP_SWAP, why);

	*verb = i + 1;
	return min(i, 0);
}

static int parse_qp_type(const struct option_def *def, const char *value, u32 *type,
			 struct reason *why)
{
	int i = parse_choice(def, value, krping_verbs_qp_names + 1, KRPING_VERBS_UD, why);

	*type = i + 1;
	return min(i, 0);
}

static int parse_backing(const char *value, struct krping_options *opt, struct reason *why)
{
	if (!strncmp(value, "ram:", 4)) {
		if (krping_parse_ram(value + 4, &opt->ram))
			return 0;
	} else if (!strncmp(value, "/dev/", 5) && value[5] && printable(value, false) &&
		   strlen(value) < sizeof(opt->backing)) {
		memcpy(opt->backing, value, strlen(value));
		return 0;
	}
	snprintf(why->buf, why->len,
		 "backing=%s: must be /dev/NAME, or ram:SIZE from 1M to 1T in multiples of 4K",
		 quote(why, value));
	return -EINVAL;
}

static int parse_comm(const char *value, char *comm, struct reason *why)
{
	if (!*value || !printable(value, true) || strlen(value) >= KRPING_COMM_LEN) {
		snprintf(why->buf, why->len, "comm=%s: must be 1 to %d printable characters",
			 quote(why, value), KRPING_COMM_LEN - 1);
		return -EINVAL;
	}
	memcpy(comm, value, strlen(value));
	return 0;
}

/* Names joined by '+'. */
static int parse_ops(const char *value, u32 *ops, struct reason *why)
{
	static const struct {
		const char *name;
		u32 bit;
	} names[] = {
		{ "read", KRPING_TAP_READ }, { "write", KRPING_TAP_WRITE },
		{ "flush", KRPING_TAP_FLUSH }, { "discard", KRPING_TAP_DISCARD },
	};
	const char *c = value;
	size_t i, len;

	for (;;) {
		for (i = 0; i < ARRAY_SIZE(names); i++) {
			len = strlen(names[i].name);
			if (!strncmp(c, names[i].name, len) && (!c[len] || c[len] == '+'))
				break;
		}
		if (i == ARRAY_SIZE(names) || *ops & names[i].bit) {
			snprintf(why->buf, why->len,
				 "op=%s: must be read, write, flush or discard, or several joined by '+'",
				 quote(why, value));
			return -EINVAL;
		}
		*ops |= names[i].bit;
		c += len;
		if (!*c++)
			return 0;
	}
}

static int parse_sectors(const char *value, struct krping_options *opt, struct reason *why)
{
	const char *end;

	if (krping_parse_u64(value, &opt->first_sector, &end) && *end == '-' &&
	    krping_parse_u64(end + 1, &opt->last_sector, &end) && !*end &&
	    opt->first_sector <= opt->last_sector)
		return 0;
	snprintf(why->buf, why->len, "sectors=%s: must be FIRST-LAST, in units of 512 bytes",
		 quote(why, value));
	return -EINVAL;
}

#define KEY_PREFIX	"krping:"

/* The prefix keeps peers from using a key of another subsystem. */
static int parse_key(const char *value, char *key, struct reason *why)
{
	size_t prefix = strlen(KEY_PREFIX);

	if (strncmp(value, KEY_PREFIX, prefix) || !value[prefix] || !printable(value, false) ||
	    strlen(value) >= KRPING_KEY_NAME_LEN) {
		snprintf(why->buf, why->len,
			 "key=%s: must be " KEY_PREFIX "NAME, of at most %d printable characters",
			 quote(why, value), KRPING_KEY_NAME_LEN - 1);
		return -EINVAL;
	}
	memcpy(key, value, strlen(value));
	return 0;
}

static int parse_uuid(const char *value, u8 *uuid, struct reason *why)
{
	if (krping_parse_uuid(value, uuid))
		return 0;
	snprintf(why->buf, why->len,
		 "uuid=%s: must be like 123e4567-e89b-12d3-a456-426614174000, not all zero",
		 quote(why, value));
	return -EINVAL;
}

/* Addresses joined by '+'. */
static int parse_allow(char *value, struct krping_options *opt, struct reason *why)
{
	char *next;

	for (; value; value = next) {
		next = strchr(value, '+');
		if (next)
			*next++ = '\0';
		if (opt->nr_allow == KRPING_ALLOW_MAX) {
			snprintf(why->buf, why->len, "allow: at most %d addresses are possible",
				 KRPING_ALLOW_MAX);
			return -EINVAL;
		}
		if (!krping_parse_allowed(value, &opt->allow[opt->nr_allow])) {
			snprintf(why->buf, why->len,
				 "allow=%s: must be IP addresses, as ADDR or ADDR/BITS, joined by '+'",
				 quote(why, value));
			return -EINVAL;
		}
		opt->nr_allow++;
	}
	return 0;
}

/* Option names in the table use '_'; '-' is also accepted. */
static bool same_name(const char *name, const char *given)
{
	for (; *name && *given; name++, given++)
		if (*name != *given && !(*name == '_' && *given == '-'))
			return false;
	return *name == *given;
}

static int find_option(const char *name)
{
	int id;

	for (id = 0; id < (int)ARRAY_SIZE(option_defs); id++)
		if (same_name(option_defs[id].name, name))
			return id;
	if (same_name("rx_depth", name))
		return OPT_RXDEPTH;
	return same_name("tx_depth", name) ? OPT_TXDEPTH : -ENOENT;
}

static int parse_value(const struct option_def *def, char *value, struct krping_options *opt,
		       struct reason *why)
{
	void *field = def->offset == NO_FIELD ? NULL : (char *)opt + def->offset;

	if (def->kind == FLAG) {
		if (value) {
			snprintf(why->buf, why->len, "%s takes no value", def->name);
			return -EINVAL;
		}
		if (field)
			*(bool *)field = true;
		return 0;
	}
	if (!value) {
		snprintf(why->buf, why->len, "%s needs a value: %s=...", def->name, def->name);
		return -EINVAL;
	}
	switch (def->kind) {
	case NUMBER:
		return parse_number(def, value, field, why);
	case NAME:
		return parse_name(value, field, why);
	case MEM_MODE:
		return parse_mem_mode(def, value, field, why);
	case MODE:
		return parse_mode(def, value, field, why);
	case VERB:
		return parse_verb(def, value, field, why);
	case QP_TYPE:
		return parse_qp_type(def, value, field, why);
	case BACKING:
		return parse_backing(value, opt, why);
	case COMM:
		return parse_comm(value, field, why);
	case OPS:
		return parse_ops(value, field, why);
	case SECTORS:
		return parse_sectors(value, opt, why);
	case KEY:
		return parse_key(value, field, why);
	case ALLOW:
		return parse_allow(value, opt, why);
	case UUID:
		return parse_uuid(value, field, why);
	case ADDR:
		return parse_source(value, opt, why);
	case ADDR4:
		return parse_addr4(value, opt, why);
	default:
		return parse_addr6(value, opt, why);
	}
}

/* One "name" or "name=value"; sets its bit in *given. */
static int parse_option(char *text, struct krping_options *opt, u64 *given,
			struct reason *why)
{
	char *value = strchr(text, '=');
	int id;

	if (value)
		*value++ = '\0';
	if (!*text && !value)
		return 0;	/* between two commas */
	id = find_option(text);
	if (id < 0) {
		snprintf(why->buf, why->len, "unknown option '%s'", quote(why, text));
		return -EINVAL;
	}
	if (*given & GIVEN(id) && (NOT_UPSTREAM & GIVEN(id) || !(option_defs[id].roles & PING))) {
		snprintf(why->buf, why->len, "%s is given twice", option_defs[id].name);
		return -EINVAL;
	}
	*given |= GIVEN(id);
	return parse_value(&option_defs[id], value, opt, why);
}

static int decide_role(struct krping_options *opt, u64 given, struct reason *why)
{
	u64 command = given & (GIVEN(OPT_CLIENT) | GIVEN(OPT_SERVER) | GIVEN(OPT_STOP));

	switch (command) {
	case GIVEN(OPT_CLIENT):
		opt->role = given & GIVEN(OPT_BLOCK) ? KRPING_BLOCK_CLIENT : KRPING_PING_CLIENT;
		return 0;
	case GIVEN(OPT_SERVER):
		opt->role = given & GIVEN(OPT_BLOCK) ? KRPING_BLOCK_SERVER : KRPING_PING_SERVER;
		return 0;
	case GIVEN(OPT_STOP):
		opt->role = KRPING_BLOCK_STOP;
		return 0;
	}
	snprintf(why->buf, why->len, "exactly one of client, server and stop is needed");
	return -EINVAL;
}

static int decide_test(struct krping_options *opt, u64 given, struct reason *why)
{
	u64 verbs = given & (GIVEN(OPT_VERB) | GIVEN(OPT_VERBS) | GIVEN(OPT_LAT));

	switch (given & (GIVEN(OPT_WLAT) | GIVEN(OPT_RLAT) | GIVEN(OPT_BW) | GIVEN(OPT_FR))) {
	case 0:
		opt->test = verbs ? KRPING_TEST_VERBS : KRPING_TEST_PING;
		opt->measure = given & GIVEN(OPT_LAT) ? KRPING_VERBS_LAT : 0;
		return 0;
	case GIVEN(OPT_WLAT):
		opt->test = KRPING_TEST_WLAT;
		return 0;
	case GIVEN(OPT_RLAT):
		opt->test = KRPING_TEST_RLAT;
		return 0;
	case GIVEN(OPT_BW):
		opt->test = verbs ? KRPING_TEST_VERBS : KRPING_TEST_BW;
		opt->measure = verbs && !(given & GIVEN(OPT_LAT)) ? KRPING_VERBS_BW : 0;
		return 0;
	case GIVEN(OPT_FR):
		opt->test = KRPING_TEST_FR;
		return 0;
	}
	snprintf(why->buf, why->len, "at most one of wlat, rlat, bw and fr can be given");
	return -EINVAL;
}

#define TAP_OPTIONS	(GIVEN(OPT_COMM) | GIVEN(OPT_PID) | GIVEN(OPT_OP) | GIVEN(OPT_SECTORS))

static int check_role(const struct krping_options *opt, u64 given, struct reason *why)
{
	int test = opt->test + (opt->test == KRPING_TEST_VERBS && opt->role == KRPING_PING_SERVER);
	bool tap = opt->mode == KRPING_MODE_TAP;
	unsigned int role = BIT(opt->role);
	int id;

	for (id = 0; id < (int)ARRAY_SIZE(option_defs); id++) {
		if (!(given & GIVEN(id)))
			continue;
		if (!(option_defs[id].roles & role)) {
			snprintf(why->buf, why->len, "%s does not go with %s",
				 option_defs[id].name, role_names[opt->role]);
			return -EINVAL;
		}
		if (role & PING && !(option_defs[id].tests & BIT(test))) {
			snprintf(why->buf, why->len, "%s does not go with %s",
				 option_defs[id].name, test_names[test]);
			return -EINVAL;
		}
	}
	if (role & PING_CLIENT && opt->test == KRPING_TEST_VERBS &&
	    krping_verbs_check(opt, given & GIVEN(OPT_COUNT), why->buf, why->len))
		return -EINVAL;
	if ((opt->server_inv || opt->read_inv) && given & GIVEN(OPT_MEM_MODE) && !opt->mem_reg) {
		snprintf(why->buf, why->len, "%s does not go with mem_mode=dma",
			 opt->server_inv ? "server_inv" : "read_inv");
		return -EINVAL;
	}
	if (role & CONNECTED && !(given & GIVEN(OPT_ADDR)) == !(given & GIVEN(OPT_ADDR6))) {
		snprintf(why->buf, why->len, "exactly one of addr and addr6 is needed");
		return -EINVAL;
	}
	if (opt->src_family && opt->src_family != opt->family) {
		snprintf(why->buf, why->len, "source and %s must be of the same family",
			 opt->family == AF_INET ? "addr" : "addr6");
		return -EINVAL;
	}
	if (role & BLOCK_CLIENT && given & TAP_OPTIONS && !tap) {
		snprintf(why->buf, why->len, "comm, pid, op and sectors need mode=tap");
		return -EINVAL;
	}
	if (role & BLOCK_CLIENT && tap != !!(given & GIVEN(OPT_BACKING))) {
		snprintf(why->buf, why->len,
			 "mode=tap needs backing=/dev/NAME or ram:SIZE; mode=remote takes no backing");
		return -EINVAL;
	}
	if (opt->poll_queues && tap) {
		snprintf(why->buf, why->len,
			 "poll_queues does not go with mode=tap, whose disk is not polled");
		return -EINVAL;
	}
	if (opt->queues + opt->poll_queues > 64) {
		snprintf(why->buf, why->len,
			 "queues=%u and poll_queues=%u: must be 64 together at most",
			 opt->queues, opt->poll_queues);
		return -EINVAL;
	}
	if (role & BLOCK_CLIENT && opt->read_only && (tap || opt->take_over)) {
		snprintf(why->buf, why->len,
			 "read_only does not go with %s, which writes",
			 tap ? "mode=tap" : "take_over");
		return -EINVAL;
	}
	if (role & BLOCK_SERVER && !(given & GIVEN(OPT_BACKING))) {
		snprintf(why->buf, why->len, "a block server needs backing=/dev/NAME or ram:SIZE");
		return -EINVAL;
	}
	if (given & GIVEN(OPT_BLOCK_SIZE) && opt->block_size != 512 && opt->block_size != 4096) {
		snprintf(why->buf, why->len, "block_size=%u: must be 512 or 4096", opt->block_size);
		return -EINVAL;
	}
	if (opt->target && opt->force) {
		snprintf(why->buf, why->len,
			 "force does not go with target: clients wait until the volume is back");
		return -EINVAL;
	}
	if (role & BLOCK_STOP && !(given & GIVEN(OPT_BLOCK))) {
		snprintf(why->buf, why->len, "stop needs block=NAME");
		return -EINVAL;
	}
	return 0;
}

static void set_defaults(struct krping_options *opt, u64 given)
{
	if (opt->test == KRPING_TEST_VERBS)
		krping_verbs_defaults(opt);
	if (!(given & GIVEN(OPT_PORT)))
		opt->port = KRPING_PORT;
	if (!(given & GIVEN(OPT_MEM_MODE)))
		opt->mem_reg = opt->server_inv || opt->read_inv;
	if (!opt->size)
		opt->size = opt->role == KRPING_PING_SERVER ? 65536 : 64;
	if (!(given & GIVEN(OPT_TIMEOUT)))
		opt->timeout = opt->role == KRPING_BLOCK_CLIENT ? 600 : 10;
	opt->has_tos = given & GIVEN(OPT_TOS);
	if (!opt->txdepth)
		opt->txdepth = 64;
	if (!opt->qps)
		opt->qps = 1;
	if (!(given & GIVEN(OPT_DEPTH)))
		opt->depth = 128;
	if (!(given & GIVEN(OPT_HEARTBEAT)))
		opt->heartbeat = 5;
	if (!(given & GIVEN(OPT_BLOCK_SIZE)))
		opt->block_size = 512;
	if (!(given & GIVEN(OPT_SECTORS)))
		opt->last_sector = U64_MAX;
}

int krping_options_parse(char *text, struct krping_options *opt, char *why_buf, size_t why_len)
{
	struct reason why = { .buf = why_buf, .len = why_len };
	size_t len = strlen(text);
	u64 given = 0;
	char *next;
	int ret;

	memset(opt, 0, sizeof(*opt));
	if (len && text[len - 1] == '\n')
		text[len - 1] = '\0';
	while (text) {
		next = strchr(text, ',');
		if (next)
			*next++ = '\0';
		ret = parse_option(text, opt, &given, &why);
		if (ret)
			return ret;
		text = next;
	}
	ret = decide_role(opt, given, &why);
	if (!ret)
		ret = decide_test(opt, given, &why);
	if (!ret)
		ret = check_role(opt, given, &why);
	if (!ret)
		set_defaults(opt, given);
	return ret;
}
