// SPDX-License-Identifier: Apache-2.0
/* Answers each line of input by what the module makes of it, for agree_test.go to compare with. */
#include <stdlib.h>

#include "verbs/account.h"
#include "verbs/message.h"

/* check TAG NUMBER DATA: the first wrong word */
static void check(char *line)
{
	static u8 data[1 << 16];
	struct krping_finding f = { 0 };
	unsigned int tag, number, byte, size = 0;
	int used;

	if (sscanf(line, "%x %u %n", &tag, &number, &used) != 2)
		exit(1);
	for (line += used; sscanf(line, "%2x", &byte) == 1; line += 2)
		data[size++] = byte;
	krping_message_check(data, size, tag, number, &f);
	printf("%u", f.damage);
	if (f.damage)
		printf(" %u %u %s %s %s %s %016llx %016llx", f.offset, f.number,
		       krping_message_may_be_written(&f) ? "true" : "false",
		       f.lone ? "true" : "false", f.blank ? "true" : "false",
		       krping_message_is_missing(&f, number % 5) ? "true" : "false",
		       (unsigned long long)f.want, (unsigned long long)f.got);
	printf("\n");
}

/* fill TAG NUMBER SIZE: the data */
static void fill(const char *line)
{
	static u8 data[1 << 16];
	unsigned int tag, number, size, i;

	if (sscanf(line, "%x %u %u", &tag, &number, &size) != 3)
		exit(1);
	krping_message_fill(data, size, tag, number);
	for (i = 0; i < size; i++)
		printf("%02x", data[i]);
	printf("\n");
}

/* near LOW BYTES NEXT: the number */
static void near(const char *line)
{
	unsigned long long next;
	unsigned int low, bytes;

	if (sscanf(line, "%u %u %llu", &low, &bytes, &next) != 3)
		exit(1);
	printf("%llu\n", (unsigned long long)krping_number_near(low, bytes, next));
}

/* account NUMBER...: the account; a negative number -n is missed as n - 1 */
static void account(char *line)
{
	struct krping_account a = { 0 };
	char *end;
	long long n;

	for (; n = strtoll(line, &end, 10), end != line; line = end)
		if (n < 0)
			krping_account_miss(&a, -n - 1);
		else
			krping_account_add(&a, n);
	printf("%llu %llu %llu %llu\n", (unsigned long long)a.next, (unsigned long long)a.received,
	       (unsigned long long)a.repeated, (unsigned long long)a.reordered);
}

int main(void)
{
	static char line[1 << 18];

	while (fgets(line, sizeof(line), stdin)) {
		char *rest = strchr(line, ' ');

		if (!rest)
			return 1;
		*rest++ = 0;
		if (!strcmp(line, "check"))
			check(rest);
		else if (!strcmp(line, "fill"))
			fill(rest);
		else if (!strcmp(line, "near"))
			near(rest);
		else if (!strcmp(line, "account"))
			account(rest);
		else
			return 1;
	}
	return 0;
}
