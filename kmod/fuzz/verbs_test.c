// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of the pure parts of a verbs test, in user space: words of messages, which messages have
 * arrived, rates. Prints what is wrong; its status is 1 then.
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "verbs/account.h"
#include "verbs/message.h"

static int failures;

#define EXPECT(cond, fmt, ...) do { \
	if (!(cond)) { \
		printf("line %d: %s: " fmt "\n", __LINE__, #cond, __VA_ARGS__); \
		failures++; \
	} \
} while (0)

#define GROUP	0xbeef
#define TAG	krping_message_tag(GROUP, 5, false)

/* Exact, so that a sanitizer sees an overrun. */
static u8 *message(u32 size, u16 tag, u64 number)
{
	u8 *data = malloc(size);

	krping_message_fill(data, size, tag, number);
	return data;
}

static struct krping_finding check(const u8 *data, u32 size, u16 tag, u64 number)
{
	struct krping_finding f;

	krping_message_check(data, size, tag, number, &f);
	return f;
}

/* The layout that PROTOCOL.md describes, written down by hand. */
static void test_layout(void)
{
	static const u8 want[12] = { 1, 2, 3, 4, 0xbe, 0xea, 0, 1, 1, 2, 3, 4 };
	u8 *data = message(12, TAG, 0x701020304ull);

	EXPECT(!memcmp(data, want, sizeof(want)), "%02x%02x", data[0], data[4]);
	free(data);
	data = message(2, TAG, 0x70304);
	EXPECT(data[0] == 3 && data[1] == 4, "%02x%02x", data[0], data[1]);
	free(data);
	EXPECT((TAG ^ krping_message_tag(GROUP, 5, true)) == 0xffff, "%x", TAG);
}

/* Each byte of each size is checked. */
static void test_damage(void)
{
	u32 size, i;

	for (size = 1; size < 80; size++) {
		u8 *data = message(size, TAG, 1000);

		EXPECT(!check(data, size, TAG, 1000).damage, "size %u", size);
		for (i = 0; i < size; i++) {
			struct krping_finding f;

			data[i] ^= 0x80;
			f = check(data, size, TAG, 1000);
			EXPECT(f.damage && f.offset == i, "size %u byte %u: %d at %u", size, i,
			       f.damage, f.offset);
			EXPECT(i + 8 >= size || (f.lone && f.damage == KRPING_VERBS_DAMAGED),
			       "size %u byte %u: %d", size, i, f.damage);
			data[i] ^= 0x80;
		}
		free(data);
	}
}

static void expect_damage(const u8 *data, u32 size, enum krping_verbs_damage want, u32 offset,
			  int line)
{
	struct krping_finding f = check(data, size, TAG, 1000);

	EXPECT(f.damage == want && f.offset == offset, "line %d, size %u: %d at %u, want %d at %u",
	       line, size, f.damage, f.offset, want, offset);
}

static void test_kinds(void)
{
	u32 size;

	for (size = 16; size < 200; size++) {
		u32 first = size % 8 ?: 8, half = first + (size - first) / 16 * 8;
		u8 *data = message(size, TAG, 1000), *other = message(size, TAG, 743);
		u8 *foreign = message(size, krping_message_tag(GROUP, 6, false), 1000);
		u8 *back = message(size, krping_message_tag(GROUP, 5, true), 1000);
		u32 number = first > 1 ? first - 2 : 0;	/* bytes 2 and 3 of a number differ */

		expect_damage(other, size, KRPING_VERBS_STALE, number, __LINE__);
		if (size - half >= 16 || half == size - 8) {
			memcpy(data + half, other + half, size - half);
			expect_damage(data, size, KRPING_VERBS_TORN, half + 6, __LINE__);
			krping_message_fill(data, size, TAG, 1000);
		}
		if (half >= first + 8) {
			memcpy(data, other, half);
			expect_damage(data, size, KRPING_VERBS_TORN, number, __LINE__);
		}
		if (first == 8 && size > 16) {
			expect_damage(foreign, size, KRPING_VERBS_FOREIGN, 1, __LINE__);
			expect_damage(back, size, KRPING_VERBS_FOREIGN, 0, __LINE__);
			krping_message_fill(data, size, TAG, 1000);
			memmove(data, data + 8, size - 8);
			expect_damage(data, size, KRPING_VERBS_SHIFTED, 3, __LINE__);
		}
		memset(data, 0xff, size);
		EXPECT(check(data, size, TAG, 1000).blank, "size %u", size);
		free(data);
		free(other);
		free(foreign);
		free(back);
	}
}

/* On UC, a slot into which only the first packets of a message were written. */
static void test_missing(void)
{
	static const u32 sizes[] = { 4, 8, 64, 300, 509, 512, 520, 1000, 4096 };
	u32 i, at;

	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		u32 size = sizes[i];
		u8 *other = message(size, TAG, 743), *data = message(size, TAG, 1000);
		struct krping_finding f;

		for (at = 0; at < size; at += 256) {
			memcpy(data + at, other + at, size - at);
			f = check(data, size, TAG, 1000);
			EXPECT(f.damage && krping_message_is_missing(&f, 257), "size %u at %u",
			       size, at);
			EXPECT(!krping_message_is_missing(&f, 256), "size %u at %u", size, at);
			EXPECT(krping_message_is_missing(&f, 0), "size %u at %u", size, at);
			memset(data + at, 0xff, size - at);
			f = check(data, size, TAG, 1000);
			EXPECT(f.damage && krping_message_is_missing(&f, 1), "size %u at %u", size,
			       at);
			krping_message_fill(data, size, TAG, 1000);
		}
		for (at = 0; at < size; at++) {
			u32 skip = -size % 8, word = (at + skip) / 8 * 8;

			if (!word || (word - skip + 7) % 256 < 8)
				continue;	/* a packet may begin at this word or in it */
			data[at] ^= 0xff;
			f = check(data, size, TAG, 1000);
			EXPECT(f.damage && !krping_message_is_missing(&f, 0), "size %u at %u: %d",
			       size, at, f.damage);
			data[at] ^= 0xff;
		}
		free(data);
		free(other);
	}
}

/* A slot that is being written is told from one that is damaged. */
static void test_being_written(void)
{
	u32 size, at;

	for (size = 16; size < 600; size += 61) {
		u8 *data = message(size, TAG, 1000), *earlier = message(size, TAG, 1000 - 256);
		struct krping_finding f;

		for (at = 0; at < size; at++) {
			krping_message_fill(data, size, TAG, 1000);
			memcpy(data + at, earlier + at, size - at);
			f = check(data, size, TAG, 1000);
			EXPECT(!f.damage || krping_message_may_be_written(&f), "size %u at %u",
			       size, at);
			krping_message_fill(data, size, TAG, 1000);
			data[at] ^= 1;
			f = check(data, size, TAG, 1000);
			if ((at + 8 - size % 8) % 8 < 4)
				EXPECT(f.damage && !krping_message_may_be_written(&f),
				       "size %u at %u", size, at);
		}
		free(data);
		free(earlier);
	}
}

/* A flipped bit of a number is damage, unless an earlier message of the slot has that number. */
static void test_flipped_number(void)
{
	static const u32 sizes[] = { 4, 7, 8, 264 };
	u32 i, bit, slots = 64;

	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		u32 size = sizes[i];
		u8 *data = message(size, TAG, 1000);

		for (bit = 0; bit < 32; bit++) {
			bool earlier = 1000 >> bit & 1 && !((1u << bit) % slots);
			u8 *byte = data + size - 1 - bit / 8;
			struct krping_finding f;

			*byte ^= 1 << bit % 8;
			f = check(data, size, TAG, 1000);
			EXPECT(f.damage && krping_message_is_missing(&f, slots) == earlier,
			       "size %u bit %u: %d", size, bit, f.damage);
			*byte ^= 1 << bit % 8;
		}
		free(data);
	}
}

static bool flipping = true;

static void *flip(void *at)
{
	while (__atomic_load_n(&flipping, __ATOMIC_RELAXED))
		__atomic_xor_fetch((u8 *)at, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* Data that becomes right while it is examined: the check ends, and what it finds is consistent. */
static void test_changing(void)
{
	u8 *data = message(64, TAG, 1000);
	time_t end = time(NULL) + 2;
	pthread_t thread;

	alarm(20);
	if (pthread_create(&thread, NULL, flip, data + 20)) {
		EXPECT(false, "%s", "no thread");
		return;
	}
	while (time(NULL) < end) {
		struct krping_finding f = check(data, 64, TAG, 1000);

		if (f.damage && (f.offset != 20 || f.want == f.got)) {
			EXPECT(false, "%llx, want %llx, at %u", f.got, f.want, f.offset);
			break;
		}
	}
	__atomic_store_n(&flipping, false, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
	free(data);
	alarm(0);
}

static void test_numbers(void)
{
	static const struct {
		u32 low, bytes;
		u64 near, want;
	} cases[] = {
		{ 0, 4, 0, 0 }, { 7, 4, 5, 7 }, { 5, 4, 7, 5 }, { 255, 1, 256, 255 },
		{ 3, 1, 250, 259 }, { 250, 1, 259, 250 }, { 0, 4, 0xffffffff, 0x100000000 },
		{ 0xffffffff, 4, 0x100000000, 0xffffffff }, { 200, 1, 0, 200 },
		{ 65535, 2, 3, 65535 },
	};
	u8 data[3] = { 9, 1, 2 };
	u32 i;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		u64 got = krping_number_near(cases[i].low, cases[i].bytes, cases[i].near);

		EXPECT(got == cases[i].want, "case %u: %llu, want %llu", i, got, cases[i].want);
	}
	EXPECT(krping_message_number(data, 3, 2, 0) == 0x102, "%s", "");
	EXPECT(krping_message_number(data, 3, 3, 0) == 0x90102, "%s", "");
}

static void test_account(void)
{
	struct krping_account a = {};
	static const u64 order[] = { 0, 1, 3, 2, 2, 7, 3, 6, 5000, 4, 4999, 5000 };
	u32 i;

	for (i = 0; i < ARRAY_SIZE(order); i++)
		krping_account_add(&a, order[i]);
	/* 4 is too late to tell: it counts as repeated */
	EXPECT(a.next == 5001 && a.received == 8 && a.repeated == 4 && a.reordered == 3,
	       "next %llu received %llu repeated %llu reordered %llu", a.next, a.received,
	       a.repeated, a.reordered);
	EXPECT(krping_account_lacks(&a, 4998) && !krping_account_lacks(&a, 4999) &&
	       !krping_account_lacks(&a, 5001) && !krping_account_lacks(&a, 2) &&
	       krping_account_lacks(&a, 5001 - KRPING_ACCOUNT_WINDOW), "%s", "lacks");
	krping_account_miss(&a, 5003);
	krping_account_add(&a, 5002);
	EXPECT(a.next == 5004 && a.received == 9 && a.reordered == 4, "%llu", a.next);
}

/* Against a list of everything that arrived. */
static void test_account_at_random(void)
{
	static u8 arrived[20000];
	struct krping_account a = {};
	u64 received = 0, repeated = 0, reordered = 0, top = 0;
	u32 i, seed = 1;

	for (i = 0; i < 15000; i++) {
		u64 n;

		seed = seed * 1103515245 + 12345;
		n = i + (seed >> 16) % 1000;
		krping_account_add(&a, n);
		if (arrived[n]++) {
			repeated++;
		} else {
			received++;
			reordered += n < top;
		}
		top = max(top, n + 1);
	}
	EXPECT(a.received == received && a.repeated == repeated && a.reordered == reordered &&
	       a.next == top, "%llu %llu %llu", a.received, a.repeated, a.reordered);
}

static void test_rates(void)
{
	struct krping_peak peak = { .start = 1000 };
	u64 ms = 1000000, now;
	u32 i;

	for (i = 1; i <= 1000; i++)	/* 10 a ms, and 30 a ms for a while */
		krping_peak_add(&peak, 1000 + i * ms, i > 300 && i <= 500 ? 30 : 10);
	EXPECT(krping_peak_rate(&peak) == 30000, "%llu", krping_peak_rate(&peak));
	peak = (struct krping_peak){};
	krping_peak_add(&peak, 150 * ms, 10);
	EXPECT(!krping_peak_rate(&peak), "%llu", krping_peak_rate(&peak));
	EXPECT(krping_rate_total(3, 0) == 1, "%s", "");
	EXPECT(krping_rate_total(3, 1000 * ms) == 4, "%s", "");
	now = 86400ull * 1000 * ms;
	EXPECT(krping_rate_total(1000000000, now) == 86400ull * 1000000000 + 1, "%s", "");
}

static void test_work_bytes(void)
{
	u64 deep = krping_work_bytes(16000, 0, 16000);

	EXPECT(!krping_work_bytes(0, 0, 0), "%s", "");
	EXPECT(krping_work_bytes(0, 0, 1) == 128, "%llu", krping_work_bytes(0, 0, 1));
	/* what Soft-RoCE takes: 4 MiB of sends, 1 MiB of receives, 2 MiB of completions */
	EXPECT(deep == 7 << 20, "%llu", deep);
	EXPECT(krping_work_bytes(16000, 1000, 16000) == 35 << 20, "%s", "with inline data");
}

int main(void)
{
	test_layout();
	test_damage();
	test_kinds();
	test_missing();
	test_being_written();
	test_flipped_number();
	test_changing();
	test_numbers();
	test_account();
	test_account_at_random();
	test_rates();
	test_work_bytes();
	return failures ? 1 : 0;
}
