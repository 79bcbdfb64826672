// SPDX-License-Identifier: GPL-2.0
#include "verbs/message.h"

#ifdef __KERNEL__
#include <linux/kernel.h>
#include <linux/string.h>
#endif

/* A packet that is not the last one of its message has a multiple of this many bytes. */
#define PACKET	256u

/* How far apart the numbers of two messages may be, for one to be taken for the other. */
#define NEAR	1000000u

/* @by_server: the server fills the data. */
u16 krping_message_tag(u16 group, u16 queue, bool by_server)
{
	u16 tag = group ^ queue;

	return by_server ? ~tag : tag;
}

static u64 word_of(u16 tag, u32 index, u64 number)
{
	return (u64)tag << 48 | (u64)(index & 0xffff) << 32 | (u32)number;
}

/* Bytes of the first word that the message lacks. */
static u32 lacking(u32 size)
{
	return -size % KRPING_WORD;
}

static u32 nr_words(u32 size)
{
	return (size + lacking(size)) / KRPING_WORD;
}

static void put_word(u8 *at, u64 word)
{
	__be64 raw = cpu_to_be64(word);

	memcpy(at, &raw, sizeof(raw));
}

static u64 get_word(const u8 *at)
{
	__be64 raw;

	memcpy(&raw, at, sizeof(raw));
	OPTIMIZER_HIDE_VAR(raw);	/* read once: the peer may write to it meanwhile */
	return be64_to_cpu(raw);
}

void krping_message_fill(u8 *data, u32 size, u16 tag, u64 number)
{
	u32 skip = lacking(size), nr = nr_words(size), i = 0;

	if (skip) {
		__be64 raw = cpu_to_be64(word_of(tag, 0, number));

		memcpy(data, (u8 *)&raw + skip, sizeof(raw) - skip);
		data += sizeof(raw) - skip;
		i = 1;
	}
	for (; i < nr; i++, data += KRPING_WORD)
		put_word(data, word_of(tag, i, number));
}

/* The bits of word @i that are in the message. */
static u64 mask_of(u32 size, u32 i)
{
	return i ? ~0ull : ~0ull >> 8 * lacking(size);
}

/* Word @i; bits that are not in the message are those of @want. */
static u64 word_at(const u8 *data, u32 size, u32 i, u64 want)
{
	u64 mask = mask_of(size, i), low = 0;
	u32 skip = lacking(size), j;

	if (mask == ~0ull)
		return get_word(data + i * KRPING_WORD - skip);
	for (j = 0; j < KRPING_WORD - skip; j++)
		low = low << 8 | data[j];
	return (want & ~mask) | low;
}

static bool is_right(const u8 *data, u32 size, u32 i, u16 tag, u64 number)
{
	u64 want = word_of(tag, i, number);

	return word_at(data, size, i, want) == want;
}

static bool is_near(u32 a, u32 b)
{
	return a - b < NEAR || b - a < NEAR;
}

/* Whether both tags can be of one test. */
static bool is_related(u16 a, u16 b)
{
	u32 difference = a ^ b;

	return difference < KRPING_VERBS_QPS_MAX || 0xffff - difference < KRPING_VERBS_QPS_MAX;
}

/* @i: the first wrong word. */
static enum krping_verbs_damage classify(const u8 *data, u32 size, u16 tag, u64 number, u32 i,
					 const struct krping_finding *f)
{
	u16 got_tag = f->got >> 48, got_index = f->got >> 32;
	bool same_tag = got_tag == tag, same_index = got_index == (i & 0xffff);
	bool same_number = f->number == (u32)number;
	u32 last = nr_words(size) - 1;

	if (f->lone)
		return KRPING_VERBS_DAMAGED;
	if (f->own)
		return !i && !is_right(data, size, last, tag, number) ? KRPING_VERBS_STALE :
									 KRPING_VERBS_TORN;
	if (same_tag && !same_index && same_number)
		return KRPING_VERBS_SHIFTED;
	if (!same_tag && same_index && is_related(got_tag, tag) && is_near(f->number, number))
		return KRPING_VERBS_FOREIGN;
	return KRPING_VERBS_DAMAGED;
}

/* @got: word @i, which is wrong; in @data it may be right by now. */
static void examine(const u8 *data, u32 size, u16 tag, u64 number, u32 i, u64 got,
		    struct krping_finding *f)
{
	u64 want = word_of(tag, i, number), mask = mask_of(size, i);
	u32 start = i * KRPING_WORD, skip = lacking(size), byte = 0;
	bool aligned = !i || !((start - skip) % PACKET);

	while (byte < KRPING_WORD - 1 && !((want ^ got) >> (56 - 8 * byte) & 0xff))
		byte++;
	*f = (struct krping_finding){
		.offset = start + byte - skip,
		.number = got,
		.own = got >> 32 == want >> 32 && is_near(got, number),
		.lone = i + 1 < nr_words(size) && is_right(data, size, i + 1, tag, number),
		.split = !aligned && (start - skip) % PACKET > PACKET - KRPING_WORD,
		.blank = (got & mask) == mask,
		.want = want,
		.got = got,
	};
	f->edge = aligned || f->split;
	f->damage = classify(data, size, tag, number, i, f);
}

/**
 * krping_message_check - check all words of a message
 * @data:	the message
 * @size:	its bytes, at least 1
 * @tag:	expected tag
 * @number:	expected message number
 * @finding:	filled in
 */
void krping_message_check(const u8 *data, u32 size, u16 tag, u64 number,
			  struct krping_finding *finding)
{
	u32 nr = nr_words(size), i;

	finding->damage = KRPING_VERBS_INTACT;
	for (i = 0; i < nr; i++) {
		u64 want = word_of(tag, i, number), got = word_at(data, size, i, want);

		if (got != want) {
			examine(data, size, tag, number, i, got, finding);
			return;
		}
	}
}

/* Whether bytes of a word are right, and the others were never written. */
static bool is_partly_blank(u64 want, u64 got)
{
	for (; want | got; want >>= 8, got >>= 8) {
		if ((got & 0xff) != (want & 0xff) && (got & 0xff) != 0xff)
			return false;
	}
	return true;
}

/**
 * krping_message_may_be_written - whether a slot is wrong as one is that is being written
 * @finding:	of the slot
 *
 * So is a slot that has a part of a message. Which part that is depends on how the device copies.
 */
bool krping_message_may_be_written(const struct krping_finding *finding)
{
	return finding->own || is_partly_blank(finding->want, finding->got);
}

/**
 * krping_message_is_missing - whether packets that were lost explain a slot that is wrong
 * @finding:	of a slot that UC writes to
 * @slots:	every @slots-th message is written there, and none ahead of its time; 0: any may be
 *
 * The slot has what it held before from the first packet on that was lost. So the first wrong word
 * is where a packet begins, and is of an earlier message there, or of none.
 */
bool krping_message_is_missing(const struct krping_finding *finding, u32 slots)
{
	s32 behind = (u32)finding->want - finding->number;

	if (!finding->edge || finding->lone)
		return false;
	if (finding->blank || (finding->damage == KRPING_VERBS_DAMAGED && finding->split))
		return true;
	if (finding->damage != KRPING_VERBS_STALE && finding->damage != KRPING_VERBS_TORN)
		return false;
	return !slots || (behind > 0 && !((u32)behind % slots));
}

/**
 * krping_number_near - the message number of which only the low bytes are known
 * @low:	its low @bytes bytes
 * @bytes:	1 to 4
 * @near:	a number that it is close to
 *
 * Return: the closest number to @near with these bytes; not below 0.
 */
u64 krping_number_near(u32 low, u32 bytes, u64 near)
{
	u32 shift = 32 - 8 * bytes;
	s64 difference = (s32)((low - (u32)near) << shift) >> shift;

	if (difference < 0 && near < (u64)-difference)
		difference += 1ll << (8 * bytes);
	return near + difference;
}

/* The number that the last @bytes bytes of a message have. @bytes: 1 to 4, at most @size. */
u64 krping_message_number(const u8 *data, u32 size, u32 bytes, u64 near)
{
	u32 low = 0, i;

	for (i = size - bytes; i < size; i++)
		low = low << 8 | data[i];
	return krping_number_near(low, bytes, near);
}

const char *krping_damage_text(enum krping_verbs_damage damage)
{
	switch (damage) {
	case KRPING_VERBS_FOREIGN:
		return "foreign: of another queue pair, or of the other direction";
	case KRPING_VERBS_SHIFTED:
		return "shifted: of another place in the message";
	case KRPING_VERBS_STALE:
		return "stale: all of it is another message";
	case KRPING_VERBS_TORN:
		return "torn: a part of it is another message";
	default:
		return "damaged: nothing that was sent";
	}
}
